/* The front: shards, their loops and daemons, start and stop.
 *
 * A loop's epoll holds libmicrohttpd's own epoll fd, and every turn runs the library once. It never
 * waits in there (external mode polls with a zero timeout), which is what avoids the stall of its
 * internal thread at multiples of 128 events; the price is a guard against the cases where it asks
 * for a zero timeout for ever. */
#include "server/front.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/front_priv.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { LIBRARY_LINES_PER_S = 10, RESERVE_MAX = 256 };

static void library_log(void *cls, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

/* libmicrohttpd logs for each aborted client: a flood that anybody can cause. */
static void library_log(void *cls, const char *fmt, va_list ap)
{
    struct shard *s = cls;
    uint64_t second = clock_now_us() / 1000000U;
    char text[256];

    if (!log_enabled(LOG_DEBUG))
        return;
    if (s->log_second != second) {
        s->log_second = second;
        s->n_logged = 0;
    }
    if (s->n_logged++ >= LIBRARY_LINES_PER_S)
        return;
    (void)vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    log_line(LOG_DEBUG, "http.library", "%s", text);
}

static void library_panic(void *cls, const char *file, unsigned line, const char *reason)
{
    (void)cls;
    log_line(LOG_ERROR, "http.panic", "libmicrohttpd gave up at %s:%u: %s", file, line,
             reason != NULL ? reason : "no reason given");
    log_close(); /* nothing queued may be lost now */
    abort();
}

/* The daemon's epoll is ready: the end of this turn runs it. */
static void daemon_ready(void *arg, uint32_t events)
{
    (void)arg;
    (void)events;
}

static void shard_close(struct shard *s);

static uint64_t shard_turn(void *arg)
{
    struct shard *s = arg;
    MHD_UNSIGNED_LONG_LONG ms = 0;

    if (s->daemon == NULL)
        return CLOCK_NEVER;
    s->moved = false;
    (void)MHD_run(s->daemon);
    if (s->finish_by_us > 0 &&
        ((!conn_any_unsent(s) && s->n_lingers == 0) || clock_passed(s->finish_by_us))) {
        shard_close(s);
        return CLOCK_NEVER;
    }
    if (MHD_get_timeout(s->daemon, &ms) != MHD_YES) {
        s->n_zero_turns = 0;
        return CLOCK_NEVER;
    }
    if (ms > 0) {
        s->n_zero_turns = 0;
        return (uint64_t)ms * 1000;
    }
    /* A long upload asks for zero timeouts too, but hands us bytes in each turn. */
    if (s->moved)
        return 0;
    if (s->n_zero_turns < FRONT_ZERO_TURNS_MAX) {
        s->n_zero_turns++;
        return 0;
    }
    return FRONT_GUARD_WAIT_US;
}

/* Loop thread: it turns. */
static void shard_beat(void *arg)
{
    struct shard *s = arg;

    atomic_store_explicit(&s->beat_us, clock_now_us(), memory_order_relaxed);
}

/* Connections that the kernel has made for us, and the requests on them, are ours: closing the
 * listening socket now would reset them. */
static void accept_rest(struct shard *s)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_LISTEN_FD);
    struct pollfd p = {.fd = info->listen_fd, .events = POLLIN};
    uint64_t before, n = atomic_load_explicit(&s->n_accepted, memory_order_relaxed);
    uint64_t most = n + FRONT_BACKLOG;

    do {
        before = n;
        (void)MHD_run(s->daemon);
        n = atomic_load_explicit(&s->n_accepted, memory_order_relaxed);
    } while (n > before && n < most && poll(&p, 1, 0) > 0);
}

/* Loop thread: stop accepting. */
static void shard_quiesce(void *arg)
{
    struct shard *s = arg;
    struct front *f = s->front;
    MHD_socket fd;

    if (s->quiesced)
        return;
    s->quiesced = true;
    if (loop_is_current(s->loop))
        accept_rest(s);
    fd = MHD_quiesce_daemon(s->daemon);
    if (fd != MHD_INVALID_SOCKET)
        (void)close(fd);
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
    s->finish_by_us = clock_after_us(FRONT_GRACE_US);
}

/* Loop thread, or any while none runs: close everything. Suspended connections are resumed first;
 * stopping libmicrohttpd with one would be a panic. */
static void shard_close(struct shard *s)
{
    struct front *f = s->front;

    shard_quiesce(s);
    conn_close_all(s);
    while (s->lingers != NULL)
        lingering_close(s->lingers);
    loop_timer_cancel(s->loop, &s->sweep);
    loop_unwatch(s->loop, &s->mhd);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    assert(s->conns == NULL);
    mtx_lock(&f->lock);
    f->n_closed++;
    cnd_broadcast(&f->moved);
    mtx_unlock(&f->lock);
}

/* libmicrohttpd reads texts that its array of options calls writable. */
static void *pem(const char *text)
{
    union {
        const char *in;
        void *out;
    } both = {text};

    return both.out;
}

static int start_daemon(struct shard *s, struct err *e)
{
    const struct front_cfg *cfg = &s->front->cfg;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, pem(cfg->tls_cert)},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, pem(cfg->tls_key)},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, pem(front_tls_priorities)},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;

    s->daemon = MHD_start_daemon(
        s->front->tls ? flags | MHD_USE_TLS : flags, 0, NULL, NULL, request_handle, s,
        MHD_OPTION_EXTERNAL_LOGGER, library_log, s, MHD_OPTION_ARRAY, s->front->tls ? tls : none,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_URI_LOG_CALLBACK, request_begin, s,
        MHD_OPTION_NOTIFY_COMPLETED, request_completed, s, MHD_OPTION_NOTIFY_CONNECTION,
        conn_notify, s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)FRONT_POOL_NBYTES,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->n_conns_limit, MHD_OPTION_CONNECTION_TIMEOUT, 0U,
        MHD_OPTION_END);
    /* From here on the socket is the daemon's, whose failing start may have closed it already. */
    s->listen_fd = -1;
    if (s->daemon == NULL)
        return err_set(e, ERR_INTERNAL, "", "libmicrohttpd did not start");
    return 0;
}

static int begin_loop(struct shard *s, struct err *e)
{
    const struct front_cfg *cfg = &s->front->cfg;

    if (cfg->app->loop_begin == NULL)
        return 0;
    s->began = cfg->app->loop_begin(cfg->app_arg, s->loop, &s->loop_app, e) == 0;
    return s->began ? 0 : -1;
}

static int shard_start(struct shard *s, size_t i, struct err *e)
{
    struct loop_cfg cfg = {.turn = shard_turn, .arg = s};
    const union MHD_DaemonInfo *info;
    const char *front = s->front->cfg.name;
    char name[16];

    (void)snprintf(name, sizeof name, "%.10s/%zu", front != NULL ? front : "front", i % 1000);
    cfg.name = name;
    s->quiesce = (struct loop_item){.run = shard_quiesce, .arg = s};
    s->finish = (struct loop_item){.run = shard_finish, .arg = s};
    s->beat = (struct loop_item){.run = shard_beat, .arg = s};
    shard_beat(s);
    s->sweep = (struct loop_timer){.fire = conn_sweep, .arg = s};
    if (loop_new(&s->loop, &cfg, e) != 0 || begin_loop(s, e) != 0 || start_daemon(s, e) != 0)
        return -1;
    info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    s->mhd = (struct loop_watch){.ready = daemon_ready, .arg = s, .fd = info->epoll_fd};
    if (loop_watch(s->loop, &s->mhd, EPOLLIN, e) != 0)
        return -1;
    conn_sweep(s); /* arms itself */
    return loop_start(s->loop, e);
}

static void size_shards(struct front *f)
{
    size_t most = f->cfg.n_connections_max / f->n_shards;
    size_t reserve;

    if (most < 2)
        most = 2;
    reserve = most / 16;
    if (reserve < 1)
        reserve = 1;
    if (reserve > RESERVE_MAX)
        reserve = RESERVE_MAX;
    for (size_t i = 0; i < f->n_shards; i++) {
        f->shards[i].n_conns_limit = most;
        f->shards[i].n_conns_max = most - reserve;
    }
}

int front_new(struct front **out, const struct front_cfg *cfg, struct err *e)
{
    struct front *f;

    assert(cfg->n_shards >= 1 && cfg->n_connections_max >= 1);
    MHD_set_panic_func(library_panic, NULL);
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the front");
    f->shards = calloc(cfg->n_shards, sizeof *f->shards);
    if (f->shards == NULL) {
        free(f);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu front loops", cfg->n_shards);
    }
    mtx_init(&f->lock, MTX_LEAF);
    cnd_init(&f->moved);
    f->cfg = *cfg;
    f->tls = cfg->tls_cert != NULL;
    f->n_shards = cfg->n_shards;
    for (size_t i = 0; i < f->n_shards; i++) {
        f->shards[i].front = f;
        f->shards[i].listen_fd = -1;
    }
    front_fit_nofile(f);
    size_shards(f);
    if ((f->tls && front_tls_check(cfg->tls_cert, cfg->tls_key, e) != 0) ||
        front_prebuild(f, e) != 0 || front_listen(f, e) != 0)
        goto err_free;
    for (size_t i = 0; i < f->n_shards; i++)
        if (shard_start(&f->shards[i], i, e) != 0)
            goto err_free;
    f->cfg.tls_cert = f->cfg.tls_key = NULL; /* the caller's, who wipes them */
    *out = f;
    return 0;

err_free:
    front_free(f);
    return -1;
}

uint16_t front_port(const struct front *f)
{
    return f->port;
}

uint64_t front_beat_us(struct front *f)
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

void front_stats(struct front *f, struct front_stats *out)
{
    struct front_stats sum = {0};

    for (size_t i = 0; i < f->n_shards; i++) {
        struct shard *s = &f->shards[i];
        uint64_t lag_us = loop_lag_take_us(s->loop);

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

void front_quiesce(struct front *f)
{
    front_unlink(f);
    for (size_t i = 0; i < f->n_shards; i++)
        loop_post(f->shards[i].loop, &f->shards[i].quiesce);
    mtx_lock(&f->lock);
    while (f->n_quiesced < f->n_shards)
        (void)cnd_wait(&f->moved, &f->lock, CLOCK_NEVER);
    mtx_unlock(&f->lock);
}

bool front_wait_idle(struct front *f, uint64_t deadline_us)
{
    bool idle;

    mtx_lock(&f->lock);
    while (f->n_open > 0 && cnd_wait(&f->moved, &f->lock, deadline_us))
        ;
    idle = f->n_open == 0;
    mtx_unlock(&f->lock);
    return idle;
}

/* All shards have the same grace, at the same time. */
static void finish_shards(struct front *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_shards; i++) {
        struct shard *s = &f->shards[i];

        if (s->daemon == NULL)
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
        s->front->cfg.app->loop_end(s->loop_app);
    }
    loop_free(s->loop);
    if (s->listen_fd >= 0)
        (void)close(s->listen_fd);
}

void front_free(struct front *f)
{
    if (f == NULL)
        return;
    front_unlink(f);
    finish_shards(f);
    for (size_t i = 0; i < f->n_shards; i++)
        shard_fini(&f->shards[i]);
    if (f->no_memory != NULL)
        MHD_destroy_response(f->no_memory);
    if (f->internal != NULL)
        MHD_destroy_response(f->internal);
    cnd_fini(&f->moved);
    mtx_fini(&f->lock);
    free(f->shards);
    free(f);
}
