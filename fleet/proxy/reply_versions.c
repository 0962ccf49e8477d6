/* Where the member or the event goes, and what it says. A reply is read byte by byte.
 *
 * vLLM 0.33 and SGLang 0.5.23 list the versions of a sequence themselves, as {"version", "start",
 * "end"} in a member of this name within the reply, some only if the request asks for it. The list
 * counts if there is one for each sequence that has ended, that is, for each finish_reason that is
 * not null. */
#include "fleet/proxy/reply_versions.h"

#include "base/utf8.h"
#include "fleet/api/api_spans.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char json_media_type[] = "application/json", events_media_type[] = "text/event-stream";
/* Both forms of the line that ends a stream. */
static const char *const done_lines[] = {"data: [DONE]", "data:[DONE]"};

enum {
    DONE_LINE_MAX = 16,
    WORD_MAX = 16,  /* longer than each name of a member that is looked for */
    LIST_MAX = 4096 /* bytes of an engine's own list; a longer one does not count */
};

struct reply_versions {
    struct fleet *fleet;          /* borrowed */
    const struct fleet_ticket *t; /* borrowed */
    bool is_events;               /* many JSON texts are one reply */
    bool is_put;                  /* of a stream: the event was sent, or is not to be sent */
    bool has_member;              /* the object, or the stream, has the member itself */

    /* The engine's own lists, since the object began, or the stream. */
    struct api_spans own; /* the first one; zeroed: none can be read */
    size_t n_lists, n_finished;
    bool is_odd;    /* one cannot be read */
    bool is_single; /* all are of one version, the same */

    /* The JSON text. */
    size_t depth, object_depth; /* now; of the objects that get the member. 0: not known */
    bool in_string, escaped;
    char before; /* the last byte that is no white space */
    char word[WORD_MAX];
    size_t word_len;                                              /* of the last string */
    enum { MEMBER_OTHER, MEMBER_VERSIONS, MEMBER_FINISH } member; /* whose value comes */
    size_t list_depth, list_len; /* of a list that is being read; depth 0: none */
    char list[LIST_MAX];

    /* Of a stream. */
    bool after_cr;            /* the last byte was '\r' */
    bool at_event, holds;     /* no byte of an event has come; the line may be the last */
    size_t line_len, n_held;  /* bytes of this line; of them held back */
    char held[DONE_LINE_MAX]; /* not sent yet */
};

static bool has_type(const struct http_head *head, const char *type)
{
    size_t len = strlen(type);

    return strncasecmp(head->content_type, type, len) == 0 &&
           strchr("; ", head->content_type[len]) != NULL; /* or it ends there */
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
    v->fleet = f;
    v->t = t;
    v->is_events = has_type(head, events_media_type);
    v->at_event = v->holds = true;
    return v;
}

void reply_versions_free(struct reply_versions *v)
{
    if (v == NULL)
        return;
    api_spans_fini(&v->own);
    free(v);
}

/* the engine's own lists */

static void end_list(struct reply_versions *v)
{
    struct api_spans list;

    v->n_lists++;
    if (!api_spans_read(&list, v->list, v->list_len) || v->is_odd) {
        v->is_odd = true;
    } else if (v->own.n == 0) {
        v->own = list;
        v->is_single = list.n == 1;
        return;
    } else {
        v->is_single = v->is_single && list.n == 1 &&
                       strcmp(list.list[0].version, v->own.list[0].version) == 0;
    }
    api_spans_fini(&list);
}

static void add_to_list(struct reply_versions *v, char c)
{
    if (v->list_depth == 0)
        return;
    if (v->list_len < LIST_MAX)
        v->list[v->list_len++] = c;
    else
        v->is_odd = true;
    if (v->depth < v->list_depth) {
        end_list(v);
        v->list_depth = 0;
    }
}

/* JSON */

static void string_byte(struct reply_versions *v, char c)
{
    if (v->escaped) {
        v->escaped = false;
        v->word_len = WORD_MAX; /* no name that is looked for has an escape */
    } else if (c == '\\') {
        v->escaped = true;
    } else if (c == '"') {
        v->in_string = false;
    } else if (v->word_len < WORD_MAX) {
        v->word[v->word_len++] = c;
    }
}

static bool reply_versions_is_word(const struct reply_versions *v, const char *name)
{
    return v->word_len == strlen(name) && memcmp(v->word, name, v->word_len) == 0;
}

static void begin_value(struct reply_versions *v, char c)
{
    if (v->member == MEMBER_FINISH && c != 'n')
        v->n_finished++;
    if (v->member == MEMBER_VERSIONS && v->object_depth != 0 && v->depth == v->object_depth)
        v->has_member = true;
    if (v->member == MEMBER_VERSIONS && c == '[' && v->list_depth == 0) {
        v->list_depth = v->depth + 1;
        v->list_len = 0;
    }
    v->member = MEMBER_OTHER;
}

static void forget_own(struct reply_versions *v)
{
    api_spans_fini(&v->own);
    v->n_lists = v->n_finished = 0;
    v->is_odd = v->is_single = v->has_member = false;
}

static void begin_object(struct reply_versions *v)
{
    if (v->depth == 1 || (v->depth == 2 && v->object_depth == 0))
        v->object_depth = v->depth;
    if (v->depth == v->object_depth && !v->is_events)
        forget_own(v);
}

/* Does this byte end an object that gets the member before it, and has it other members? */
enum object_end { OBJECT_NONE, OBJECT_EMPTY, OBJECT_FULL };

static enum object_end end_object(struct reply_versions *v)
{
    if (v->depth != v->object_depth || v->object_depth == 0 || v->has_member)
        return OBJECT_NONE;
    return v->before == '{' ? OBJECT_EMPTY : OBJECT_FULL;
}

static enum object_end structure_byte(struct reply_versions *v, char c)
{
    enum object_end ends = OBJECT_NONE;

    if (v->before == ':')
        begin_value(v, c);
    switch (c) {
    case '"':
        v->in_string = true;
        v->word_len = 0;
        break;
    case ':':
        v->member = reply_versions_is_word(v, "weight_versions") ? MEMBER_VERSIONS
                    : reply_versions_is_word(v, "finish_reason") ? MEMBER_FINISH
                                                                 : MEMBER_OTHER;
        break;
    case '{':
        v->depth++;
        begin_object(v);
        break;
    case '[':
        v->depth++;
        break;
    case '}':
        ends = end_object(v);
        v->depth -= v->depth > 0;
        break;
    case ']':
        v->depth -= v->depth > 0;
        break;
    }
    v->before = c;
    return ends;
}

static enum object_end json_byte(struct reply_versions *v, char c)
{
    enum object_end ends = OBJECT_NONE;

    if (v->in_string)
        string_byte(v, c);
    else if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
        ends = structure_byte(v, c);
    add_to_list(v, c);
    return ends;
}

/* Another text begins; what was found in the last one stays. */
static void next_text(struct reply_versions *v)
{
    v->depth = v->object_depth = v->list_depth = v->word_len = 0;
    v->in_string = v->escaped = false;
    v->before = '\0';
    v->member = MEMBER_OTHER;
}

/* the member */

/* @made  NULL: not known; @end, @start  of api_spans_put */
static void put_span(struct buf *out, const struct fleet_version *made, int64_t start, int64_t end,
                     bool exact)
{
    char label[FLEET_LABEL_MAX + 1] = "";
    const struct api_span span = {.version = label, .start = start, .end = end};

    if (made != NULL)
        memcpy(label, made->label, sizeof label);
    (void)utf8_clean(label);
    api_spans_put(out, &span, made != NULL ? &made->serial : NULL, exact);
}

/* Do two versions have the same label? Then a label does not tell which of them it is. */
static bool is_ambiguous(const struct fleet_versions *served)
{
    for (size_t i = 0; i < served->n; i++)
        for (size_t k = i + 1; k < served->n; k++)
            if (served->items[i].serial != served->items[k].serial &&
                strcmp(served->items[i].label, served->items[k].label) == 0)
                return true;
    return false;
}

/* Versions follow each other. Returns: the first one of this label, from *at on; NULL: none. */
static const struct fleet_version *find_version(const struct fleet_versions *served,
                                                const char *label, size_t *at)
{
    for (; *at < served->n; ++*at)
        if (strcmp(served->items[*at].label, label) == 0 &&
            (!served->one || served->items[*at].serial == served->items[0].serial))
            return &served->items[*at];
    return NULL;
}

/* Does the engine name each sequence's versions, all of which were served here since the grant? */
static bool own_are_known(const struct reply_versions *v, const struct fleet_versions *served)
{
    if (v->is_odd || (v->n_lists > 1 && !v->is_single) ||
        (!served->one && (!served->complete || is_ambiguous(served))))
        return false;
    for (size_t i = 0, at = 0; i < v->own.n; i++)
        if (find_version(served, v->own.list[i].version, &at) == NULL)
            return false;
    return true;
}

static void put_own(const struct reply_versions *v, const struct fleet_versions *served,
                    struct buf *out)
{
    for (size_t i = 0, at = 0; i < v->own.n; i++) {
        const struct api_span *span = &v->own.list[i];
        const struct fleet_version *made = find_version(served, span->version, &at);

        buf_puts(out, i > 0 ? "," : "");
        put_span(out, made, span->start, v->n_lists > 1 ? -1 : span->end, true);
    }
}

static void put_first_and_last(const struct fleet_versions *served, struct buf *out)
{
    put_span(out, &served->items[0], -1, -1, false);
    if (served->n == 1 && !served->last_is_unknown)
        return;
    buf_puts(out, ",");
    put_span(out, served->last_is_unknown ? NULL : &served->items[served->n - 1], -1, -1, false);
}

/* "weight_versions":[…], as of now. */
static void reply_versions_put_member(struct reply_versions *v, struct buf *out)
{
    struct fleet_versions served;
    bool has_own = v->n_lists > 0 && v->n_lists == v->n_finished;

    fleet_versions_since(v->fleet, v->t, &served);
    buf_puts(out, "\"weight_versions\":[");
    if (has_own && own_are_known(v, &served))
        put_own(v, &served, out);
    else if (!has_own && served.one)
        put_span(out, &served.items[0], 0, -1, true);
    else
        put_first_and_last(&served, out);
    buf_puts(out, "]");
}

/* a reply of one text */

static void feed_json(struct reply_versions *v, const char *data, size_t len, struct buf *out)
{
    size_t from = 0;

    for (size_t i = 0; i < len; i++) {
        enum object_end at = json_byte(v, data[i]);

        if (at == OBJECT_NONE)
            continue;
        buf_append(out, data + from, i - from);
        from = i;
        buf_puts(out, at == OBJECT_EMPTY ? "" : ",");
        reply_versions_put_member(v, out);
    }
    buf_append(out, data + from, len - from);
}

/* events */

static void put_event(struct reply_versions *v, struct buf *out)
{
    v->is_put = true;
    if (v->has_member)
        return;
    buf_puts(out, "data: {");
    reply_versions_put_member(v, out);
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
        next_text(v);
        return;
    }
    v->line_len++;
    (void)json_byte(v, c);
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
            (void)json_byte(v, data[i + n++]);
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
