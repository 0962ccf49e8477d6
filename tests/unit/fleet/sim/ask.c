#include "tests/unit/fleet/sim/ask.h"

#include "tests/unit/fleet/sim/check.h"
#include "tests/unit/fleet/sim/sched.h"
#include "tests/unit/fleet/sim/stage.h"

#include "fleet/ask/fleet_label.h"
#include "fleet/ask/fleet_lora_load.h"
#include "fleet/ask/fleet_sleep.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEASE_S = 40,
    ASK_US = 400000000, /* the longest: a sleep, behind another operation */
    LATER_US = 4000000,
    RECOVER_N = 30,
    PARTS_EVERY = 3, /* seeds */
    AUTOMATIC_EVERY = 7
};

struct order {
    void (*run)(struct order *o);
    int argument;
    struct engine *engine;
};

struct ask *ask_begin(const char *what, uint64_t limit_us)
{
    size_t i = 0;

    while (i < ASKS_MAX && world.asks[i].what != NULL)
        i++;
    assert(i < ASKS_MAX);
    world.asks[i] = (struct ask){what, clock_now_us() + limit_us};
    return &world.asks[i];
}

void ask_end(struct ask *a)
{
    a->what = NULL;
}

static size_t n_orders;

void ask_begin_history(void)
{
    n_orders = 0;
}

static void run_order(void *arg)
{
    struct order *o = arg;

    o->run(o);
    free(o);
    n_orders--;
}

static void order(void (*run)(struct order *o), int argument, struct engine *g)
{
    struct order *o = malloc(sizeof *o);

    assert(o != NULL);
    *o = (struct order){run, argument, g};
    n_orders++;
    sched_spawn(run_order, o);
}

bool ask_all_ended(void)
{
    return n_orders == 0;
}

/* ---- an update ---- */

/* The same tensors in the form of each kind. */
struct chunk {
    char text[32];
    const char *entries[1];
    struct api_tensors tensors[UPSTREAM_KINDS];
    struct api_object *native[UPSTREAM_KINDS];
};

static void chunk_init(struct chunk *c, int target, unsigned chunk)
{
    char body[80];

    (void)snprintf(c->text, sizeof c->text, "/%d/%u", target, chunk);
    c->entries[0] = c->text;
    c->tensors[UPSTREAM_SGLANG] = (struct api_tensors){
        .serialized = true, .entries = c->entries, .n_entries = 1};
    c->tensors[UPSTREAM_VLLM] = (struct api_tensors){.by_handles = true, .handles = c->text};
    c->tensors[UPSTREAM_BATON] = (struct api_tensors){.serialized = true};
    (void)snprintf(body, sizeof body, "{\"path\":\"%s\"}", c->text);
    c->native[UPSTREAM_BATON] = api_object_parse(body, strlen(body));
    c->native[UPSTREAM_SGLANG] = api_object_of(&c->tensors[UPSTREAM_SGLANG]);
    c->native[UPSTREAM_VLLM] = api_object_of(&c->tensors[UPSTREAM_VLLM]);
}

static int send_chunk(struct fleet_session *s, int target, unsigned chunk)
{
    struct api_args of[ENGINES_MAX] = {{0}};
    struct chunk c = {0};
    struct fleet_tensors t = {.of = of};
    struct err e = {0};
    struct ask *a;
    int rc;

    chunk_init(&c, target, chunk);
    for (size_t i = 0; i < s->n_parts; i++) {
        enum upstream_kind kind = upstream_kind(s->parts[i].upstream);

        of[i].tensors = &c.tensors[kind];
        of[i].native = c.native[kind];
    }
    t.args.tensors = &c.tensors[UPSTREAM_SGLANG];
    t.args.native = c.native[UPSTREAM_SGLANG];
    world.sent[target][chunk]++;
    a = ask_begin("a request with tensors", ASK_US);
    rc = fleet_send_tensors(world.fc, s, &t, &e);
    ask_end(a);
    world_trace("tensors /%d/%u: %s", target, chunk, rc == 0 ? "taken" : e.msg);
    if ((rc == 0) != (e.code == ERR_NONE))
        check_fail("I10: an answer and its error differ");
    if (rc == 0)
        world.accepted[target] |= 1u << chunk;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++)
        api_object_unref(c.native[kind]);
    return rc;
}

/* What a part builds on changes no more once its engines are chosen; but none may report it then,
 * as they were removed before the start was answered. */
static struct fleet_session *start_update(int target, bool partial, bool automatic)
{
    char label[16];
    fleet_results_auto replies = {0};
    struct fleet_update_request req = {
        .label = label, .partial = partial, .auto_commit = automatic, .lease_s = LEASE_S};
    struct fleet_session *s = NULL;
    struct err e = {0};
    struct ask *a = ask_begin("a start", ASK_US);
    int base = world_version();

    (void)snprintf(label, sizeof label, "v%d", target);
    if (fleet_start_update(world.fc, &req, &s, &replies, &e) != 0) {
        s = NULL;
        world_trace("start of v%d: %s", target, e.msg);
    } else if (partial) {
        world.parts[target].is_part = true;
        world.parts[target].base = world_version() != TORN ? world_version() : base;
        world_trace("v%d is a part, on v%d", target, world.parts[target].base);
    }
    ask_end(a);
    return s;
}

static void abort_update(struct fleet_session *s, bool waits)
{
    struct err why = {0}, e = {0};
    struct ask *a = ask_begin("an abort", ASK_US);

    (void)err_set(&why, ERR_CONFLICT, "", "the trainer aborts");
    if (waits)
        (void)fleet_abort_update_wait(world.fc, s, &why, &e);
    else
        (void)fleet_abort_update(world.fc, s, &why, &e);
    ask_end(a);
}

static int finish_update(struct fleet_session *s)
{
    struct err e = {0};
    struct ask *a = ask_begin("a finish", ASK_US);
    int rc = fleet_finish_update(world.fc, s, "", NULL, true, &e);

    world_trace("finish: %s", rc == 0 ? "committed" : e.msg);
    ask_end(a);
    return rc;
}

/* A resume, or a wake, ends the update that requests with tensors have begun by themselves. */
static int commit_open(void)
{
    struct fleet_session *s = NULL;
    struct err e = {0};
    struct ask *a = ask_begin("the end of an update without a finish", ASK_US);
    int rc = fleet_commit_open_update(world.fc, "", &s, &e);

    if (s != NULL)
        world_trace("what is open: %s", rc == 0 ? "committed" : e.msg);
    fleet_unref(world.fc, s);
    ask_end(a);
    return rc;
}

static int end_automatic(struct fleet_session *s, int target)
{
    int rc = commit_open();

    if (rc == 0 && fleet_update_is_open(world.fc, s))
        check_fail("I10: v%d is sent, and stays open after a resume", target);
    return rc;
}

static void push(const struct order *o, bool partial)
{
    bool automatic = !partial && world.cfg.seed % AUTOMATIC_EVERY == 5;
    struct fleet_session *s;
    int rc = 0, target;

    if (world.target + 1 == TARGETS_MAX)
        return;
    target = ++world.target;
    s = start_update(target, partial, automatic);
    if (s == NULL)
        return;
    if (world.parts[target].is_part)
        sched_sleep(3 * LATER_US); /* engines may be replaced meanwhile */
    for (int k = 0; rc == 0 && k < o->argument && !world.silent; k++) {
        rc = send_chunk(s, target, (unsigned)k);
        if (rc != 0 && sched_chance(world.cfg.seed == 0 ? 0 : 50) && !world.silent)
            rc = send_chunk(s, target, (unsigned)k);
    }
    if (rc == 0 && !world.silent)
        rc = automatic ? end_automatic(s, target) : finish_update(s);
    if (rc != 0 && !world.silent && (world.cfg.seed == 0 || sched_chance(50)))
        abort_update(s, true);
    while (fleet_update_is_open(world.fc, s)) /* until its lease has ended */
        sched_sleep(1000000);
    fleet_unref(world.fc, s);
}

static void run_update(struct order *o)
{
    push(o, false);
    if (!world.quiet && !world.silent && world.cfg.seed % PARTS_EVERY == 2 &&
        world.target + TARGETS_KEPT < TARGETS_MAX)
        push(o, true);
}

void ask_update(unsigned n_chunks)
{
    order(run_update, (int)n_chunks, NULL);
}

static void run_abort(struct order *o)
{
    struct fleet_session *s = fleet_open_session(world.fc);

    if (s != NULL)
        abort_update(s, o->argument != 0);
    fleet_unref(world.fc, s);
}

static void run_second_update(struct order *o)
{
    struct fleet_session *s;

    (void)o;
    if (world.target + TARGETS_KEPT >= TARGETS_MAX)
        return;
    s = start_update(++world.target, false, false);
    if (s != NULL)
        abort_update(s, false);
    fleet_unref(world.fc, s);
}

static void run_commit(struct order *o)
{
    (void)o;
    stage_commit(true);
}

void ask_commit(void)
{
    order(run_commit, 0, NULL);
}

/* One that does not wait, and one that does. */
static void run_commits(struct order *o)
{
    if (world.target + TARGETS_KEPT >= TARGETS_MAX)
        return;
    stage_commit(o->argument != 0);
}

/* ---- pause, sleep ---- */

static void resume_all(void)
{
    fleet_results_auto results = {0};
    struct err e = {0};
    bool was;
    struct ask *a = ask_begin("a resume", ASK_US);

    (void)fleet_resume_all(world.fc, false, &results, &was, &e);
    ask_end(a);
}

static void run_resume(struct order *o)
{
    (void)o;
    (void)commit_open();
    resume_all();
}

/* @argument  it is resumed after a while */
static void run_pause(struct order *o)
{
    struct pause_request req = {.mode = PAUSE_KEEP, .timeout_s = 10, .owner = "test"};
    fleet_results_auto results = {0};
    struct err e = {0};
    struct ask *a = ask_begin("a pause", 10000000 + 1500000);
    uint64_t end_us = clock_after_us(10000000);

    if (fleet_trainer_pause_lock(world.fc, NULL, 10000000, &e) == 0) {
        world.n_pauses++;
        (void)fleet_pause_all(world.fc, &req, end_us, NULL, &results, &e);
        world.n_pauses--;
        fleet_pause_unlock(world.fc);
    }
    ask_end(a);
    if (!o->argument)
        return;
    sched_sleep(LATER_US);
    resume_all();
}

/* @level  0: a wake */
static void set_sleep(int level)
{
    static const char level_2[] = "{\"level\":2}"; /* what is not said is level 1 */
    struct fleet_sleep_request req = {.level = level, .weights = true, .kv = true};
    struct api_object *native = level == 2 ? api_object_parse(level_2, strlen(level_2)) : NULL;
    fleet_results_auto results = {0};
    struct err e = {0};
    struct ask *a = ask_begin("a sleep or a wake", 2 * ASK_US);

    if (fleet_op_lock(world.fc, NULL, "a sleep", &e) == 0) {
        world.n_wakes += level == 0;
        (void)(level > 0 ? fleet_sleep_all(world.fc, &req, native, &results, &e)
                         : fleet_wake_all(world.fc, &req, NULL, &results, &e));
        world.n_wakes -= level == 0;
        fleet_op_unlock(world.fc);
    }
    world_trace("%s: %s", level > 0 ? "sleep" : "wake", e.code == ERR_NONE ? "done" : e.msg);
    fleet_apply_quiesce(world.fc);
    api_object_unref(native);
    ask_end(a);
}

static void run_sleep(struct order *o)
{
    if (o->argument == 0)
        (void)commit_open();
    set_sleep(o->argument);
    if (o->argument == 0)
        return;
    sched_sleep(LATER_US);
    set_sleep(0);
}

/* ---- members ---- */

static void remove_engine(struct engine *g)
{
    struct fleet_session *open = fleet_open_session(world.fc);
    struct upstream *u = NULL;
    struct err e = {0};

    if (upstreams_remove(world.upstreams, world_url(check_index_of(g)), &u, &e) == 0) {
        upstream_unref(u);
        g->was_removed = true;
        g->answered = 0; /* it may be forgotten */
        g->left = open != NULL ? world_label(open->label) : g->left;
    }
    fleet_unref(world.fc, open);
}

static void add_engine(struct engine *g)
{
    char entry[64];
    struct upstream *u = NULL;
    struct err e = {0};

    if (check_is_removed(g))
        g->added_us = clock_now_us();
    (void)snprintf(entry, sizeof entry, "%s,%s", world_url(check_index_of(g)),
                   upstream_kind_name(g->kind));
    if (upstreams_add(world.upstreams, entry, &u, &e) == 0)
        upstream_unref(u);
}

/* @argument  it joins again */
static void run_leave(struct order *o)
{
    remove_engine(o->engine);
    if (!o->argument)
        return;
    sched_sleep(LATER_US);
    add_engine(o->engine);
}

/* @argument  the scenario */
static void run_meanwhile(struct order *o)
{
    struct order pause = {.argument = 0};

    ask_update(1);
    sched_sleep(LATER_US / 2);
    world_happens(EVENT_REPLACED, o->engine);
    sched_sleep(2 * LATER_US);
    if (o->argument == UPDATE_RESTARTED)
        return;
    run_pause(&pause);
    remove_engine(o->engine);
}

static void run_join(struct order *o)
{
    add_engine(o->engine);
    sched_sleep(LATER_US);
}

static bool an_update_is_open(void)
{
    struct fleet_session *s = fleet_open_session(world.fc);

    fleet_unref(world.fc, s);
    return s != NULL;
}

static void run_recover(struct order *o)
{
    struct fleet_sleep sleep;

    (void)o;
    while (an_update_is_open())
        sched_sleep(1000000);
    for (size_t i = 0; i < world.n_engines; i++)
        add_engine(&world.engines[i]);
    resume_all();
    for (int n = 0; n < RECOVER_N; n++) { /* a wake may be refused until all can be reached */
        fleet_get_sleep(world.fc, &sleep);
        if (!sleep.weights && !sleep.kv)
            return;
        set_sleep(0);
        sched_sleep(2000000);
    }
}

void ask_recover(void)
{
    order(run_recover, 0, NULL);
}

/* ---- adapters, requests ---- */

/* The caller owns the operation lock. */
static void load_adapter(void)
{
    char path[32], body[100];
    struct fleet_lora_request req = {
        .name = "a", .path = path, .in_place = true, .timeout_us = 30000000};
    struct fleet_lora_reply reply = {0};
    struct err e = {0};
    struct api_object *native;
    int revision = ++world.n_adapters, rc;

    (void)snprintf(path, sizeof path, "/adapters/%d", revision);
    (void)snprintf(body, sizeof body, "{\"lora_name\":\"a\",\"lora_path\":\"%s\"}", path);
    native = api_object_parse(body, strlen(body));
    rc = fleet_lora_load(world.fc, &req, native, &reply, &e);
    world_trace("load of adapter %d: %s", revision, rc == 0 ? "done" : e.msg);
    fleet_results_fini(&reply.results);
    api_object_unref(native);
    world.adapter_unsure = rc != 0;
    if (rc == 0)
        world.adapter = revision;
}

static void run_adapter(struct order *o)
{
    struct ask *a = ask_begin("a load", ASK_US);
    struct err e = {0};

    (void)o;
    world.n_loads++;
    if (fleet_op_lock(world.fc, NULL, "a load", &e) == 0) {
        load_adapter();
        fleet_op_unlock(world.fc);
    }
    world.n_loads--;
    ask_end(a);
}

static void run_abort_requests(struct order *o)
{
    (void)o;
    fleet_abort_all_requests(world.fc);
}

/* ---- names ---- */

/* The caller owns the operation lock. "vN.K" is a name of the version vN. */
static void rename_version(void)
{
    char label[32];
    struct fleet_label_request req = {.label = label, .arg = label};
    fleet_results_auto results = {0};
    struct err e = {0};
    uint64_t serial;
    int version = world_version();

    if (version == TORN)
        return;
    (void)snprintf(label, sizeof label, "v%d.%d", version, ++world.n_names);
    if (world.cfg.stage != STAGE_NOT)
        req.record = stage_rename;
    (void)fleet_label_all(world.fc, &req, &results, &serial, &e);
    world_trace("name %s: %s", label, e.code == ERR_NONE ? "done" : e.msg);
}

static void run_rename(struct order *o)
{
    struct ask *a = ask_begin("a name", ASK_US);
    struct err e = {0};

    (void)o;
    if (fleet_step_lock(world.fc, NULL, "a name", &e) == 0) {
        if (fleet_check_no_update(world.fc, true, &e) == 0)
            rename_version();
        fleet_op_unlock(world.fc);
    }
    ask_end(a);
}

/* ---- a resync ---- */

/* Its process was replaced just before it was given the name. */
static bool is_misnamed(const struct engine *g)
{
    return world_label(g->label) == world_version() && engine_version(g) != world_version();
}

/* An operator vouches for it: not for another version under the fleet's name. */
static void run_resync(struct order *o)
{
    struct engine *g = o->engine;
    struct upstream *u = NULL;
    struct err e = {0};
    struct ask *a;

    if (is_misnamed(g))
        return;
    a = ask_begin("a resync", ASK_US);
    g->n_resyncs++;
    (void)fleet_resync_one(world.fc, NULL, world_url(check_index_of(g)), &u, &e);
    g->n_resyncs--;
    world_trace("resync: %s", e.code == ERR_NONE ? "done" : e.msg);
    upstream_unref(u);
    ask_end(a);
    if (e.code == ERR_NONE && is_misnamed(g))
        world_restart(g, LATER_US);
}

/* ---- which ---- */

/* Until what is missing was given, most often. */
static void run_wait(struct order *o)
{
    (void)o;
    sched_sleep(8000000);
}

void ask_event(enum event event, struct engine *g)
{
    if (n_orders >= 12)
        return;
    switch (event) {
    case EVENT_REMOVE:
    case EVENT_READD:
        order(run_leave, event == EVENT_READD, g);
        break;
    case EVENT_PAUSE:
        order(run_pause, 1, NULL);
        break;
    case EVENT_RESUME:
        order(run_resume, 0, NULL);
        break;
    case EVENT_SLEEP:
        order(run_sleep, 1, NULL);
        break;
    case EVENT_SLEEP_2:
        order(run_sleep, 2, NULL);
        break;
    case EVENT_WAKE:
        order(run_sleep, 0, NULL);
        break;
    case EVENT_RENAME:
        order(run_rename, 0, NULL);
        break;
    case EVENT_ABORT:
        if (world.cfg.stage == STAGE_NOT) /* what this server does cannot be aborted */
            order(run_abort, world.turn % 2 == 0, NULL);
        break;
    case EVENT_SECOND_UPDATE:
        if (world.cfg.stage == STAGE_NOT)
            order(run_second_update, 0, NULL);
        else
            order(run_commits, 0, NULL);
        break;
    case EVENT_COMMIT:
        if (world.cfg.stage != STAGE_NOT)
            order(run_commits, 1, NULL);
        break;
    case EVENT_RESYNC:
        order(run_resync, 0, g);
        break;
    case EVENT_ADAPTER:
        order(run_adapter, 0, NULL);
        break;
    case EVENT_ABORT_REQUESTS:
        order(run_abort_requests, 0, NULL);
        break;
    default:
        break;
    }
}

void ask_scenario(enum scenario scenario)
{
    struct engine *last = &world.engines[world.n_engines - 1];

    switch (scenario) {
    case UPDATE:
    case UPDATE_OF_TWO:
        ask_update(scenario == UPDATE ? 1 : CHUNKS);
        break;
    case PAUSE:
        order(run_pause, 1, NULL);
        break;
    case SLEEP:
        order(run_sleep, 1, NULL);
        break;
    case JOIN:
        order(run_join, 0, last);
        break;
    case LEAVE:
        order(run_leave, 0, last);
        break;
    case HANDOFF_OF_TWO:
        order(run_commits, 1, NULL);
        order(run_commits, 1, NULL);
        break;
    case HANDOFF:
        order(run_commits, 1, NULL);
        break;
    case REPAIR:
        world_happens(EVENT_RESTART, last);
        order(run_wait, 0, NULL);
        break;
    case REPAIR_JOIN:
        order(run_join, 0, last);
        order(run_wait, 0, NULL);
        break;
    case UPDATE_RESTARTED:
    case UPDATE_PAUSED:
        order(run_meanwhile, (int)scenario, &world.engines[0]);
        break;
    default:
        order(run_adapter, 0, NULL);
        break;
    }
}
