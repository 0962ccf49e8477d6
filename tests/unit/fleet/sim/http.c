/* The client of engines: a request takes its time to the engine, and the answer back. */
#include "http/client/http.h"

#include "tests/unit/fleet/sim/check.h"
#include "tests/unit/fleet/sim/sched.h"
#include "tests/unit/fleet/sim/world.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAY_US = 1000, WAY_MAX_US = 20000, LATE_US = 5000000 };

struct http_call {
    struct http_events events;
    struct engine *engine;
    enum api_op op; /* API_OPS: a query */
    char path[API_PATH_MAX];
    char *body;
    struct reply reply;
    unsigned process;     /* that answers */
    unsigned meant;       /* that was there when it was sent */
    unsigned late;        /* process to which it came, and that has yet to look at it; 0: none */
    uint64_t epoch;       /* of the weights, when it was sent */
    uint64_t incarnation; /* how many processes the fleet had counted then */
    bool probes;          /* it is of a probe */
    bool known;           /* its process was, when it was sent */
    bool removed;         /* its engine was, then or when that was decided */
    bool ends;            /* an update, with what has come */
    bool lost;            /* its answer is */
};

__typeof__(http_client_new) __wrap_http_client_new;
__typeof__(http_client_free) __wrap_http_client_free;
__typeof__(http_start) __wrap_http_start;
__typeof__(http_cancel) __wrap_http_cancel;

int __wrap_http_client_new(struct http_client **out, struct loop *loop, struct err *e)
{
    (void)e;
    *out = (struct http_client *)loop;
    return 0;
}

void __wrap_http_client_free(struct http_client *c)
{
    (void)c;
}

static uint64_t way_us(void)
{
    return world.cfg.seed == 0 ? WAY_US : WAY_US + sched_draw(WAY_MAX_US);
}

static struct engine *engine_at_url(const char *url)
{
    size_t i = (size_t)(url[8] - '0');

    assert(i < world.n_engines);
    return &world.engines[i];
}

/* Whoever asks hears which process there is; that another client has pushed to a baton, probes. */
static bool is_report(const struct http_call *c)
{
    return (strcmp(c->path, "/metrics") == 0 && (c->probes || c->engine->n_resyncs == 0)) ||
           (strcmp(c->path, "/v1/status") == 0 && (c->probes || c->engine->weights != FOREIGN));
}

/* The weights may have changed since. */
static bool is_outdated(const struct http_call *c)
{
    return c->epoch != fleet_weights_epoch(world.fleet);
}

/* A report counts when the last query of its probe is answered; then what it says of the weights is
 * not looked at if they may have changed since it was asked for. */
static void note_answer(const struct http_call *c, bool good)
{
    struct engine *g = c->engine;

    if (c->op != API_OPS)
        return;
    if (is_report(c))
        g->reported = good && !is_outdated(c) ? c->process : 0;
    g->unreported = g->unreported || !good;
    if (--g->n_queries > 0)
        return;
    if (g->reported == g->process && !g->unreported && !check_is_removed(g) &&
        g->seen != g->process && !(g->weights == FOREIGN && is_outdated(c))) {
        g->seen = g->process;
        g->seen_us = clock_now_us();
    }
    g->reported = 0;
    g->unreported = false;
}

static int revision_of(const struct http_call *c)
{
    const char *path = c->op == API_LOAD_ADAPTER && c->body != NULL ? strstr(c->body, "/adapters/")
                                                                    : NULL;

    return path != NULL ? (int)strtol(path + strlen("/adapters/"), NULL, 10) : 0;
}

/* NULL: no matter how many there are. */
static struct calls *calls_of(const struct http_call *c)
{
    if (c->op == API_LOAD_ADAPTER || c->op == API_UNLOAD_ADAPTER)
        return &c->engine->changes;
    return c->op == API_PAUSE || c->op == API_RESUME ? &c->engine->gates : NULL;
}

static void begin_call(const struct http_call *c)
{
    struct calls *calls = calls_of(c);

    if (calls != NULL)
        calls->overlap = calls->n++ > 0;
    if (c->op == API_PAUSE) /* then it may be paused, as the others are */
        c->engine->not_resumed_us = 0;
}

static void end_call(const struct http_call *c)
{
    struct calls *calls = calls_of(c);

    if (calls != NULL)
        calls->n--;
}

static void note_loaded(struct engine *g, int revision)
{
    g->answered = revision;
    g->answered_us = clock_now_us();
    g->answered_incarnation = world_incarnation(g);
}

/* It may have been meant for another process. */
static void note_adapter(const struct http_call *c)
{
    struct engine *g = c->engine;

    if (c->process != g->process)
        return;
    if (g->changes.overlap || (c->op == API_UNLOAD_ADAPTER && g->adapter == 0) || !c->known ||
        c->incarnation != world_incarnation(g))
        g->answered = 0;
    else if (c->op == API_LOAD_ADAPTER && c->reply.status == 200)
        note_loaded(g, revision_of(c));
}

static void note_gate(const struct http_call *c, bool good)
{
    struct engine *g = c->engine;
    bool failed = c->op == API_RESUME && !good && g->paused && !g->gates.overlap &&
                  c->process == g->process;

    g->not_resumed_us = failed ? clock_now_us() : 0;
}

static void end(struct http_call *c, enum http_outcome outcome, bool sent)
{
    struct http_end e = {.outcome = outcome, .sent = sent};

    if (outcome != HTTP_WHOLE)
        (void)snprintf(e.why, sizeof e.why, "it failed");
    sched_cancel(c);
    end_call(c);
    if (calls_of(c) == &c->engine->gates)
        note_gate(c, outcome == HTTP_WHOLE && c->reply.status == 200);
    if (c->ends)
        c->engine->n_finishes -= c->process == c->engine->process;
    if (c->op == API_UPDATE_WEIGHTS && outcome != HTTP_WHOLE && sent)
        c->engine->lost_target = c->engine->target;
    c->events.done(c->events.arg, &e);
    note_answer(c, outcome == HTTP_WHOLE && c->reply.status == 200);
    free(c->body);
    free(c);
    check_now();
}

/* It has ended since: most often its answer is lost with it, but it may have been on its way. */
static bool is_lost_with_process(const struct http_call *c)
{
    bool ended = !c->engine->up || c->process != c->engine->process;

    return ended && (world.cfg.seed == 0 || sched_chance(70));
}

static void on_answer(void *arg)
{
    struct http_call *c = arg;
    struct http_head head = {.status = c->reply.status, .content_length = -1};
    enum failure f = world_at_turn(c->engine, API_OPS);

    if (f == FAIL_LATE) {
        sched_after(LATE_US, on_answer, c);
        return;
    }
    world_trace("answer of %zu to %s: %d%s", check_index_of(c->engine), c->path, c->reply.status,
                c->lost || f != FAIL_NOT || c->process != c->engine->process ? ", lost" : "");
    if (f == FAIL_HANGS_DONE)
        return;
    if (f != FAIL_NOT || c->lost || c->reply.status == 0 || is_lost_with_process(c)) {
        end(c, HTTP_BROKEN, true);
        return;
    }
    if (c->engine->kind == UPSTREAM_BATON)
        engine_name(c->engine, c->process, head.boot_id, sizeof head.boot_id);
    if (calls_of(c) == &c->engine->changes)
        note_adapter(c);
    if (c->events.head != NULL)
        c->events.head(c->events.arg, &head);
    (void)c->events.data(c->events.arg, c->reply.text, strlen(c->reply.text));
    end(c, HTTP_WHOLE, true);
}

static void answer_later(struct http_call *c)
{
    sched_after(way_us(), on_answer, c);
}

/* Any status that an engine, or what is between, may give; but those by which an engine says that
 * it has no such adapter, or cache. */
static int any_refusal(enum api_op op)
{
    static const int statuses[] = {404, 405, 400, 403, 409};
    bool may_lack = op == API_UNLOAD_ADAPTER || op == API_RESET_PREFIX_CACHE ||
                    op == API_RESET_ENCODER_CACHE || op == API_RESET_STORAGE_CACHE;
    unsigned first = may_lack ? 3 : 0;

    return world.cfg.seed == 0 ? 409 : statuses[first + sched_draw(5 - first)];
}

static void refuse(struct http_call *c, int status)
{
    if (c->op == API_LOAD_ADAPTER)
        c->engine->refused = revision_of(c);
    if (c->op == API_FINISH_UPDATE && c->engine->chunks == 0 && status != 403 && status != 409)
        c->engine->unclosed = true;
    c->reply.status = status;
    (void)snprintf(c->reply.text, sizeof c->reply.text, "{\"message\":\"no\"}");
    answer_later(c);
}

/* It was asked for as the process, and the member, that the fleet knew then. */
static void begin_asked(const struct http_call *c)
{
    world.asked_unknown = !c->known || c->meant != c->engine->process;
    world.asked_removed = c->removed;
}

static void end_asked(void)
{
    world.asked_unknown = world.asked_removed = false;
}

/* Is it the end of an update, with what has come, and not of the version that a baton has? */
static bool changes_version(const struct http_call *c)
{
    const struct engine *g = c->engine;
    bool repeats = !engine_overwrites(g) && g->weights == g->target;

    return c->op == API_FINISH_UPDATE && g->chunks != 0 && !repeats &&
           (g->kind != UPSTREAM_SGLANG || g->open);
}

static void execute(struct http_call *c)
{
    c->ends = changes_version(c);
    c->engine->n_finishes += c->ends;
    begin_asked(c);
    engine_ask(c->engine, c->path, c->body, &c->reply);
    end_asked();
}

/* An SGLang answers an error before its ranks have the tensors. */
static bool breaks_before(const struct http_call *c)
{
    return c->op == API_UPDATE_WEIGHTS && c->engine->kind == UPSTREAM_SGLANG &&
           world.cfg.stage == STAGE_WINDOWS;
}

static void fail(struct http_call *c, enum failure f)
{
    struct engine *g = c->engine;

    if (f == FAIL_ERROR_DONE && breaks_before(c))
        f = FAIL_ERROR;
    if (f == FAIL_ERROR_DONE || f == FAIL_LOST_DONE || f == FAIL_HANGS_DONE)
        execute(c);
    begin_asked(c);
    if (f == FAIL_LOST_PART && c->op == API_UPDATE_WEIGHTS)
        engine_take_part(g);
    end_asked();
    if (c->op == API_SET_VERSION || (c->op == API_OPS && f != FAIL_UNSENT))
        g->unnamed = true;
    if (f == FAIL_UNSENT) {
        end(c, HTTP_UNREACHABLE, false);
    } else if (f == FAIL_REFUSED) {
        refuse(c, any_refusal(c->op));
    } else if (f == FAIL_ERROR || f == FAIL_ERROR_DONE) {
        refuse(c, 500);
    } else if (f != FAIL_HANGS && f != FAIL_HANGS_DONE) {
        c->lost = true;
        answer_later(c);
    }
}

static void on_arrival(void *arg)
{
    struct http_call *c = arg;
    struct engine *g = c->engine;
    enum failure f = world_at_turn(g, c->op);

    c->process = g->process;
    if (!g->up) {
        end(c, HTTP_UNREACHABLE, false);
        world_note_down(g);
        return;
    }
    if (c->late != 0 && c->late != g->process) {
        end(c, HTTP_BROKEN, true);
        return;
    }
    if (f == FAIL_LATE) {
        c->late = g->process;
        sched_after(LATE_US, on_arrival, c);
        return;
    }
    if (c->op != API_OPS) {
        g->n_asked[c->op]++;
        f = (g->refuses & (1u << c->op)) != 0 ? FAIL_ERROR : f;
        f = (g->breaks & (1u << c->op)) != 0 ? FAIL_ERROR_DONE : f;
        f = (g->denies & (1u << c->op)) != 0 ? FAIL_REFUSED : f;
    }
    world_trace("%s at %zu%s %s", c->path, check_index_of(g), f != FAIL_NOT ? ": it fails" : "",
                c->body != NULL ? c->body : "");
    if (f == FAIL_NOT) {
        execute(c);
        answer_later(c);
    } else {
        fail(c, f);
    }
}

static void on_timeout(void *arg)
{
    struct http_call *c = arg;

    world_trace("no answer of %zu to %s in time", check_index_of(c->engine), c->path);
    end(c, HTTP_TIMED_OUT, true);
}

int __wrap_http_start(struct http_call **out, struct http_client *c,
                      const struct http_call_request *req, const struct http_events *events,
                      struct err *e)
{
    struct http_call *call = calloc(1, sizeof *call);

    (void)c;
    (void)e;
    assert(call != NULL && req->timeout_us > 0);
    call->events = *events;
    call->engine = engine_at_url(req->target->url);
    call->op = engine_operation(call->engine, req->path);
    call->engine->n_queries += call->op == API_OPS;
    call->probes = req->timeout_us == PROBE_US;
    call->known = call->engine->seen == call->engine->process &&
                  call->engine->seen_us < clock_now_us();
    call->meant = call->engine->process;
    call->incarnation = world_incarnation(call->engine);
    call->removed = check_is_removed(call->engine) || call->engine->added_us == clock_now_us();
    call->epoch = fleet_weights_epoch(world.fleet);
    (void)snprintf(call->path, sizeof call->path, "%s", req->path);
    if (req->body != NULL)
        call->body = strndup(req->body, req->body_len);
    begin_call(call);
    sched_after(way_us(), on_arrival, call);
    sched_after(req->timeout_us, on_timeout, call);
    *out = call;
    return 0;
}

void __wrap_http_cancel(struct http_call *c)
{
    sched_cancel(c);
    end_call(c);
    note_answer(c, false);
    if (c->ends)
        c->engine->n_finishes -= c->process == c->engine->process;
    if (c->op == API_UPDATE_WEIGHTS)
        c->engine->lost_target = c->engine->target;
    free(c->body);
    free(c);
}
