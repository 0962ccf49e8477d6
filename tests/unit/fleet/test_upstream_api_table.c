/* Each kind of upstream is described completely: what a new one must have. */
#include "fleet/api/upstream_api_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Operations and queries without which the fleet cannot run an engine. */
static const enum api_op ops[] = {API_INIT_TRANSFER, API_START_UPDATE,   API_UPDATE_WEIGHTS,
                                  API_FINISH_UPDATE, API_PAUSE,          API_RESUME,
                                  API_SLEEP,         API_WAKE,           API_RESET_PREFIX_CACHE,
                                  API_LOAD_ADAPTER,  API_UNLOAD_ADAPTER, API_SET_VERSION};
static const enum api_query queries[] = {API_GET_STATUS, API_GET_VERSION, API_GET_RANKS,
                                         API_GENERATE_TOKEN, API_GET_CONFIG};

static void test_each_kind_has_a_unique_name(void **state)
{
    enum upstream_kind found;
    struct err e = {0};

    (void)state;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        const char *name = upstream_kind_name((enum upstream_kind)kind);

        assert_int_equal(upstream_kind_parse(&found, name, "", &e), 0);
        assert_int_equal(found, kind);
    }
    assert_int_equal(upstream_kind_parse(&found, "vLLM", "/kind", &e), -1);
    assert_string_equal(e.msg, "'vLLM' is not one of baton, vllm, sglang");
    assert_string_equal(e.field, "/kind");
}

static void test_each_kind_reads_every_reply(void **state)
{
    (void)state;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        const struct upstream_api *api = upstream_api((enum upstream_kind)kind);

        assert_non_null(api->read_status);
        assert_non_null(api->version_at);
        assert_non_null(api->n_ranks);
        assert_non_null(api->config);
        assert_non_null(api->check_done);
        assert_non_null(strstr(api->wrong_kind_hint, "URL,"));
    }
}

static void test_each_kind_has_the_required_rows(void **state)
{
    (void)state;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        const struct upstream_api *api = upstream_api((enum upstream_kind)kind);

        for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
            assert_non_null(api->ops[ops[i]].path);
        for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
            assert_non_null(api->queries[queries[i]].path);
        assert_int_equal(api->ops[API_VERIFY_UPDATE].path != NULL, api->caps.two_phase);
        assert_int_equal(api->ops[API_ABORT_UPDATE].path != NULL, api->caps.two_phase);
        assert_int_equal(api->ops[API_RETRACT_REQUESTS].path != NULL, api->caps.retracts_requests);
    }
}

static void check_row(const struct api_row *row)
{
    assert_int_equal(row->method == NULL, row->path == NULL);
    assert_true(row->path == NULL || row->path[0] == '/');
    assert_true(row->body == NULL || row->make == NULL);
}

static void test_each_row_is_a_request(void **state)
{
    (void)state;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        const struct upstream_api *api = upstream_api((enum upstream_kind)kind);

        for (int op = 0; op < API_OPS; op++) {
            const struct api_row *row = &api->ops[op];

            check_row(row);
        }
        for (int query = 0; query < API_QUERIES; query++) {
            const struct api_row *row = &api->queries[query];

            check_row(row);
            assert_true(row->older == NULL || (row->path != NULL && row->older[0] == '/'));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_has_a_unique_name),
        cmocka_unit_test(test_each_kind_reads_every_reply),
        cmocka_unit_test(test_each_kind_has_the_required_rows),
        cmocka_unit_test(test_each_row_is_a_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
