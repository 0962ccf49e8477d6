/* Where the member or the event goes, and what it says (fleet/proxy/reply_spans.h). */
#include "fleet/proxy/reply_versions.h"

#include "fleet/proxy/reply_spans.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char json_media_type[] = "application/json", events_media_type[] = "text/event-stream";
/* Both forms of the line that ends a stream. */
static const char *const done_lines[] = {"data: [DONE]", "data:[DONE]"};

enum { DONE_LINE_MAX = 16 };

struct reply_versions {
    bool is_events;
    bool is_put; /* of a stream: the event was sent, or is not to be sent */
    struct reply_spans spans;

    /* Of a stream. */
    bool after_cr;            /* the last byte was '\r' */
    bool at_event, holds;     /* no byte of an event has come; the line may be the last */
    size_t line_len, n_held;  /* bytes of this line; of them held back */
    char held[DONE_LINE_MAX]; /* not sent yet */
};

static bool has_type(const struct http_head *head, const char *type)
{
    size_t len = strlen(type);
    char end = head->content_type[0] != '\0' && strlen(head->content_type) > len
                   ? head->content_type[len]
                   : '\0';

    return strncasecmp(head->content_type, type, len) == 0 &&
           (end == '\0' || end == ';' || end == ' ');
}

bool reply_versions_applies(const struct http_head *head)
{
    bool plain = head->content_encoding[0] == '\0' ||
                 strcasecmp(head->content_encoding, "identity") == 0;

    return head->status == 200 && plain &&
           (has_type(head, json_media_type) || has_type(head, events_media_type));
}

struct reply_versions *reply_versions_new(struct fleet *f, const struct fleet_ticket *t,
                                          const struct http_head *head)
{
    struct reply_versions *v = calloc(1, sizeof *v);

    if (v == NULL)
        return NULL;
    v->is_events = has_type(head, events_media_type);
    v->at_event = v->holds = true;
    reply_spans_init(&v->spans, f, t, v->is_events);
    return v;
}

void reply_versions_free(struct reply_versions *v)
{
    if (v == NULL)
        return;
    reply_spans_fini(&v->spans);
    free(v);
}

/* JSON */

static void feed_json(struct reply_versions *v, const char *data, size_t len, struct buf *out)
{
    size_t from = 0;

    for (size_t i = 0; i < len; i++) {
        enum reply_object at = reply_spans_byte(&v->spans, data[i]);

        if (at == REPLY_OBJECT_NONE)
            continue;
        buf_append(out, data + from, i - from);
        from = i;
        buf_puts(out, at == REPLY_OBJECT_EMPTY ? "" : ",");
        reply_spans_put(&v->spans, out);
    }
    buf_append(out, data + from, len - from);
}

/* events */

static void put_event(struct reply_versions *v, struct buf *out)
{
    v->is_put = true;
    if (v->spans.has_member)
        return;
    buf_puts(out, "data: {");
    reply_spans_put(&v->spans, out);
    buf_puts(out, "}\n\n");
}

static bool is_done_line(const struct reply_versions *v, bool whole)
{
    for (size_t i = 0; i < sizeof done_lines / sizeof done_lines[0]; i++)
        if (strncmp(done_lines[i], v->held, v->n_held) == 0 &&
            (!whole || v->n_held == strlen(done_lines[i])))
            return true;
    return false;
}

static void send_held(struct reply_versions *v, struct buf *out)
{
    buf_append(out, v->held, v->n_held);
    v->n_held = 0;
    v->holds = false;
}

/* The line has ended, or the stream in it. */
static void end_line(struct reply_versions *v, struct buf *out)
{
    if (v->holds && v->n_held > 0 && is_done_line(v, true) && !v->is_put)
        put_event(v, out);
    send_held(v, out);
}

static void feed_event_byte(struct reply_versions *v, char c, struct buf *out)
{
    bool ends = c == '\r' || c == '\n', second = c == '\n' && v->after_cr;

    v->after_cr = c == '\r';
    if (second) {
        buf_append(out, &c, 1);
        return;
    }
    if (ends) {
        end_line(v, out);
        buf_append(out, &c, 1);
        v->at_event = v->line_len == 0;
        v->line_len = 0;
        v->holds = v->at_event;
        reply_spans_next_text(&v->spans);
        return;
    }
    v->line_len++;
    (void)reply_spans_byte(&v->spans, c);
    if (!v->holds) {
        buf_append(out, &c, 1);
        return;
    }
    v->held[v->n_held++] = c;
    if (!is_done_line(v, false))
        send_held(v, out);
}

/* The bytes of a line that is known not to be the last are appended together. */
static void feed_events(struct reply_versions *v, const char *data, size_t len, struct buf *out)
{
    for (size_t i = 0; i < len; i++) {
        size_t n = 0;

        while (!v->holds && !v->after_cr && i + n < len && data[i + n] != '\r' &&
               data[i + n] != '\n')
            (void)reply_spans_byte(&v->spans, data[i + n++]);
        buf_append(out, data + i, n);
        v->line_len += n;
        i += n;
        if (i < len)
            feed_event_byte(v, data[i], out);
    }
}

void reply_versions_feed(struct reply_versions *v, const char *data, size_t len, struct buf *out)
{
    if (v->is_events)
        feed_events(v, data, len, out);
    else
        feed_json(v, data, len, out);
}

/* An event that was cut off gets no end from us. */
void reply_versions_end(struct reply_versions *v, struct buf *out)
{
    if (!v->is_events)
        return;
    if (v->line_len > 0)
        end_line(v, out);
    else if (v->at_event && !v->is_put)
        put_event(v, out);
}
