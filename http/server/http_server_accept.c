/* Accepting: each new connection is given to a daemon of the shard that has space for it.
 *
 * Health and control requests always get a connection: of a shard's connections at most n_conns_max
 * may serve other requests; further ones are refused. http_server_shed.c decides which connections
 * are closed when few are left.
 *
 * At the limit of connections, and when the kernel has no descriptor or memory for one more, the
 * socket is not watched until a connection ends or the next sweep. New clients wait in its queue
 * meanwhile, and the loop does not spin. */
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void pause_accepting(struct shard *s)
{
    if (s->listening)
        loop_unwatch(s->loop, &s->listen);
    s->listening = false;
}

static bool has_room(const struct shard *s)
{
    return s->n_conns + s->n_greetings < s->n_conns_limit;
}

/* After a failed accept: true if it concerns one peer only, so that the next may be accepted. */
static bool goes_on(struct shard *s, int why)
{
    if (why == ECONNABORTED || why == EPROTO || why == EPERM || why == EINTR)
        return true;
    if (why == EAGAIN)
        return false;
    log_line(LOG_DEBUG, "http.accept", "nobody can be accepted now: %s", strerror(why));
    pause_accepting(s);
    return false;
}

/* False: the queue is empty, or no connection can be accepted now. */
static bool accept_one(struct shard *s)
{
    struct sockaddr_storage peer = {0};
    socklen_t len = sizeof peer;
    int fd;

    if (!has_room(s)) {
        pause_accepting(s);
        return false;
    }
    fd = accept4(s->listen_fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return goes_on(s, errno);
    if (s->http_server->tls) {
        greeting_open(s, fd, &peer, len);
        return true;
    }
    /* Closes the socket on failure. Bytes that have already arrived are read in the next iteration:
     * by then a disconnect of the peer is known, and its request is not processed. */
    (void)MHD_add_connection(daemon_with_space(s)->daemon, fd, (struct sockaddr *)&peer, len);
    return true;
}

static void listen_ready(void *arg, uint32_t events)
{
    struct shard *s = arg;

    (void)events;
    for (int i = 0; i < HTTP_SERVER_ACCEPTS_MAX && accept_one(s); i++)
        ;
}

void accept_begin(struct shard *s)
{
    struct err e = {0};

    if (s->listening || s->listen_fd < 0 || s->n_daemons == 0 || !has_room(s))
        return;
    s->listen = (struct loop_watch){.ready = listen_ready, .arg = s, .fd = s->listen_fd};
    s->listening = loop_watch(s->loop, &s->listen, EPOLLIN, &e) == 0;
    if (!s->listening)
        log_line(LOG_WARN, "http.unwatched", "%s", e.msg);
}

/* Connections in the kernel's queue, and the requests on them, must still be served: closing the
 * listening socket now would reset them. So must requests on open connections that this iteration
 * may not have seen yet. */
void accept_rest(struct shard *s)
{
    size_t before, n = 0;

    do {
        before = n;
        while (n < HTTP_SERVER_BACKLOG && accept_one(s))
            n++;
        for (struct greeting *g = s->greetings, *next; g != NULL; g = next) {
            next = g->next;
            greeting_look(g);
        }
        for (size_t i = 0; i < s->n_daemons; i++)
            daemon_due(&s->daemons[i]);
        (void)daemons_run(s);
    } while (n > before);
}

void accept_end(struct shard *s)
{
    pause_accepting(s);
    if (s->listen_fd >= 0)
        (void)close(s->listen_fd);
    s->listen_fd = -1;
}
