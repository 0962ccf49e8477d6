/* A streamed answer, past libcurl.
 *
 * Once its head and first bytes are there, what is left of an answer in chunks is read from here: a
 * buffer of libcurl's would be a third of what a stream costs in memory, and handing over each
 * chunk by itself costs more than the chunk. libcurl is left then, and its connection closed, but
 * for a descriptor of our own: only where the connection was the call's alone, and was to be closed
 * behind it anyway. Not TLS, whose bytes only its library can read; and not with a libcurl that
 * nobody has looked at for this: then all of it goes through libcurl. */
#include "engine/upstream/http_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAST_LIBCURL = 0x0758 }; /* 7.88 */

static void over(struct http_call *call, enum http_outcome outcome, const char *why)
{
    struct http_end end = {.outcome = outcome, .sent = true};

    (void)snprintf(end.why, sizeof end.why, "%s", why);
    call_over(call, &end);
}

/* How a read of 0 or -1 ended it. */
static void broken(struct http_call *call, ssize_t n, int os_errno)
{
    char why[HTTP_WHY_MAX];

    if (n == 0)
        (void)snprintf(why, sizeof why, "it closed the connection before the end of its answer");
    else
        (void)snprintf(why, sizeof why, "reading its answer failed: %s", strerror(os_errno));
    over(call, HTTP_BROKEN, why);
}

/* The next bytes have been taken. */
static void taken(struct http_call *call)
{
    if (call->cancelled)
        call_free(call);
    else if (call->chunks.at == CHUNKS_OVER)
        over(call, HTTP_WHOLE, "");
    else if (call->chunks.at == CHUNKS_BAD)
        over(call, HTTP_BROKEN, "what came is not in chunks, as it had said");
}

/* False: they were refused. */
static bool offer(struct http_call *call, const char *data, size_t len)
{
    bool takes = true;

    call->depth++;
    if (len > 0)
        takes = call->events.data(call->events.arg, data, len);
    call->depth--;
    return takes || call->cancelled;
}

static void unwatch(struct http_call *call)
{
    if (call->watched)
        loop_unwatch(call->client->loop, &call->past);
    call->watched = false;
}

static void keep(struct http_call *call, const char *data, size_t len)
{
    unwatch(call);
    call->kept = malloc(len);
    if (call->kept == NULL) {
        over(call, HTTP_NO_MEMORY, "");
        return;
    }
    memcpy(call->kept, data, len);
    call->n_kept = len;
    call->refused = true;
}

static void readable(void *arg, uint32_t events)
{
    struct http_call *call = arg;
    char data[HTTP_PIECE_NBYTES];
    ssize_t n = recv(call->past.fd, data, sizeof data, MSG_DONTWAIT);
    size_t len;

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        broken(call, n, errno);
        return;
    }
    len = chunks_take(&call->chunks, data, (size_t)n, data);
    if (offer(call, data, len))
        taken(call);
    else
        keep(call, data, len);
}

bool past_knows(unsigned libcurl_version)
{
    return libcurl_version >> 8 == PAST_LIBCURL;
}

/* All that libcurl has read it hands over at once [readwrite_data of 7.88.1]. What ends as no
 * answer (call_ended) stays with it. */
bool past_takes(struct http_call *call)
{
    bool redirects = call->head.status >= 300 && call->head.status < 400;
    int fd;

    if (!call->may_pass || redirects || !call->chunked || call->chunks.at == CHUNKS_OVER ||
        call->watch == NULL || !http_body_sent(call))
        return false;
    fd = fcntl(call->watch->loop.fd, F_DUPFD_CLOEXEC, 0);
    call->past = (struct loop_watch){.ready = readable, .arg = call, .fd = fd};
    call->passes = fd >= 0;
    return call->passes;
}

static void go_on(struct http_call *call)
{
    struct err ignored = {0};

    if (call->watched || call->hold)
        return;
    call->watched = loop_watch(call->client->loop, &call->past, EPOLLIN, &ignored) == 0;
    if (!call->watched)
        over(call, HTTP_NO_MEMORY, "");
}

void past_begin(struct http_call *call)
{
    call_leave_curl(call);
    if (call->chunks.at >= CHUNKS_OVER)
        taken(call);
    else
        go_on(call);
}

void past_hold(struct http_call *call)
{
    call->hold = true;
    unwatch(call);
}

void past_resume(struct http_call *call)
{
    call->hold = false;
    if (call->refused) {
        if (!offer(call, call->kept, call->n_kept))
            return;
        call->refused = false;
        free(call->kept);
        call->kept = NULL;
        if (call->cancelled || call->chunks.at >= CHUNKS_OVER) {
            taken(call);
            return;
        }
    }
    go_on(call);
}

void past_end(struct http_call *call)
{
    if (!call->passes)
        return;
    unwatch(call);
    (void)close(call->past.fd);
    free(call->kept);
}
