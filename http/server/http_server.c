/* The HTTP server: shards, their loops, start and stop.
 *
 * A loop's epoll holds those of its libmicrohttpd daemons, the listening socket and a watch on each
 * accepted one, and each iteration runs the daemons that have work. */
#include "http/server/http_server.h"

#include "base/clock.h"
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RESERVE_MAX = 256 /* connections at work for health and control alone */ };

static void library_panic(void *cls, const char *file, unsigned line, const char *reason)
{
    (void)cls;
    log_line(LOG_ERROR, "http.panic", "libmicrohttpd gave up at %s:%u: %s", file, line,
             reason != NULL ? reason : "no reason given");
    log_close(); /* nothing queued may be lost now */
    abort();
}

static void shard_close(struct shard *s);

static uint64_t shard_turn(void *arg)
{
    struct shard *s = arg;
    uint64_t wait_us, shed_us;

    if (s->n_daemons == 0)
        return CLOCK_NEVER;
    wait_us = daemons_run(s);
    shed_us = conn_shed(s);
    wait_us = shed_us < wait_us ? shed_us : wait_us;
    if (s->finish_by_us > 0 &&
        ((!conn_any_unsent(s) && s->n_lingers == 0) || clock_passed(s->finish_by_us))) {
        shard_close(s);
        return CLOCK_NEVER;
    }
    return wait_us;
}

/* Loop thread: one iteration. */
static void shard_beat(void *arg)
{
    struct shard *s = arg;

    atomic_store_explicit(&s->beat_us, clock_now_us(), memory_order_relaxed);
}

/* Loop thread: stop accepting. */
static void shard_quiesce(void *arg)
{
    struct shard *s = arg;
    struct http_server *f = s->http_server;

    if (s->quiesced)
        return;
    s->quiesced = true;
    if (loop_is_current(s->loop))
        accept_rest(s);
    accept_end(s);
    mtx_lock(&f->lock);
    f->n_quiesced++;
    cnd_broadcast(&f->moved);
    mtx_unlock(&f->lock);
}

/* Loop thread: answers that are there still go out, for a while; everything else is over. */
static void shard_finish(void *arg)
{
    struct shard *s = arg;

    shard_quiesce(s);
    conn_finish_all(s);
    s->finish_by_us = clock_after_us(HTTP_SERVER_GRACE_US);
}

/* Loop thread, or any while none runs: close everything. Suspended connections are resumed first;
 * stopping libmicrohttpd with one would be a panic. */
static void shard_close(struct shard *s)
{
    struct http_server *f = s->http_server;

    shard_quiesce(s);
    conn_close_all(s);
    while (s->lingers != NULL)
        lingering_close(s->lingers);
    while (s->greetings != NULL)
        greeting_close(s->greetings);
    loop_timer_cancel(s->loop, &s->sweep);
    daemons_stop(s);
    assert(s->conns == NULL);
    mtx_lock(&f->lock);
    f->n_closed++;
    cnd_broadcast(&f->moved);
    mtx_unlock(&f->lock);
}

static int begin_loop(struct shard *s, struct err *e)
{
    const struct http_server_cfg *cfg = &s->http_server->cfg;

    if (cfg->app->loop_begin == NULL)
        return 0;
    s->began = cfg->app->loop_begin(cfg->app_arg, s->loop, &s->loop_app, e) == 0;
    return s->began ? 0 : -1;
}

static int shard_start(struct shard *s, size_t i, struct err *e)
{
    struct loop_cfg cfg = {.turn = shard_turn, .arg = s};
    const char *prefix = s->http_server->cfg.name;
    char name[16];

    (void)snprintf(name, sizeof name, "%.10s/%zu", prefix != NULL ? prefix : "http", i % 1000);
    cfg.name = name;
    s->quiesce = (struct loop_item){.run = shard_quiesce, .arg = s};
    s->finish = (struct loop_item){.run = shard_finish, .arg = s};
    s->beat = (struct loop_item){.run = shard_beat, .arg = s};
    shard_beat(s);
    s->sweep = (struct loop_timer){.fire = conn_sweep, .arg = s};
    if (loop_new(&s->loop, &cfg, e) != 0 || begin_loop(s, e) != 0 || daemons_start(s, e) != 0)
        return -1;
    conn_sweep(s); /* arms itself, and begins to accept */
    return loop_start(s->loop, e);
}

static void size_shards(struct http_server *f)
{
    size_t most = f->cfg.n_connections_max / f->n_shards;
    size_t room, reserve;

    if (most < 4)
        most = 4;
    room = most / 4 < HTTP_SERVER_SPARE ? most / 4 : HTTP_SERVER_SPARE;
    reserve = most / 16;
    if (reserve < room)
        reserve = room;
    if (reserve > RESERVE_MAX)
        reserve = RESERVE_MAX;
    for (size_t i = 0; i < f->n_shards; i++) {
        f->shards[i].n_conns_limit = most;
        f->shards[i].n_conns_crowded = most - room;
        f->shards[i].n_conns_max = most - reserve;
    }
}

int http_server_new(struct http_server **out, const struct http_server_cfg *cfg, struct err *e)
{
    struct http_server *f;

    assert(cfg->n_shards >= 1 && cfg->n_connections_max >= 1);
    MHD_set_panic_func(library_panic, NULL);
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the HTTP server");
    f->shards = calloc(cfg->n_shards, sizeof *f->shards);
    if (f->shards == NULL) {
        free(f);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu loops of an HTTP server",
                       cfg->n_shards);
    }
    mtx_init(&f->lock, MTX_LEAF);
    cnd_init(&f->moved);
    f->cfg = *cfg;
    f->tls = cfg->tls_cert != NULL;
    f->n_shards = cfg->n_shards;
    for (size_t i = 0; i < f->n_shards; i++) {
        f->shards[i].http_server = f;
        f->shards[i].listen_fd = -1;
        conn_queues_init(&f->shards[i]);
        f->shards[i].greetings_end = &f->shards[i].greetings;
    }
    http_server_fit_nofile(f);
    size_shards(f);
    if (http_server_find_library(f, e) != 0 ||
        (f->tls && tls_identity_new(&f->identity, cfg->tls_cert, cfg->tls_key, e) != 0) ||
        http_server_prebuild(f, e) != 0 || http_server_listen(f, e) != 0)
        goto err_free;
    for (size_t i = 0; i < f->n_shards; i++)
        if (shard_start(&f->shards[i], i, e) != 0)
            goto err_free;
    f->cfg.tls_cert = f->cfg.tls_key = NULL; /* owned by the caller, which wipes them */
    *out = f;
    return 0;

err_free:
    http_server_free(f);
    return -1;
}

uint16_t http_server_port(const struct http_server *f)
{
    return f->port;
}

uint64_t http_server_beat_us(struct http_server *f)
{
    uint64_t least = CLOCK_NEVER;

    for (size_t i = 0; i < f->n_shards; i++) {
        struct shard *s = &f->shards[i];
        uint64_t beat_us = atomic_load_explicit(&s->beat_us, memory_order_relaxed);

        least = beat_us < least ? beat_us : least;
        loop_post(s->loop, &s->beat);
    }
    return least;
}

void http_server_stats(struct http_server *f, struct http_server_stats *out)
{
    struct http_server_stats sum = {0};

    for (size_t i = 0; i < f->n_shards; i++) {
        struct shard *s = &f->shards[i];
        uint64_t lag_us = loop_lag_max_us(s->loop);

        sum.n_connections += atomic_load_explicit(&s->n_connections, memory_order_relaxed);
        sum.n_accepted += atomic_load_explicit(&s->n_accepted, memory_order_relaxed);
        sum.n_requests += atomic_load_explicit(&s->n_requests, memory_order_relaxed);
        sum.n_rejected += atomic_load_explicit(&s->n_rejected, memory_order_relaxed);
        sum.n_gone += atomic_load_explicit(&s->n_gone, memory_order_relaxed);
        sum.n_timeouts += atomic_load_explicit(&s->n_timeouts, memory_order_relaxed);
        if (lag_us > sum.lag_us_max)
            sum.lag_us_max = lag_us;
    }
    *out = sum;
}

void http_server_quiesce(struct http_server *f)
{
    http_server_unlink(f);
    for (size_t i = 0; i < f->n_shards; i++)
        loop_post(f->shards[i].loop, &f->shards[i].quiesce);
    mtx_lock(&f->lock);
    while (f->n_quiesced < f->n_shards)
        (void)cnd_wait(&f->moved, &f->lock, CLOCK_NEVER);
    mtx_unlock(&f->lock);
}

bool http_server_wait_idle(struct http_server *f, uint64_t deadline_us)
{
    bool idle;

    mtx_lock(&f->lock);
    while (f->n_open > 0 && cnd_wait(&f->moved, &f->lock, deadline_us))
        ;
    idle = f->n_open == 0;
    mtx_unlock(&f->lock);
    return idle;
}

/* All shards have the same grace period, at the same time. */
static void finish_shards(struct http_server *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_shards; i++) {
        struct shard *s = &f->shards[i];

        if (s->n_daemons == 0)
            continue;
        n++;
        if (loop_started(s->loop))
            loop_post(s->loop, &s->finish);
        else
            shard_close(s);
    }
    mtx_lock(&f->lock);
    while (f->n_closed < n)
        (void)cnd_wait(&f->moved, &f->lock, CLOCK_NEVER);
    mtx_unlock(&f->lock);
}

static void shard_fini(struct shard *s)
{
    if (s->began) {
        loop_stop(s->loop);
        s->http_server->cfg.app->loop_end(s->loop_app);
    }
    loop_free(s->loop);
    free(s->daemons);
    if (s->listen_fd >= 0)
        (void)close(s->listen_fd);
}

void http_server_stop(struct http_server *f)
{
    if (f == NULL)
        return;
    http_server_unlink(f);
    finish_shards(f);
}

void http_server_free(struct http_server *f)
{
    if (f == NULL)
        return;
    http_server_stop(f);
    for (size_t i = 0; i < f->n_shards; i++)
        shard_fini(&f->shards[i]);
    if (f->no_memory != NULL)
        MHD_destroy_response(f->no_memory);
    if (f->internal != NULL)
        MHD_destroy_response(f->internal);
    tls_identity_unref(f->identity);
    cnd_fini(&f->moved);
    mtx_fini(&f->lock);
    free(f->shards);
    free(f);
}
