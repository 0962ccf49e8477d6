/* Why an engine is out of rotation: derived from every combination of what can be known of it, and
 * how each reason begins and ends. */
#include "fleet/members/upstream_config.h"
#include "tests/unit/fleet/upstream_fleet_world.h"

#define BIT(name) REASON_BIT(REASON_##name)

/* What one engine may be known as: a value of each of these, and the reasons that it gives. */
enum fact { WEIGHTS, FAULT, REACH, PROBES, KEYS, PAUSE, ADAPTERS, READY, SLEEP, REMOVED, FACTS };
enum { VALUES_MAX = 6, OLDER = 2, N_SLEEPS = 6 };

static const struct {
    int n;
    unsigned out[VALUES_MAX];
} facts[FACTS] = {
    /* unknown, others, an older version, the fleet's */
    [WEIGHTS] = {4, {BIT(OTHER_WEIGHTS), BIT(OTHER_WEIGHTS), BIT(OTHER_WEIGHTS), 0}},
    [FAULT] = {6,
               {0, BIT(SLEEP_MISSED), BIT(SLEEP_MISSED), BIT(BROKEN), BIT(DROPPED), BIT(BROKEN)}},
    /* never answered, answers, down, down since it was added */
    [REACH] = {4, {BIT(NEVER_REACHED), 0, BIT(DOWN), BIT(DOWN)}},
    [PROBES] = {2, {0, BIT(PROBES_FAIL)}},
    [KEYS] = {4, {0, BIT(AUTH_PROBE), BIT(AUTH_REQUEST), BIT(AUTH_PROBE) | BIT(AUTH_REQUEST)}},
    /* the others run, it has missed their pause, it is about to be paused, it is paused, it failed
       to resume with them */
    [PAUSE] = {5, {0, BIT(PAUSE_MISSED), 0, 0, BIT(NOT_RESUMED)}},
    /* it has them, it lacks one, its caches are stale, or will be unless a request empties them */
    [ADAPTERS] = {4, {0, BIT(ADAPTERS), BIT(ADAPTERS), 0}},
    /* it is, it is not, another client holds it */
    [READY] = {3, {0, BIT(NOT_READY), BIT(NOT_READY)}},
    /* not ours, asleep with the others, with their KV caches, may be though they are awake (of an
       engine that reports its sleep, and of one that hides it), a part of it is */
    [SLEEP] = {N_SLEEPS, {0, 0, 0, BIT(ASLEEP), BIT(ASLEEP), BIT(ASLEEP)}},
    [REMOVED] = {2, {0, BIT(REMOVED)}},
};

static struct fleet served = {.serial = 7};
static const struct api_sleep all_of_it = {.weights = true, .kv = true};
static const struct upstream_config vllm = {.url = usual_names[0], .kind = UPSTREAM_VLLM},
                                    sglang = {.url = usual_names[0], .kind = UPSTREAM_SGLANG};

static void make_sleep(struct upstream *u, int x)
{
    static const struct {
        bool weights, kv;
        enum sleep_fact of_weights, of_kv;
    } sleeps[N_SLEEPS] = {
        {false, false, SLEEP_NOT_OURS, SLEEP_NOT_OURS}, {true, true, SLEEP_ASLEEP, SLEEP_UNKNOWN},
        {false, true, SLEEP_AWAKE, SLEEP_ASLEEP},       {false, false, SLEEP_UNKNOWN, SLEEP_ASLEEP},
        {false, false, SLEEP_UNKNOWN, SLEEP_UNKNOWN},   {true, false, SLEEP_ASLEEP, SLEEP_ASLEEP},
    };

    served.asleep.weights = sleeps[x].weights;
    served.asleep.kv = sleeps[x].kv;
    u->have.sleep.weights = sleeps[x].of_weights;
    u->have.sleep.kv = sleeps[x].of_kv;
    atomic_store(&u->config, x == 3 ? &vllm : &sglang);
}

static void make(struct upstream *u, const int x[FACTS])
{
    static const enum weights_fact states[] = {WEIGHTS_UNKNOWN, WEIGHTS_OTHER, WEIGHTS_SERIAL,
                                               WEIGHTS_SERIAL};

    u->have.weights.state = states[x[WEIGHTS]];
    u->have.weights.serial = served.serial - (x[WEIGHTS] == OLDER);
    u->have.weights.fault = (enum weights_fault)x[FAULT];
    u->probe_ok_us = x[REACH] == 1 || x[REACH] == 2;
    u->down = x[REACH] >= 2;
    u->n_probe_failures = FLEET_PROBE_FAILURES_MAX - 1 + (unsigned)x[PROBES];
    u->key_rejected[FLEET_AUTH_PROBE] = (x[KEYS] & 1) != 0;
    u->key_rejected[FLEET_AUTH_REQUEST] = (x[KEYS] & 2) != 0;
    served.still.quiesced = x[PAUSE] != 0 && x[PAUSE] != 4;
    u->quiesced_incarnation = x[PAUSE] == 2 ? 3 : 2;
    u->have.gate = x[PAUSE] == 3 ? GATE_PAUSED : x[PAUSE] == 4 ? GATE_NOT_RESUMED : GATE_NOT_OURS;
    u->n_block = x[ADAPTERS] == 1;
    u->have.caches = (struct cache_facts){
        .changes = 3, .emptied = 2, .due = x[ADAPTERS] == 2 ? 3 : 2};
    u->incarnation = 3;
    u->report.not_ready[0] = x[READY] == 1 ? 'x' : '\0';
    u->report.held = x[READY] == 2 ? "paused" : NULL;
    make_sleep(u, x[SLEEP]);
    atomic_store(&u->removed, x[REMOVED] != 0);
}

/* Requests at an engine that was removed finish on the version on which they began. */
static unsigned wanted(const int x[FACTS])
{
    unsigned out = 0;

    for (int i = 0; i < FACTS; i++)
        if (i != WEIGHTS || x[WEIGHTS] != OLDER || !x[REMOVED])
            out |= facts[i].out[x[i]];
    return out;
}

static bool next(int x[FACTS])
{
    int i = 0;

    while (i < FACTS && ++x[i] == facts[i].n)
        x[i++] = 0;
    return i < FACTS;
}

static void test_reasons_derive_finds_each_reason_and_no_other(void **state)
{
    struct upstream *u = calloc(1, sizeof *u);
    int x[FACTS] = {0}, n = 0;

    (void)state;
    assert_non_null(u);
    for (bool more = true; more; more = next(x), n++) {
        make(u, x);
        if (reasons_derive(&served, u) != wanted(x))
            fail_msg("combination %d: %#x, not %#x", n, reasons_derive(&served, u), wanted(x));
    }
    assert_int_equal(n, 4 * 6 * 4 * 2 * 4 * 5 * 4 * 3 * N_SLEEPS * 2);
    free(u);
}

static const char *shown(unsigned out)
{
    if (out & BIT(REMOVED))
        return "removed";
    if (out & (BIT(BROKEN) | BIT(DROPPED) | BIT(SLEEP_MISSED)))
        return "fenced";
    if (out & (BIT(AUTH_PROBE) | BIT(AUTH_REQUEST)))
        return "refused";
    if (out & BIT(NEVER_REACHED))
        return "unknown";
    if (out & BIT(DOWN))
        return "down";
    if (out & (BIT(ASLEEP) | BIT(NOT_RESUMED) | BIT(OTHER_WEIGHTS) | BIT(PAUSE_MISSED) |
               BIT(PROBES_FAIL) | BIT(ADAPTERS)))
        return "unsynced";
    return out & BIT(NOT_READY) ? "not_ready" : "serving";
}

static void test_upstream_state_of_shows_the_gravest(void **state)
{
    (void)state;
    for (unsigned out = 0; out < 1u << UPSTREAM_REASONS; out++)
        assert_string_equal(upstream_state_name(upstream_state_of(out)), shown(out));
}

/* ---- how each begins and ends ---- */

static void commit_to(struct fleet *f, bool has)
{
    (void)commit(f, "v", 0, (const bool[]){has, true}, NULL);
}

static void commit_all(struct fleet *f)
{
    commit_to(f, true);
}

static void commit_to_others(struct fleet *f)
{
    commit_to(f, false);
}

static void report_again(struct fleet *f)
{
    report_ok(f, 0, "p", "v");
}

static void restart(struct fleet *f)
{
    report_ok(f, 0, "q", "v");
}

static void refuse(struct fleet *f)
{
    fail_request(f, 0, true);
}

static void fail_probes(struct fleet *f)
{
    struct err why = {.code = ERR_UPSTREAM};

    for (int i = 0; i < FLEET_PROBE_FAILURES_MAX; i++) {
        fleet_probe_failed(f, engine_at(f, 0), false, &why);
        engine_at(f, 0)->n_failures_in_row = 0; /* a client was answered */
    }
}

static void reject(struct fleet *f, enum fleet_auth what)
{
    struct err why = {.code = ERR_UPSTREAM_KEY};

    fleet_auth_failed(f, engine_at(f, 0), what, &why);
}

static void reject_probe(struct fleet *f)
{
    reject(f, FLEET_AUTH_PROBE);
}

static void reject_request(struct fleet *f)
{
    reject(f, FLEET_AUTH_REQUEST);
}

static void accept_request(struct fleet *f)
{
    fleet_auth_ok(f, engine_at(f, 0));
}

static void resync_it(struct fleet *f)
{
    struct err e = {0};

    assert_int_equal(resync(f, 0, "v", &e), 0);
}

static void fence(struct fleet *f)
{
    struct err why = {.code = ERR_UPSTREAM, .msg = "torn"};

    fleet_fence(f, engine_at(f, 0), &why);
}

static void find_wrong(struct fleet *f)
{
    struct err why = {.code = ERR_UPSTREAM, .msg = "wrong"};
    struct upstream_info info;

    fleet_info(f, engine_at(f, 0), &info);
    fleet_fence_served(f, engine_at(f, 0), info.incarnation, info.serial, &why);
}

static void report_marker(struct fleet *f)
{
    report_ok(f, 0, "p", FLEET_DIRTY_MARKER "u");
}

/* One request to it, with this answer. */
static void ask(struct fleet *f, enum api_op op, int level, enum have_answer answer)
{
    const struct api_sleep asked = {.level = level, .weights = true, .kv = true};
    const struct api_args args = {.sleep = &asked};
    struct have_before before;

    fleet_doubt(f, engine_at(f, 0), op, &args, &before);
    (void)fleet_answer(f, engine_at(f, 0), op, &args, &before, answer, NULL);
}

static void drop(struct fleet *f)
{
    ask(f, API_SLEEP, 2, HAVE_GOOD);
    ask(f, API_WAKE, 0, HAVE_GOOD);
}

static const struct upstream_config hides = {.url = usual_names[0], .kind = UPSTREAM_SGLANG};
static const struct upstream_config reports = {.url = usual_names[0], .kind = UPSTREAM_VLLM};

/* The other one is asked. */
static void miss(struct fleet *f, bool asleep)
{
    const struct upstream *asked[] = {engine_at(f, 1)};

    atomic_store(&engine_at(f, 0)->config, &hides);
    ask(f, API_WAKE, 0, HAVE_GOOD);
    fleet_slept(f, asleep, &all_of_it, asked, 1);
}

static void miss_sleep(struct fleet *f)
{
    miss(f, true);
}

static void miss_wake(struct fleet *f)
{
    miss(f, false);
}

/* It hides its sleep, and does not answer when all are woken. */
static void lose_wake(struct fleet *f)
{
    atomic_store(&engine_at(f, 0)->config, &hides);
    ask(f, API_WAKE, 0, HAVE_LOST);
}

/* It reports its sleep, and was not here when all were woken. */
static void be_away_from_wake(struct fleet *f)
{
    const struct upstream *asked[] = {engine_at(f, 1)};

    atomic_store(&engine_at(f, 0)->config, &reports);
    fleet_slept(f, false, &all_of_it, asked, 1);
}

static void wake_it(struct fleet *f)
{
    ask(f, API_WAKE, 0, HAVE_GOOD);
}

static void make_token(struct fleet *f)
{
    struct upstream_info info;

    fleet_info(f, engine_at(f, 0), &info);
    assert_true(info.needs_token && !info.to_wake.weights && !info.to_wake.kv);
    fleet_found_awake(f, engine_at(f, 0), info.have.change);
}

static void miss_pause(struct fleet *f)
{
    refuse(f);
    quiesce(f, true, 1);
    report_again(f);
}

/* The others were resumed, and may be. */
static void fail_to_resume(struct fleet *f)
{
    ask(f, API_PAUSE, 0, HAVE_GOOD);
    assert_int_equal(engine_at(f, 0)->out, 0); /* by an update, or with the others */
    ask(f, API_RESUME, 0, HAVE_REFUSED);
    ask(f, API_RESUME, 0, HAVE_LOST);
}

static void resume_it(struct fleet *f)
{
    ask(f, API_RESUME, 0, HAVE_GOOD);
}

static void pause_it(struct fleet *f)
{
    ask(f, API_PAUSE, 0, HAVE_GOOD);
}

static void resume(struct fleet *f)
{
    quiesce(f, false, 2);
}

static void drain(struct fleet *f)
{
    struct upstream_report report = {.process = "p", .label = "v", .not_ready = "draining"};

    fleet_probe_ok(f, engine_at(f, 0), &report);
}

static void hold(struct fleet *f)
{
    struct upstream_report report = {.process = "p", .label = "v", .held = "paused"};

    fleet_probe_ok(f, engine_at(f, 0), &report);
}

static void release(struct fleet *f)
{
    ask(f, API_RESUME, 0, HAVE_GOOD);
}

/* The load of an adapter that it did not get; then it has it. */
static void lack_adapters(struct fleet *f)
{
    struct api_args args = {.name = "x"};
    struct err e = {0};

    assert_int_equal(fleet_adapter_begin(f, &args, &e), 0);
    (void)fleet_adapter_end_loaded(f, NULL, strdup("{}"), 1);
}

static void load_adapters(struct fleet *f)
{
    const struct fleet_adapter *a = f->adapters.list[0];
    const struct api_args args = {.name = "x", .number = a != NULL ? a->number : 0};
    struct have_before before;

    fleet_doubt(f, engine_at(f, 0), API_LOAD_ADAPTER, &args, &before);
    (void)fleet_answer(f, engine_at(f, 0), API_LOAD_ADAPTER, &args, &before, HAVE_GOOD, NULL);
}

/* An engine in rotation, what happens to it, why it is out then, and each thing that ends this. */
static const struct {
    void (*begins)(struct fleet *f);
    unsigned out;
    void (*ends[2])(struct fleet *f);
} rows[] = {
    {refuse, BIT(DOWN), {report_again}},
    {fail_probes, BIT(PROBES_FAIL), {report_again}},
    {reject_probe, BIT(AUTH_PROBE), {report_again}},
    {reject_request, BIT(AUTH_REQUEST), {accept_request, resync_it}},
    {commit_to_others, BIT(OTHER_WEIGHTS), {commit_all, resync_it}},
    {restart, BIT(OTHER_WEIGHTS), {commit_all, resync_it}},
    {fence, BIT(BROKEN), {commit_all}},
    {report_marker, BIT(BROKEN) | BIT(OTHER_WEIGHTS), {commit_all}},
    {find_wrong, BIT(BROKEN) | BIT(OTHER_WEIGHTS), {commit_all}},
    {drop, BIT(DROPPED), {commit_all}},
    {miss_sleep, BIT(SLEEP_MISSED), {commit_all, resync_it}},
    {miss_wake, BIT(SLEEP_MISSED), {commit_all, resync_it}},
    {lose_wake, BIT(ASLEEP), {wake_it, make_token}},
    {be_away_from_wake, BIT(ASLEEP), {wake_it}},
    {fail_to_resume, BIT(NOT_RESUMED), {resume_it, pause_it}},
    {miss_pause, BIT(PAUSE_MISSED), {resume}},
    {lack_adapters, BIT(ADAPTERS), {load_adapters}},
    {drain, BIT(NOT_READY), {report_again}},
    {hold, BIT(NOT_READY), {report_again, release}},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static struct fleet *fleet_in_rotation_of_2(void)
{
    struct fleet *f = fleet_with((const char *const[]){"u://a", "u://b"}, 2);

    for (size_t i = 0; i < 2; i++) {
        report_ok(f, i, "p", "v");
        engine_at(f, i)->have.caches.emptied = UINT64_MAX; /* they are another matter */
    }
    commit_all(f);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(engine_at(f, i)->out, 0);
    return f;
}

static void test_each_reason_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++)
        for (size_t k = 0; k < 2 && rows[i].ends[k] != NULL; k++) {
            struct fleet *f = fleet_in_rotation_of_2();

            rows[i].begins(f);
            if (engine_at(f, 0)->out != rows[i].out)
                fail_msg("row %zu: %#x", i, engine_at(f, 0)->out);
            rows[i].ends[k](f);
            if (engine_at(f, 0)->out != 0)
                fail_msg("row %zu, %zu: %#x", i, k, engine_at(f, 0)->out);
            fleet_free(f);
        }
}

/* A fence is of the weights: nothing else ends it, not even another process. */
static void test_a_fence_outlives_all_else(void **state)
{
    static void (*const others[])(struct fleet * f) = {refuse,           restart,    report_again,
                                                       accept_request,   resume,     load_adapters,
                                                       commit_to_others, miss_sleep, miss_wake};

    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        unsigned fence = rows[i].out & OUT_FENCES;
        struct fleet *f = fleet_in_rotation_of_2();

        rows[i].begins(f);
        for (size_t k = 0; k < sizeof others / sizeof others[0] && fence != 0; k++) {
            others[k](f);
            assert_int_equal(engine_at(f, 0)->out & OUT_FENCES, fence);
        }
        fleet_free(f);
    }
}

/* What a proof found is in the memory of one process; a failed update has changed the version. */
static void test_another_process_may_be_declared_right(void **state)
{
    static void (*const fences[])(struct fleet * f) = {find_wrong, fence, drop};

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (int again = 0; again < 2; again++) {
            struct fleet *f = fleet_in_rotation_of_2();
            struct err e = {0};

            fences[i](f);
            assert_int_equal(resync(f, 0, "v", &e), -1);
            if (again) { /* it may be the same process */
                fleet_remove(f, engine_at(f, 0));
                add_again(f, 0);
            }
            report_ok(f, 0, again ? "p" : "q", "v");
            err_clear(&e);
            assert_int_equal(resync(f, 0, "v", &e), i == 0 && !again ? 0 : -1);
            fleet_free(f);
        }
}

/* ---- its sleep ---- */

/* Whatever its kind shows of a pause. */
static void test_one_whose_resume_failed_is_kept_out_when_added_again(void **state)
{
    static const enum upstream_kind kinds[] = {UPSTREAM_VLLM, UPSTREAM_SGLANG, UPSTREAM_BATON};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const struct upstream_config config = {.url = usual_names[0], .kind = kinds[k]};
        const struct upstream_config *configs[] = {&config};
        const struct fleet_cfg cfg = {.configs = configs,
                                      .n_upstreams = 1,
                                      .n_permits = {PERMITS, PERMITS},
                                      .n_queue_max = {QUEUE, QUEUE}};
        const struct api_args none = {0};
        struct have_before before;
        struct upstream_info info;
        struct err e = {0};
        struct fleet *f;

        assert_int_equal(fleet_new(&f, &cfg, &e), 0);
        fleet_doubt(f, engine_at(f, 0), API_PAUSE, &none, &before);
        fleet_answer(f, engine_at(f, 0), API_PAUSE, &none, &before, HAVE_GOOD, NULL);
        fleet_doubt(f, engine_at(f, 0), API_RESUME, &none, &before);
        fleet_answer(f, engine_at(f, 0), API_RESUME, &none, &before, HAVE_BROKE, NULL);
        fleet_remove(f, engine_at(f, 0));
        add_again(f, 0);
        fleet_info(f, engine_at(f, 0), &info);
        assert_int_equal(info.have.gate, GATE_NOT_RESUMED);
        fleet_free(f);
    }
}

static void test_one_that_joins_after_a_wake_may_sleep(void **state)
{
    for (int woken = 0; woken < 2; woken++) {
        struct fleet *f = fleet_in_rotation_of_2();
        enum sleep_fact fact = woken ? SLEEP_UNKNOWN : SLEEP_NOT_OURS;

        (void)state;
        miss(f, woken == 0);
        add_new(f, "u://c", NULL);
        assert_int_equal(engine_at(f, 2)->have.sleep.weights, SLEEP_NOT_OURS);
        atomic_store(&engine_at(f, 2)->config, &vllm); /* which an update wakes, if need be */
        fleet_remove(f, engine_at(f, 2));
        add_again(f, 2);
        assert_int_equal(engine_at(f, 2)->have.sleep.weights, fact);
        assert_int_equal(engine_at(f, 2)->have.sleep.kv, fact);
        fleet_free(f);
    }
}

static void assert_text(struct fleet *f, const char *text)
{
    struct upstream_info info;

    fleet_info(f, engine_at(f, 0), &info);
    assert_string_equal(info.error.why.msg, text);
}

/* Each answer comes while the others may still sleep, or not yet. */
static void test_no_engine_leaves_rotation_while_all_are_put_to_sleep_or_woken(void **state)
{
    struct fleet *f = fleet_in_rotation_of_2();
    const struct upstream *all[] = {engine_at(f, 0), engine_at(f, 1)};
    const struct api_sleep asked = {.level = 1, .weights = true, .kv = true};
    const struct api_args args = {.sleep = &asked};
    struct have_before before;

    (void)state;
    lose_wake(f);
    wake_it(f);
    for (int asleep = 1; asleep >= 0; asleep--) {
        enum api_op op = asleep ? API_SLEEP : API_WAKE;

        if (asleep)
            fleet_want_sleep(f, true, true);
        fleet_doubt(f, engine_at(f, 0), op, &args, &before);
        assert_int_equal(engine_at(f, 0)->out, 0);
        fleet_answer(f, engine_at(f, 0), op, &args, &before, HAVE_GOOD, NULL);
        fleet_slept(f, asleep, &all_of_it, all, 2);
        if (!asleep)
            fleet_want_sleep(f, false, false);
        assert_int_equal(engine_at(f, 0)->out, 0);
    }
    fleet_free(f);
}

/* One that hides its sleep is woken only if it is known to sleep, and each part only once. */
static void test_what_of_one_is_woken(void **state)
{
    struct fleet *f = fleet_in_rotation_of_2();
    const struct api_sleep kv = {.level = 1, .kv = true};
    const struct api_args args = {.sleep = &kv};
    struct upstream_info info;
    struct have_before before;

    (void)state;
    report_ok(f, 0, "", "v"); /* it does not name its process */
    lose_wake(f);
    wake_it(f);
    fleet_doubt(f, engine_at(f, 0), API_SLEEP, &args, &before);
    fleet_answer(f, engine_at(f, 0), API_SLEEP, &args, &before, HAVE_GOOD, NULL);
    fleet_info(f, engine_at(f, 0), &info);
    assert_true(info.may_sleep && !info.needs_token && !info.to_wake.weights && info.to_wake.kv);
    assert_text(f,
                "it may be asleep while the fleet is awake: it is woken, and serves once that has "
                "succeeded");
    refuse(f);
    report_ok(f, 0, "", "v"); /* it was away: it may be another process */
    fleet_info(f, engine_at(f, 0), &info);
    assert_true(info.needs_token && !info.to_wake.weights && !info.to_wake.kv);
    fleet_want_sleep(f, false, true);
    fleet_info(f, engine_at(f, 0), &info);
    assert_false(info.may_sleep || info.needs_token);
    fleet_free(f);
}

/* It joined asleep, and nobody here has put it to sleep: it is not woken before a client asks. */
static void test_text_of_a_sleep_by_a_client(void **state)
{
    struct fleet *f = fleet_in_rotation_of_2();
    struct upstream_report report = {.process = "p", .label = "v", .held = "asleep"};

    (void)state;
    have_missed_wake(&engine_at(f, 0)->have, &all_of_it);
    fleet_probe_ok(f, engine_at(f, 0), &report);
    assert_text(f, "it is asleep, and not by this server: POST /v1/wake wakes it, and the next "
                   "update does");
    report.held = NULL; /* it does not say */
    fleet_probe_ok(f, engine_at(f, 0), &report);
    assert_text(f, "it may be asleep while the fleet is awake: it is woken, and serves once that "
                   "has succeeded");
    fleet_free(f);
}

/* A fence says what was missed. */
static void test_text_of_a_missed_sleep(void **state)
{
    static const char resync_text[] = "resync it (/v1/upstreams/resync) or push a whole update";
    char missed_sleep[200], missed_wake[200];
    struct fleet *f = fleet_in_rotation_of_2();

    (void)state;
    (void)snprintf(
        missed_sleep, sizeof missed_sleep,
        "it was not reachable when the fleet was put to sleep: once it answers again, %s",
        resync_text);
    (void)snprintf(missed_wake, sizeof missed_wake,
                   "it was not reachable when the fleet was woken: once it answers again, %s",
                   resync_text);
    miss_sleep(f);
    assert_text(f, missed_sleep);
    miss_wake(f);
    assert_text(f, missed_sleep);
    commit_all(f);
    miss_wake(f);
    assert_text(f, missed_wake);
    ask(f, API_SLEEP, 2, HAVE_GOOD);
    assert_text(f, "its weights were dropped (sleep at level 2)");
    fleet_free(f);
}

/* That name was one of a version that no engine can serve any more. */
static void test_no_name_is_given_while_the_version_is_open(void **cmocka_state)
{
    struct fleet *f = fleet_of(2);
    const struct err none = {0};
    struct err why = {0};

    (void)cmocka_state;
    fleet_set_min_ready(f, 2);
    for (size_t i = 0; i < 2; i++)
        report_ok(f, i, "p", "a");
    (void)name_them(f, "b", (const bool[]){false, true});
    assert_true(fleet_may_name(f, engine_at(f, 0), "a"));
    assert_true(fleet_needs(f, engine_at(f, 0), NEED_NAME));
    (void)err_set(&why, ERR_UPSTREAM, "", "it broke");
    fleet_fence(f, engine_at(f, 1), &why);
    report_ok(f, 0, "p", "a");
    assert_false(fleet_needs(f, engine_at(f, 0), NEED_NAME));
    assert_false(fleet_may_name(f, engine_at(f, 0), "a"));
    fleet_named(f, engine_at(f, 0), "", &none); /* it was on its way */
    report_ok(f, 0, "p", "a");
    assert_string_equal(state(f, 0), "unsynced");
    fleet_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasons_derive_finds_each_reason_and_no_other),
        cmocka_unit_test(test_upstream_state_of_shows_the_gravest),
        cmocka_unit_test(test_each_reason_ends),
        cmocka_unit_test(test_a_fence_outlives_all_else),
        cmocka_unit_test(test_another_process_may_be_declared_right),
        cmocka_unit_test(test_one_whose_resume_failed_is_kept_out_when_added_again),
        cmocka_unit_test(test_one_that_joins_after_a_wake_may_sleep),
        cmocka_unit_test(test_no_engine_leaves_rotation_while_all_are_put_to_sleep_or_woken),
        cmocka_unit_test(test_what_of_one_is_woken),
        cmocka_unit_test(test_text_of_a_sleep_by_a_client),
        cmocka_unit_test(test_text_of_a_missed_sleep),
        cmocka_unit_test(test_no_name_is_given_while_the_version_is_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
