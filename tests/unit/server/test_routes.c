/* The route table: who answers what. */
#include "handlers/route.h"
#include "handlers/source/source_json.h"

#include "server/operations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_route_find_matches(void **state)
{
    static const struct {
        enum http_request_method method;
        const char *path, *operation, *arg;
    } rows[] = {
        {METHOD_GET, "/health", "health", ""},
        {METHOD_HEAD, "/health", "health", ""},
        {METHOD_POST, "/ping", "ping", ""},
        {METHOD_POST, "/v1/update_weights", "update", ""},
        {METHOD_POST, "/v1/update_weights/start", "updateStart", ""},
        {METHOD_GET, "/v1/update_weights/upd-1", "updateGet", "upd-1"},
        {METHOD_DELETE, "/v1/update_weights/upd-1", "updateDelete", "upd-1"},
        {METHOD_GET, "/v1/weights", "weightsList", ""},
        {METHOD_GET, "/v1/weights/model.norm.weight", "weightsGet", "model.norm.weight"},
        {METHOD_GET, "/v1/weights/a/b", "weightsGet", "a/b"},
        {METHOD_GET, "/v1/weights/handles", "handlesGet", ""},
        {METHOD_POST, "/v1/weights/handles/renew", "handlesRenew", ""},
        {METHOD_DELETE, "/v1/weights/handles/lse-1", "handlesDelete", "lse-1"},
        {METHOD_GET, "/v1/weights/handles/a", "weightsGet", "handles/a"},
        {METHOD_POST, "/v1/preflight", "preflight", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        size_t at = 0;
        const struct route *r = route_find(rows[i].path, rows[i].method, ~0U, &at, &e);

        assert_non_null(r);
        assert_string_equal(r->operation_id, rows[i].operation);
        assert_string_equal(rows[i].path + at, rows[i].arg);
    }
}

static void test_route_find_refuses(void **state)
{
    static const struct {
        enum http_request_method method;
        const char *path;
        enum err_code code;
        const char *says;
    } rows[] = {
        {METHOD_GET, "/nothing", ERR_NOT_FOUND, "/nothing"},
        {METHOD_POST, "/", ERR_BAD_METHOD, "GET"},
        {METHOD_GET, "/health/", ERR_NOT_FOUND, "no route /health/, did you mean /health?"},
        {METHOD_GET, "/v1/weights/", ERR_NOT_FOUND, "/v1/weights/, did you mean /v1/weights?"},
        {METHOD_POST, "/v1/pause//", ERR_NOT_FOUND, "did you mean /v1/pause?"},
        {METHOD_GET, "/status", ERR_NOT_FOUND, "did you mean /v1/status?"},
        {METHOD_POST, "/chat/completions/", ERR_NOT_FOUND, "did you mean /v1/chat/completions?"},
        {METHOD_GET, "/update_weights/upd-1", ERR_NOT_FOUND, "mean /v1/update_weights/upd-1?"},
        {METHOD_GET, "/v1/wieghts", ERR_NOT_FOUND, "did you mean /v1/weights?"},
        {METHOD_GET, "/V1/Weights", ERR_NOT_FOUND, "did you mean /v1/weights?"},
        {METHOD_POST, "/health", ERR_BAD_METHOD, "GET, HEAD"},
        {METHOD_OTHER, "/health", ERR_BAD_METHOD, "GET"},
        /* A fixed path is not taken for a variable because its method is wrong. */
        {METHOD_GET, "/v1/update_weights/start", ERR_BAD_METHOD, "POST"},
        {METHOD_DELETE, "/v1/update_weights/finish", ERR_BAD_METHOD, "POST"},
        {METHOD_GET, "/v1/weights/plans", ERR_BAD_METHOD, "POST"},
        {METHOD_PUT, "/v1/update_weights/upd-1", ERR_BAD_METHOD, "GET, HEAD, DELETE"},
        {METHOD_DELETE, "/v1/weights/handles", ERR_BAD_METHOD, "GET, HEAD"},
        {METHOD_GET, "/v1/weights/handles/renew", ERR_BAD_METHOD, "POST"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        size_t at = 99;

        assert_null(route_find(rows[i].path, rows[i].method, ~0U, &at, &e));
        assert_int_equal(e.code, rows[i].code);
        assert_non_null(strstr(e.msg, rows[i].says));
        assert_int_equal(at, 99);
    }
}

/* A route of a dialect that is off is not proposed, nor is anything for what is far from all. */
static void test_route_find_proposes_what_there_is(void **state)
{
    char path[1024];
    struct err e = {0};
    size_t at;

    (void)state;
    assert_null(route_find("/update_weight_version/", METHOD_POST, 1U << DIALECT_NATIVE, &at, &e));
    assert_null(strstr(e.msg, "did you mean"));
    err_clear(&e);
    assert_null(route_find("/update_weights", METHOD_POST, 1U << DIALECT_NATIVE, &at, &e));
    assert_non_null(strstr(e.msg, "did you mean /v1/update_weights?"));
    err_clear(&e);
    assert_null(route_find("/nothing/of/the/kind", METHOD_POST, ~0U, &at, &e));
    assert_string_equal(e.msg, "there is no route /nothing/of/the/kind");
    memset(path, '/', sizeof path);
    path[sizeof path - 1] = '\0';
    err_clear(&e);
    assert_null(route_find(path, METHOD_GET, ~0U, &at, &e));
    memset(path + 1, 'a', sizeof path - 2);
    err_clear(&e);
    assert_null(route_find(path, METHOD_GET, ~0U, &at, &e));
    assert_null(strstr(e.msg, "did you mean"));
}

/* Rows of one path, of which the body takes one: all that the HTTP server needs to know is the
 * same. Two that claim nothing are one operation, for whichever of their dialects is on. */
static void assert_told_apart(const struct route *a, const struct route *b)
{
    const struct route_body_match *ca = &a->body_match, *cb = &b->body_match;

    assert_true(a->dialect != DIALECT_NATIVE && b->dialect != DIALECT_NATIVE);
    assert_int_equal(a->executor, b->executor);
    assert_int_equal(a->role, b->role);
    assert_int_equal(a->body == BODY_TENSORS, b->body == BODY_TENSORS);
    assert_true(a->body == b->body || (a->methods & METHOD_GET) == 0);
    assert_int_equal(a->body_max, b->body_max);
    if (ca->member == NULL && cb->member == NULL)
        assert_int_equal(a->operation, b->operation); /* the first answers for both */
    if (ca->member != NULL && cb->member != NULL && strcmp(ca->member, cb->member) == 0 &&
        (ca->inner == NULL) == (cb->inner == NULL)) /* one with `inner` goes before one without */
        assert_true(ca->value != NULL && cb->value != NULL && strcmp(ca->value, cb->value) != 0);
}

static void test_dialect_rows_translate(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_routes; i++) {
        const struct route *r = &routes[i];
        struct http_request x = {.route = r};

        assert_true((!r->broadcasts && !r->of_pull) || r->dialect != DIALECT_NATIVE);
        assert_true(route_accepts_nccl(&x) == (r->translate_request == NULL || r->broadcasts));
        if (r->dialect == DIALECT_NATIVE) {
            assert_true(r->translate_request == NULL && r->translate_response == NULL &&
                        r->translated_members == NULL);
            assert_true(r->session == SESSION_NAMED && r->body_match.member == NULL);
            continue;
        }
        assert_false(r->strict);
        assert_int_not_equal(r->form, FORM_NATIVE);
        assert_true((r->translate_request == NULL) == (r->translated_members == NULL));
    }
}

static void test_a_dialect_that_is_off_is_not_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_routes; i++) {
        const struct route *r = &routes[i], *found;
        struct err e = {0};
        size_t at;

        found = route_find(r->pattern, METHOD_POST, 1U << DIALECT_NATIVE, &at, &e);
        assert_true(found == NULL || found->dialect == DIALECT_NATIVE);
    }
}

static void test_routes_are_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_routes; i++) {
        const struct route *r = &routes[i];

        assert_int_not_equal(r->operation, OPERATION_NONE);
        assert_true(r->methods != 0 && (r->methods & METHOD_OTHER) == 0);
        assert_true(r->body_max > 0);
        if (r->dialect == DIALECT_NATIVE)
            assert_true((r->body == BODY_NONE) == (r->members == NULL));
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(r->operation_id, routes[k].operation_id);
            if (strcmp(r->pattern, routes[k].pattern) == 0 && (r->methods & routes[k].methods) != 0)
                assert_told_apart(r, &routes[k]);
        }
    }
}

/* A loop serves every connection of its HTTP server: what reads a long body, or walks the tensors
 * of a tensor list, is done elsewhere. */
static void test_no_loop_reads_a_long_body(void **state)
{
    static const char *const walks[] = {"planPut",      "updateStart", "update",     "updateFinish",
                                        "updateVerify", "preflight",   "weightsList"};
    size_t n_walks = 0;

    (void)state;
    for (size_t i = 0; i < n_routes; i++) {
        if (routes[i].body != BODY_NONE)
            assert_int_not_equal(routes[i].executor, EXECUTOR_LOOP);
        for (size_t k = 0; k < sizeof walks / sizeof walks[0]; k++) {
            if (strcmp(routes[i].operation_id, walks[k]) != 0)
                continue;
            assert_int_equal(routes[i].executor, EXECUTOR_CONTROL);
            assert_false(operation_is_brief(routes[i].operation));
            n_walks++;
        }
    }
    assert_int_equal(n_walks, sizeof walks / sizeof walks[0]);
}

/* The tables are complete because they compile; that no row says "no handler" is seen here. */
static void test_each_operation_has_its_handlers(void **state)
{
    (void)state;
    for (int op = OPERATION_NONE + 1; op < OPERATION_COUNT; op++) {
        size_t n_routes_of = 0;

        assert_non_null(operation_embedded((enum operation)op)->handle);
        assert_non_null(operation_fleet((enum operation)op)->handle);
        for (size_t i = 0; i < n_routes; i++)
            n_routes_of += routes[i].operation == (enum operation)op;
        assert_true(n_routes_of > 0);
    }
}

static bool is_of_an_update(enum route_executor executor)
{
    return executor == EXECUTOR_GENERATE || executor == EXECUTOR_FLEET;
}

/* It is refused, on whichever threads. */
static bool never_waits(const struct route *route)
{
    return route->operation == OPERATION_UNSUPPORTED ||
           operation_fleet(route->operation)->handle == fleet_not_answered;
}

/* The lane is that of a path's first row, before the body says which of them it is. Only the steps
 * of an update share a path with what begins one. */
static void test_what_must_not_wait_shares_no_path_with_what_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_routes; i++)
        for (size_t k = 0; k < i; k++) {
            const struct fleet_operation *a = operation_fleet(routes[i].operation),
                                         *b = operation_fleet(routes[k].operation);

            if (a->executor == b->executor || never_waits(&routes[i]) || never_waits(&routes[k]) ||
                (is_of_an_update(a->executor) && is_of_an_update(b->executor)) ||
                strcmp(routes[i].pattern, routes[k].pattern) != 0 ||
                (routes[i].methods & routes[k].methods) == 0)
                continue;
            fail_msg("%s: lane %d of %s, %d of %s", routes[i].pattern, (int)a->executor,
                     routes[i].operation_id, (int)b->executor, routes[k].operation_id);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_must_not_wait_shares_no_path_with_what_does),
        cmocka_unit_test(test_each_operation_has_its_handlers),
        cmocka_unit_test(test_route_find_matches),
        cmocka_unit_test(test_route_find_refuses),
        cmocka_unit_test(test_route_find_proposes_what_there_is),
        cmocka_unit_test(test_routes_are_whole),
        cmocka_unit_test(test_no_loop_reads_a_long_body),
        cmocka_unit_test(test_dialect_rows_translate),
        cmocka_unit_test(test_a_dialect_that_is_off_is_not_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
