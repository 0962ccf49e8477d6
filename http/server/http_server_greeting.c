/* The first byte of a connection to a listener of TLS, examined before libmicrohttpd gets the
 * socket: a client that sends plain HTTP gets an error reply, where libmicrohttpd would only close.
 * All other sockets are handed over with their bytes unread.
 *
 * Rejected: to look when libmicrohttpd closes the connection, since it has read the byte and ended
 * the socket by then; to accept only connections that have sent something (TCP_DEFER_ACCEPT), since
 * silent ones would not be counted. */
#include "base/clock.h"
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PLAIN_BODY                                                                                 \
    "{\"error\":{\"message\":\"this port speaks HTTPS: send the request to https://\","            \
    "\"type\":\"invalid_request_error\",\"code\":\"bad_request\",\"param\":null,"                  \
    "\"retryable\":false,\"details\":null}}"
#define PLAIN_BODY_LEN "174"

_Static_assert(sizeof PLAIN_BODY - 1 == 174, "what PLAIN_BODY_LEN says");

static const char plain_answer[] = "HTTP/1.1 400 Bad Request\r\n"
                                   "Content-Type: application/json\r\n"
                                   "Content-Length: " PLAIN_BODY_LEN "\r\n"
                                   "Connection: close\r\n"
                                   "\r\n" PLAIN_BODY;

/* From here on the socket has another owner. */
static void greeting_free(struct greeting *g)
{
    loop_unwatch(g->shard->loop, &g->watch);
    *g->prev_next = g->next;
    if (g->next != NULL)
        g->next->prev_next = g->prev_next;
    else
        g->shard->greetings_end = g->prev_next;
    g->shard->n_greetings--;
    free(g);
}

void greeting_close(struct greeting *g)
{
    int fd = g->watch.fd;

    greeting_free(g);
    (void)close(fd);
}

/* Health checks of load balancers would fill a log. */
static void log_plain(struct shard *s)
{
    uint64_t second = clock_now_us() / 1000000U;

    if (s->plain_second == second)
        return;
    s->plain_second = second;
    log_line(LOG_WARN, "http.plain_on_tls",
             "a client spoke plain HTTP to a port of HTTPS, and was told so");
}

/* An answer of a few hundred bytes fits an empty socket; its last bytes linger as any other's. */
static void tell_plain(struct greeting *g)
{
    struct shard *s = g->shard;
    int fd = g->watch.fd;

    log_plain(s);
    http_server_count(&s->n_rejected);
    greeting_free(g);
    if (send(fd, plain_answer, sizeof plain_answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        lingering_open(s, fd);
    (void)close(fd);
}

static void http_server_greeting_hand_over(struct greeting *g)
{
    struct shard *s = g->shard;
    struct sockaddr_storage peer = g->peer;
    socklen_t len = g->peer_len;
    int fd = g->watch.fd;

    greeting_free(g);
    (void)MHD_add_connection(daemon_with_space(s)->daemon, fd, (struct sockaddr *)&peer, len);
}

/* The methods of HTTP are capital letters, which no record of TLS begins with. */
void greeting_look(struct greeting *g)
{
    char first;
    ssize_t n = recv(g->watch.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        greeting_close(g);
    else if (first >= 'A' && first <= 'Z')
        tell_plain(g);
    else
        http_server_greeting_hand_over(g);
}

static void greeting_ready(void *arg, uint32_t events)
{
    (void)events;
    greeting_look(arg);
}

void greeting_open(struct shard *s, int fd, const struct sockaddr_storage *peer, socklen_t len)
{
    struct greeting *g = calloc(1, sizeof *g);
    struct err e = {0};

    if (g == NULL) {
        (void)close(fd);
        return;
    }
    *g = (struct greeting){.shard = s, .peer = *peer, .peer_len = len};
    g->watch = (struct loop_watch){.ready = greeting_ready, .arg = g, .fd = fd};
    if (loop_watch(s->loop, &g->watch, EPOLLIN | EPOLLRDHUP, &e) != 0) {
        log_line(LOG_WARN, "http.unwatched", "%s", e.msg);
        (void)close(fd);
        free(g);
        return;
    }
    g->since_us = clock_now_us();
    g->deadline_us = clock_after_us(s->http_server->cfg.header_timeout_us);
    g->prev_next = s->greetings_end;
    *s->greetings_end = g;
    s->greetings_end = &g->next;
    s->n_greetings++;
    greeting_look(g); /* it may be there already, and before a listener closes it must be known */
}
