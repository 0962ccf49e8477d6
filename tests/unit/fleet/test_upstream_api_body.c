/* The bodies of requests: what a client sent and what is added to it, what the server sends by
 * itself, and one body for several engines. */
#include "fleet/api/upstream_api.h"
#include "tests/unit/fleet/api_args_of.h"
#include "weights/tensor_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* All members of a client get to a baton, in their order, and ours come behind them; one text of
 * them serves all batons. Ours replace those of the same name. */
static void test_a_baton_gets_the_client_s_body(void **state)
{
    static const struct {
        const char *native, *wanted;
    } rows_of_steps[] = {
        {"{}", "{\"chunk_id\":\"c\\\"\",\"update_id\":\"u-0\"}"},
        {"{\"new\":[1.5,{}],\"names\":[\"a\"]}",
         "{\"new\":[1.5,{}],\"names\":[\"a\"],\"chunk_id\":\"c\\\"\",\"update_id\":\"u-0\"}"},
        {"{\"update_id\":\"x\",\"names\":[]}",
         "{\"update_id\":\"u-0\",\"names\":[],\"chunk_id\":\"c\\\"\"}"},
    };
    struct own_args own;
    struct api_request r;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows_of_steps / sizeof rows_of_steps[0]; i++) {
        const struct api_args *args = own_args_of(&own, API_UPDATE_WEIGHTS,
                                                  rows_of_steps[i].native);

        own.tensors.chunk_id = "c\"";
        for (char k = '1'; k >= '0'; k--) {
            char id[] = {'u', '-', k, '\0'};
            const struct api_context ctx = {.update_id = id};

            assert_int_equal(
                api_make_request(&r, UPSTREAM_BATON, API_UPDATE_WEIGHTS, args, &ctx, &e), 0);
            if (k == '0')
                assert_string_equal(r.body, rows_of_steps[i].wanted);
            assert_int_equal(r.body_len, strlen(r.body));
            api_request_fini(&r);
        }
        own_args_fini(&own);
    }
}

static void test_requests_share_a_body(void **state)
{
    static const struct api_context a = {.release = "1", .group_name = "g"},
                                    same = {.release = "1", .group_name = "g"},
                                    others[] = {
                                        {.release = "2", .group_name = "g"},
                                        {.release = "1"},
                                        {.release = "1", .group_name = "g", .has_begun = true},
                                        {.release = "1", .group_name = "g", .update_id = "u"},
                                        {.release = "1", .group_name = "g", .rank_offset = 1}};
    const struct api_args start = {0};
    struct api_request r[3];
    struct err e = {0};

    (void)state;
    assert_true(api_context_equal(&a, &same));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(api_context_equal(&a, &others[i]));
    assert_int_equal(api_make_request(&r[0], UPSTREAM_VLLM, API_START_UPDATE, &start, &a, &e), 0);
    assert_int_equal(api_request_share(&r[1], &r[0], &e), 0);
    assert_int_equal(api_request_share(&r[2], &r[0], &e), 0);
    api_request_fini(&r[0]);
    assert_ptr_equal(r[1].body, r[2].body);
    api_request_fini(&r[2]);
    assert_string_equal(r[1].body, "{\"is_checkpoint_format\":true}");
    assert_string_equal(r[1].path, "/start_weight_update");
    api_request_fini(&r[1]);
    assert_int_equal(api_make_request(&r[0], UPSTREAM_VLLM, API_RESUME, &start, &a, &e),
                     0); /* no body */
    assert_int_equal(api_request_share(&r[1], &r[0], &e), 0);
    assert_null(r[1].body);
    api_request_fini(&r[0]);
    api_request_fini(&r[1]);
}

static void is_sent(enum upstream_kind kind, enum api_op op, const struct api_args *args,
                    const char *wanted)
{
    struct api_args own = *args;
    struct api_request r;
    struct err e = {0};

    own.native = args->tensors != NULL ? api_object_of(args->tensors) : NULL;
    assert_int_equal(api_make_request(&r, kind, op, &own, &(struct api_context){0}, &e), 0);
    assert_string_equal(r.body, wanted);
    api_request_fini(&r);
    api_object_unref(own.native);
}

/* The hand-off has no client. */
static void test_requests_of_the_server_itself(void **state)
{
    static const struct tensor_spec spec = {
        .name = "a", .dtype = DTYPE_BF16, .ndim = 2, .shape = {2, 3}, .nbytes = 12};
    static struct tensor_list list = {.n_tensors = 1, .tensors = &spec};
    static const char *const entries[] = {"x", "y"};
    const struct api_args handles = {
        .tensors = &(struct api_tensors){.list = &list, .by_handles = true, .handles = "h"}};
    const struct api_args packed = {
        .tensors = &(struct api_tensors){
            .list = &list, .by_handles = true, .packed = true, .handles = "h"}};
    const struct api_args buckets = {
        .tensors = &(struct api_tensors){
            .serialized = true, .entries = entries, .n_entries = 2, .format = "flattened_bucket"}};
    const struct api_args start = {.lease_s = 9};
    const struct api_args pause = {.pause = &(struct api_pause){.mode = PAUSE_KEEP, .owner = "o"}};

    (void)state;
    is_sent(UPSTREAM_BATON, API_UPDATE_WEIGHTS, &handles,
            "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[2,3]],"
            "\"ipc_handles_pickled\":\"h\"}");
    is_sent(UPSTREAM_BATON, API_UPDATE_WEIGHTS, &packed,
            "{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[2,3]],"
            "\"tensor_sizes\":[12],\"packed\":true,\"ipc_handles_pickled\":\"h\"}");
    is_sent(UPSTREAM_VLLM, API_UPDATE_WEIGHTS, &packed,
            "{\"update_info\":{\"names\":[\"a\"],\"dtype_names\":[\"bfloat16\"],"
            "\"shapes\":[[2,3]],\"tensor_sizes\":[12],\"ipc_handles_pickled\":\"h\"}}");
    is_sent(UPSTREAM_SGLANG, API_UPDATE_WEIGHTS, &buckets,
            "{\"serialized_named_tensors\":[\"x\",\"y\"],\"load_format\":\"flattened_bucket\","
            "\"flush_cache\":false}");
    is_sent(UPSTREAM_BATON, API_START_UPDATE, &start, "{\"lease_s\":9}");
    is_sent(UPSTREAM_BATON, API_PAUSE, &pause, "{\"mode\":\"keep\",\"owner\":\"o\"}");
    is_sent(UPSTREAM_BATON, API_SLEEP, &(struct api_args){0}, "{}");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_baton_gets_the_client_s_body),
        cmocka_unit_test(test_requests_of_the_server_itself),
        cmocka_unit_test(test_requests_share_a_body),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
