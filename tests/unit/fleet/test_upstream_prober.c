/* The prober reports replies of engines, and missing ones, to the fleet. */
#include "fleet/members/prober.h"

#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"
#include "tests/unit/fleet/upstream_at.h"
#include "tests/unit/fleet/upstream_peer.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { N = 3, MS = 1000, LONG_MS = 30000 };

struct world {
    struct loop *loop;
    struct http_client *client;
    struct fleet *fleet;
    struct prober *prober;
    struct upstream_config configs[N];
};

/* Everything but the loop's thread is started. */
static void world_make(struct world *w, const char *const urls[N], unsigned generation_probe_every)
{
    const struct upstream_config *configs[N];
    struct fleet_cfg fleet = {.n_upstreams = N,
                              .configs = configs,
                              .n_permits = {4, 4},
                              .n_queue_max = {4, 4},
                              .min_ready = 1};
    struct prober_cfg cfg = {.interval_us = 5 * MS,
                             .timeout_us = 1000 * MS,
                             .generation_probe_every = generation_probe_every};
    struct err e = {0};

    assert_int_equal(loop_new(&w->loop, &(struct loop_cfg){.name = "test"}, &e), 0);
    assert_int_equal(http_client_new(&w->client, w->loop, &e), 0);
    for (size_t i = 0; i < N; i++) {
        w->configs[i] = (struct upstream_config){
            .target.url = urls[i], .url = (char *)(uintptr_t)urls[i], .kind = UPSTREAM_BATON};
        configs[i] = &w->configs[i];
    }
    assert_int_equal(fleet_new(&w->fleet, &fleet, &e), 0);
    cfg.fleet = w->fleet;
    cfg.loop = w->loop;
    cfg.client = w->client;
    assert_int_equal(prober_new(&w->prober, &cfg, &e), 0);
}

static void world_open(struct world *w, const char *const urls[N], unsigned generation_probe_every)
{
    struct err e = {0};

    world_make(w, urls, generation_probe_every);
    assert_int_equal(loop_start(w->loop, &e), 0);
}

static void world_close(struct world *w)
{
    loop_stop(w->loop);
    prober_free(w->prober);
    http_client_free(w->client);
    fleet_free(w->fleet);
    loop_free(w->loop);
}

static void await_state(struct world *w, size_t i, const char *state)
{
    struct upstream_info info;

    for (int ms = 0; ms < LONG_MS; ms++) {
        fleet_info(w->fleet, engine_at(w->fleet, i), &info);
        if (strcmp(upstream_state_name(info.state), state) == 0)
            return;
        (void)poll(NULL, 0, 1);
    }
    fail_msg("upstream %zu is %s, not %s", i, upstream_state_name(info.state), state);
}

static void await_failures(struct world *w, size_t i, uint64_t n)
{
    struct upstream_info info;

    for (int ms = 0; ms < LONG_MS; ms++) {
        fleet_info(w->fleet, engine_at(w->fleet, i), &info);
        if (info.n_failures >= n)
            return;
        (void)poll(NULL, 0, 1);
    }
    fail_msg("upstream %zu has missed %d times only", i, (int)info.n_failures);
}

static void await_alive(struct world *w, size_t i)
{
    struct upstream_info info = {0};

    for (int ms = 0; ms < LONG_MS && !info.alive; ms++) {
        fleet_info(w->fleet, engine_at(w->fleet, i), &info);
        (void)poll(NULL, 0, 1);
    }
    assert_true(info.alive);
}

static const char status_ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\n"
                                "{\"boot_id\":\"b1\",\"weights\":{\"weight_version\":\"v1\"}}";
static const char status_ok_2[] =
    "HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\n"
    "{\"boot_id\":\"b2\",\"weights\":{\"weight_version\":\"v1\"}}";
static const char refusal[] = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

static void test_prober_reports_each_reply(void **state)
{
    struct peer good, hung, busy;
    struct upstream_info info;
    struct world w;

    (void)state;
    peer_start(&good, status_ok);
    peer_start(&hung, NULL);
    peer_start(&busy, refusal);
    world_open(&w, (const char *const[N]){good.url, hung.url, busy.url}, 0);
    await_state(&w, 0, "serving");
    fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    assert_string_equal(info.report.process, "b1");
    assert_string_equal(info.report.label, "v1");
    await_failures(&w, 1, 1);
    await_failures(&w, 2, 1);
    fleet_info(w.fleet, engine_at(w.fleet, 1), &info);
    assert_int_equal(info.error.why.code, ERR_UPSTREAM_TIMEOUT);
    fleet_info(w.fleet, engine_at(w.fleet, 2), &info);
    assert_non_null(strstr(info.error.why.msg, "503"));
    world_close(&w);
    peer_stop(&good);
    peer_stop(&hung);
    peer_stop(&busy);
}

/* A vLLM or SGLang that is configured as a baton: it is down, and the error says what to write. */
static void test_engine_with_another_api_is_down(void **state)
{
    struct upstream_info info;
    struct peer other;
    struct world w;

    (void)state;
    peer_start(&other, "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    world_open(&w, (const char *const[N]){other.url, "unix:/nowhere", "unix:/nowhere"}, 0);
    await_state(&w, 0, "down");
    await_state(&w, 1, "down"); /* it never answered */
    fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    assert_non_null(strstr(info.error.why.msg, "/v1/status with 404"));
    assert_non_null(strstr(info.error.why.msg, "URL,vllm"));
    fleet_info(w.fleet, engine_at(w.fleet, 1), &info);
    assert_null(strstr(info.error.why.msg, "URL,vllm"));
    world_close(&w);
    peer_stop(&other);
}

static void test_engine_that_stops_is_down(void **state)
{
    struct peer good, other;
    struct world w;

    (void)state;
    peer_start(&good, status_ok);
    peer_start(&other, status_ok_2);
    world_open(&w, (const char *const[N]){good.url, other.url, "unix:/nowhere"}, 0);
    await_state(&w, 0, "serving");
    await_state(&w, 1, "serving");
    await_failures(&w, 2, FLEET_FAILURES_DOWN);
    peer_stop(&other);
    await_state(&w, 1, "down");
    await_state(&w, 0, "serving");
    world_close(&w);
    peer_stop(&good);
}

static void test_lack_of_descriptors_here_counts_against_no_engine(void **state)
{
    enum { ROUNDS = 2 * FLEET_FAILURES_DOWN };
    struct rlimit before, none;
    struct upstream_info info;
    struct world w;
    struct err e = {0};
    uint64_t beat;

    (void)state;
    world_make(&w, (const char *const[N]){"http://127.0.0.1:1", "http://[::1]:1", "unix:/nowhere"},
               0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(loop_start(w.loop, &e), 0);
    beat = prober_round_us(w.prober);
    for (size_t n = 0; n < ROUNDS; n += beat != prober_round_us(w.prober)) {
        beat = prober_round_us(w.prober);
        (void)poll(NULL, 0, 1);
    }
    loop_stop(w.loop);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < N; i++) {
        fleet_info(w.fleet, engine_at(w.fleet, i), &info);
        assert_string_equal(info.error.why.msg, "");
        assert_int_equal(info.n_failures, 0);
    }
    world_close(&w);
}

/* Answers GET with a good status, and never answers POST, so it generates no token. */
static void *silent_main(void *arg)
{
    struct peer *p = arg;
    char text[4096];
    int fd;

    while ((fd = accept(p->fd, NULL, NULL)) >= 0) {
        ssize_t n = recv(fd, text, sizeof text - 1, 0);

        if (n > 3 && memcmp(text, "GET", 3) == 0)
            (void)send(fd, status_ok, sizeof status_ok - 1, MSG_NOSIGNAL);
        else
            while (n > 0)
                n = recv(fd, text, sizeof text, 0);
        (void)close(fd);
    }
    return NULL;
}

static void test_generation_probe_finds_an_engine_that_generates_nothing(void **state)
{
    struct peer silent;
    struct upstream_info info;
    struct world w;

    (void)state;
    peer_listen(&silent);
    assert_int_equal(pthread_create(&silent.thread, NULL, silent_main, &silent), 0);
    world_open(&w, (const char *const[N]){silent.url, "unix:/nowhere", "unix:/nowhere"}, 2);
    await_state(&w, 0, "down");
    fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    assert_non_null(strstr(info.error.why.msg, "/v1/completions"));
    await_failures(&w, 0, 2 * FLEET_FAILURES_DOWN); /* status probes do not restore it */
    fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    assert_string_equal(upstream_state_name(info.state), "down");
    fleet_fence(
        w.fleet, engine_at(w.fleet, 0),
        &info.error.why); /* a fenced engine may be paused, so only status probes are sent */
    await_alive(&w, 0);
    world_close(&w);
    peer_stop(&silent);
}

/* It is asked for no token then, and a wake may need all engines. */
static void test_failed_token_says_nothing_while_the_engines_are_held(void **state)
{
    struct peer silent;
    struct world w;

    (void)state;
    peer_listen(&silent);
    assert_int_equal(pthread_create(&silent.thread, NULL, silent_main, &silent), 0);
    world_open(&w, (const char *const[N]){silent.url, "unix:/nowhere", "unix:/nowhere"}, 2);
    await_state(&w, 0, "down");
    fleet_set_still(w.fleet, &(struct fleet_still){.no_probes = true, .order = 1});
    await_alive(&w, 0);
    fleet_set_still(w.fleet, &(struct fleet_still){.order = 2});
    await_state(&w, 0, "down"); /* which the next token shows again */
    world_close(&w);
    peer_stop(&silent);
}

static void ask(struct world *w, enum api_op op, enum have_answer answer)
{
    struct have_before before;

    fleet_doubt(w->fleet, engine_at(w->fleet, 0), op, NULL, &before);
    fleet_answer(w->fleet, engine_at(w->fleet, 0), op, NULL, &before, answer, NULL);
}

/* Is it asked for a token, which shows that it is awake? */
static bool shows_awake(struct world *w)
{
    struct upstream_info info = {.may_sleep = true};

    for (int ms = 0; ms < 200 && info.may_sleep; ms++) {
        fleet_info(w->fleet, engine_at(w->fleet, 0), &info);
        (void)poll(NULL, 0, 1);
    }
    return !info.may_sleep;
}

static void test_token_shows_that_an_engine_which_hides_it_is_awake(void **state)
{
    struct peer awake;
    struct world w;

    (void)state;
    peer_start(&awake, status_ok);
    world_make(&w, (const char *const[N]){awake.url, "unix:/nowhere", "unix:/nowhere"}, 0);
    w.configs[0].kind = UPSTREAM_SGLANG;
    assert_int_equal(loop_start(w.loop, &(struct err){0}), 0);
    await_alive(&w, 0);
    ask(&w, API_WAKE, HAVE_LOST);
    assert_true(shows_awake(&w));
    ask(&w, API_SLEEP, HAVE_GOOD); /* it is known to sleep: a token would end it */
    assert_false(shows_awake(&w));
    ask(&w, API_WAKE, HAVE_LOST);
    assert_true(shows_awake(&w));
    fleet_set_still(w.fleet, &(struct fleet_still){.no_probes = true, .order = 1});
    ask(&w, API_WAKE, HAVE_LOST);
    assert_false(shows_awake(&w));
    fleet_set_still(w.fleet, &(struct fleet_still){.order = 2});
    ask(&w, API_PAUSE, HAVE_GOOD);
    assert_false(shows_awake(&w));
    ask(&w, API_RESUME, HAVE_GOOD);
    assert_true(shows_awake(&w));
    world_close(&w);
    peer_stop(&awake);
}

/* A peer that answers GET at once, and refuses a POST when it is told to. */
static atomic_bool was_asked, may_refuse;

static void *slow_main(void *arg)
{
    struct peer *p = arg;
    char text[4096];
    int fd;

    while ((fd = accept(p->fd, NULL, NULL)) >= 0) {
        ssize_t n = recv(fd, text, sizeof text - 1, 0);
        bool asks = n > 3 && memcmp(text, "GET", 3) == 0;

        if (!asks)
            atomic_store(&was_asked, true);
        for (int ms = 0; !asks && ms < LONG_MS && !atomic_load(&may_refuse); ms++)
            (void)poll(NULL, 0, 1);
        (void)send(fd, asks ? status_ok : refusal, strlen(asks ? status_ok : refusal),
                   MSG_NOSIGNAL);
        (void)close(fd);
    }
    return NULL;
}

/* It was sent before the pause began, which may be why it failed. */
static void test_token_that_a_pause_overtakes_says_nothing(void **state)
{
    struct peer slow;
    struct upstream_info info;
    struct world w;
    uint64_t beat;

    (void)state;
    atomic_store(&was_asked, false);
    atomic_store(&may_refuse, false);
    peer_listen(&slow);
    assert_int_equal(pthread_create(&slow.thread, NULL, slow_main, &slow), 0);
    world_open(&w, (const char *const[N]){slow.url, "unix:/nowhere", "unix:/nowhere"}, 2);
    for (int ms = 0; ms < LONG_MS && !atomic_load(&was_asked); ms++)
        (void)poll(NULL, 0, 1);
    fleet_set_still(w.fleet, &(struct fleet_still){.no_probes = true, .order = 1});
    atomic_store(&may_refuse, true);
    fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    beat = info.probe_ok_us;
    for (int ms = 0; ms < LONG_MS && info.probe_ok_us == beat; ms++) { /* the next probe is good */
        (void)poll(NULL, 0, 1);
        fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    }
    assert_int_equal(info.n_failures, 0);
    world_close(&w);
    peer_stop(&slow);
}

/* What it reports while this server has paused it is no pause by another client. */
static void test_pause_of_this_server_is_not_held_by_others(void **state)
{
    static const char paused[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
                                 "{\"boot_id\":\"b1\",\"pause\":{\"mode\":\"keep\"},\"weights\":{"
                                 "\"weight_version\":\"v1\"}}";
    struct peer peer;
    struct upstream_info info = {0};
    struct world w;

    (void)state;
    peer_start(&peer, paused);
    world_make(&w, (const char *const[N]){peer.url, "unix:/nowhere", "unix:/nowhere"}, 0);
    fleet_set_still(w.fleet, &(struct fleet_still){.no_probes = true, .order = 1});
    assert_int_equal(loop_start(w.loop, &(struct err){0}), 0);
    await_alive(&w, 0);
    fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    assert_null(info.report.held);
    fleet_set_still(w.fleet, &(struct fleet_still){.order = 2});
    for (int ms = 0; ms < LONG_MS && info.report.held == NULL; ms++) { /* it still is: by others */
        (void)poll(NULL, 0, 1);
        fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    }
    assert_non_null(info.report.held);
    world_close(&w);
    peer_stop(&peer);
}

/* As a baton in front of engines, the last of which is fenced right before a generation probe. */
static void *fenced_main(void *arg)
{
    static const char fenced[] =
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
        "{\"boot_id\":\"b1\",\"ready\":false,\"reason\":{\"code\":\"no_weights\"},"
        "\"weights\":{\"weight_version\":\"v1\"}}";
    const char *status = status_ok;
    struct peer *p = arg;
    char text[4096];
    int fd;

    while ((fd = accept(p->fd, NULL, NULL)) >= 0) {
        ssize_t n = recv(fd, text, sizeof text - 1, 0);
        bool asks = n > 3 && memcmp(text, "GET", 3) == 0;

        (void)send(fd, asks ? status : refusal, strlen(asks ? status : refusal), MSG_NOSIGNAL);
        (void)shutdown(fd, SHUT_WR);
        if (!asks)
            status = fenced;
        while (n > 0)
            n = recv(fd, text, sizeof text, 0);
        (void)close(fd);
    }
    return NULL;
}

/* Else no update through this server could reach it, which is what it waits for. */
static void test_baton_without_engines_is_not_down(void **state)
{
    struct upstream_info info = {0};
    struct peer front;
    struct world w;

    (void)state;
    peer_listen(&front);
    assert_int_equal(pthread_create(&front.thread, NULL, fenced_main, &front), 0);
    world_open(&w, (const char *const[N]){front.url, "unix:/nowhere", "unix:/nowhere"}, 2);
    for (int ms = 0; ms < LONG_MS && info.report.not_ready[0] == '\0'; ms++) {
        fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
        (void)poll(NULL, 0, 1);
    }
    assert_string_equal(info.report.not_ready, "no_weights");
    await_alive(&w, 0);
    world_close(&w);
    peer_stop(&front);
}

/* As a baton that is restarted as it is asked for a token, and then makes none. */
static void *restarted_main(void *arg)
{
    const char *status = status_ok;
    struct peer *p = arg;
    char text[4096];
    int fd;

    while ((fd = accept(p->fd, NULL, NULL)) >= 0) {
        ssize_t n = recv(fd, text, sizeof text - 1, 0);
        bool asks = n > 3 && memcmp(text, "GET", 3) == 0;
        const char *reply = asks ? status : status == status_ok ? refusal : NULL;

        if (reply != NULL) {
            (void)send(fd, reply, strlen(reply), MSG_NOSIGNAL);
            (void)shutdown(fd, SHUT_WR);
        }
        if (!asks)
            status = status_ok_2;
        while (n > 0)
            n = recv(fd, text, sizeof text, 0);
        (void)close(fd);
    }
    return NULL;
}

/* Its status says so before it fails to make the next token. */
static void test_status_behind_a_failed_token_shows_another_process(void **state)
{
    struct upstream_info info = {0};
    struct peer peer;
    struct world w;

    (void)state;
    peer_listen(&peer);
    assert_int_equal(pthread_create(&peer.thread, NULL, restarted_main, &peer), 0);
    world_open(&w, (const char *const[N]){peer.url, "unix:/nowhere", "unix:/nowhere"}, 2);
    for (int ms = 0; ms < LONG_MS && strcmp(info.report.process, "b2") != 0; ms++) {
        (void)poll(NULL, 0, 1);
        fleet_info(w.fleet, engine_at(w.fleet, 0), &info);
    }
    assert_int_equal(info.incarnation, 2);
    assert_int_equal(info.n_failures, 1);
    world_close(&w);
    peer_stop(&peer);
}

static const char unauthorized[] =
    "HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
static const char text_ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/* Answers GET with a good status, which needs no key, and other methods with `says`. */
static void *open_status_main(void *arg)
{
    struct peer *p = arg;
    char text[4096];
    int fd;

    while ((fd = accept(p->fd, NULL, NULL)) >= 0) {
        ssize_t n = recv(fd, text, sizeof text - 1, 0);
        const char *reply = n > 3 && memcmp(text, "GET", 3) == 0 ? status_ok : p->says;

        (void)send(fd, reply, strlen(reply), MSG_NOSIGNAL);
        (void)shutdown(fd, SHUT_WR);
        while (n > 0)
            n = recv(fd, text, sizeof text, 0);
        (void)close(fd);
    }
    return NULL;
}

static void test_rejected_key_is_found_by_both_probes(void **state)
{
    struct peer shut, half, misnamed;
    struct upstream_info info;
    struct world w;

    (void)state;
    peer_start(&shut, unauthorized);
    peer_start(&misnamed, "HTTP/1.1 421 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    peer_listen(&half);
    half.says = unauthorized;
    assert_int_equal(pthread_create(&half.thread, NULL, open_status_main, &half), 0);
    world_open(&w, (const char *const[N]){shut.url, half.url, misnamed.url}, 2);
    await_state(&w, 0, "refused");
    await_state(&w, 1, "refused");
    await_state(&w, 2, "refused");
    fleet_info(w.fleet, engine_at(w.fleet, 2), &info);
    assert_int_equal(info.error.why.code, ERR_UPSTREAM_KEY);
    assert_non_null(strstr(info.error.why.msg, "421"));
    assert_non_null(strstr(info.error.why.msg, "--allowed-host"));
    for (size_t i = 0; i < 2; i++) {
        fleet_info(w.fleet, engine_at(w.fleet, i), &info);
        assert_int_equal(info.error.why.code, ERR_UPSTREAM_KEY);
        assert_non_null(strstr(info.error.why.msg, "401"));
        assert_non_null(strstr(info.error.why.msg, "requires a key"));
        assert_int_equal(info.alive, i == 1);
        assert_int_equal(info.n_failures, 0); /* it answered */
    }
    world_close(&w);
    peer_stop(&shut);
    peer_stop(&half);
    peer_stop(&misnamed);
}

/* Only a generation probe shows that the key is accepted again. */
static void test_accepted_key_restores_the_engine(void **state)
{
    struct peer half;
    struct err why = {0};
    struct world w;

    (void)state;
    peer_listen(&half);
    half.says = text_ok;
    assert_int_equal(pthread_create(&half.thread, NULL, open_status_main, &half), 0);
    world_open(&w, (const char *const[N]){half.url, "unix:/nowhere", "unix:/nowhere"}, 1000);
    await_state(&w, 0, "serving");
    (void)err_set(&why, ERR_UPSTREAM_KEY, "", "it answered 401");
    fleet_auth_failed(w.fleet, engine_at(w.fleet, 0), FLEET_AUTH_REQUEST, &why);
    await_state(&w, 0, "serving"); /* by an extra generation probe */
    world_close(&w);
    peer_stop(&half);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prober_reports_each_reply),
        cmocka_unit_test(test_engine_with_another_api_is_down),
        cmocka_unit_test(test_engine_that_stops_is_down),
        cmocka_unit_test(test_lack_of_descriptors_here_counts_against_no_engine),
        cmocka_unit_test(test_token_that_a_pause_overtakes_says_nothing),
        cmocka_unit_test(test_pause_of_this_server_is_not_held_by_others),
        cmocka_unit_test(test_token_shows_that_an_engine_which_hides_it_is_awake),
        cmocka_unit_test(test_generation_probe_finds_an_engine_that_generates_nothing),
        cmocka_unit_test(test_failed_token_says_nothing_while_the_engines_are_held),
        cmocka_unit_test(test_baton_without_engines_is_not_down),
        cmocka_unit_test(test_status_behind_a_failed_token_shows_another_process),
        cmocka_unit_test(test_rejected_key_is_found_by_both_probes),
        cmocka_unit_test(test_accepted_key_restores_the_engine),
    };
    struct err e = {0};

    if (http_init(&e) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
