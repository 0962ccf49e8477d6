/* Accepted sockets: detection of disconnects, absolute deadlines, and lingering close.
 *
 * A FIN means that the client gave up, even if it sent a request before: libmicrohttpd would not
 * see it while a request is suspended, and loses it when it comes together with data (its
 * edge-triggered epoll). Deadlines are absolute and checked by a sweep; single bytes do not extend
 * them, and nothing does once the socket is closed. Both act by shutdown(2), which libmicrohttpd
 * notices.
 */
#include "base/clock.h"
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h> /* glibc's struct tcp_info ends before tcpi_bytes_acked */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SWEEP_US_MIN = 5 * 1000, SWEEP_US_MAX = 250 * 1000 };

/* For a unix socket: a number that grows by a byte for each byte that the peer reads while nothing
 * is written, and by a large step when there is space again, which is when half of a buffer was
 * read. */
static uint64_t drained(const struct conn *c)
{
    int n_unread = 0;

    (void)ioctl(c->fd, SIOCOUTQ, &n_unread);
    return ((c->n_writable + 1) << 32) - (uint64_t)n_unread;
}

/* Bytes of ours that the peer has acknowledged. */
static uint64_t acked(const struct conn *c)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    if (!c->tcp)
        return drained(c);
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return 0;
    return info.tcpi_bytes_acked;
}

/* The sweep visits those that have a deadline: not the thousands that wait for the application. */
static void set_deadline(struct conn *c, uint64_t deadline_us)
{
    bool has = c->prev_due != NULL;

    c->deadline_us = deadline_us;
    if (has == (deadline_us != CLOCK_NEVER))
        return;
    if (has) {
        *c->prev_due = c->next_due;
        if (c->next_due != NULL)
            c->next_due->prev_due = c->prev_due;
        c->prev_due = NULL;
        return;
    }
    c->next_due = c->shard->timed;
    c->prev_due = &c->shard->timed;
    if (c->next_due != NULL)
        c->next_due->prev_due = &c->next_due;
    c->shard->timed = c;
}

void conn_deadline(struct conn *c, uint64_t after_us)
{
    if (!c->dead)
        set_deadline(c, after_us == CLOCK_NEVER ? CLOCK_NEVER : clock_after_us(after_us));
}

void conn_kill(struct conn *c)
{
    if (c->dead)
        return;
    conn_busy(c);
    c->dead = true;
    c->shard->n_dead++;
    set_deadline(c, CLOCK_NEVER);
    if (c->req != NULL) {
        http_request_mark_disconnected(c->req->x);
        request_resume(c->req);
    }
    (void)shutdown(c->fd, SHUT_RDWR);
}

/* A unix socket knows no such thing: there it is ended. */
void conn_reset(struct conn *c)
{
    static const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};

    (void)connect(c->fd, &nowhere, sizeof nowhere);
}

static void hung_up(void *arg, uint32_t events)
{
    struct conn *c = arg;

    c->n_writable += (events & EPOLLOUT) != 0;
    if ((events & EPOLLOUT) != 0 && c->req != NULL && c->req->rest != NULL)
        stream_push(c->req);
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        conn_kill(c);
    else if ((events & EPOLLIN) != 0 && c->req == NULL)
        conn_begin(c);
}

static void conn_set_options(int fd)
{
    static const int on = 1, user_timeout_ms = HTTP_SERVER_TCP_USER_TIMEOUT_MS;

    /* Best effort: a socket that is not TCP works without them. */
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

bool conn_has_unread(const struct conn *c)
{
    int n = 0;

    return ioctl(c->fd, FIONREAD, &n) == 0 && n > 0;
}

ssize_t conn_send(const struct conn *c, const void *data, size_t len)
{
    ssize_t n;

    if (c->shard->http_server->tls)
        return http_server_tls_send(c->mc, data, len);
    n = send(c->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n;
}

static struct conn *conn_new(struct daemon *p, struct MHD_Connection *mc)
{
    const struct sockaddr *peer =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    int fd = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    struct shard *s = p->shard;
    const struct http_server_cfg *cfg = &s->http_server->cfg;
    struct conn *c = calloc(1, sizeof *c);
    struct err e = {0};

    if (c == NULL)
        goto err_shut;
    c->shard = s;
    c->daemon = p;
    c->mc = mc;
    c->deadline_us = CLOCK_NEVER;
    c->fd = fd;
    c->hangup = (struct loop_watch){.ready = hung_up, .arg = c, .fd = fd};
    c->tcp = cfg->unix_path == NULL;
    c->trusted = cfg->trusts != NULL && cfg->trusts(cfg->trusts_arg, peer);
    actor_set_peer(&c->actor, peer, fd);
    if (loop_watch(s->loop, &c->hangup, EPOLLIN | EPOLLRDHUP | EPOLLET | EPOLLOUT, &e) != 0) {
        log_line(LOG_WARN, "http.unwatched", "%s", e.msg);
        goto err_shut;
    }
    conn_set_options(fd);
    c->identity = http_server_tls_begin(s->http_server, mc);
    conn_deadline(c, cfg->header_timeout_us);
    if (conn_has_unread(c))
        conn_begin(c);
    else
        conn_silent(c);
    c->next = s->conns;
    c->prev_next = &s->conns;
    if (c->next != NULL)
        c->next->prev_next = &c->next;
    s->conns = c;
    return c;

err_shut: /* unwatched, it could outlive its client: do not serve it */
    free(c);
    (void)shutdown(fd, SHUT_RDWR);
    return NULL;
}

static void conn_free(struct conn *c)
{
    assert(c->req == NULL);
    loop_unwatch(c->shard->loop, &c->hangup);
    /* Also for requests behind one whose reply closes the connection. */
    if (!c->dead && (c->linger || conn_has_unread(c)))
        lingering_open(c->shard, c->fd);
    conn_busy(c);
    set_deadline(c, CLOCK_NEVER);
    c->shard->n_dead -= c->dead;
    *c->prev_next = c->next;
    if (c->next != NULL)
        c->next->prev_next = c->prev_next;
    tls_identity_unref(c->identity);
    free(c);
}

/* Connections that were cut count until libmicrohttpd has closed them, an iteration or two and some
 * accepts later: therefore from half of the limit on. */
static void make_room(struct shard *s)
{
    struct conn *oldest = NULL;

    if (!s->http_server->cfg.oldest_gives_way || s->n_conns <= s->n_conns_max / 2)
        return;
    for (struct conn *c = s->conns; c != NULL; c = c->next)
        if (!c->dead)
            oldest = c;
    if (oldest != NULL)
        conn_kill(oldest);
}

void conn_notify(void *cls, struct MHD_Connection *mc, void **socket_context,
                 enum MHD_ConnectionNotificationCode toe)
{
    struct daemon *p = cls;
    struct shard *s = p->shard;

    if (toe == MHD_CONNECTION_NOTIFY_CLOSED) {
        p->n_conns--;
        s->n_conns--;
        if (*socket_context != NULL) {
            struct conn *c = *socket_context;

            /* When its epoll is out of memory, libmicrohttpd completes no request. */
            if (c->req != NULL)
                request_end(c->req, false);
            conn_free(c);
        }
        *socket_context = NULL;
        accept_begin(s);
    } else {
        p->n_conns++;
        s->n_conns++;
        make_room(s);
        http_server_count(&s->n_accepted);
        *socket_context = conn_new(p, mc);
    }
    atomic_store_explicit(&s->n_connections, s->n_conns, memory_order_relaxed);
}

static bool in_body(const struct request *r)
{
    return r != NULL && !r->raw_sent &&
           (r->stage == STAGE_WHOLE || r->stage == STAGE_STREAM_HEAD || r->stage == STAGE_DROP);
}

void conn_cut_body(struct conn *c, const struct err *e)
{
    struct request *r = c->req;

    if (!in_body(r))
        return;
    if (r->stage != STAGE_DROP) {
        request_refuse(r, e);
        r->stage = STAGE_DROP;
    }
    request_send_raw(r);
}

/* The body was not received in time. The socket stays open for a moment, so that the next bytes end
 * it without a reset. */
static void body_late(struct conn *c)
{
    struct err e = {0};

    (void)err_set(&e, ERR_TIMEOUT, "", "the body did not come within %llu ms",
                  (unsigned long long)(c->shard->http_server->cfg.body_timeout_us / 1000));
    conn_cut_body(c, &e);
    if (c->req->raw_sent)
        conn_deadline(c, HTTP_SERVER_GRACE_US);
    else
        conn_kill(c);
}

/* Has the peer taken enough of its answer to be let live? */
static bool sending_moves(struct conn *c)
{
    uint64_t n = acked(c);

    if (n - c->acked < HTTP_SERVER_SEND_NBYTES_MIN)
        return false;
    c->acked = n;
    return true;
}

/* Over TLS, all received bytes may belong to the handshake. */
static bool head_begun(const struct conn *c)
{
    if (c->req != NULL)
        return c->req->stage == STAGE_HEADERS;
    return !c->shard->http_server->tls && conn_begun(c);
}

void conn_cut_head(struct conn *c, const struct err *e)
{
    bool has_line = c->req != NULL;
    struct request *r = NULL;

    if (head_begun(c))
        r = has_line ? c->req : request_begin(c->daemon, NULL, c->mc);
    if (r != NULL) {
        filter_request_id(r);
        request_send_refusal(r, e);
    }
    if (r != NULL && !has_line)
        request_end(r, false); /* libmicrohttpd knows nothing of it */
    conn_kill(c);
}

static void head_late(struct conn *c)
{
    struct err e = {0};

    (void)err_set(&e, ERR_TIMEOUT, "", "the head of the request did not come within %llu ms",
                  (unsigned long long)(c->shard->http_server->cfg.header_timeout_us / 1000));
    conn_cut_head(c, &e);
}

static void conn_late(struct conn *c)
{
    struct request *r = c->req;

    if (r != NULL && r->raw_sent) {
        conn_kill(c);
        return;
    }
    if (r != NULL && r->stage == STAGE_SEND && sending_moves(c)) {
        conn_deadline(c, c->shard->http_server->cfg.body_timeout_us);
        return;
    }
    if (c->queue != &c->shard->kept)
        http_server_count(&c->shard->n_timeouts);
    if (in_body(r))
        body_late(c);
    else
        head_late(c);
}

static uint64_t sweep_us(const struct http_server_cfg *cfg)
{
    uint64_t least = cfg->header_timeout_us;

    if (cfg->body_timeout_us < least)
        least = cfg->body_timeout_us;
    if (cfg->idle_timeout_us < least)
        least = cfg->idle_timeout_us;
    if (cfg->drop_timeout_us < least)
        least = cfg->drop_timeout_us;
    least /= 4;
    if (least < SWEEP_US_MIN)
        return SWEEP_US_MIN;
    return least < SWEEP_US_MAX ? least : SWEEP_US_MAX;
}

void conn_sweep(void *arg)
{
    struct shard *s = arg;
    uint64_t now_us = clock_now_us();

    /* Nothing here frees a connection: libmicrohttpd does, in its next run. */
    for (struct conn *c = s->timed, *next; c != NULL; c = next) {
        next = c->next_due;
        if (c->deadline_us <= now_us)
            conn_late(c);
    }
    for (struct lingering *l = s->lingers, *next; l != NULL; l = next) {
        next = l->next;
        if (l->deadline_us <= now_us)
            lingering_close(l);
    }
    for (struct greeting *g = s->greetings, *next; g != NULL; g = next) {
        next = g->next;
        if (g->deadline_us <= now_us) {
            http_server_count(&s->n_timeouts);
            greeting_close(g);
        }
    }
    accept_begin(s);
    loop_timer_set(s->loop, &s->sweep, now_us + sweep_us(&s->http_server->cfg));
}

static bool conn_unsent(const struct conn *c)
{
    const struct request *r = c->req;

    if (c->dead || r == NULL || r->raw_sent)
        return false;
    return r->stage == STAGE_SEND ||
           (r->stage == STAGE_WAIT && http_request_answered(r->x) != ANSWER_NONE);
}

void conn_finish_all(struct shard *s)
{
    struct err e = {0};

    (void)err_set(&e, ERR_DRAINING, "", "the server ends; the body was not waited for");
    for (struct conn *c = s->conns; c != NULL; c = c->next) {
        if (conn_unsent(c))
            continue;
        if (!c->dead)
            conn_cut_body(c, &e);
        conn_kill(c);
    }
}

bool conn_any_unsent(const struct shard *s)
{
    for (const struct conn *c = s->conns; c != NULL; c = c->next)
        if (conn_unsent(c))
            return true;
    return false;
}

void conn_close_all(struct shard *s)
{
    for (struct conn *c = s->conns; c != NULL; c = c->next)
        conn_kill(c);
}

/* Discards received bytes until the peer closes: closing with unread bytes would send a reset,
 * which could destroy the reply before the client has read it. TCP discards bytes itself, a unix
 * socket must be read. */
static void lingering_read(void *arg, uint32_t events)
{
    struct lingering *l = arg;
    bool tcp = l->shard->http_server->cfg.unix_path == NULL;
    char unread[HTTP_SERVER_LINGER_UNIX_NBYTES];
    ssize_t n = tcp ? recv(l->watch.fd, NULL, HTTP_SERVER_LINGER_NBYTES, MSG_TRUNC | MSG_DONTWAIT)
                    : recv(l->watch.fd, unread, sizeof unread, MSG_DONTWAIT);

    (void)events;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        lingering_close(l);
}

void lingering_open(struct shard *s, int fd)
{
    struct lingering *l;
    struct err e = {0};

    if (s->n_lingers >= HTTP_SERVER_LINGER_MAX || s->finish_by_us > 0)
        return;
    l = calloc(1, sizeof *l);
    if (l == NULL)
        return;
    l->shard = s;
    l->watch = (struct loop_watch){.ready = lingering_read, .arg = l, .fd = -1};
    l->watch.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (l->watch.fd < 0)
        goto err_free;
    if (loop_watch(s->loop, &l->watch, EPOLLIN | EPOLLRDHUP, &e) != 0)
        goto err_close;
    /* libmicrohttpd ends plain TCP so, but of TLS it only sends the end within. */
    (void)shutdown(l->watch.fd, SHUT_WR);
    l->deadline_us = clock_after_us(s->http_server->cfg.drop_timeout_us);
    l->next = s->lingers;
    l->prev_next = &s->lingers;
    if (l->next != NULL)
        l->next->prev_next = &l->next;
    s->lingers = l;
    s->n_lingers++;
    return;

err_close:
    (void)close(l->watch.fd);
err_free:
    free(l);
}

void lingering_close(struct lingering *l)
{
    loop_unwatch(l->shard->loop, &l->watch);
    (void)close(l->watch.fd);
    *l->prev_next = l->next;
    if (l->next != NULL)
        l->next->prev_next = l->prev_next;
    l->shard->n_lingers--;
    free(l);
}
