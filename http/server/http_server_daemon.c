/* The libmicrohttpd daemons of a shard, each for some of its connections.
 *
 * At a resume the library walks all suspended connections of its daemon, which costs a cache miss
 * or two for each: with 4,000 clients waiting in one daemon that was more than all the rest of a
 * small request [measured: half a millisecond of 0.9]. So a daemon takes HTTP_SERVER_DAEMON_CONNS
 * connections, and the next ones go to the next daemon; few connections make one daemon's work,
 * in one run. A part runs in the turns in which its epoll or one of us has something for it.
 *
 * A run never waits (external mode polls with a zero timeout), which is what avoids the stall of
 * the library's internal thread at multiples of 128 events; the price is a guard against the cases
 * where it asks for a zero timeout for ever. */
#include "base/clock.h"
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { LIBRARY_LINES_PER_S = 10, RUNS_MAX = 64 /* of a daemon in one turn */ };

static void library_log(void *cls, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

/* libmicrohttpd logs each aborted client: any client could flood the log. */
static void library_log(void *cls, const char *fmt, va_list ap)
{
    struct daemon *p = cls;
    struct shard *s = p->shard;
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

size_t daemons_wanted(const struct http_server_cfg *cfg)
{
    size_t each = cfg->n_connections_max / cfg->n_shards;
    size_t n = each / HTTP_SERVER_DAEMON_CONNS + (each % HTTP_SERVER_DAEMON_CONNS != 0);
    size_t most = HTTP_SERVER_DAEMONS_MAX / cfg->n_shards;

    n = n < most ? n : most;
    return n > 0 ? n : 1;
}

static void due_in(struct daemon *p, uint64_t wait_us)
{
    if (p->due) {
        p->wait_us = wait_us < p->wait_us ? wait_us : p->wait_us;
        return;
    }
    p->due = true;
    p->wait_us = wait_us;
    p->next_due = p->shard->due;
    p->shard->due = p;
}

void daemon_due(struct daemon *p)
{
    due_in(p, 0);
}

/* The daemon's epoll is ready: it runs at the end of this iteration. */
static void daemon_ready(void *arg, uint32_t events)
{
    (void)events;
    daemon_due(arg);
}

static void daemon_run(struct daemon *p)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;
    unsigned n_runs = 0;

    p->read_fd = -1;
    daemon_running = p;
    do { /* in each run it hears of a part of what was placed */
        p->moved = false;
        (void)MHD_run(p->daemon);
    } while (p->moved && p->direct != NULL && p->direct->placed > 0 && ++n_runs < RUNS_MAX);
    daemon_running = NULL;
    if (MHD_get_timeout(p->daemon, &ms) != MHD_YES) {
        p->n_zero_turns = 0;
    } else if (ms > 0) {
        p->n_zero_turns = 0;
        due_in(p, (uint64_t)ms * 1000);
    } else if (p->moved) {
        /* A long upload requests zero timeouts too, but delivers bytes in each iteration. So does
         * a long answer by TLS. */
        p->n_zero_turns = 0;
        due_in(p, 0);
    } else if (p->n_zero_turns < HTTP_SERVER_ZERO_TURNS_MAX) {
        p->n_zero_turns++;
        due_in(p, 0);
    } else {
        due_in(p, HTTP_SERVER_GUARD_WAIT_US);
    }
}

uint64_t daemons_run(struct shard *s)
{
    struct daemon *p = s->due, *next;
    uint64_t wait_us = CLOCK_NEVER;

    s->due = NULL;
    for (; p != NULL; p = next) {
        next = p->next_due;
        p->due = false;
        daemon_run(p);
    }
    for (p = s->due; p != NULL; p = p->next_due)
        wait_us = p->wait_us < wait_us ? p->wait_us : wait_us;
    return wait_us;
}

struct daemon *daemon_with_space(const struct shard *s)
{
    struct daemon *least = &s->daemons[0];

    for (size_t i = 0; i < s->n_daemons; i++) {
        if (s->daemons[i].n_conns < HTTP_SERVER_DAEMON_CONNS)
            return &s->daemons[i];
        if (s->daemons[i].n_conns < least->n_conns)
            least = &s->daemons[i];
    }
    return least;
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

static struct MHD_Daemon *start_daemon(struct daemon *p)
{
    const struct shard *s = p->shard;
    const struct http_server_cfg *cfg = &s->http_server->cfg;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, pem(cfg->tls_cert)},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, pem(cfg->tls_key)},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, pem(http_server_tls_priorities)},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_ERROR_LOG;

    /* The limit is the shard's (http_server_accept.c): of a daemon it could be none that matters.
     */
    return MHD_start_daemon(
        s->http_server->tls ? flags | MHD_USE_TLS : flags, 0, NULL, NULL, request_handle, p,
        MHD_OPTION_EXTERNAL_LOGGER, library_log, p, MHD_OPTION_ARRAY,
        s->http_server->tls ? tls : none, MHD_OPTION_URI_LOG_CALLBACK, request_begin, p,
        MHD_OPTION_NOTIFY_COMPLETED, request_completed, p, MHD_OPTION_NOTIFY_CONNECTION,
        conn_notify, p, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_SERVER_POOL_NBYTES,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->n_conns_limit, MHD_OPTION_CONNECTION_TIMEOUT, 0U,
        MHD_OPTION_END);
}

static int start_part(struct daemon *p, struct err *e)
{
    const union MHD_DaemonInfo *info;

    p->daemon = start_daemon(p);
    if (p->daemon == NULL)
        return err_set(e, ERR_INTERNAL, "", "libmicrohttpd did not start");
    info = MHD_get_daemon_info(p->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    p->watch = (struct loop_watch){.ready = daemon_ready, .arg = p, .fd = info->epoll_fd};
    if (loop_watch(p->shard->loop, &p->watch, EPOLLIN, e) == 0)
        return 0;
    MHD_stop_daemon(p->daemon);
    return -1;
}

int daemons_start(struct shard *s, struct err *e)
{
    size_t n = daemons_wanted(&s->http_server->cfg);

    s->daemons = calloc(n, sizeof *s->daemons);
    if (s->daemons == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu daemons of an HTTP server", n);
    for (; s->n_daemons < n; s->n_daemons++) {
        s->daemons[s->n_daemons].shard = s;
        if (start_part(&s->daemons[s->n_daemons], e) != 0)
            return -1;
    }
    return 0;
}

void daemons_stop(struct shard *s)
{
    while (s->n_daemons > 0) {
        struct daemon *p = &s->daemons[--s->n_daemons];

        loop_unwatch(s->loop, &p->watch);
        MHD_stop_daemon(p->daemon);
        assert(p->n_conns == 0);
    }
    free(s->daemons);
    s->daemons = NULL;
    s->due = NULL;
}
