/* Functions that libmicrohttpd finds here before those of its own and of other libraries.
 *
 * A head or a chunk that it cannot take it answers without asking us, in HTML; and 0.9.75 sends the
 * status line and the headers twice if what is wrong is a Content-Length or the number of cookies.
 * None of its options changes that. But its own answers go through its public MHD_queue_response
 * too, by the dynamic linker, which finds the one defined here first. It sends our answer past the
 * library, as in mid-upload, and ends our half of the socket: the library may go on as it likes,
 * nothing that it writes goes anywhere, and it closes the connection.
 * Rejected: a filter that reads each head before the library does, which would be a second parser
 * of the same bytes; and the library's log, which does not tell of which
 * connection it speaks.
 *
 * What it reads passes through http_server_chunks.c in the same way, and what it sends by TLS
 * through http_server_tls.c. */
#include "http/server/http_server_priv.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>

_Static_assert(sizeof(void *) == sizeof(http_server_queue_fn *), "dlsym returns functions too");

int http_server_find_library(struct http_server *f, struct err *e)
{
    void *at = dlsym(RTLD_NEXT, "MHD_queue_response");

    if (at == NULL)
        return err_set(e, ERR_INTERNAL, "",
                       "libmicrohttpd is not there as a shared library, which is needed");
    memcpy(&f->queue_response, &at, sizeof at);
    return 0;
}

/* Before the target has been read. */
static int word_line(unsigned status, struct err *e)
{
    if (status == MHD_HTTP_URI_TOO_LONG)
        return err_set(e, ERR_TARGET_TOO_LONG, "",
                       "the request line is over the limit of %d bytes for a head",
                       HTTP_SERVER_HEAD_NBYTES_MAX);
    if (status == MHD_HTTP_HTTP_VERSION_NOT_SUPPORTED)
        return err_set(e, ERR_HTTP_VERSION, "", "HTTP/1.0 and HTTP/1.1 are supported");
    return err_set(e, ERR_BAD_REQUEST, "", "the request line is not METHOD TARGET HTTP/1.1");
}

static int word_head(const struct request *r, unsigned status, struct err *e)
{
    if (status == MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE)
        return filter_too_large(e);
    if (filter_length(r, e) != 0)
        return -1;
    return err_set(e, ERR_BAD_REQUEST, "", "a header line has no colon");
}

static int word_body(unsigned status, struct err *e)
{
    if (status == MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE)
        return err_set(e, ERR_HEAD_TOO_LARGE, "", "the trailer is over the limit of %d bytes",
                       HTTP_SERVER_HEAD_NBYTES_MAX);
    if (status == MHD_HTTP_CONTENT_TOO_LARGE)
        return err_set(e, ERR_TOO_LARGE, "", "the size of a chunk is over 2^64 - 1");
    return chunks_malformed(e);
}

static void library_refuse(struct request *r, bool has_target, unsigned status)
{
    struct err e = {0};

    if (!has_target)
        (void)word_line(status, &e);
    else if (r->stage == STAGE_HEADERS)
        (void)word_head(r, status, &e);
    else
        (void)word_body(status, &e);
    if (r->stage == STAGE_HEADERS)
        filter_request_id(r);
    request_send_refusal(r, &e);
}

/* Our half of the socket is over. */
static void end_sending(const struct conn *c, struct MHD_Connection *mc)
{
    if (c->shard->http_server->tls)
        http_server_tls_end(mc);
    (void)shutdown(c->fd, SHUT_WR);
}

/* Called by libmicrohttpd only; we call http_server.queue_response. */
__attribute__((visibility("default"))) enum MHD_Result
MHD_queue_response(struct MHD_Connection *mc, unsigned status, struct MHD_Response *response)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *c = info != NULL ? info->socket_context : NULL;
    struct request *r;
    bool has_target;

    if (c == NULL) /* we could not watch it, and have shut it down */
        return MHD_NO;
    has_target = c->req != NULL;
    r = has_target ? c->req : request_begin(c->daemon, NULL, mc);
    if (r != NULL && !c->dead && !r->raw_sent)
        library_refuse(r, has_target, status);
    if (r != NULL && !has_target)
        request_end(r, false); /* libmicrohttpd knows nothing of it */
    end_sending(c, mc);
    return c->shard->http_server->queue_response(mc, status, response);
}
