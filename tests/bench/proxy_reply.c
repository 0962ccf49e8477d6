#include "proxy_reply.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void read_field(struct answer *a)
{
    const char *colon = strchr(a->line, ':'), *value;
    size_t n;

    if (colon == NULL) {
        a->at = AT_NO_HTTP;
        return;
    }
    n = (size_t)(colon - a->line);
    value = colon + 1 + strspn(colon + 1, " \t");
    if (n == 14 && strncasecmp(a->line, "Content-Length", n) == 0) {
        a->sized = true;
        a->left = strtoull(value, NULL, 10);
    } else if (n == 17 && strncasecmp(a->line, "Transfer-Encoding", n) == 0) {
        a->chunked = strcasecmp(value, "chunked") == 0;
    } else if (n == 10 && strncasecmp(a->line, "Connection", n) == 0) {
        a->closes = strcasecmp(value, "close") == 0;
    }
}

static void end_of_head(struct answer *a)
{
    if (a->status / 100 == 1)
        a->at = AT_STATUS;
    else if (a->chunked)
        a->at = AT_CHUNK_SIZE;
    else if (!a->sized)
        a->at = AT_UNTIL_GONE;
    else
        a->at = a->left > 0 ? AT_LENGTH : AT_WHOLE;
}

static void read_size(struct answer *a)
{
    char *end;

    a->left = strtoull(a->line, &end, 16);
    if (end == a->line)
        a->at = AT_NO_HTTP;
    else
        a->at = a->left > 0 ? AT_CHUNK : AT_TRAILER;
}

/* A line without its end stands in a->line. */
static void read_line(struct answer *a)
{
    if (a->at == AT_STATUS) {
        if (strncmp(a->line, "HTTP/1.1 ", 9) != 0) {
            a->at = AT_NO_HTTP;
            return;
        }
        a->status = atoi(a->line + 9);
        a->at = AT_HEADER;
    } else if (a->at == AT_HEADER && a->line[0] == '\0') {
        end_of_head(a);
    } else if (a->at == AT_HEADER) {
        read_field(a);
    } else if (a->at == AT_CHUNK_SIZE) {
        read_size(a);
    } else if (a->at == AT_CHUNK_END) {
        a->at = a->line[0] == '\0' ? AT_CHUNK_SIZE : AT_NO_HTTP;
    } else if (a->line[0] == '\0') {
        a->at = AT_WHOLE; /* the empty line behind the trailers */
    }
}

static size_t eat_line(struct answer *a, const char *data, size_t len)
{
    const char *eol = memchr(data, '\n', len);
    size_t n = eol != NULL ? (size_t)(eol - data) : len;

    if (a->line_len + n >= sizeof a->line) {
        a->at = AT_NO_HTTP;
        return len;
    }
    memcpy(a->line + a->line_len, data, n);
    a->line_len += n;
    if (eol == NULL)
        return n;
    if (a->line_len > 0 && a->line[a->line_len - 1] == '\r')
        a->line_len--;
    a->line[a->line_len] = '\0';
    a->line_len = 0;
    read_line(a);
    return n + 1;
}

static size_t eat_body(struct answer *a, size_t len)
{
    size_t n = a->at != AT_UNTIL_GONE && a->left < len ? (size_t)a->left : len;

    a->n_bytes += n;
    if (a->at == AT_UNTIL_GONE)
        return n;
    a->left -= n;
    if (a->left == 0)
        a->at = a->at == AT_CHUNK ? AT_CHUNK_END : AT_WHOLE;
    return n;
}

size_t answer_eat(struct answer *a, const char *data, size_t len,
                  void (*payload)(void *arg, const char *data, size_t len), void *arg)
{
    size_t at = 0, n;

    while (at < len && a->at != AT_WHOLE && a->at != AT_NO_HTTP) {
        if (a->at != AT_LENGTH && a->at != AT_CHUNK && a->at != AT_UNTIL_GONE) {
            at += eat_line(a, data + at, len - at);
            continue;
        }
        n = eat_body(a, len - at);
        if (payload != NULL)
            payload(arg, data + at, n);
        at += n;
    }
    return at;
}

bool answer_gone(struct answer *a)
{
    if (a->at == AT_UNTIL_GONE)
        a->at = AT_WHOLE;
    return a->at == AT_WHOLE;
}
