/* Health that waits for nobody: what its word says when it is old, and a server that is stuck. */
#include "server/health_watch.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "control/engine.h"
#include "control/life.h"
#include "handlers/app.h"
#include "tests/unit/http_client.h"

#include <stdatomic.h>

enum { LIMIT_US = 60 * 1000 * 1000 };

#define MS UINT64_C(1000)

static void test_health_of_is_what_was_found(void **state)
{
    static const struct health rows[] = {
        {true, true, true, ERR_NONE, ERR_NONE},
        {true, false, true, ERR_NONE, ERR_PAUSED},
        {false, false, false, ERR_ENGINE, ERR_ENGINE},
        {true, false, false, ERR_NONE, ERR_CODE_COUNT - 1},
        {false, true, true, ERR_CODE_COUNT - 1, ERR_NONE},
    };
    static const uint64_t times[] = {0, 1, 999, 1000, 5 * MS, UINT64_C(34) * 365 * 86400 * 1000000};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t k = 0; k < sizeof times / sizeof times[0]; k++) {
            uint64_t word = health_word(&rows[i], times[k]);
            struct health h = health_of(word, times[k]);

            assert_true(word != 0);
            assert_int_equal(h.live, rows[i].live);
            assert_int_equal(h.ready, rows[i].ready);
            assert_int_equal(h.control_ready, rows[i].control_ready);
            assert_int_equal(h.live_why, rows[i].live_why);
            assert_int_equal(h.ready_why, rows[i].ready_why);
        }
    }
}

/* Nobody says for ever what was so once: first it is not ready, then not alive. */
static void test_health_of_grows_old(void **state)
{
    struct health found = {true, true, true, ERR_NONE, ERR_NONE}, h;
    uint64_t then_us = 7000 * MS, word = health_word(&found, then_us);

    (void)state;
    h = health_of(word, then_us + WATCH_READY_AGE_MAX_MS * MS);
    assert_true(h.live && h.ready && h.control_ready);
    h = health_of(word, then_us + (WATCH_READY_AGE_MAX_MS + 1) * MS);
    assert_true(h.live && !h.ready && !h.control_ready);
    assert_int_equal(h.ready_why, ERR_INTERNAL);
    h = health_of(word, then_us + WATCH_LIVE_AGE_MAX_MS * MS);
    assert_true(h.live);
    h = health_of(word, then_us + (WATCH_LIVE_AGE_MAX_MS + 1) * MS);
    assert_false(h.live);
    assert_int_equal(h.live_why, ERR_INTERNAL);
    /* A reason that was found stays the reason. */
    found = (struct health){true, false, false, ERR_NONE, ERR_PAUSED};
    h = health_of(health_word(&found, then_us), then_us + WATCH_LIVE_AGE_MAX_MS * MS);
    assert_int_equal(h.ready_why, ERR_PAUSED);
}

static void test_health_of_nothing_is_starting(void **state)
{
    struct health h = health_of(0, UINT64_MAX);

    (void)state;
    assert_true(h.live);
    assert_false(h.ready);
    assert_int_equal(h.ready_why, ERR_STARTING);
}

/* An engine whose state cannot be read while `stuck`. */
static struct {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct cnd moved;
    bool stuck, waiting;

    atomic_uint_fast64_t heartbeat_us;
} fake;

static int fake_stats(struct engine *en, uint64_t deadline_us, struct engine_stats *out,
                      struct err *e)
{
    (void)deadline_us;
    (void)e;
    (void)en;
    mtx_lock(&fake.lock);
    while (fake.stuck) {
        fake.waiting = true;
        cnd_broadcast(&fake.moved);
        (void)cnd_wait(&fake.moved, &fake.lock, CLOCK_NEVER);
    }
    fake.waiting = false;
    mtx_unlock(&fake.lock);
    *out = (struct engine_stats){.heartbeat_us = atomic_load(&fake.heartbeat_us)};
    return 0;
}

static void stick(bool stuck)
{
    mtx_lock(&fake.lock);
    fake.stuck = stuck;
    cnd_broadcast(&fake.moved);
    while (stuck && !fake.waiting)
        assert_true(cnd_wait(&fake.moved, &fake.lock, clock_after_us(LIMIT_US)));
    mtx_unlock(&fake.lock);
}

static void expect(struct client *c, const char *path, int status, const char *says)
{
    char request[128];
    struct response r;

    (void)snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: t\r\n\r\n", path);
    client_send(c, request);
    client_response(c, &r, false);
    assert_int_equal(r.status, status);
    if (strstr(r.body, says) == NULL)
        fail_msg("%s: '%s' does not say '%s'", path, r.body, says);
    response_free(&r);
}

/* Until it says so: a look is never far. */
static void await(struct client *c, const char *path, int status)
{
    uint64_t until_us = clock_after_us(LIMIT_US);
    struct response r = {0};
    char request[128];

    (void)snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: t\r\n\r\n", path);
    do {
        assert_false(clock_passed(until_us));
        client_send(c, request);
        client_response(c, &r, false);
        response_free(&r);
    } while (r.status != status);
}

static void test_health_watch_answers_while_the_server_is_stuck(void **state)
{
    static const struct engine_ops ops = {.stats = fake_stats};
    struct engine engine = {.ops = &ops};
    struct life life;
    struct app_weights weights = {0};
    struct app_generate generate = {0};
    struct app app = {.life = &life, .weights = &weights, .generate = &generate};
    struct http_server_cfg cfg = {.address = "127.0.0.1",
                                  .n_connections_max = 64,
                                  .header_timeout_us = LIMIT_US,
                                  .body_timeout_us = LIMIT_US,
                                  .idle_timeout_us = LIMIT_US,
                                  .drop_timeout_us = LIMIT_US,
                                  .boot_id = "boot-1"};
    struct health_watch *w = NULL;
    struct err e = {0};
    struct client c;

    (void)state;
    mtx_init(&fake.lock, MTX_LEAF);
    cnd_init(&fake.moved);
    life_init(&life);
    life_set(&life, LIFE_SERVING);
    assert_int_equal(health_watch_new(&w, &cfg, &e), 0);
    client_open(&c, health_watch_port(w));
    expect(&c, "/livez", 200, "{\"live\":true}");
    expect(&c, "/readyz", 503, "\"reason\":\"starting\"");
    expect(&c, "/readyz?for=control", 503, "\"reason\":\"starting\"");
    expect(&c, "/v1/status", 404, "health routes only");

    assert_int_equal(health_watch_start(w, &app, &e), 0);
    expect(&c, "/readyz", 503, "\"reason\":\"no_engine\"");
    expect(&c, "/readyz?for=generate", 503, "\"reason\":\"no_engine\"");
    expect(&c, "/readyz?for=control", 200, "{\"ready\":true}");
    expect(&c, "/readyz?for=all", 400, "'all' is not one of generate, control");
    health_watch_stop(w);
    /* Who looks no more does not say that it is ready, whatever was seen last. */
    expect(&c, "/readyz", 503,
           "\"reason\":\"draining\",\"message\":\"the server is stopping: send requests to another "
           "one\"");
    expect(&c, "/livez", 200, "{\"live\":true}");

    life_set(&life, LIFE_DRAINING); /* of its weights nobody asks then, and there are none here */
    app.generate->engine = &engine;
    atomic_store(&fake.heartbeat_us, clock_now_us());
    assert_int_equal(health_watch_start(w, &app, &e), 0);
    stick(true); /* from here on nobody can look */
    for (int i = 0; i < 200; i++)
        expect(&c, i % 2 == 0 ? "/health" : "/livez", 200, "");
    atomic_store(&fake.heartbeat_us, 0);
    stick(false);
    if (clock_now_us() > UINT64_C(61) * 1000000) /* of the machine's clock, which began at 0 */
        await(&c, "/health", 500);
    health_watch_free(w);
    client_close(&c);
    cnd_fini(&fake.moved);
    mtx_fini(&fake.lock);
}

/* Anybody may connect here; who takes all there is does not keep a probe out. */
static void test_health_watch_cannot_be_occupied(void **state)
{
    enum { CONNECTIONS_MAX = 64, SQUATTERS = 8 * CONNECTIONS_MAX };
    struct http_server_cfg cfg = {.address = "127.0.0.1",
                                  .n_connections_max = CONNECTIONS_MAX,
                                  .header_timeout_us = LIMIT_US * 100L,
                                  .body_timeout_us = LIMIT_US * 100L,
                                  .idle_timeout_us = LIMIT_US * 100L,
                                  .drop_timeout_us = LIMIT_US};
    static const char *const begun[] = {"", "GET /hea",
                                        "POST /ping HTTP/1.1\r\nHost: t\r\n"
                                        "Content-Length: 9\r\n\r\n"};
    struct health_watch *w = NULL;
    int squatters[SQUATTERS];
    struct err e = {0};
    struct client c;

    (void)state;
    assert_int_equal(health_watch_new(&w, &cfg, &e), 0);
    for (size_t i = 0; i < SQUATTERS; i++) {
        const char *text = begun[i % (sizeof begun / sizeof begun[0])];

        squatters[i] = client_try_connect(health_watch_port(w));
        assert_true(squatters[i] >= 0);
        (void)send(squatters[i], text, strlen(text), MSG_NOSIGNAL); /* it may be cut already */
    }
    for (int i = 0; i < 3; i++) {
        client_open(&c, health_watch_port(w));
        expect(&c, "/livez", 200, "{\"live\":true}");
        expect(&c, "/livez", 200, "{\"live\":true}");
        client_close(&c);
    }
    for (size_t i = 0; i < SQUATTERS; i++)
        (void)close(squatters[i]);
    health_watch_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_health_of_is_what_was_found),
        cmocka_unit_test(test_health_of_grows_old),
        cmocka_unit_test(test_health_of_nothing_is_starting),
        cmocka_unit_test(test_health_watch_answers_while_the_server_is_stuck),
        cmocka_unit_test(test_health_watch_cannot_be_occupied),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
