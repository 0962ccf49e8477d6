/* The SHA-256 of what is served: told, compared, one at a time, and given up when nobody waits. */
#include "control/life.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/route.h"
#include "http/http_request_priv.h"
#include "tests/unit/weights_fixture.h"

#include <jansson.h>

enum { SUM_LEN = 64 };

/* Called by the check between two pieces: the test's chance to do something in the middle. */
static void (*between)(void);
static bool gone;

bool __wrap_http_request_disconnected(struct http_request *x);
bool __wrap_http_request_disconnected(struct http_request *x)
{
    void (*now)(void) = between;

    (void)x;
    between = NULL;
    if (now != NULL)
        now();
    return gone;
}

static struct life life;
static struct app_weights weights;
static struct app app = {.life = &life, .weights = &weights};

static void no_wake(struct http_request_http_server *http_server)
{
    (void)http_server;
}

/* The answer (new), or NULL with e set. */
static json_t *ask(const char *text, struct err *e)
{
    static struct http_request_http_server http_server = {.wake = no_wake};
    static char type[] = "application/json", path[] = "/v1/weights/check";
    struct http_request *x;
    json_t *answer = NULL;
    size_t at = 0;

    assert_int_equal(http_request_new(&x, &http_server, e), 0);
    x->route = route_find(path, METHOD_POST, 1U << DIALECT_NATIVE, &at, e);
    x->content_type = type;
    x->body = (char *)(uintptr_t)text;
    x->body_len = strlen(text);
    (void)http_request_ref(x);
    if (handle_weights_check(&app, x, e) == 0) {
        assert_int_equal(x->priv->reply.status, 200);
        answer = json_loadb(x->priv->reply.data, x->priv->reply.len, 0, NULL);
        assert_non_null(answer);
    } else {
        http_request_unref(x);
    }
    x->body = NULL;
    http_request_unref(x);
    return answer;
}

static void commit(unsigned step, const char *label)
{
    struct staging_cfg cfg = {0};
    struct store_stats stats;
    struct staging *g = NULL;
    struct slab *slab = NULL;
    struct err e = {0};

    assert_int_equal(store_stage(app.weights->store, &cfg, CLOCK_NEVER, NULL, &g, &e), 0);
    assert_int_equal(staging_slab(g, FX_N * FX_NBYTES_MAX, &slab, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++) {
        uint64_t at = slab->addr + (uint64_t)i * FX_NBYTES_MAX;

        (void)fx_bytes(fx_model[i].name, step, (unsigned char *)(uintptr_t)at);
        assert_int_equal(staging_view(g, 0, i, slab, at, &e), 0);
    }
    slab_unref(slab);
    assert_int_equal(store_commit(app.weights->store, g, label, &stats, &e), 0);
}

static int setup(void **state)
{
    struct store_cfg cfg = {
        .model_spec = fx_model_spec(), .n_versions_max = 3, .nbytes_max = UINT64_MAX};
    struct err e = {0};

    (void)state;
    gone = false;
    between = NULL;
    life_init(&life);
    life_set(&life, LIFE_SERVING);
    return store_new(&app.weights->store, &cfg, &e);
}

/* Fails if a version is still pinned. */
static int teardown(void **state)
{
    (void)state;
    store_free(app.weights->store);
    return 0;
}

static json_t *sums(void)
{
    struct err e = {0};
    json_t *answer = ask("{\"action\":\"checksum\"}", &e), *found;

    assert_non_null(answer);
    found = json_incref(json_object_get(answer, "checksums"));
    json_decref(answer);
    return found;
}

static json_t *compare(json_t *baseline)
{
    json_t *body = json_pack("{s:s, s:O}", "action", "compare", "baseline", baseline);
    char *text = json_dumps(body, 0);
    struct err e = {0};
    json_t *answer = ask(text, &e);

    assert_non_null(answer);
    free(text);
    json_decref(body);
    return answer;
}

static void assert_mismatches(json_t *baseline, const char *names)
{
    json_t *answer = compare(baseline), *list = json_object_get(answer, "mismatches");
    char *text = json_dumps(list, JSON_COMPACT);

    assert_string_equal(text, names);
    assert_int_equal(json_is_true(json_object_get(answer, "match")), json_array_size(list) == 0);
    free(text);
    json_decref(answer);
}

static void test_checksum_is_sha256(void **state)
{
    struct err e = {0};
    json_t *answer, *found;

    (void)state;
    commit(1, "one");
    answer = ask("{\"action\":\"checksum\"}", &e);
    assert_non_null(answer);
    assert_string_equal(json_string_value(json_object_get(answer, "weight_version")), "one");
    assert_int_equal(json_integer_value(json_object_get(answer, "serial")), 1);
    found = json_object_get(answer, "checksums");
    assert_int_equal(json_object_size(found), FX_N);
    /* printf '\x1e\x25\x2c' | sha256sum: three bytes of `bias` at step 1 */
    assert_string_equal(json_string_value(json_object_get(found, "bias")),
                        "e7da89563670f7a43a172ff09152476bc4b155fc5c22a5b4b7027d91702e1c8b");
    json_decref(answer);
}

static void test_compare_names_what_differs(void **state)
{
    json_t *first, *second;

    (void)state;
    commit(1, "one");
    first = sums();
    assert_mismatches(first, "[]");
    commit(2, "two");
    second = sums();
    assert_mismatches(second, "[]");
    (void)json_object_set(second, "bias", json_object_get(first, "bias"));
    (void)json_object_del(second, "layers.0.k");
    (void)json_object_set(second, "stranger", json_object_get(first, "bias"));
    assert_mismatches(second, "[\"layers.0.k\",\"bias\",\"stranger\"]");
    json_decref(first);
    json_decref(second);
}

/* Upper case is the same sum. */
static void test_compare_ignores_case(void **state)
{
    json_t *found;
    char upper[SUM_LEN + 1];

    (void)state;
    commit(1, "one");
    found = sums();
    (void)snprintf(upper, sizeof upper, "%s",
                   json_string_value(json_object_get(found, "norm.weight")));
    for (char *c = upper; *c != '\0'; c++)
        if (*c >= 'a')
            *c = (char)(*c - 'a' + 'A');
    (void)json_object_set_new(found, "norm.weight", json_string(upper));
    assert_mismatches(found, "[]");
    json_decref(found);
}

static void test_nothing_is_equal_where_nothing_is(void **state)
{
    struct store_slept slept;
    struct err e = {0};
    json_t *found;

    (void)state;
    assert_null(ask("{\"action\":\"checksum\"}", &e));
    assert_int_equal(e.code, ERR_UNSYNCED);
    err_clear(&e);
    commit(1, "one");
    found = sums();
    assert_int_equal(store_sleep(app.weights->store, 1, CLOCK_NEVER, &slept, &e), 0);
    assert_null(ask("{\"action\":\"compare\",\"baseline\":{}}", &e));
    assert_int_equal(e.code, ERR_ASLEEP); /* kept, but not to be read */
    err_clear(&e);
    assert_int_equal(store_sleep(app.weights->store, 2, CLOCK_NEVER, &slept, &e), 0);
    assert_mismatches(found, "[\"embed.weight\",\"layers.0.q\",\"layers.0.k\",\"layers.0.v\","
                             "\"norm.weight\",\"bias\",\"last.weight\"]");
    json_decref(found);
}

static void ask_again(void)
{
    struct err e = {0};

    assert_null(ask("{\"action\":\"checksum\"}", &e));
    assert_int_equal(e.code, ERR_CONFLICT);
}

static void commit_another(void)
{
    commit(2, "two");
}

static void drain(void)
{
    life_set(&life, LIFE_DRAINING);
}

static void test_one_check_at_a_time(void **state)
{
    (void)state;
    commit(1, "one");
    between = ask_again;
    json_decref(sums());
    assert_null(between); /* it was called */
    json_decref(sums());
}

static void test_a_commit_meanwhile_changes_nothing(void **state)
{
    json_t *before, *meanwhile;

    (void)state;
    commit(1, "one");
    before = sums();
    between = commit_another;
    meanwhile = sums();
    assert_true(json_equal(before, meanwhile));
    json_decref(before);
    json_decref(meanwhile);
}

static void test_given_up(void **state)
{
    struct err e = {0};

    (void)state;
    commit(1, "one");
    gone = true;
    assert_null(ask("{\"action\":\"checksum\"}", &e));
    assert_int_equal(e.code, ERR_GONE);
    err_clear(&e);
    gone = false;
    between = drain;
    assert_null(ask("{\"action\":\"checksum\"}", &e));
    assert_int_equal(e.code, ERR_DRAINING);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *body, *field;
    } rows[] = {
        {"{}", "/action"},
        {"{\"action\":\"reset\"}", "/action"},
        {"{\"action\":\"checksum\",\"baseline\":{}}", "/baseline"},
        {"{\"action\":\"compare\"}", "/baseline"},
        {"{\"action\":\"compare\",\"baseline\":[]}", "/baseline"},
        {"{\"action\":\"compare\",\"baseline\":{\"a/b\":\"00\"}}", "/baseline/a~1b"},
        {"{\"action\":\"compare\",\"baseline\":{\"a\":7}}", "/baseline/a"},
        {"{\"action\":\"checksum\",\"more\":1}", "/more"},
    };

    (void)state;
    commit(1, "one");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};

        assert_null(ask(rows[i].body, &e));
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, rows[i].field);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_checksum_is_sha256),
        T(test_compare_names_what_differs),
        T(test_compare_ignores_case),
        T(test_nothing_is_equal_where_nothing_is),
        T(test_one_check_at_a_time),
        T(test_a_commit_meanwhile_changes_nothing),
        T(test_given_up),
        T(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
