/* What libmicrohttpd reads. A streamed body of a known length goes from the socket into the memory
 * of its reader, in pieces that are longer than its buffer; it only counts the bytes. Of several
 * such bodies of a daemon one goes this way.
 *
 * The framing of chunked bodies is checked, as RFC 9112 has it.
 * libmicrohttpd 0.9.75 takes a bare LF for the end of a line there, a bare CR for a part of an
 * extension, and has no option against it: a proxy that reads such a line otherwise sees another
 * body, and a second request may hide in the difference. Of the bytes between the pieces of a body
 * it tells us nothing. But it reads by recv and gnutls_record_recv, which the dynamic linker finds
 * here first: what comes for chunked bodies is checked here, and the request is refused at its next
 * call. Head and body are still told apart by the library alone, so
 * there is no second parser that could disagree on where a body begins.
 * Rejected: to close the connection after each chunked body, which prevents the harm, costs every
 * client its connection, and still takes such bodies. */
#include "http/server/http_server_priv.h"

#include <dlfcn.h>
#include <gnutls/gnutls.h>
#include <string.h>
#include <sys/socket.h>

typedef ssize_t tls_recv_fn(gnutls_session_t session, void *data, size_t n);

_Static_assert(sizeof(void *) == sizeof(tls_recv_fn *), "dlsym returns functions too");

_Thread_local struct daemon *daemon_running;

void *library_function(_Atomic(void *) *found, const char *name)
{
    void *at = atomic_load_explicit(found, memory_order_relaxed);

    if (at == NULL) {
        at = dlsym(RTLD_NEXT, name);
        atomic_store_explicit(found, at, memory_order_relaxed);
    }
    return at;
}

static enum chunk_state after_size(struct chunks *c, char byte)
{
    const char digits[] = "0123456789abcdefABCDEF";

    if (byte == '\r')
        return CHUNK_SIZE_LF;
    if (byte == ';')
        return CHUNK_EXTENSION;
    if (byte == '\0' || strchr(digits, byte) == NULL)
        return CHUNK_BAD;
    c->left = c->left * 16 + (byte <= '9' ? (uint64_t)(byte - '0') : (uint64_t)(byte & 0xf) + 9);
    return CHUNK_SIZE; /* over 2^64 - 1 it is refused by libmicrohttpd */
}

static enum chunk_state chunk_next(struct chunks *c, char byte)
{
    switch (c->state) {
    case CHUNK_SIZE:
        return after_size(c, byte);
    case CHUNK_EXTENSION:
        return byte == '\r' ? CHUNK_SIZE_LF : byte == '\n' ? CHUNK_BAD : CHUNK_EXTENSION;
    case CHUNK_SIZE_LF:
        if (byte != '\n')
            return CHUNK_BAD;
        return c->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
    case CHUNK_DATA_CR:
        return byte == '\r' ? CHUNK_DATA_LF : CHUNK_BAD;
    case CHUNK_DATA_LF:
        return byte == '\n' ? CHUNK_SIZE : CHUNK_BAD;
    case CHUNK_TRAILER:
        return byte == '\r' ? CHUNK_END_LF : byte == '\n' ? CHUNK_BAD : CHUNK_FIELD;
    case CHUNK_FIELD:
        return byte == '\r' ? CHUNK_FIELD_LF : byte == '\n' ? CHUNK_BAD : CHUNK_FIELD;
    case CHUNK_FIELD_LF:
        return byte == '\n' ? CHUNK_TRAILER : CHUNK_BAD;
    case CHUNK_END_LF:
        return byte == '\n' ? CHUNK_END : CHUNK_BAD;
    case CHUNK_NONE:
    case CHUNK_DATA:
    case CHUNK_END:
    case CHUNK_BAD:
        break;
    }
    return c->state;
}

static void chunks_take(struct chunks *c, const char *data, size_t n)
{
    size_t i = 0;

    while (i < n && c->state != CHUNK_END && c->state != CHUNK_BAD) {
        uint64_t rest = n - i;

        if (c->state != CHUNK_DATA) {
            c->state = chunk_next(c, data[i++]);
            continue;
        }
        rest = rest < c->left ? rest : c->left;
        c->left -= rest;
        i += (size_t)rest;
        if (c->left == 0)
            c->state = CHUNK_DATA_CR;
    }
}

/* What came with the head lies behind it, up to the end of the last read. A request that came with
 * the one before it was moved since then: it is answered, and ends its connection. */
void chunks_begin(struct request *r, const struct request_line *line)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        r->mc, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct daemon *p = r->conn->daemon;
    const char *body = line->method + (info != NULL ? info->header_size : 0);

    if (p->read_fd != r->conn->fd || (uintptr_t)p->read_end < (uintptr_t)body ||
        (uintptr_t)p->read_end - (uintptr_t)body > HTTP_SERVER_POOL_NBYTES) {
        r->must_close = true;
        return;
    }
    r->chunks.state = CHUNK_SIZE;
    r->chunks.next = p->chunked;
    p->chunked = r;
    chunks_take(&r->chunks, body, (size_t)(p->read_end - body));
}

void chunks_end(struct request *r)
{
    struct daemon *p = r->conn->daemon;
    struct request **at = &p->chunked;

    p->read_fd = -1;
    if (r->chunks.state == CHUNK_NONE)
        return;
    while (*at != r)
        at = &(*at)->chunks.next;
    *at = r->chunks.next;
}

int chunks_malformed(struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "",
                   "the chunked body is malformed: a chunk is its size in hexadecimal digits, CR "
                   "LF, so many bytes and CR LF");
}

/* libmicrohttpd has read n bytes, by TLS or not; those of other callers are ignored. */
static void chunks_read(bool tls, int fd, const char *data, ssize_t n)
{
    struct daemon *running = daemon_running;
    struct request *r;

    if (running == NULL || n <= 0 || running->shard->http_server->tls != tls)
        return;
    running->read_fd = fd;
    running->read_end = data + n;
    for (r = running->chunked; r != NULL && r->conn->fd != fd;)
        r = r->chunks.next;
    if (r != NULL)
        chunks_take(&r->chunks, data, (size_t)n);
}

bool body_whole(const struct request *r)
{
    return r->nbytes_in + r->told + r->placed == r->x->content_length;
}

static struct request *direct_of(int fd)
{
    struct request *r = daemon_running != NULL ? daemon_running->direct : NULL;

    return r != NULL && r->conn->fd == fd ? r : NULL;
}

/* Of n bytes that libmicrohttpd wants to read, how many are in the memory of the body's reader: it
 * gets as many of any value, and body_piece counts them. No byte that follows the body is read, and
 * none while libmicrohttpd has others of the body, which come first. */
static size_t body_placed(struct request *r, size_t n)
{
    uint64_t unread = r->x->content_length - r->nbytes_in - r->told - r->placed;
    size_t told;

    unread = unread < HTTP_SERVER_DIRECT_NBYTES_MAX ? unread : HTTP_SERVER_DIRECT_NBYTES_MAX;
    if (r->placed < n && r->stage == STAGE_STREAM && r->drained && unread > 0)
        r->placed += http_request_body_receive(r->x, r->conn->fd, (size_t)unread);
    told = r->placed < n ? (size_t)r->placed : n;
    r->placed -= told;
    r->told += told;
    return told;
}

/* Of the whole process, as recvfrom is. Flags: libmicrohttpd has none, we always have some. */
__attribute__((visibility("default"))) ssize_t recv(int fd, void *data, size_t n, int flags)
{
    struct request *r = flags == 0 ? direct_of(fd) : NULL;
    size_t told = r != NULL ? body_placed(r, n) : 0;
    ssize_t got = told < n ? recvfrom(fd, (char *)data + told, n - told, flags, NULL, NULL) : 0;

    if (r != NULL && got > 0)
        r->drained = false;
    if (told > 0)
        got = (ssize_t)told + (got > 0 ? got : 0); /* an end or an error is read again */
    if (flags == 0)
        chunks_read(false, fd, data, got);
    return got;
}

__attribute__((visibility("default"))) ssize_t gnutls_record_recv(gnutls_session_t session,
                                                                  void *data, size_t n)
{
    static _Atomic(void *) found;
    void *at = library_function(&found, "gnutls_record_recv");
    tls_recv_fn *fn;
    ssize_t got = GNUTLS_E_INTERNAL_ERROR;

    memcpy(&fn, &at, sizeof fn);
    if (fn != NULL)
        got = fn(session, data, n);

    chunks_read(true, gnutls_transport_get_int(session), data, got);
    return got;
}
