/* Framing rules, and copying of the request's head into struct http_request.
 *
 * libmicrohttpd 0.9.75 is permissive: anything that another HTTP parser might read differently is
 * refused here, so that no client can smuggle a second request past a proxy. It also hides bytes:
 * it cuts a value, or the path, at a NUL, moves the name of a header that goes on in the next line
 * elsewhere and appends that line to it, and takes a line that begins with a colon for the end of
 * the head. All texts that it gives us lie in the head as it came, with NULs for the line ends: if
 * one does not begin where the last one ended, something between them was hidden, and the head is
 * refused.
 */
#include "base/id.h"
#include "http/server/http_server_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct header_scan {
    struct err *e;
    const char *content_length, *transfer_encoding, *expect;
    const char *content_type, *accept, *authorization, *session_id, *last_event_id, *request_id;
    const char *traceparent, *weight_versions, *range, *if_range;
    char tracestate[TRACE_STATE_MAX + 2]; /* all of them, joined; longer than allowed if cut */
    struct origin_request *origin;
    size_t n_content_length, n_transfer_encoding, n_host, n_authorization, n_traceparent;
    const char *end; /* of the last text of the head that we know */
    size_t nbytes;   /* of libmicrohttpd's memory, but for the head itself */
    bool failed;
};

static bool is_token(const char *s, size_t len)
{
    static const char extra[] = "!#$%&'*+-.^_`|~";

    if (len == 0)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');

        if (!alnum && (c == '\0' || strchr(extra, c) == NULL))
            return false;
    }
    return true;
}

static bool has_control(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (((unsigned char)s[i] < 0x20 && s[i] != '\t') || s[i] == 0x7f)
            return true;
    return false;
}

/* "\r\n" or "\n", which are NULs now. */
static bool is_line_end(const char *from, const char *to)
{
    return (to == from + 1 || to == from + 2) && from[0] == '\0' && to[-1] == '\0';
}

/* "Name:   value", directly after the previous line. */
static bool is_next_line(const char *end, const char *key, size_t key_len, const char *value)
{
    const char *p = key + key_len + 1;

    if (!is_line_end(end, key))
        return false;
    while (p != value && (*p == ' ' || *p == '\t'))
        p++;
    return p == value;
}

static int refuse_hidden(struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "",
                   "the head has a NUL byte, a header that goes on in the next line, or a line "
                   "that begins with a colon");
}

static void keep_first(const char **slot, const char *value)
{
    if (*slot == NULL)
        *slot = value;
}

static void join_tracestate(struct header_scan *h, const char *value)
{
    size_t len = strlen(h->tracestate);

    (void)snprintf(h->tracestate + len, sizeof h->tracestate - len, "%s%s", len > 0 ? "," : "",
                   value);
}

static enum MHD_Result scan_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                   size_t key_len, const char *value, size_t value_len)
{
    struct header_scan *h = cls;

    h->nbytes += HTTP_SERVER_HEADER_RECORD_NBYTES;
    if (kind == MHD_COOKIE_KIND) {
        h->nbytes += key_len + value_len + 2;
        return MHD_YES;
    }
    if (!is_token(key, key_len)) {
        (void)err_set(h->e, ERR_BAD_REQUEST, "", "a header name is not a token");
        h->failed = true;
        return MHD_NO;
    }
    if (value == NULL || !is_next_line(h->end, key, key_len, value)) {
        (void)refuse_hidden(h->e);
        h->failed = true;
        return MHD_NO;
    }
    h->end = value + value_len;
    if (has_control(value, value_len)) {
        (void)err_set(h->e, ERR_BAD_REQUEST, "", "header '%.64s' has a control byte in its value",
                      key);
        h->failed = true;
        return MHD_NO;
    }
    if (strcasecmp(key, "Content-Length") == 0) {
        h->n_content_length++;
        h->content_length = value;
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        h->n_transfer_encoding++;
        h->transfer_encoding = value;
    } else if (strcasecmp(key, "Host") == 0) {
        h->n_host++;
        origin_header(h->origin, key, value);
    } else if (strcasecmp(key, "Expect") == 0) {
        keep_first(&h->expect, value);
    } else if (strcasecmp(key, "Content-Type") == 0) {
        keep_first(&h->content_type, value);
    } else if (strcasecmp(key, "Accept") == 0) {
        keep_first(&h->accept, value);
    } else if (strcasecmp(key, "Authorization") == 0) {
        h->n_authorization++;
        h->authorization = value;
    } else if (strcasecmp(key, "X-Session-ID") == 0) {
        keep_first(&h->session_id, value);
    } else if (strcasecmp(key, "Last-Event-ID") == 0) {
        keep_first(&h->last_event_id, value);
    } else if (strcasecmp(key, "Range") == 0) {
        keep_first(&h->range, value);
    } else if (strcasecmp(key, "If-Range") == 0) {
        keep_first(&h->if_range, value);
    } else if (strcasecmp(key, "X-Request-Id") == 0) {
        keep_first(&h->request_id, value);
    } else if (strcasecmp(key, "X-Baton-Weight-Versions") == 0) {
        keep_first(&h->weight_versions, value);
    } else if (strcasecmp(key, "traceparent") == 0) {
        h->n_traceparent++;
        h->traceparent = value;
    } else if (strcasecmp(key, "tracestate") == 0) {
        join_tracestate(h, value);
    } else {
        origin_header(h->origin, key, value);
    }
    return MHD_YES;
}

/* Digits only, below 2^63. */
static int parse_length(const char *text, uint64_t *out, struct err *e)
{
    uint64_t n = 0;

    if (text[0] == '\0')
        return err_set(e, ERR_BAD_REQUEST, "", "Content-Length is empty");
    for (const char *p = text; *p != '\0'; p++) {
        uint64_t digit = (uint64_t)(unsigned char)*p - '0';

        if (*p < '0' || *p > '9')
            return err_set(e, ERR_BAD_REQUEST, "", "Content-Length '%.32s' is not a number", text);
        if (n > ((uint64_t)INT64_MAX - digit) / 10)
            return err_set(e, ERR_TOO_LARGE, "", "Content-Length '%.32s' is over 2^63 - 1", text);
        n = n * 10 + digit;
    }
    *out = n;
    return 0;
}

int filter_too_large(struct err *e)
{
    return err_set(e, ERR_HEAD_TOO_LARGE, "",
                   "the head is over the limit of %d bytes, in which each header and each cookie "
                   "counts as %d more than its text",
                   HTTP_SERVER_HEAD_NBYTES_MAX, HTTP_SERVER_HEADER_RECORD_NBYTES);
}

/* The head as a whole. libmicrohttpd would close the connection if it left no room for the head of
 * our answer. */
static int http_server_filter_check_head(const struct request *r, const struct request_line *line,
                                         const struct header_scan *h, struct err *e)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        r->mc, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    size_t nbytes = info != NULL ? info->header_size : SIZE_MAX / 2;
    const char *blank = line->method + nbytes; /* behind it */

    if (nbytes + h->nbytes > HTTP_SERVER_HEAD_NBYTES_MAX)
        return filter_too_large(e);
    if (line->target + strlen(r->target) + 1 != line->version ||
        (blank != h->end + 2 && blank != h->end + 4)) /* two times "\n", or "\r\n" */
        return refuse_hidden(e);
    return 0;
}

int filter_length(const struct request *r, struct err *e)
{
    const char *text = MHD_lookup_connection_value(r->mc, MHD_HEADER_KIND, "Content-Length");
    uint64_t ignored;

    return text != NULL ? parse_length(text, &ignored, e) : 0;
}

/* Exactly one Host, at most one of what tells where it comes from, and one way to find the end of
 * the body. */
static int check_framing(struct request *r, const struct header_scan *h, struct err *e)
{
    if (r->http11 && h->n_host != 1)
        return err_set(e, ERR_BAD_REQUEST, "", "a request has exactly one Host header, not %zu",
                       h->n_host);
    if (h->n_authorization > 1) /* a proxy may have judged by another one than we would */
        return err_set(e, ERR_BAD_REQUEST, "", "Authorization is given %zu times",
                       h->n_authorization);
    if (h->origin->repeated != NULL)
        return err_set(e, ERR_BAD_REQUEST, "", "%s is given twice", h->origin->repeated);
    if (h->n_content_length > 1)
        return err_set(e, ERR_BAD_REQUEST, "", "Content-Length is given %zu times",
                       h->n_content_length);
    if (h->n_transfer_encoding > 0 && h->n_content_length > 0)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "Transfer-Encoding and Content-Length exclude each other");
    if (h->n_transfer_encoding > 0 && !r->http11)
        return err_set(e, ERR_BAD_REQUEST, "", "HTTP/1.0 has no Transfer-Encoding");
    if (h->n_transfer_encoding > 1 ||
        (h->transfer_encoding != NULL && strcasecmp(h->transfer_encoding, "chunked") != 0))
        return err_set(e, ERR_BAD_REQUEST, "", "Transfer-Encoding '%.64s' is not chunked",
                       h->transfer_encoding);
    r->chunked = h->n_transfer_encoding == 1;
    r->x->content_length = r->chunked ? UINT64_MAX : 0;
    if (h->n_content_length == 1)
        return parse_length(h->content_length, &r->x->content_length, e);
    return 0;
}

static int http_server_filter_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Percent-decodes text of `len` bytes to *at, adds a NUL, moves *at past it. */
static int percent_decode(char **at, const char *text, size_t len, bool plus_is_space,
                          struct err *e)
{
    char *out = *at;

    for (size_t i = 0; i < len; i++) {
        int high, low;

        if (text[i] != '%') {
            *out++ = plus_is_space && text[i] == '+' ? ' ' : text[i];
            continue;
        }
        high = len - i > 2 ? http_server_filter_hex_digit(text[i + 1]) : -1;
        low = len - i > 2 ? http_server_filter_hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0)
            return err_set(e, ERR_BAD_REQUEST, "", "the request target has a broken %%-escape");
        if (high == 0 && low == 0)
            return err_set(e, ERR_BAD_REQUEST, "", "the request target has an escaped NUL");
        *out++ = (char)(high * 16 + low);
        i += 2;
    }
    *out++ = '\0';
    *at = out;
    return 0;
}

static int parse_query(struct http_request *x, char **at, const char *query, struct err *e)
{
    for (const char *p = query; *p != '\0';) {
        size_t len = strcspn(p, "&");
        const char *eq = memchr(p, '=', len);
        size_t name_len = eq != NULL ? (size_t)(eq - p) : len;

        if (len > 0) {
            struct http_request_param *q = &x->query[x->n_query++];

            q->name = *at;
            if (percent_decode(at, p, name_len, true, e) != 0)
                return -1;
            q->value = *at;
            if (percent_decode(at, eq != NULL ? eq + 1 : "", eq != NULL ? len - name_len - 1 : 0,
                               true, e) != 0)
                return -1;
        }
        p += len;
        if (*p == '&')
            p++;
    }
    return 0;
}

static int check_target(const char *target, size_t *n_query, struct err *e)
{
    const char *query = strchr(target, '?');

    for (const char *p = target; *p != '\0'; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7f)
            return err_set(e, ERR_BAD_REQUEST, "",
                           "the request target has a blank or control byte");
    *n_query = 0;
    if (query == NULL)
        return 0;
    *n_query = 1;
    for (const char *p = query; *p != '\0'; p++)
        *n_query += *p == '&';
    if (*n_query > HTTP_SERVER_QUERY_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "%zu query members are over the limit of %d",
                       *n_query, HTTP_SERVER_QUERY_MAX);
    return 0;
}

/* "http://host/path" is "/path". */
static const char *filter_path_of(const char *target)
{
    const char *authority;

    if (strncasecmp(target, "http://", 7) == 0)
        authority = target + 7;
    else if (strncasecmp(target, "https://", 8) == 0)
        authority = target + 8;
    else
        return target;
    return authority + strcspn(authority, "/?");
}

static char *http_server_filter_put_text(char **at, const char *text)
{
    char *out = *at;
    size_t len = text != NULL ? strlen(text) : 0;

    if (len > 0)
        memcpy(out, text, len);
    out[len] = '\0';
    *at = out + len + 1;
    return out;
}

static size_t text_nbytes(const char *text)
{
    return (text != NULL ? strlen(text) : 0) + 1;
}

/* All strings of the request are in one block after its query table. */
static int fill_http_request(struct request *r, const struct header_scan *h, struct err *e)
{
    struct http_request *x = r->x;
    const char *path = filter_path_of(r->target);
    size_t n_query, nbytes, table;
    char *block, *at;

    if (check_target(r->target, &n_query, e) != 0)
        return -1;
    table = n_query * sizeof *x->query;
    /* Each query member needs at most its text and two NULs; the path one NUL more. */
    nbytes = table + strlen(path) + 2 * n_query + 2 + text_nbytes(h->content_type) +
             text_nbytes(h->accept) + text_nbytes(h->authorization) + text_nbytes(h->session_id) +
             text_nbytes(h->last_event_id) + text_nbytes(h->range) + text_nbytes(h->if_range) +
             text_nbytes(h->origin->host) + text_nbytes(path);
    block = malloc(nbytes);
    if (block == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request's headers");
    x->priv->strings = block;
    x->query = (struct http_request_param *)(void *)block;
    at = block + table;
    x->content_type = http_server_filter_put_text(&at, h->content_type);
    x->accept = http_server_filter_put_text(&at, h->accept);
    x->authorization = http_server_filter_put_text(&at, h->authorization);
    x->session_id = http_server_filter_put_text(&at, h->session_id);
    x->last_event_id = http_server_filter_put_text(&at, h->last_event_id);
    x->range = http_server_filter_put_text(&at, h->range);
    x->if_range = http_server_filter_put_text(&at, h->if_range);
    x->host = http_server_filter_put_text(&at, h->origin->host);
    x->wants_versions = h->weight_versions != NULL && strcmp(h->weight_versions, "1") == 0;
    x->target = http_server_filter_put_text(&at, path);
    x->path = at;
    if (percent_decode(&at, path, strcspn(path, "?"), false, e) != 0) {
        x->path[0] = '\0';
        return -1;
    }
    path += strcspn(path, "?");
    if (parse_query(x, &at, *path == '?' ? path + 1 : path, e) != 0) {
        x->n_query = 0;
        return -1;
    }
    return 0;
}

static void take_request_id(struct http_request *x, const char *given)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t len = given != NULL ? strlen(given) : 0;

    if (len >= 1 && len <= HTTP_REQUEST_REQUEST_ID_MAX && strspn(given, allowed) == len) {
        memcpy(x->actor.request_id, given, len + 1);
        x->request_id_given = true;
    } else {
        id_make(x->actor.request_id);
    }
}

/* Of two traceparents neither is known to be right. */
static void take_trace(struct http_request *x, const struct header_scan *h)
{
    trace_parse(&x->trace, h->n_traceparent == 1 ? h->traceparent : NULL, h->tracestate);
    memcpy(x->trace.request_id, x->actor.request_id, sizeof x->trace.request_id);
    memcpy(x->actor.trace_id, x->trace.trace_id, sizeof x->actor.trace_id);
    memcpy(x->actor.span_id, x->trace.span_id, sizeof x->actor.span_id);
}

void filter_request_id(struct request *r)
{
    take_request_id(r->x, MHD_lookup_connection_value(r->mc, MHD_HEADER_KIND, "X-Request-Id"));
}

static enum http_request_method filter_method_of(const char *name)
{
    static const enum http_request_method known[] = {METHOD_GET, METHOD_HEAD, METHOD_POST,
                                                     METHOD_PUT, METHOD_DELETE};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, http_request_method_name(known[i])) == 0)
            return known[i];
    return METHOD_OTHER;
}

/* Of libmicrohttpd's copy of the headers. */
static void text_wipe(const char *text, size_t len)
{
    union {
        const char *in;
        char *out;
    } both = {text};

    explicit_bzero(both.out, len);
}

/* libmicrohttpd keeps a request's header until the next one comes, maybe minutes later: long enough
 * for a key to end up in a core file. It is done with it, and reads it as an empty value. */
static enum MHD_Result wipe_key(void *cls, enum MHD_ValueKind kind, const char *name,
                                size_t name_len, const char *value, size_t value_len)
{
    (void)cls;
    (void)kind;
    (void)name_len;
    if (value != NULL && strcasecmp(name, "Authorization") == 0)
        text_wipe(value, value_len);
    return MHD_YES;
}

void filter_wipe_key(struct MHD_Connection *mc)
{
    (void)MHD_get_connection_values_n(mc, MHD_HEADER_KIND, wipe_key, NULL);
}

/* A request that fails here is closed after its answer, unless only its Expect is unknown: then its
 * framing is sound. Of a request without a body libmicrohttpd may not see an Expect: it would say
 * "100 Continue" and then call us for an answer in a state in which it takes none. */
int filter_request(struct request *r, const struct request_line *line, struct err *e)
{
    struct header_scan h = {
        .e = e, .origin = &r->origin, .end = line->version + strlen(line->version)};
    int rc;

    r->http11 = strcmp(line->version, "HTTP/1.0") != 0;
    r->x->method = filter_method_of(line->method);
    r->origin.options = strcmp(line->method, "OPTIONS") == 0;
    (void)MHD_get_connection_values_n(
        r->mc, (enum MHD_ValueKind)(MHD_HEADER_KIND | MHD_COOKIE_KIND), scan_header, &h);
    take_request_id(r->x, h.request_id);
    take_trace(r->x, &h);
    r->must_close = true;
    rc = h.failed || http_server_filter_check_head(r, line, &h, e) != 0 ||
                 check_framing(r, &h, e) != 0 || fill_http_request(r, &h, e) != 0
             ? -1
             : 0;
    filter_wipe_key(r->mc);
    if (rc != 0)
        return -1;
    r->must_close = false;
    if (h.expect == NULL)
        return 0;
    r->expects = r->x->content_length > 0;
    if (strcasecmp(h.expect, "100-continue") != 0)
        return err_set(e, ERR_EXPECTATION, "", "Expect '%.64s' is not 100-continue", h.expect);
    if (!r->expects)
        text_wipe(h.expect, strlen(h.expect));
    return 0;
}
