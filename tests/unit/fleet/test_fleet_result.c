/* Results of engines' replies, in terms of our client's errors. */
#include "fleet/calls/fleet_result.h"

#include "fleet/api/upstream_api.h"
#include "fleet/members/upstream_fanout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fleet_result read_answer(int status, const char *text)
{
    struct upstream_reply a = {
        .requested = true, .sent = true, .status = status, .good = status < 300};
    struct fleet_result result = {0};

    a.text = text != NULL ? strdup(text) : NULL;
    a.text_len = text != NULL ? strlen(text) : 0;
    if (!a.good)
        (void)err_set(&a.why, ERR_UPSTREAM, "", "it answered");
    fleet_result_read(&result, "http://u", &a);
    assert_null(a.text);
    return result;
}

static void test_fleet_result_read_maps_refusals_by_code(void **state)
{
    static const struct {
        int status;
        const char *text;
        enum err_code code;
        const char *field, *msg;
    } rows[] = {
        {422,
         "{\"error\":{\"code\":\"checksum_mismatch\",\"message\":\"no\",\"param\":\"/checksums/"
         "a\"}}",
         ERR_CHECKSUM, "/checksums/a", "http://u answered 422: no"},
        {409, "{\"error\":{\"code\":\"update_closed\",\"message\":\"no\",\"param\":null}}",
         ERR_ENDED, "", "http://u answered 409: no"},
        /* a code that does not belong to the status is ignored */
        {500, "{\"error\":{\"code\":\"checksum_mismatch\",\"message\":\"no\"}}", ERR_UPSTREAM, "",
         "http://u answered 500: no"},
        /* errors about our own key, and internal errors, do not concern our client */
        {401, "{\"error\":{\"code\":\"unauthorized\",\"message\":\"no\"}}", ERR_UPSTREAM_KEY, "",
         "http://u refuses the key of this server: 401: no"},
        {403, "no", ERR_UPSTREAM_KEY, "", "http://u refuses the key of this server: 403: no"},
        {403, "{\"error\":{\"code\":\"forbidden\",\"message\":\"no\",\"param\":null}}",
         ERR_UPSTREAM_KEY, "", "http://u refuses the key of this server: 403: no"},
        /* a member of the request does */
        {403, "{\"error\":{\"code\":\"forbidden\",\"message\":\"no\",\"param\":\"/path\"}}",
         ERR_FORBIDDEN, "/path", "http://u answered 403: no"},
        {421, "{\"error\":{\"code\":\"misdirected_request\",\"message\":\"no\"}}", ERR_UPSTREAM_KEY,
         "", "http://u answered 421: no"},
        {500, "{\"error\":{\"code\":\"internal_error\",\"message\":\"no\"}}", ERR_UPSTREAM, "",
         "http://u answered 500: no"},
        /* servers without our error codes */
        {400, "{\"detail\":\"no\"}", ERR_BAD_REQUEST, "", "http://u answered 400: no"},
        {409, "no", ERR_CONFLICT, "", "http://u answered 409: no"},
        {422, "no", ERR_MISMATCH, "", "http://u answered 422: no"},
        {413, "no", ERR_TOO_LARGE, "", "http://u answered 413: no"},
        {404, "no", ERR_UPSTREAM, "", "http://u answered 404: no"},
        {500, NULL, ERR_UPSTREAM, "", "http://u answered 500: "},
        {503, "no", ERR_UPSTREAM, "", "http://u answered 503: no"},
        {301, "", ERR_UPSTREAM, "", "http://u answered 301: "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fleet_result result = read_answer(rows[i].status, rows[i].text);

        assert_int_equal(result.outcome, FLEET_REFUSED);
        assert_int_equal(result.why.code, rows[i].code);
        assert_string_equal(result.why.field, rows[i].field);
        assert_string_equal(result.why.msg, rows[i].msg);
        free(result.text);
    }
}

static void test_fleet_result_read_without_a_reply(void **state)
{
    struct upstream_reply hung = {.requested = true, .sent = true}, dead = {.requested = true},
                          none = {.good = true};
    struct fleet_result results[3] = {{0}, {0}, {0}};

    (void)state;
    (void)err_set(&hung.why, ERR_UPSTREAM_TIMEOUT, "", "it did not answer");
    (void)err_set(&dead.why, ERR_UPSTREAM, "", "connection refused");
    fleet_result_read(&results[0], "http://u", &hung);
    fleet_result_read(&results[1], "http://u", &dead);
    fleet_result_read(&results[2], "http://u", &none);
    assert_int_equal(results[0].outcome, FLEET_UNKNOWN);
    assert_int_equal(results[0].why.code, ERR_UPSTREAM_TIMEOUT);
    assert_int_equal(results[1].outcome, FLEET_UNSENT);
    assert_int_equal(results[1].why.code, ERR_UPSTREAM);
    assert_int_equal(results[2].outcome, FLEET_SKIPPED);
    assert_int_equal(fleet_result_answer(&results[0]), HAVE_LOST);
    assert_int_equal(fleet_result_answer(&results[1]), HAVE_UNSENT);
    assert_true(fleet_result_may_have_run(&results[0]));
    assert_false(fleet_result_may_have_run(&results[1]));
    assert_false(fleet_result_may_have_run(&results[2]));
    assert_ptr_equal(fleet_results_cause(&(struct fleet_results){results, 3}), &results[0]);
    assert_ptr_equal(fleet_results_cause(&(struct fleet_results){&results[1], 2}), &results[1]);
    assert_null(fleet_results_cause(&(struct fleet_results){&results[2], 1}));
}

static void test_fleet_results_cause_prefers_a_refusal(void **state)
{
    struct fleet_result results[2] = {{.outcome = FLEET_UNKNOWN}, {0}};

    (void)state;
    results[1] = read_answer(503, "no");
    assert_ptr_equal(fleet_results_cause(&(struct fleet_results){results, 2}), &results[1]);
    assert_true(fleet_result_may_have_run(&results[1]));
    free(results[1].text);
    results[1] = read_answer(404, NULL);
    assert_false(fleet_result_may_have_run(&results[1])); /* rejected before any work */
}

/* A client that gets a 4xx may rely on it that nothing was changed. */
static void test_fleet_results_done_is_no_4xx_after_a_change(void **state)
{
    static const enum fleet_outcome others[] = {FLEET_UNSENT, FLEET_SKIPPED, FLEET_OK,
                                                FLEET_UNKNOWN};
    struct fleet_result results[2] = {{0}, {0}};
    struct err e = {0};

    (void)state;
    results[1] = read_answer(409, "no");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        results[0].outcome = others[i];
        assert_false(fleet_results_done(&(struct fleet_results){results, 2}, &e));
        assert_int_equal(e.code, i < 2 ? ERR_CONFLICT : ERR_UPSTREAM);
    }
    free(results[1].text);
    assert_true(fleet_results_done(&(struct fleet_results){results, 0}, &e));
}

static void test_fleet_result_read_lost_update(void **state)
{
    static const char gone[] = "{\"error\":{\"code\":\"not_found\",\"message\":\"no\","
                               "\"param\":\"/update_id\"}}";
    const struct api_context inner = {.update_id = "upd-1"}, none = {0};
    struct fleet_result result = read_answer(404, gone);

    (void)state;
    assert_false(fleet_result_read_lost(&result, &none, "http://u")); /* our client gave the id */
    assert_int_equal(result.why.code, ERR_NOT_FOUND);
    assert_true(fleet_result_read_lost(&result, &inner, "http://u"));
    assert_int_equal(result.outcome, FLEET_LOST);
    assert_int_equal(result.why.code, ERR_UPSTREAM);
    assert_string_equal(result.why.field, "");
    assert_non_null(strstr(result.why.msg, "http://u was restarted during the update"));
    assert_false(fleet_result_may_have_run(&result));
    assert_ptr_equal(fleet_results_cause(&(struct fleet_results){&result, 1}), &result);
    free(result.text);

    result = read_answer(
        404, "{\"error\":{\"code\":\"not_found\",\"message\":\"no\",\"param\":\"/path\"}}");
    assert_false(fleet_result_read_lost(&result, &inner, "http://u"));
    assert_int_equal(result.outcome, FLEET_REFUSED);
    free(result.text);
}

static void test_api_error_code_knows_each_name(void **state)
{
    (void)state;
    for (int code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++)
        assert_int_equal(api_error_code(err_wire_name((enum err_code)code)), code);
    assert_int_equal(api_error_code("odd"), ERR_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fleet_result_read_maps_refusals_by_code),
        cmocka_unit_test(test_fleet_result_read_without_a_reply),
        cmocka_unit_test(test_fleet_results_cause_prefers_a_refusal),
        cmocka_unit_test(test_fleet_results_done_is_no_4xx_after_a_change),
        cmocka_unit_test(test_fleet_result_read_lost_update),
        cmocka_unit_test(test_api_error_code_knows_each_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
