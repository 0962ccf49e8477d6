/* The room of the upstreams: what its configuration says, how several are asked, and what a reload
 * changes while others work. */
#include "fleet/members/upstreams.h"

#include "base/clock.h"
#include "base/log.h"
#include "fleet/members/upstream_config.h"
#include "tests/unit/fleet/upstream_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MS = 1000, LONG_MS = 30000 };

static char dir[] = "/tmp/test_upstreams.XXXXXX";

/* The path of a file in the test's directory with this in it; valid until the fourth call on. */
static const char *file_of(const char *name, const char *text)
{
    static char paths[4][256];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    FILE *f;

    (void)snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

/* specs */

static void refused(const char *spec, const char *says)
{
    struct upstream_config_list l = {.n = 0};
    struct err e = {0};

    assert_int_equal(upstream_config_list_read(&l, &spec, 1, NULL, &e), -1);
    assert_int_equal(l.n, 0);
    assert_string_equal(e.field, "--upstream");
    if (strstr(e.msg, says) == NULL)
        fail_msg("'%s' is refused with '%s', not with '%s'", spec, e.msg, says);
}

static void test_a_spec_that_is_none_is_refused(void **state)
{
    char spec[512];

    (void)state;
    refused("", "none of http://host:port");
    refused("10.0.0.1:8000", "none of http://host:port");
    refused("ftp://host:1", "none of http://host:port");
    refused("http://", "none of http://host:port");
    refused("http://host:1/v1", "paths and users are not taken");
    refused("http://me@host:1", "paths and users are not taken");
    refused("http://host:1,tgi", "tgi");
    refused("http://host:1,vllm,vllm", "the dialect is already given");
    refused("http://host:1,", "''");
    refused("http://host:99999", "has port '99999', which is none of 1 to 65535");
    refused("http://a:1,http://b:2",
            "'http://b:2' after it is another upstream: use one --upstream");
    refused("http://a:1 http://b:2",
            "'http://b:2' after it is another upstream: use one --upstream");
    refused("http://a:1,vllm,unix:/b", "one --upstream for each");
    refused("http://host:1,keyfile=/key", "'keyfile=' is not one of key-file=FILE, ca-file=FILE; "
                                          "did you mean key-file=FILE");
    refused("http://host:1,API_KEY=sk", "did you mean key-file=FILE");
    refused("https://host:1,ca=/ca", "did you mean ca-file=FILE?");
    refused("http://host:1,timeout=3", "'timeout=' is not one of key-file=FILE, ca-file=FILE");
    refused("http://host:1,key-file=/nowhere/key", "/nowhere/key");
    refused("http://host:1,ca-file=/etc/passwd", "needs an https URL");
    refused("https://host:1,ca-file=/nowhere/ca", "/nowhere/ca");
    (void)snprintf(spec, sizeof spec, "http://host:1,key-file=%s", file_of("two", "one\ntwo\n"));
    refused(spec, "more than one line");
    (void)snprintf(spec, sizeof spec, "http://host:1,key-file=%s", file_of("blank", "a key\n"));
    refused(spec, "a blank");
    (void)snprintf(spec, sizeof spec, "http://host:1,key-file=%s", file_of("empty", "\n"));
    refused(spec, "0 bytes");
}

/* A key is in no message, whatever is wrong with it. */
static void test_no_message_has_a_key(void **state)
{
    char of_file[512];
    const char *entries[] = {of_file, "http://host:1,key=hunter2",
                             "http://host:1,vllm,keyfile=hunter2",
                             "http://host:1,authorization=hunter2"};
    struct upstream_config_list l = {.n = 0};

    (void)state;
    (void)snprintf(of_file, sizeof of_file, "http://host:1,key-file=%s",
                   file_of("bad", "hunter2 \n"));
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        struct err e = {0};

        assert_int_equal(upstream_config_list_read(&l, &entries[i], 1, NULL, &e), -1);
        assert_null(strstr(e.msg, "hunter2"));
    }
}

static void test_specs_of_a_file(void **state)
{
    const char *key = file_of("key", "sk-1\r\n");
    struct upstream_config_list l;
    struct err e = {0};
    char text[1024];

    (void)state;
    (void)snprintf(text, sizeof text,
                   "# engines\n\n  http://a:1  # the first\nhttps://b:2,sglang,key-file=%s\r\n"
                   "unix:/run/c,vllm",
                   key);
    assert_int_equal(upstream_config_list_read(&l, NULL, 0, file_of("list", text), &e), 0);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.items[0]->url, "http://a:1");
    assert_int_equal(l.items[0]->kind, UPSTREAM_BATON);
    assert_null(l.items[0]->target.authorization);
    assert_int_equal(l.items[1]->kind, UPSTREAM_SGLANG);
    assert_string_equal(l.items[1]->target.authorization, "Bearer sk-1");
    assert_string_equal(l.items[2]->target.url, "unix:/run/c");
    assert_int_equal(l.items[2]->kind, UPSTREAM_VLLM);
    upstream_config_list_fini(&l);
}

static void test_a_bad_file_is_refused_whole(void **state)
{
    struct upstream_config_list l = {.n = 0};
    const char *given = "http://a:1";
    struct err e = {0};
    char *many = malloc((FLEET_MAX + 1) * 32);
    size_t len = 0;

    (void)state;
    assert_int_equal(
        upstream_config_list_read(&l, NULL, 0, file_of("f", "http://a:1\nnonsense\n"), &e), -1);
    assert_string_equal(e.field, "--upstream-file");
    assert_non_null(strstr(e.msg, "line 2"));
    err_clear(&e);
    assert_int_equal(
        upstream_config_list_read(&l, &given, 1, file_of("f", "http://a:1,vllm\n"), &e), -1);
    assert_non_null(strstr(e.msg, "given twice"));
    err_clear(&e);
    assert_int_equal(upstream_config_list_read(&l, NULL, 0, file_of("f", "# none\n"), &e), -1);
    assert_non_null(strstr(e.msg, "no upstream"));
    err_clear(&e);
    assert_non_null(many);
    for (int i = 0; i <= FLEET_MAX; i++)
        len += (size_t)sprintf(many + len, "http://host:%d\n", i + 1);
    assert_int_equal(upstream_config_list_read(&l, NULL, 0, file_of("f", many), &e), -1);
    assert_non_null(strstr(e.msg, "more than"));
    free(many);
}

/* the room */

static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
static const char no[] =
    "HTTP/1.1 422 No\r\nContent-Length: 21\r\nConnection: close\r\n\r\n{\"message\":\"not this\"}";

static struct upstreams_cfg cfg_of(const char *const *entries, size_t n, const char *file)
{
    return (struct upstreams_cfg){.entries = entries,
                                  .n_entries = n,
                                  .file = file,
                                  .n_permits = {4, 4},
                                  .n_queue_max = {4, 4},
                                  .probe_interval_us = 5 * MS,
                                  .probe_timeout_us = 1000 * MS};
}

static struct upstreams *room_of(const struct upstreams_cfg *cfg)
{
    struct upstreams *u = NULL;
    struct err e = {0};

    if (upstreams_new(&u, cfg, &e) != 0 || upstreams_start(u, &e) != 0)
        fail_msg("%s: %s", e.field, e.msg);
    return u;
}

static void await_state(struct upstreams *u, size_t i, const char *state)
{
    struct upstream_info info;

    for (int ms = 0; ms < LONG_MS; ms++) {
        fleet_info(upstreams_fleet(u), i, &info);
        if (strcmp(upstream_state_name(info.state), state) == 0)
            return;
        (void)poll(NULL, 0, 1);
    }
    fail_msg("upstream %zu is %s, not %s", i, upstream_state_name(info.state), state);
}

static void part_of(struct upstreams *u, struct upstream_call *part, size_t i, uint64_t timeout_us)
{
    struct err e = {0};
    struct upstream_endpoint at;

    upstreams_get(u, i, &at);
    *part = (struct upstream_call){.target = at.target, .timeout_us = timeout_us};
    assert_int_equal(api_make_query(&part->request, at.kind, API_GET_STATUS, &e), 0);
}

static void test_each_answers_for_itself(void **state)
{
    struct peer good, refuses, hangs;
    struct upstream_reply answers[4];
    struct upstream_call parts[4];
    struct upstreams_cfg cfg;
    struct upstreams *u;
    struct err e = {0};

    (void)state;
    peer_start(&good, ok);
    peer_start(&refuses, no);
    peer_start(&hangs, NULL);
    cfg = cfg_of((const char *const[]){good.url, refuses.url, hangs.url}, 3, NULL);
    u = room_of(&cfg);
    part_of(u, &parts[0], 0, LONG_MS * MS);
    part_of(u, &parts[1], 1, LONG_MS * MS);
    part_of(u, &parts[2], 2, 1000 * MS);
    parts[3] = (struct upstream_call){.target = parts[0].target, .timeout_us = 1}; /* not asked */
    assert_int_equal(upstreams_call(u, parts, 4, answers, &e), 0);
    assert_true(answers[0].good);
    assert_string_equal(answers[0].text, "{}");
    assert_int_equal(answers[1].status, 422);
    assert_non_null(strstr(answers[1].why.msg, "not this"));
    assert_int_equal(answers[2].why.code, ERR_TIMEOUT);
    assert_true(answers[2].sent);
    assert_true(answers[3].good && !answers[3].requested);
    for (size_t i = 0; i < 4; i++)
        upstream_reply_fini(&answers[i]);
    assert_int_equal(upstreams_live(u, &e), 0);
    upstreams_free(u);
    peer_stop(&good);
    peer_stop(&refuses);
    peer_stop(&hangs);
}

struct asker {
    struct upstreams *u;
    uint64_t timeout_us;
    int rc;
    struct err e;
    atomic_bool began;
    pthread_t thread;
};

static void *ask_main(void *arg)
{
    struct asker *a = arg;
    struct upstream_reply answer;
    struct upstream_call part;

    part_of(a->u, &part, 0, a->timeout_us);
    atomic_store(&a->began, true);
    a->rc = upstreams_call(a->u, &part, 1, &answer, &a->e);
    if (a->rc == 0)
        upstream_reply_fini(&answer);
    return NULL;
}

static void askers_start(struct asker *a, size_t n, struct upstreams *u, uint64_t timeout_us)
{
    for (size_t i = 0; i < n; i++) {
        a[i] = (struct asker){.u = u, .timeout_us = timeout_us};
        assert_int_equal(pthread_create(&a[i].thread, NULL, ask_main, &a[i]), 0);
    }
    for (size_t i = 0; i < n; i++)
        while (!atomic_load(&a[i].began))
            (void)poll(NULL, 0, 1);
}

static void test_many_threads_ask(void **state)
{
    enum { N = 16 };
    struct asker askers[N];
    struct upstreams_cfg cfg;
    struct upstreams *u;
    struct peer good;

    (void)state;
    peer_start(&good, ok);
    cfg = cfg_of((const char *const[]){good.url}, 1, NULL);
    u = room_of(&cfg);
    askers_start(askers, N, u, LONG_MS * MS);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
        assert_int_equal(askers[i].rc, 0);
    }
    upstreams_free(u);
    peer_stop(&good);
}

/* Those that have begun, those that have not, and those that come later. */
static void test_a_stop_tells_all_who_wait(void **state)
{
    enum { N = 8 };
    struct asker askers[N];
    struct upstream_reply answer;
    struct upstreams_cfg cfg;
    struct upstream_call part;
    struct upstreams *u;
    struct err e = {0};
    struct peer hangs;

    (void)state;
    peer_start(&hangs, NULL);
    cfg = cfg_of((const char *const[]){hangs.url}, 1, NULL);
    u = room_of(&cfg);
    askers_start(askers, N, u, 10 * 60 * 1000000ULL);
    upstreams_stop(u);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
        assert_int_equal(askers[i].rc, -1);
        assert_int_equal(askers[i].e.code, ERR_DRAINING);
    }
    part_of(u, &part, 0, MS);
    assert_int_equal(upstreams_call(u, &part, 1, &answer, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    assert_null(part.request.method);
    upstreams_free(u);
    peer_stop(&hangs);
}

static void *ask_on_main(void *arg)
{
    struct asker *a = arg;
    struct upstream_reply answer;
    struct upstream_endpoint at;

    upstreams_get(a->u, 0, &at);
    do {
        struct upstream_call part = {.target = at.target,
                                     .timeout_us = 1}; /* nobody has to be asked */

        a->rc = upstreams_call(a->u, &part, 1, &answer, &a->e);
        atomic_store(&a->began, true);
        if (a->rc == 0)
            upstream_reply_fini(&answer);
    } while (a->rc == 0);
    return NULL;
}

/* ... and those that are just about to begin: nothing of theirs is touched once they were told. */
static void test_a_stop_meets_those_who_come(void **state)
{
    enum { N = 12, ROUNDS = 100 };
    const char *const entries[] = {"http://127.0.0.1:1"};

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct upstreams_cfg cfg = cfg_of(entries, 1, NULL);
        struct upstreams *u = room_of(&cfg);
        struct asker askers[N];

        for (size_t i = 0; i < N; i++) {
            askers[i] = (struct asker){.u = u};
            assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_on_main, &askers[i]), 0);
        }
        for (size_t i = 0; i < N; i++)
            while (!atomic_load(&askers[i].began))
                (void)sched_yield();
        upstreams_stop(u);
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
            assert_int_equal(askers[i].e.code, ERR_DRAINING);
        }
        upstreams_free(u);
    }
}

static void test_min_ready_must_be_possible(void **state)
{
    struct upstreams_cfg cfg = cfg_of((const char *const[]){"http://127.0.0.1:1"}, 1, NULL);
    struct upstreams *u = NULL;
    struct err e = {0};

    (void)state;
    cfg.min_ready = 2;
    assert_int_equal(upstreams_new(&u, &cfg, &e), -1);
    assert_string_equal(e.field, "--min-ready");
    assert_null(u);
}

static void left(void *arg, size_t upstream)
{
    atomic_store((atomic_size_t *)arg, upstream + 1);
}

static void test_who_leaves_is_told_of(void **state)
{
    atomic_size_t who = 0;
    struct upstreams_cfg cfg;
    struct upstreams *u = NULL;
    struct peer a, b;
    struct err e = {0};

    (void)state;
    peer_start(&a, ok);
    peer_start(&b, ok);
    cfg = cfg_of((const char *const[]){a.url, b.url}, 2, NULL);
    assert_int_equal(upstreams_new(&u, &cfg, &e), 0);
    upstreams_on_left_rotation(u, left, &who);
    assert_int_equal(upstreams_start(u, &e), 0);
    await_state(u, 0, "serving");
    await_state(u, 1, "serving");
    peer_stop(&b);
    await_state(u, 1, "down");
    upstreams_stop(u); /* whoever tells has told */
    assert_int_equal(atomic_load(&who), 2);
    upstreams_free(u);
    peer_stop(&a);
}

/* reading it again */

static void reload(struct upstreams *u, const char *text)
{
    struct err e = {0};

    (void)file_of("room", text);
    if (upstreams_reload(u, &e) != 0)
        fail_msg("%s: %s", e.field, e.msg);
}

static void reload_refused(struct upstreams *u, const char *text, const char *says)
{
    struct err e = {0};

    (void)file_of("room", text);
    assert_int_equal(upstreams_reload(u, &e), -1);
    if (strstr(e.msg, says) == NULL)
        fail_msg("refused with '%s', not with '%s'", e.msg, says);
}

static void granted(void *arg, size_t upstream)
{
    *(size_t *)arg = upstream;
}

static void test_a_reload_adds_and_removes(void **state)
{
    size_t at = FLEET_MAX;
    struct fleet_ticket t = {.granted = granted, .arg = &at};
    const struct upstream_report report = {.label = "v1"};
    struct upstreams_cfg cfg;
    struct fleet_stats s;
    struct upstreams *u;
    struct err e = {0};
    struct peer a, b;
    char text[256];
    size_t i;

    (void)state;
    peer_start(&a, ok);
    peer_start(&b, ok);
    cfg = cfg_of(NULL, 0, file_of("room", a.url));
    u = room_of(&cfg);
    await_state(u, 0, "serving");
    (void)fleet_commit_version(upstreams_fleet(u), "v1", (const bool[FLEET_MAX]){true}, NULL);
    assert_int_equal(fleet_permit_acquire(upstreams_fleet(u), &t, &e), 0);
    assert_int_equal(at, 0);

    (void)snprintf(text, sizeof text, "%s\n%s\n", a.url, b.url);
    reload(u, text);
    await_state(u, 1, "unsynced"); /* it came after the update */
    fleet_stats(upstreams_fleet(u), &s);
    assert_int_equal(s.n_upstreams, 2);
    assert_int_equal(s.min_ready, 2); /* all, and now that is two */
    assert_false(s.ready);
    assert_int_equal(fleet_resync(upstreams_fleet(u), 1, &report, &e), 0);
    await_state(u, 1, "serving");

    reload(u, b.url);
    await_state(u, 0, "removed");
    fleet_stats(upstreams_fleet(u), &s);
    assert_int_equal(s.n_upstreams, 1);
    assert_true(s.ready);
    assert_int_equal(upstreams_find(u, a.url, &i, &e), -1);
    assert_non_null(strstr(e.msg, b.url));
    fleet_permit_release(upstreams_fleet(u), &t); /* what ran there has ended */
    assert_int_equal(fleet_permit_acquire(upstreams_fleet(u), &t, &(struct err){0}), 0);
    assert_int_equal(at, 1);
    fleet_permit_release(upstreams_fleet(u), &t);

    reload(u, text); /* and back: nobody knows what it serves by now */
    await_state(u, 0, "unsynced");
    assert_int_equal(upstreams_n(u), 2);
    upstreams_free(u);
    peer_stop(&a);
    peer_stop(&b);
}

static void test_a_bad_reload_changes_nothing(void **state)
{
    struct upstreams_cfg cfg;
    struct upstream_endpoint before, after;
    struct upstreams *u;
    struct peer a;
    char text[256];

    (void)state;
    peer_start(&a, ok);
    cfg = cfg_of(NULL, 0, file_of("room", a.url));
    cfg.min_ready = 1;
    u = room_of(&cfg);
    upstreams_get(u, 0, &before);
    reload_refused(u, "", "empty");
    reload_refused(u, "# none\n", "no upstream");
    (void)snprintf(text, sizeof text, "%s\nhttp://b:1,key-file=/nowhere\n", a.url);
    reload_refused(u, text, "line 2");
    upstreams_get(u, 0, &after);
    assert_ptr_equal(before.target, after.target);
    assert_int_equal(upstreams_n(u), 1);
    await_state(u, 0, "serving");
    upstreams_free(u);
    peer_stop(&a);
}

/* What was told before stays readable; the upstream stays in rotation. */
static void test_a_changed_key_is_used_from_then_on(void **state)
{
    const char *key = file_of("rolled", "first\n");
    struct upstream_endpoint before, same, after;
    struct upstreams_cfg cfg;
    struct upstreams *u;
    struct peer a;
    char text[512];

    (void)state;
    peer_start(&a, ok);
    (void)snprintf(text, sizeof text, "%s,key-file=%s", a.url, key);
    cfg = cfg_of(NULL, 0, file_of("room", text));
    u = room_of(&cfg);
    await_state(u, 0, "serving");
    upstreams_get(u, 0, &before);
    reload(u, text);
    upstreams_get(u, 0, &same);
    assert_ptr_equal(before.target, same.target);
    (void)file_of("rolled", "second\n");
    reload(u, text);
    upstreams_get(u, 0, &after);
    assert_string_equal(before.target->authorization, "Bearer first");
    assert_string_equal(after.target->authorization, "Bearer second");
    await_state(u, 0, "serving");
    upstreams_free(u);
    peer_stop(&a);
}

static void many_lines(char *text, int from, int n)
{
    size_t len = 0;

    for (int i = from; i < from + n; i++)
        len += (size_t)sprintf(text + len, "unix:/nowhere/%d\n", i);
}

/* Engines come and go for as long as the process lives. */
static void test_indexes_are_used_again(void **state)
{
    char *text = malloc((size_t)FLEET_MAX * 32);
    struct upstreams_cfg cfg;
    struct upstream_endpoint at;
    struct upstreams *u;
    struct err e = {0};
    size_t i = 0;

    (void)state;
    assert_non_null(text);
    many_lines(text, 0, FLEET_MAX);
    cfg = cfg_of(NULL, 0, file_of("room", text));
    cfg.min_ready = 1;
    u = room_of(&cfg);
    for (int round = 1; round <= 3; round++) {
        many_lines(text, round, FLEET_MAX - 1); /* one goes */
        reload(u, text);
        many_lines(text, round, FLEET_MAX); /* another comes */
        upstreams_hold_indexes(u);
        reload_refused(u, text, "no index is free");
        upstreams_release_indexes(u);
        reload(u, text);
        assert_int_equal(upstreams_n(u), FLEET_MAX);
        (void)snprintf(text, 64, "unix:/nowhere/%d", round + FLEET_MAX - 1);
        assert_int_equal(upstreams_find(u, text, &i, &e), 0);
        upstreams_get(u, i, &at);
        assert_false(at.removed);
        assert_int_equal(i, (size_t)round - 1);
    }
    free(text);
    upstreams_free(u);
}

static int make_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return mkdtemp(dir) == NULL ? -1 : http_init(&e);
}

static int remove_dir(void **state)
{
    static const char *const names[] = {"two",  "blank", "empty", "bad",   "key",
                                        "list", "f",     "room",  "rolled"};
    char path[256];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_spec_that_is_none_is_refused),
        cmocka_unit_test(test_no_message_has_a_key),
        cmocka_unit_test(test_specs_of_a_file),
        cmocka_unit_test(test_a_bad_file_is_refused_whole),
        cmocka_unit_test(test_each_answers_for_itself),
        cmocka_unit_test(test_many_threads_ask),
        cmocka_unit_test(test_a_stop_tells_all_who_wait),
        cmocka_unit_test(test_a_stop_meets_those_who_come),
        cmocka_unit_test(test_min_ready_must_be_possible),
        cmocka_unit_test(test_who_leaves_is_told_of),
        cmocka_unit_test(test_a_reload_adds_and_removes),
        cmocka_unit_test(test_a_bad_reload_changes_nothing),
        cmocka_unit_test(test_a_changed_key_is_used_from_then_on),
        cmocka_unit_test(test_indexes_are_used_again),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
