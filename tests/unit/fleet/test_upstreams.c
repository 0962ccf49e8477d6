/* The upstream engines: their configuration, calls to several of them, and reloads meanwhile. */
#include "fleet/members/upstreams.h"

#include "base/clock.h"
#include "base/log.h"
#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"
#include "tests/unit/fleet/upstream_at.h"
#include "tests/unit/fleet/upstream_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MS = 1000, LONG_MS = 30000 };

static char dir[] = "/tmp/test_upstreams.XXXXXX";

/* The path of a file with this text in the test's directory; valid for the next three calls. */
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

static void assert_rejected(const char *entry, const char *wanted)
{
    struct upstream_config_list l = {.n = 0};
    struct err e = {0};

    assert_int_equal(upstream_config_list_read(&l, &entry, 1, NULL, &e), -1);
    assert_int_equal(l.n, 0);
    assert_string_equal(e.field, "--upstream");
    if (strstr(e.msg, wanted) == NULL)
        fail_msg("'%s' is refused with '%s', not with '%s'", entry, e.msg, wanted);
}

static void test_malformed_entry_is_an_error(void **state)
{
    char entry[512];

    (void)state;
    assert_rejected("", "none of http://host:port");
    assert_rejected("10.0.0.1:8000", "none of http://host:port");
    assert_rejected("ftp://host:1", "none of http://host:port");
    assert_rejected("http://", "none of http://host:port");
    assert_rejected("http://host:1/v1", "paths and users are not taken");
    assert_rejected("http://me@host:1", "paths and users are not taken");
    assert_rejected("http://host:1,tgi", "tgi");
    assert_rejected("http://host:1,vllm,vllm", "the kind is already given");
    assert_rejected("http://host:1,", "''");
    assert_rejected("http://host:99999", "has port '99999', which is none of 1 to 65535");
    assert_rejected("http://a:1,http://b:2",
                    "'http://b:2' after it is another upstream: use one --upstream");
    assert_rejected("http://a:1 http://b:2",
                    "'http://b:2' after it is another upstream: use one --upstream");
    assert_rejected("http://a:1,vllm,unix:/b", "one --upstream for each");
    assert_rejected("http://host:1,keyfile=/key",
                    "'keyfile=' is not one of key-file=FILE, ca-file=FILE; "
                    "did you mean key-file=FILE");
    assert_rejected("http://host:1,API_KEY=sk", "did you mean key-file=FILE");
    assert_rejected("https://host:1,ca=/ca", "did you mean ca-file=FILE?");
    assert_rejected("http://host:1,timeout=3",
                    "'timeout=' is not one of key-file=FILE, ca-file=FILE");
    assert_rejected("http://host:1,key-file=/nowhere/key", "/nowhere/key");
    assert_rejected("http://host:1,ca-file=/etc/passwd", "needs an https URL");
    assert_rejected("https://host:1,ca-file=/nowhere/ca", "/nowhere/ca");
    (void)snprintf(entry, sizeof entry, "http://host:1,key-file=%s", file_of("two", "one\ntwo\n"));
    assert_rejected(entry, "more than one line");
    (void)snprintf(entry, sizeof entry, "http://host:1,key-file=%s", file_of("blank", "a key\n"));
    assert_rejected(entry, "a blank");
    (void)snprintf(entry, sizeof entry, "http://host:1,key-file=%s", file_of("empty", "\n"));
    assert_rejected(entry, "0 bytes");
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

static void test_entries_of_a_file_are_read(void **state)
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

static void test_malformed_file_is_an_error(void **state)
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
    assert_int_equal(upstream_config_list_read(&l, NULL, 0, file_of("f", ""), &e), -1);
    assert_non_null(
        strstr(e.msg, "is empty: it may be half written; a file without upstreams has"));
    err_clear(&e);
    assert_int_equal(upstream_config_list_read(&l, NULL, 0, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "no upstream"));
    err_clear(&e);
    assert_non_null(many);
    for (int i = 0; i <= FLEET_MAX; i++)
        len += (size_t)sprintf(many + len, "http://host:%d\n", i + 1);
    assert_int_equal(upstream_config_list_read(&l, NULL, 0, file_of("f", many), &e), -1);
    assert_non_null(strstr(e.msg, "more than"));
    free(many);
}

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

static struct upstreams *upstreams_of(const struct upstreams_cfg *cfg)
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
        fleet_info(upstreams_fleet(u), engine_at(upstreams_fleet(u), i), &info);
        if (strcmp(upstream_state_name(info.state), state) == 0)
            return;
        (void)poll(NULL, 0, 1);
    }
    fail_msg("upstream %zu is %s, not %s", i, upstream_state_name(info.state), state);
}

static void make_call(struct upstreams *u, struct upstream_call *call, size_t i,
                      uint64_t timeout_us)
{
    struct err e = {0};
    const struct upstream_config *at;

    at = upstream_config(engine_at(upstreams_fleet(u), i));
    *call = (struct upstream_call){.target = &at->target, .timeout_us = timeout_us};
    assert_int_equal(api_make_query(&call->request, at->kind, API_GET_STATUS, &e), 0);
}

static void note_answered(void *arg, size_t at)
{
    *(size_t *)arg = 10 * *(size_t *)arg + at + 1;
}

static void test_upstreams_call_keeps_replies_apart(void **state)
{
    size_t order = 0;
    struct peer good, rejects, hangs;
    struct upstream_reply replies[4];
    struct upstream_call calls[4];
    struct upstreams_cfg cfg;
    struct upstreams *u;
    struct err e = {0};

    (void)state;
    peer_start(&good, ok);
    peer_start(&rejects, no);
    peer_start(&hangs, NULL);
    cfg = cfg_of((const char *const[]){good.url, rejects.url, hangs.url}, 3, NULL);
    u = upstreams_of(&cfg);
    make_call(u, &calls[0], 0, LONG_MS * MS);
    make_call(u, &calls[1], 1, LONG_MS * MS);
    make_call(u, &calls[2], 2, 1000 * MS);
    calls[3] = (struct upstream_call){.target = calls[0].target, .timeout_us = 1}; /* no request */
    assert_int_equal(upstreams_call(u, calls, 4, replies, note_answered, &order, &e), 0);
    assert_true(order / 100 == 12 || order / 100 == 21); /* as they came */
    assert_string_equal(replies[0].text, "{}");
    assert_int_equal(replies[1].status, 422);
    assert_non_null(strstr(replies[1].why.msg, "not this"));
    assert_int_equal(replies[2].why.code, ERR_UPSTREAM_TIMEOUT);
    assert_true(replies[0].good && replies[2].sent && replies[3].good && !replies[3].requested);
    for (size_t i = 0; i < 4; i++)
        upstream_reply_fini(&replies[i]);
    assert_int_equal(upstreams_live(u, &e), 0);
    upstreams_free(u);
    peer_stop(&good);
    peer_stop(&rejects);
    peer_stop(&hangs);
}

struct caller {
    struct upstreams *u;
    uint64_t timeout_us;
    int rc;
    struct err e;
    atomic_bool began;
    pthread_t thread;
};

static void *call_main(void *arg)
{
    struct caller *a = arg;
    struct upstream_reply reply;
    struct upstream_call call;

    make_call(a->u, &call, 0, a->timeout_us);
    atomic_store(&a->began, true);
    a->rc = upstreams_call(a->u, &call, 1, &reply, NULL, NULL, &a->e);
    if (a->rc == 0)
        upstream_reply_fini(&reply);
    return NULL;
}

static void callers_start(struct caller *a, size_t n, struct upstreams *u, uint64_t timeout_us)
{
    for (size_t i = 0; i < n; i++) {
        a[i] = (struct caller){.u = u, .timeout_us = timeout_us};
        assert_int_equal(pthread_create(&a[i].thread, NULL, call_main, &a[i]), 0);
    }
    for (size_t i = 0; i < n; i++)
        while (!atomic_load(&a[i].began))
            (void)poll(NULL, 0, 1);
}

static void test_upstreams_call_from_many_threads(void **state)
{
    enum { N = 16 };
    struct caller callers[N];
    struct upstreams_cfg cfg;
    struct upstreams *u;
    struct peer good;

    (void)state;
    peer_start(&good, ok);
    cfg = cfg_of((const char *const[]){good.url}, 1, NULL);
    u = upstreams_of(&cfg);
    callers_start(callers, N, u, LONG_MS * MS);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].rc, 0);
    }
    upstreams_free(u);
    peer_stop(&good);
}

/* Calls that were started, that were not, and later ones. */
static void test_stop_ends_calls_with_draining(void **state)
{
    enum { N = 8 };
    struct caller callers[N];
    struct upstream_reply reply;
    struct upstreams_cfg cfg;
    struct upstream_call call;
    struct upstreams *u;
    struct err e = {0};
    struct peer hangs;

    (void)state;
    peer_start(&hangs, NULL);
    cfg = cfg_of((const char *const[]){hangs.url}, 1, NULL);
    u = upstreams_of(&cfg);
    callers_start(callers, N, u, 10 * 60 * 1000000ULL);
    upstreams_stop(u);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].rc, -1);
        assert_int_equal(callers[i].e.code, ERR_DRAINING);
    }
    make_call(u, &call, 0, MS);
    assert_int_equal(upstreams_call(u, &call, 1, &reply, NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    assert_null(call.request.method);
    upstreams_free(u);
    peer_stop(&hangs);
}

static void *call_again_main(void *arg)
{
    struct caller *a = arg;
    struct upstream_reply reply;
    const struct upstream_config *at = upstream_config(engine_at(upstreams_fleet(a->u), 0));

    do {
        struct upstream_call call = {.target = &at->target, .timeout_us = 1}; /* no request */

        a->rc = upstreams_call(a->u, &call, 1, &reply, NULL, NULL, &a->e);
        atomic_store(&a->began, true);
        if (a->rc == 0)
            upstream_reply_fini(&reply);
    } while (a->rc == 0);
    return NULL;
}

/* Their memory must not be used after they have returned. */
static void test_stop_ends_calls_that_just_begin(void **state)
{
    enum { N = 12, ROUNDS = 100 };
    const char *const entries[] = {"http://127.0.0.1:1"};

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct upstreams_cfg cfg = cfg_of(entries, 1, NULL);
        struct upstreams *u = upstreams_of(&cfg);
        struct caller callers[N];

        for (size_t i = 0; i < N; i++) {
            callers[i] = (struct caller){.u = u};
            assert_int_equal(pthread_create(&callers[i].thread, NULL, call_again_main, &callers[i]),
                             0);
        }
        for (size_t i = 0; i < N; i++)
            while (!atomic_load(&callers[i].began))
                (void)sched_yield();
        upstreams_stop(u);
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
            assert_int_equal(callers[i].e.code, ERR_DRAINING);
        }
        upstreams_free(u);
    }
}

static void test_min_ready_counts_engines_to_come(void **state)
{
    struct upstreams_cfg cfg = cfg_of((const char *const[]){"http://127.0.0.1:1"}, 1, NULL);
    struct upstreams *u = NULL;
    struct fleet_stats s;
    struct err e = {0};

    (void)state;
    cfg.min_ready = 2;
    assert_int_equal(upstreams_new(&u, &cfg, &e), 0);
    assert_int_equal(upstreams_reload(u, &e), 0);
    fleet_stats(upstreams_fleet(u), &s);
    assert_int_equal(s.n_upstreams, 1);
    assert_int_equal(s.min_ready, 2);
    upstreams_free(u);
}

static void left(void *arg)
{
    atomic_fetch_add((atomic_size_t *)arg, 1);
}

static void test_on_left_rotation_is_called(void **state)
{
    atomic_size_t gone = 0;
    struct upstreams_cfg cfg;
    struct upstreams *u = NULL;
    struct peer a, b;
    struct err e = {0};

    (void)state;
    peer_start(&a, ok);
    peer_start(&b, ok);
    cfg = cfg_of((const char *const[]){a.url, b.url}, 2, NULL);
    assert_int_equal(upstreams_new(&u, &cfg, &e), 0);
    upstreams_on_left_rotation(u, left, &gone);
    assert_int_equal(upstreams_start(u, &e), 0);
    await_state(u, 0, "serving");
    await_state(u, 1, "serving");
    peer_stop(&b);
    await_state(u, 1, "down");
    upstreams_stop(u); /* no callback runs any more */
    assert_int_equal(atomic_load(&gone), 1);
    upstreams_free(u);
    peer_stop(&a);
}

static void reload(struct upstreams *u, const char *text)
{
    struct err e = {0};

    (void)file_of("entries", text);
    if (upstreams_reload(u, &e) != 0)
        fail_msg("%s: %s", e.field, e.msg);
}

static void assert_reload_fails(struct upstreams *u, const char *text, const char *wanted)
{
    struct err e = {0};

    (void)file_of("entries", text);
    assert_int_equal(upstreams_reload(u, &e), -1);
    if (strstr(e.msg, wanted) == NULL)
        fail_msg("refused with '%s', not with '%s'", e.msg, wanted);
}

static void granted(void *arg)
{
    (*(size_t *)arg)++;
}

static void test_reload_adds_and_removes(void **state)
{
    size_t n_granted = 0;
    struct fleet_ticket t = {.ticket = {.granted = granted, .arg = &n_granted}};
    struct upstream_info before;
    const struct upstream_report report = {.label = "v1"};
    struct upstreams_cfg cfg;
    struct fleet_stats s;
    struct upstreams *u;
    struct err e = {0};
    struct peer a, b;
    char text[256];
    struct upstream *i;

    (void)state;
    peer_start(&a, ok);
    peer_start(&b, ok);
    cfg = cfg_of(NULL, 0, file_of("entries", a.url));
    u = upstreams_of(&cfg);
    await_state(u, 0, "serving");
    i = engine_at(upstreams_fleet(u), 0);
    fleet_begin_switch(upstreams_fleet(u), &i, 1);
    (void)fleet_switch_version(upstreams_fleet(u), "v1", 0);
    fleet_confirm_version(upstreams_fleet(u), i, false);
    fleet_set_updating(upstreams_fleet(u), false);
    assert_int_equal(fleet_permit_acquire(upstreams_fleet(u), &t, &e), 0);
    assert_ptr_equal(t.upstream, engine_at(upstreams_fleet(u), 0));
    (void)snprintf(text, sizeof text, "%s\n%s\n", a.url, b.url);
    reload(u, text);
    await_state(u, 1, "unsynced"); /* it was added after the update */
    fleet_stats(upstreams_fleet(u), &s);
    assert_int_equal(s.n_upstreams, 2);
    assert_int_equal(s.min_ready, 2); /* all, and now that is two */
    assert_false(s.ready);
    i = engine_at(upstreams_fleet(u), 1);
    fleet_info(upstreams_fleet(u), i, &before);
    assert_int_equal(fleet_resync(upstreams_fleet(u), i, &before, &report, &e), 0);
    await_state(u, 1, "serving");
    reload(u, b.url);
    await_state(u, 0, "removed");
    fleet_stats(upstreams_fleet(u), &s);
    assert_int_equal(s.n_upstreams, 1);
    assert_true(s.ready);
    assert_int_equal(upstreams_find(u, a.url, &i, &e), -1);
    assert_non_null(strstr(e.msg, b.url));
    fleet_permit_release(upstreams_fleet(u), &t); /* its last request has finished */
    assert_int_equal(fleet_permit_acquire(upstreams_fleet(u), &t, &(struct err){0}), 0);
    assert_ptr_equal(t.upstream, engine_at(upstreams_fleet(u), 1));
    assert_int_equal(n_granted, 2);
    fleet_permit_release(upstreams_fleet(u), &t);

    reload(u, text); /* added again: its version is not known */
    await_state(u, 0, "unsynced");
    assert_int_equal(n_engines(upstreams_fleet(u)), 2);
    upstreams_free(u);
    peer_stop(&a);
    peer_stop(&b);
}

static void test_failed_reload_changes_nothing(void **state)
{
    struct upstreams_cfg cfg;
    const struct upstream_config *before, *after;
    struct upstreams *u;
    struct peer a;
    char text[256];

    (void)state;
    peer_start(&a, ok);
    cfg = cfg_of(NULL, 0, file_of("entries", a.url));
    cfg.min_ready = 1;
    u = upstreams_of(&cfg);
    before = upstream_config(engine_at(upstreams_fleet(u), 0));
    assert_reload_fails(u, "", "empty");
    (void)snprintf(text, sizeof text, "%s\nhttp://b:1,key-file=/nowhere\n", a.url);
    assert_reload_fails(u, text, "line 2");
    after = upstream_config(engine_at(upstreams_fleet(u), 0));
    assert_ptr_equal(&before->target, &after->target);
    assert_int_equal(n_engines(upstreams_fleet(u)), 1);
    await_state(u, 0, "serving");
    upstreams_free(u);
    peer_stop(&a);
}

/* The old target stays valid, and the engine stays in rotation. */
static void test_reload_uses_a_changed_key(void **state)
{
    const char *key = file_of("rolled", "first\n");
    const struct upstream_config *before, *same, *after;
    struct upstreams_cfg cfg;
    struct upstreams *u;
    struct peer a;
    char text[512];

    (void)state;
    peer_start(&a, ok);
    (void)snprintf(text, sizeof text, "%s,key-file=%s", a.url, key);
    cfg = cfg_of(NULL, 0, file_of("entries", text));
    u = upstreams_of(&cfg);
    await_state(u, 0, "serving");
    before = upstream_config(engine_at(upstreams_fleet(u), 0));
    reload(u, text);
    same = upstream_config(engine_at(upstreams_fleet(u), 0));
    assert_ptr_equal(&before->target, &same->target);
    (void)file_of("rolled", "second\n");
    reload(u, text);
    after = upstream_config(engine_at(upstreams_fleet(u), 0));
    assert_string_equal(before->target.authorization, "Bearer first");
    assert_string_equal(after->target.authorization, "Bearer second");
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

static void test_places_of_removed_engines_are_used_again(void **state)
{
    char *text = malloc((size_t)FLEET_MAX * 32);
    struct upstreams_cfg cfg;
    struct upstream *held, *i;
    struct upstreams *u;
    struct err e = {0};

    (void)state;
    assert_non_null(text);
    many_lines(text, 0, FLEET_MAX);
    cfg = cfg_of(NULL, 0, file_of("entries", text));
    cfg.min_ready = 1;
    u = upstreams_of(&cfg);
    for (int round = 1; round <= 3; round++) {
        held = upstream_ref(engine_at(upstreams_fleet(u), 0));
        many_lines(text, round, FLEET_MAX - 1); /* one is removed */
        reload(u, text);
        many_lines(text, round, FLEET_MAX); /* another is added */
        assert_reload_fails(u, text, "an update or another operation includes; try again when it");
        upstream_unref(held);
        reload(u, text);
        assert_int_equal(n_engines(upstreams_fleet(u)), FLEET_MAX);
        (void)snprintf(text, 64, "unix:/nowhere/%d", round + FLEET_MAX - 1);
        assert_int_equal(upstreams_find(u, text, &i, &e), 0);
        assert_false(upstream_is_removed(i));
        assert_ptr_equal(i, engine_at(upstreams_fleet(u), FLEET_MAX - 1));
        upstream_unref(i);
    }
    free(text);
    upstreams_free(u);
}

static void assert_not_added(struct upstreams *u, const char *entry, enum err_code code,
                             const char *wanted)
{
    struct upstream *i;
    struct err e = {0};

    assert_int_equal(upstreams_add(u, entry, &i, &e), -1);
    assert_int_equal(e.code, code);
    if (strstr(e.msg, wanted) == NULL)
        fail_msg("'%s' is refused with '%s', not with '%s'", entry, e.msg, wanted);
}

/* The configuration names none, so that all come by requests. */
static void test_add_and_remove(void **state)
{
    struct upstreams_cfg cfg = cfg_of(NULL, 0, file_of("entries", "# none\n"));
    const struct upstream_config *at;
    struct fleet_stats s;
    struct upstreams *u;
    struct err e = {0};
    struct peer a;
    struct upstream_info info;
    char text[256];
    struct upstream *first, *i;

    (void)state;
    peer_start(&a, ok);
    cfg.min_ready = 0;
    u = upstreams_of(&cfg);
    fleet_stats(upstreams_fleet(u), &s);
    assert_int_equal(s.n_upstreams, 0);
    assert_int_equal(s.min_ready, 1); /* a fleet without engines is not ready */
    assert_false(s.ready);
    assert_int_equal(upstreams_remove(u, a.url, &i, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    err_clear(&e);

    assert_int_equal(upstreams_add(u, a.url, &first, &e), 0);
    await_state(u, 0, "serving");
    at = upstream_config(first);
    assert_true(at->requested);
    assert_int_equal(upstreams_add(u, a.url, &i, &e), 0); /* again: nothing changes */
    assert_ptr_equal(i, first);
    upstream_unref(i);
    await_state(u, 0, "serving");
    (void)file_of("entries", "# none\n");
    assert_int_equal(upstreams_reload(u, &e), 0);
    await_state(u, 0, "serving");
    (void)snprintf(text, sizeof text, "%s,vllm", a.url);
    assert_not_added(u, text, ERR_CONFLICT, "another description (baton, without a key");

    assert_int_equal(upstreams_remove(u, a.url, &i, &e), 0);
    at = upstream_config(i);
    fleet_info(upstreams_fleet(u), i, &info);
    upstream_unref(i);
    assert_true(upstream_is_removed(i) && info.removed);
    assert_string_equal(at->url, a.url);
    await_state(u, 0, "removed");
    assert_int_equal(upstreams_add(u, a.url, &i, &e), 0);
    assert_ptr_equal(i, first);
    upstream_unref(i);
    reload(u, a.url); /* now the configuration has it */
    at = upstream_config(first);
    assert_false(at->requested || upstream_is_removed(first));
    upstream_unref(first);
    upstreams_free(u);
    peer_stop(&a);
}

static void test_add_reads_only_files_of_the_configuration(void **state)
{
    char entry[512], *key = strdup(file_of("key", "first\n")),
                     *other = strdup(file_of("f", "second\n"));
    const struct upstream_config *at;
    struct upstreams_cfg cfg;
    struct upstreams *u;
    struct err e = {0};
    struct upstream *i;

    (void)state;
    (void)snprintf(entry, sizeof entry, "unix:/nowhere/1,key-file=%s", key);
    cfg = cfg_of(NULL, 0, file_of("entries", entry));
    u = upstreams_of(&cfg);
    (void)snprintf(entry, sizeof entry, "unix:/nowhere/2,key-file=%s", other);
    assert_not_added(u, entry, ERR_BAD_REQUEST, "only as the configuration does");
    (void)snprintf(entry, sizeof entry, "unix:/nowhere/2,vllm,key-file=%s,ca-file=%s", key, other);
    assert_not_added(u, entry, ERR_BAD_REQUEST, "only as the configuration does");
    assert_not_added(u, "unix:/nowhere/2,key-file=", ERR_BAD_REQUEST, "configuration");
    (void)snprintf(entry, sizeof entry, "unix:/nowhere/2,key-file=%s/", key);
    assert_not_added(u, entry, ERR_BAD_REQUEST, "only as the configuration does");
    (void)snprintf(entry, sizeof entry, "unix:/nowhere/2,key-file=%s", key);
    assert_int_equal(upstreams_add(u, entry, &i, &e), 0);
    at = upstream_config(i);
    assert_string_equal(at->target.authorization, "Bearer first");
    (void)file_of("key", "rolled\n");
    assert_int_equal(upstreams_reload(u, &e), 0);
    at = upstream_config(i);
    assert_string_equal(at->target.authorization, "Bearer rolled");
    upstream_unref(i);
    upstreams_free(u);
    free(key);
    free(other);
}

/* The same engine takes no more memory each time, and others take the places of removed ones. */
static void test_engines_come_and_go(void **state)
{
    enum { N = 2 * FLEET_MAX };
    struct upstreams_cfg cfg = cfg_of(NULL, 0, file_of("entries", "# none\n"));
    const struct http_target *target = NULL;
    const struct upstream_config *at;
    struct upstreams *u;
    struct err e = {0};
    char url[64];
    struct upstream *i;

    (void)state;
    u = upstreams_of(&cfg);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(upstreams_add(u, "unix:/nowhere", &i, &e), 0);
        at = upstream_config(i);
        assert_true(target == NULL || target == &at->target);
        target = &at->target;
        upstream_unref(i);
        assert_int_equal(upstreams_remove(u, "unix:/nowhere", &i, &e), 0);
        upstream_unref(i);
    }
    for (int n = 0; n < N; n++) {
        (void)snprintf(url, sizeof url, "unix:/nowhere/%d", n);
        assert_int_equal(upstreams_add(u, url, &i, &e), 0);
        upstream_unref(i);
        if (n % 2 != 0)
            continue;
        assert_int_equal(upstreams_remove(u, url, &i, &e), 0);
        upstream_unref(i);
    }
    assert_int_equal(n_engines(upstreams_fleet(u)), FLEET_MAX);
    assert_not_added(u, "unix:/one/too/many", ERR_CONFLICT, "no place is free");
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
    static const char *const names[] = {"two",  "blank", "empty",   "bad",   "key",
                                        "list", "f",     "entries", "rolled"};
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
        cmocka_unit_test(test_malformed_entry_is_an_error),
        cmocka_unit_test(test_no_message_has_a_key),
        cmocka_unit_test(test_entries_of_a_file_are_read),
        cmocka_unit_test(test_malformed_file_is_an_error),
        cmocka_unit_test(test_upstreams_call_keeps_replies_apart),
        cmocka_unit_test(test_upstreams_call_from_many_threads),
        cmocka_unit_test(test_stop_ends_calls_with_draining),
        cmocka_unit_test(test_stop_ends_calls_that_just_begin),
        cmocka_unit_test(test_min_ready_counts_engines_to_come),
        cmocka_unit_test(test_on_left_rotation_is_called),
        cmocka_unit_test(test_reload_adds_and_removes),
        cmocka_unit_test(test_failed_reload_changes_nothing),
        cmocka_unit_test(test_reload_uses_a_changed_key),
        cmocka_unit_test(test_places_of_removed_engines_are_used_again),
        cmocka_unit_test(test_add_and_remove),
        cmocka_unit_test(test_add_reads_only_files_of_the_configuration),
        cmocka_unit_test(test_engines_come_and_go),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
