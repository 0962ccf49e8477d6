/* The health word: bit 0 live, bit 1 ready, bit 2 ready for control, bits 8 to 15 the reason of not
 * live, 16 to 23 the reason of not ready (enum err_code; that of not ready for control is one of
 * the two), from bit 24 on the time of the check in milliseconds of the clock; time 0: the server
 * has not been checked yet. Rejected: a struct under a lock, whose owner may be descheduled for
 * longer than a probe waits. */
#include "server/health_watch.h"

#include "base/clock.h"
#include "base/loop.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/route.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORD_LIVE = 1,
    WORD_READY = 2,
    WORD_CONTROL = 4,
    WORD_LIVE_AT = 8,
    WORD_READY_AT = 16,
    WORD_MS_AT = 24
};

_Static_assert((int)ERR_CODE_COUNT <= 256, "an error code fits in a byte of the word");

struct health_watch {
    struct http_server *http_server; /* owned */
    struct loop *loop;               /* owned; NULL until started and after it was stopped */
    struct loop_timer timer;
    const struct app *app; /* borrowed; only the loop's thread uses it */
    /* Relaxed: it publishes no other memory. */
    atomic_uint_fast64_t word;
};

uint64_t health_word(const struct health *h, uint64_t now_us)
{
    uint64_t ms = now_us / 1000;

    return (h->live ? WORD_LIVE : 0) | (h->ready ? WORD_READY : 0) |
           (h->control_ready ? WORD_CONTROL : 0) | (uint64_t)h->live_why << WORD_LIVE_AT |
           (uint64_t)h->ready_why << WORD_READY_AT | (ms > 0 ? ms : 1) << WORD_MS_AT;
}

struct health health_of(uint64_t word, uint64_t now_us)
{
    struct health h = {
        .live = (word & WORD_LIVE) != 0,
        .ready = (word & WORD_READY) != 0,
        .control_ready = (word & WORD_CONTROL) != 0,
        .live_why = (enum err_code)(word >> WORD_LIVE_AT & 0xff),
        .ready_why = (enum err_code)(word >> WORD_READY_AT & 0xff),
    };
    uint64_t then_ms = word >> WORD_MS_AT, now_ms = now_us / 1000;
    uint64_t age_ms = now_ms > then_ms ? now_ms - then_ms : 0;

    if (then_ms == 0)
        return (struct health){.live = true, .ready_why = ERR_STARTING};
    if (h.live && age_ms > WATCH_LIVE_AGE_MAX_MS) {
        h.live = false;
        h.live_why = ERR_INTERNAL;
    }
    if ((h.ready || h.control_ready) && age_ms > WATCH_READY_AGE_MAX_MS) {
        h.ready = h.control_ready = false;
        h.ready_why = ERR_INTERNAL;
    }
    return h;
}

/* An HTTP server whose event loops do not turn answers no request. */
static bool http_server_turns(struct http_server *server, uint64_t now_us)
{
    uint64_t beat_us;

    if (server == NULL)
        return true;
    beat_us = http_server_beat_us(server);
    return now_us <= beat_us || now_us - beat_us <= WATCH_LIVE_AGE_MAX_MS * UINT64_C(1000);
}

static bool listeners_turn(const struct app *app, uint64_t now_us)
{
    return http_server_turns(app->http_server, now_us) &&
           http_server_turns(app->control_http_server, now_us);
}

bool health_is_live(const struct app *app, struct err *why)
{
    if (!listeners_turn(app, clock_now_us())) {
        (void)err_set(why, ERR_INTERNAL, "", "an event loop of a listener does not turn");
        return false;
    }
    return app_live(app, why);
}

static void health_check(void *arg)
{
    struct health_watch *w = arg;
    struct err live_why = {0}, ready_why = {0}, control_why = {0};
    uint64_t now_us = clock_now_us();
    struct health h = {0};

    if (!listeners_turn(w->app, now_us)) {
        h.live_why = h.ready_why = ERR_INTERNAL;
    } else {
        h.live = app_live(w->app, &live_why);
        h.live_why = live_why.code;
        h.ready = app_ready(w->app, &ready_why);
        h.ready_why = ready_why.code;
        h.control_ready = app_control_ready(w->app, &control_why);
    }
    atomic_store_explicit(&w->word, health_word(&h, now_us), memory_order_relaxed);
    loop_timer_set(w->loop, &w->timer, clock_after_us(WATCH_PERIOD_US));
}

static int watch_route(void *arg, struct http_request *x, struct http_server_route *out,
                       struct err *e)
{
    const struct route *route;
    size_t at = 0;

    (void)arg;
    route = route_find(x->path, x->method, 1U << DIALECT_NATIVE, &at, e);
    if (route == NULL)
        return -1;
    if (route->operation != OPERATION_LIVE && route->operation != OPERATION_READY)
        return err_set(e, ERR_NOT_FOUND, "",
                       "%.200s is not answered on this listener: it answers health routes only",
                       x->path);
    x->route = route;
    *out = (struct http_server_route){.body = HTTP_SERVER_BODY_WHOLE, .body_max = route->body_max};
    return 0;
}

static void answer_live(struct http_request *x, const struct health *h)
{
    struct err e = {0};

    if (!h->live) {
        (void)err_set(&e, h->live_why, "", "not live: %s", err_wire_name(h->live_why));
        reply_error(x, &e, NULL);
    } else if (strcmp(x->path, "/health") == 0 || strcmp(x->path, "/ping") == 0) {
        reply_empty(x, 200);
    } else {
        reply_json(x, 200, json_pack("{s:b}", "live", 1));
    }
}

static void answer_ready(struct http_request *x, const struct health *h)
{
    const char *why = err_wire_name(h->ready_why);
    struct err e = {0};
    bool control;

    if (ready_is_for_control(&control, x, &e) != 0)
        reply_error(x, &e, NULL);
    else if (control ? h->control_ready : h->ready)
        reply_json(x, 200, json_pack("{s:b}", "ready", 1));
    else
        reply_json(x, 503,
                   json_pack("{s:b, s:s, s:s}", "ready", 0, "reason", why, "message",
                             h->ready_why == ERR_DRAINING
                                 ? "the server is stopping: send requests to another one"
                                 : "GET /readyz on --listen reports the detailed reason"));
}

static void watch_dispatch(void *arg, struct http_request *x)
{
    struct health_watch *w = arg;
    const struct route *route = x->route;
    struct health h = health_of(atomic_load_explicit(&w->word, memory_order_relaxed),
                                clock_now_us());

    if (route->operation == OPERATION_LIVE)
        answer_live(x, &h);
    else
        answer_ready(x, &h);
}

static void watch_reject(void *arg, struct http_request *x, const struct err *e,
                         struct http_reply *out)
{
    (void)arg;
    reply_error_make(x->route, e, NULL, out);
    route_add_allow(out, x, 1U << DIALECT_NATIVE, e);
}

/* Probes are neither counted nor logged: metrics and log are shared with the rest of the server. */
static void watch_done(void *arg, const struct http_request *x, const struct http_server_outcome *o)
{
    (void)arg;
    (void)x;
    (void)o;
}

int health_watch_new(struct health_watch **out, const struct http_server_cfg *cfg, struct err *e)
{
    static const struct http_server_app ops = {.route = watch_route,
                                               .dispatch = watch_dispatch,
                                               .reject = watch_reject,
                                               .done = watch_done};
    struct http_server_cfg own = *cfg;
    struct health_watch *w = calloc(1, sizeof *w);

    if (w == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the health listener");
    own.name = "health";
    own.n_shards = 1;
    own.oldest_gives_way = true; /* no key is needed here, and a probe must get in */
    own.app = &ops;
    own.app_arg = w;
    if (http_server_new(&w->http_server, &own, e) != 0) {
        free(w);
        return -1;
    }
    *out = w;
    return 0;
}

int health_watch_start(struct health_watch *w, const struct app *app, struct err *e)
{
    struct loop_cfg cfg = {.name = "health/watch"};

    assert(w->loop == NULL);
    w->app = app;
    w->timer = (struct loop_timer){.fire = health_check, .arg = w}; /* for the new loop */
    if (loop_new(&w->loop, &cfg, e) != 0)
        return -1;
    health_check(w); /* also arms the timer */
    if (loop_start(w->loop, e) == 0)
        return 0;
    health_watch_stop(w);
    return -1;
}

uint16_t health_watch_port(const struct health_watch *w)
{
    return http_server_port(w->http_server);
}

void health_watch_stop(struct health_watch *w)
{
    uint64_t now_us = clock_now_us();
    struct health h;

    if (w == NULL || w->loop == NULL)
        return;
    loop_free(w->loop);
    w->loop = NULL;
    h = health_of(atomic_load_explicit(&w->word, memory_order_relaxed), now_us);
    h.ready = h.control_ready = false;
    h.ready_why = ERR_DRAINING;
    atomic_store_explicit(&w->word, health_word(&h, now_us), memory_order_relaxed);
}

void health_watch_free(struct health_watch *w)
{
    if (w == NULL)
        return;
    health_watch_stop(w);
    http_server_free(w->http_server);
    free(w);
}
