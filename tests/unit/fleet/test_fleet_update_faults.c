/* An update of the fleet, while everything that may happen to it happens at every moment: an abort,
 * the end of its lease, an engine's restart, a pause and a resume by the trainer, a second update,
 * requests that are refused, lost or executed without an answer. Whatever happens, the process goes
 * on, a part's facts change only as they may (`moves`), no engine serves clients with weights that
 * are not the fleet's version, and one whole update repairs everything.
 *
 * BATON_SEED=n runs one seed and prints what happens; BATON_SEEDS=n runs so many. */
#include "update_faults_watch.h"

#include <signal.h>
#include <unistd.h>

enum { ENGINES = 3 };

enum event {
    EVENT_ABORT,
    EVENT_ABORT_WAIT,
    EVENT_EXPIRE,
    EVENT_RESTART,
    EVENT_PAUSE,
    EVENT_RESUME,
    EVENT_SECOND_UPDATE,
    EVENT_SEND,
    EVENT_GATES,
    EVENTS
};

/* ---- the trainer ---- */

static int send_chunk(struct fleet_session *s, unsigned chunk)
{
    static const char *const entries[] = {"of unknown names"};
    char number[16];
    const struct api_tensors tensors = {.serialized = true,
                                        .entries = entries,
                                        .n_entries = 1,
                                        .format = number,
                                        .by_handles = w.by_handles,
                                        .by_path = w.by_path};
    const struct fleet_tensors t = {.args = {.tensors = &tensors}};
    struct err e = {0};
    int rc;

    (void)snprintf(number, sizeof number, "%u", chunk);
    rc = fleet_send_tensors(w.fc, s, &t, &e);
    assert_int_equal(rc == 0, e.code == ERR_NONE);
    if (rc == 0)
        w.accepted |= 1u << chunk;
    return rc;
}

/* One update from its start to its end, by one request after the other. Returns 0: committed. */
static int update_run(int target, unsigned n_chunks)
{
    char label[16];
    fleet_results_auto replies = {0};
    struct fleet_update_request req = {.label = label, .lease_s = LEASE_S};
    struct fleet_session *s;
    struct err e = {0}, why = {0}, ignored = {0};
    int rc;

    (void)snprintf(label, sizeof label, "v%d", target);
    rc = fleet_start_update(w.fc, &req, &s, &replies, &e);
    if (rc != 0)
        return -1;
    w.target = target;
    w.accepted = 0;
    for (unsigned k = 0; rc == 0 && k < n_chunks; k++) {
        rc = send_chunk(s, k);
        if (rc != 0 && chance(50)) /* a trainer that tries again */
            rc = send_chunk(s, k);
    }
    if (rc == 0 && chance(20))
        rc = fleet_finish_update(w.fc, s, "", NULL, false, &e);
    err_clear(&e);
    if (rc == 0)
        rc = fleet_finish_update(w.fc, s, "", NULL, true, &e);
    if (rc != 0 && chance(50)) {
        (void)err_set(&why, ERR_CONFLICT, "", "the trainer aborts");
        (void)fleet_abort_update_wait(w.fc, s, &why, &ignored);
    }
    rc = s->phase == UPDATE_COMMITTED ? 0 : -1;
    if (s->serial > 0)
        w.version = target;
    fleet_unref(w.fc, s);
    return rc;
}

/* ---- what interferes ---- */

static void abort_open(bool wait)
{
    struct fleet_session *s = fleet_open_session(w.fc);
    struct err why = {0}, e = {0};

    if (s == NULL)
        return;
    (void)err_set(&why, ERR_CONFLICT, "", "aborted");
    if (wait)
        (void)fleet_abort_update_wait(w.fc, s, &why, &e);
    else
        (void)fleet_abort_update(w.fc, s, &why, &e);
    fleet_unref(w.fc, s);
}

static void second_update(void)
{
    fleet_results_auto replies = {0};
    struct fleet_update_request req = {.label = "v9", .lease_s = LEASE_S};
    struct fleet_session *s = NULL;
    struct err e = {0};

    if (fleet_start_update(w.fc, &req, &s, &replies, &e) == 0)
        abort_open(true);
    fleet_unref(w.fc, s);
}

/* Another request of the trainer's, at the same time. */
static void send_beside(void)
{
    struct fleet_session *s = fleet_open_session(w.fc);
    char label[16];

    (void)snprintf(label, sizeof label, "v%d", w.target);
    if (s != NULL && strcmp(s->label, label) == 0) /* else its trainer has yet to hear of it */
        (void)send_chunk(s, CHUNKS);
    fleet_unref(w.fc, s);
}

static void happen(enum event event)
{
    trace("interferes: %d", (int)event);
    switch (event) {
    case EVENT_ABORT:
    case EVENT_ABORT_WAIT:
        abort_open(event == EVENT_ABORT_WAIT);
        break;
    case EVENT_EXPIRE:
        expire();
        break;
    case EVENT_RESTART:
        engine_restart(&w.engines[draw(ENGINES)]);
        if (chance(50))
            probe_all();
        break;
    case EVENT_PAUSE:
        pause_all();
        break;
    case EVENT_RESUME:
        resume_all();
        break;
    case EVENT_SECOND_UPDATE:
        second_update();
        break;
    case EVENT_SEND:
        send_beside();
        break;
    case EVENT_GATES:
        w.now_us += 1000000; /* what failed is tried again */
        fleet_pause_drive(w.fc);
        break;
    case EVENTS:
        break;
    }
}

static void *interfere(void *arg)
{
    (void)arg;
    me = OTHER;
    assert_int_equal(pthread_mutex_lock(&w.lock), 0);
    while (w.turn != me)
        (void)pthread_cond_wait(&w.changed, &w.lock);
    (void)pthread_mutex_unlock(&w.lock);
    for (unsigned n = 1 + draw(EVENTS_MAX); n > 0; n--) {
        happen(chance(w.abort_percent) ? EVENT_ABORT_WAIT : (enum event)draw(EVENTS));
        may_switch(w.switch_percent);
    }
    assert_int_equal(pthread_mutex_lock(&w.lock), 0);
    w.done[OTHER] = true;
    w.turn = TRAINER;
    (void)pthread_cond_broadcast(&w.changed);
    (void)pthread_mutex_unlock(&w.lock);
    return NULL;
}

/* ---- one run ---- */

static void world_init(unsigned seed)
{
    enum upstream_kind kind;
    bool mixed;

    world_begin(seed);
    w.watch = watch_parts;
    w.fault_percent = draw(3) == 0 ? 0 : 2 + draw(20);
    w.all_fail_percent = draw(3) == 0 ? 0 : draw(12);
    w.abort_percent = draw(3) * 30;
    w.switch_percent = 3 + draw(50);
    w.unlock_percent = draw(30);
    w.by_handles = chance(30);
    w.by_path = chance(20);
    w.may_drain = true;
    world_open(ENGINES, 1 + draw(ENGINES), chance(50));
    mixed = chance(50);
    kind = (enum upstream_kind)draw(UPSTREAM_KINDS);
    for (size_t i = 0; i < w.n_engines; i++)
        engine_start(&w.engines[i], mixed ? (enum upstream_kind)draw(UPSTREAM_KINDS) : kind);
    probe_all();
}

/* No engine gets requests with weights that are torn, or of another version than the fleet's. */
static void check_served(const char *when)
{
    struct fleet_stats stats;

    fleet_stats(w.fleet, &stats);
    for (size_t i = 0; i < w.n_engines; i++) {
        const struct engine *g = &w.engines[i];
        int version = g->kind == UPSTREAM_BATON ? g->version : version_of(g);
        char label[16];

        if (!fleet_serves(w.fleet, engine_at(w.fleet, i)))
            continue;
        (void)snprintf(label, sizeof label, "v%d", version);
        if (version == TORN || strcmp(label, stats.label) != 0)
            fail_msg("seed %u, %s: engine %zu (%s) serves clients with %s of a fleet of '%s'",
                     w.seed, when, i, upstream_kind_name(g->kind), label, stats.label);
    }
}

static void run(unsigned seed)
{
    pthread_t thread;

    world_init(seed);
    me = TRAINER;
    assert_int_equal(pthread_create(&thread, NULL, interfere, NULL), 0);
    (void)update_run(1, 1 + draw(CHUNKS));
    w.done[TRAINER] = true;
    if (!w.done[OTHER])
        hand_over();
    assert_int_equal(pthread_join(thread, NULL), 0);
    w.done[OTHER] = true;
    expire();
    assert_null(w.fc->session);
    probe_all();
    check_served("after the update");

    w.fault_percent = w.all_fail_percent = 0;
    w.by_path = w.by_handles = false;
    resume_all();
    if (update_run(2, CHUNKS) != 0)
        fail_msg("seed %u: a whole update does not end well", seed);
    probe_all();
    check_served("after a whole update");
    for (size_t i = 0; i < w.n_engines; i++) {
        if (!fleet_serves(w.fleet, engine_at(w.fleet, i)))
            fail_msg("seed %u: engine %zu serves nobody after a whole update", seed, i);
        if (w.engines[i].paused)
            fail_msg("seed %u: engine %zu is still paused after a whole update", seed, i);
    }
    world_fini();
}

static void on_abort(int signal)
{
    char text[64];
    int len = snprintf(text, sizeof text, "aborted at seed %u\n", w.seed);

    (void)signal;
    (void)!write(STDERR_FILENO, text, (size_t)len);
}

static unsigned n_not_reached(bool told)
{
    unsigned n = 0;

    for (int kind = 0; kind < 2; kind++)
        for (size_t at = 0; at < strlen(moves[kind]); at += 3) {
            if (reached[kind][at])
                continue;
            n++;
            if (told)
                print_message("not reached: %.2s of kind %d\n", moves[kind] + at, kind);
        }
    return n;
}

static void test_fleet_update_survives_every_move(void **state)
{
    const char *one = getenv("BATON_SEED"), *seeds = getenv("BATON_SEEDS");
    unsigned n = seeds != NULL ? (unsigned)strtoul(seeds, NULL, 10) : SEEDS;
    unsigned seed = 1;

    (void)state;
    if (one != NULL) {
        run((unsigned)strtoul(one, NULL, 10));
        return;
    }
    while (seed <= n || (REACHES_ALL && n_not_reached(false) > 0 && seed <= SEEDS_MAX))
        run(seed++);
    print_message("%u seeds\n", seed - 1);
    if (REACHES_ALL)
        assert_int_equal(n_not_reached(true), 0);
}

/* ---- what is known to happen ---- */

static size_t n_restarts; /* of the last engines, behind the last query before the commit */

static void restart_resumed(void)
{
    for (size_t i = w.n_engines - n_restarts; i < w.n_engines; i++) {
        struct engine *g = &w.engines[i];

        if (g->n_asked[API_RESUME] == 0 || g->process > 0)
            continue;
        engine_restart(g);
        probe(i);
    }
}

static void update_begin(enum upstream_kind kind)
{
    world_begin(1);
    w.watch = watch_parts;
    me = TRAINER;
    w.done[OTHER] = true;
    world_open(ENGINES, 1, true);
    for (size_t i = 0; i < w.n_engines; i++)
        engine_start(&w.engines[i], kind);
    probe_all();
}

static int update_while_engines_restart(enum upstream_kind kind, size_t n)
{
    int rc;

    update_begin(kind);
    n_restarts = n;
    w.after_query = restart_resumed;
    rc = update_run(1, CHUNKS);
    w.after_query = NULL;
    return rc;
}

/* Its new process gets the version's name, and has the weights that it started with. */
static void test_an_engine_that_restarts_before_the_commit_is_fenced(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        size_t last = ENGINES - 1;
        struct upstream_info info;
        struct fleet_stats stats;
        int rc = update_while_engines_restart(kinds[k], 1);

        fleet_info(w.fleet, engine_at(w.fleet, last), &info);
        assert_int_equal(rc, 0);
        assert_int_equal(version_of(&w.engines[last]), 0);
        assert_false(fleet_serves(w.fleet, engine_at(w.fleet, last)));
        assert_int_equal(info.state, UPSTREAM_FENCED);
        assert_non_null(strstr(info.error.why.msg, "restarted"));
        probe_all();
        check_served("after the restart");
        fleet_stats(w.fleet, &stats);
        assert_int_equal(stats.n_serving, ENGINES - 1);
        world_fini();
    }
}

/* It has started the update, and its new process has not. */
static void restart_started(void)
{
    struct engine *g = &w.engines[ENGINES - 1];

    if (g->n_asked[API_START_UPDATE] == 0 || g->process > 0)
        return;
    engine_restart(g);
    probe(ENGINES - 1);
}

/* Probes of the last engine that fail once it was asked to pause, each with a good one behind it.
 */
static void fail_probes_while_paused(void)
{
    struct engine *g = &w.engines[ENGINES - 1];
    struct err why = {0};

    if (g->n_asked[API_PAUSE] == 0 || g->n_asked[API_SET_VERSION] > 0 || w.check == NULL)
        return;
    (void)err_set(&why, ERR_UPSTREAM_TIMEOUT, "", "slow");
    for (int i = 0; i < FLEET_FAILURES_DOWN; i++) {
        fleet_probe_failed(w.fleet, engine_at(w.fleet, ENGINES - 1), false, &why);
        probe(ENGINES - 1);
    }
    w.check = NULL;
}

static void test_one_that_is_slow_while_it_is_paused_gets_its_tensors(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        update_begin(kinds[k]);
        w.check = fail_probes_while_paused;
        assert_int_equal(update_run(1, CHUNKS), 0);
        assert_null(w.check);
        assert_int_equal(w.engines[ENGINES - 1].n_asked[API_UPDATE_WEIGHTS], CHUNKS);
        assert_true(fleet_serves(w.fleet, engine_at(w.fleet, ENGINES - 1)));
        world_fini();
    }
}

static void test_one_that_restarts_before_its_first_byte_gets_none(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        update_begin(kinds[k]);
        w.check = restart_started;
        assert_int_equal(update_run(1, CHUNKS), 0);
        assert_int_equal(w.engines[0].n_asked[API_UPDATE_WEIGHTS], CHUNKS);
        assert_int_equal(w.engines[ENGINES - 1].process, 1);
        assert_int_equal(w.engines[ENGINES - 1].n_asked[API_UPDATE_WEIGHTS], 0);
        assert_false(fleet_serves(w.fleet, engine_at(w.fleet, ENGINES - 1)));
        world_fini();
    }
}

/* ... while another one of them is paused; then nothing answers there, for a moment. */
static void restart_while_others_pause(void)
{
    struct engine *g = &w.engines[ENGINES - 1];
    struct err why = {0};

    if (g->open && g->chunks != 0)
        assert_true(g->paused);
    if (w.fc->session == NULL || !w.fc->session->prepare_begun || !g->paused || g->process > 0)
        return;
    (void)err_set(&why, ERR_UPSTREAM, "", "connection refused");
    fleet_probe_failed(w.fleet, engine_at(w.fleet, ENGINES - 1), true, &why);
    engine_restart(g);
}

/* @paused  by the trainer, before */
static void begin_with_restart(enum upstream_kind kind, bool paused)
{
    update_begin(kind);
    if (paused)
        pause_all();
    w.check = restart_while_others_pause;
    w.after_query = paused ? restart_while_others_pause : NULL;
}

/* Nothing has shown the process yet, so it is paused as the one before was. */
static void test_one_that_restarts_while_it_is_paused_is_paused_again(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG};

    (void)state;
    for (size_t k = 0; k < 4; k++) {
        begin_with_restart(kinds[k / 2], k % 2 == 0);
        (void)update_run(1, CHUNKS);
        assert_int_equal(w.engines[ENGINES - 1].process, 1);
        assert_int_equal(w.engines[ENGINES - 1].n_asked[API_UPDATE_WEIGHTS], CHUNKS);
        world_fini();
    }
}

/* The next one of them, when the first gets its marker. */
static void restart_before_its_marker(void)
{
    struct err why = {0};
    size_t next = 0;

    for (size_t i = 0; i < ENGINES; i++) {
        const struct engine *g = &w.engines[i];

        if (g->chunks != 0)
            assert_true(g->paused);
        if (g->process > 0)
            return;
        next = g->n_asked[API_SET_VERSION] > 0 ? (i + 1) % ENGINES : next;
    }
    if (w.fc->session == NULL ||
        !fleet_is_dirty_marker(w.engines[next > 0 ? next - 1 : ENGINES - 1].label))
        return;
    (void)err_set(&why, ERR_UPSTREAM, "", "connection refused");
    fleet_probe_failed(w.fleet, engine_at(w.fleet, next), true, &why);
    engine_restart(&w.engines[next]);
}

static void test_one_that_restarts_before_its_marker_is_paused_again(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        unsigned n_restarted = 0;

        update_begin(kinds[k]);
        w.check = restart_before_its_marker;
        assert_int_equal(update_run(1, CHUNKS), 0);
        for (size_t i = 0; i < ENGINES; i++)
            n_restarted += w.engines[i].process;
        assert_int_equal(n_restarted, 1);
        world_fini();
    }
}

/* What happens to the last engine behind its first tensors, which no probe has seen: requests to it
 * fail. */
static struct behind {
    bool refused, restarts;
    unsigned n_failures;
} behind;

static void fail_behind_tensors(void)
{
    struct engine *g = &w.engines[ENGINES - 1];
    struct err why = {0};

    for (size_t i = 0; i < ENGINES; i++)
        if (w.engines[i].n_asked[API_UPDATE_WEIGHTS] == 0)
            return;
    (void)err_set(&why, ERR_UPSTREAM_TIMEOUT, "", "it failed");
    for (; behind.n_failures > 0; behind.n_failures--)
        fleet_probe_failed(w.fleet, engine_at(w.fleet, ENGINES - 1), behind.refused, &why);
    if (!behind.restarts)
        return;
    behind.restarts = g->open = g->paused = false;
    g->process++;
    g->version = 0;
    g->chunks = 0;
    (void)snprintf(g->label, sizeof g->label, "v0");
}

/* Its marker tells whether it is the same, or its name if it takes none. */
static void test_one_that_fails_behind_its_tensors_is_asked_who_it_is(void **state)
{
    static const struct behind of[] = {
        {.refused = true, .restarts = true, .n_failures = 1},
        {.restarts = true, .n_failures = 1},
        {.restarts = true, .n_failures = FLEET_FAILURES_DOWN},
        {.n_failures = 1},
        {.n_failures = FLEET_FAILURES_DOWN},
    };

    (void)state;
    for (size_t k = 0; k < 2 * sizeof of / sizeof of[0]; k++) {
        struct engine *g = &w.engines[ENGINES - 1];

        update_begin(UPSTREAM_VLLM);
        g->lacks_label = k % 2 != 0;
        behind = of[k / 2];
        w.check = fail_behind_tensors;
        assert_int_equal(update_run(1, CHUNKS), 0);
        assert_int_equal(g->n_asked[API_UPDATE_WEIGHTS], of[k / 2].restarts ? 1 : CHUNKS);
        w.check = NULL;
        probe_all();
        assert_int_equal(fleet_serves(w.fleet, engine_at(w.fleet, ENGINES - 1)),
                         !of[k / 2].restarts);
        world_fini();
    }
}

/* It says neither: then it is not known whether it is. */
static void test_one_that_can_tell_nothing_is_out_once_it_is_down(void **state)
{
    struct engine *g = &w.engines[ENGINES - 1];

    (void)state;
    for (int down = 0; down < 2; down++) {
        update_begin(UPSTREAM_SGLANG);
        g->lacks_label = true;
        g->label[0] = '\0';
        behind = (struct behind){.refused = down, .n_failures = 1};
        w.check = fail_behind_tensors;
        assert_int_equal(update_run(1, CHUNKS), 0);
        assert_int_equal(g->n_asked[API_UPDATE_WEIGHTS], down ? 1 : CHUNKS);
        world_fini();
    }
}

static void test_its_version_is_that_of_the_process_that_is_marked(void **state)
{
    struct engine *g = &w.engines[ENGINES - 1];

    (void)state;
    update_begin(UPSTREAM_VLLM);
    assert_int_equal(update_run(1, CHUNKS), 0);
    probe_all();
    w.check = restart_while_others_pause;
    g->knows_start = false; /* so it gets no tensors */
    assert_int_equal(update_run(2, CHUNKS), 0);
    assert_int_equal(g->process, 1);
    assert_int_equal(g->n_asked[API_SET_VERSION], 3);
    assert_string_equal(g->label, "v0");
    world_fini();
}

static void test_a_version_that_no_process_has_any_more_is_an_error(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct fleet_stats stats;
        int rc = update_while_engines_restart(kinds[k], ENGINES);

        fleet_stats(w.fleet, &stats);
        assert_int_equal(rc, -1);
        assert_int_equal(stats.n_serving, 0);
        world_fini();
    }
}

/* An engine that runs makes tokens of what it has. */
static void check_version_of_running(void)
{
    struct fleet_stats stats;

    fleet_stats(w.fleet, &stats);
    for (size_t i = 0; i < w.n_engines; i++)
        if (!w.engines[i].paused && version_of(&w.engines[i]) == 1)
            assert_string_equal(stats.label, "v1");
}

static void test_the_fleet_has_a_version_before_an_engine_resumes_with_it(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        update_begin(kinds[k]);
        w.check = check_version_of_running;
        assert_int_equal(update_run(1, CHUNKS), 0);
        world_fini();
    }
}

static size_t n_granted_early; /* while another engine is not known to have the version */

static void granted(void *arg)
{
    (void)arg;
}

/* Once an engine has the version, and may have shown it, new requests get it. */
static void check_grants(void)
{
    bool early = false, shown = false;

    for (size_t i = 0; i < w.n_engines; i++) {
        early = early || engine_at(w.fleet, i)->switching == SWITCH_AWAITED;
        shown = shown || (w.engines[i].version == 1 && !w.engines[i].paused);
    }
    for (size_t n = 0; n < ENGINES && shown; n++) {
        struct fleet_ticket t = {.ticket = {.granted = granted}};
        struct err e = {0};

        if (fleet_permit_acquire(w.fleet, &t, &e) == 0 && fleet_permit_cancel(w.fleet, &t))
            continue;
        assert_int_equal(e.code, ERR_NONE);
        assert_int_equal(w.engines[index_of(w.fleet, t.upstream)].version, 1);
        n_granted_early += early;
        fleet_permit_release(w.fleet, &t);
    }
}

static void test_who_asks_after_a_version_was_shown_gets_it(void **state)
{
    (void)state;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        update_begin((enum upstream_kind)kind);
        w.check = check_grants;
        n_granted_early = 0;
        assert_int_equal(update_run(1, CHUNKS), 0);
        assert_true(n_granted_early > 0);
        check_grants();
        world_fini();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_asks_after_a_version_was_shown_gets_it),
        cmocka_unit_test(test_fleet_update_survives_every_move),
        cmocka_unit_test(test_the_fleet_has_a_version_before_an_engine_resumes_with_it),
        cmocka_unit_test(test_one_that_is_slow_while_it_is_paused_gets_its_tensors),
        cmocka_unit_test(test_one_that_restarts_before_its_first_byte_gets_none),
        cmocka_unit_test(test_one_that_restarts_while_it_is_paused_is_paused_again),
        cmocka_unit_test(test_one_that_restarts_before_its_marker_is_paused_again),
        cmocka_unit_test(test_one_that_fails_behind_its_tensors_is_asked_who_it_is),
        cmocka_unit_test(test_one_that_can_tell_nothing_is_out_once_it_is_down),
        cmocka_unit_test(test_its_version_is_that_of_the_process_that_is_marked),
        cmocka_unit_test(test_an_engine_that_restarts_before_the_commit_is_fenced),
        cmocka_unit_test(test_a_version_that_no_process_has_any_more_is_an_error),
    };

    (void)signal(SIGABRT, on_abort);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
