#include "fleet/proxy/reply_spans.h"

#include "base/utf8.h"

#include <string.h>

void reply_spans_init(struct reply_spans *s, struct fleet *f, const struct fleet_ticket *t,
                      bool is_stream)
{
    memset(s, 0, sizeof *s);
    s->fleet = f;
    s->t = t;
    s->is_stream = is_stream;
}

void reply_spans_fini(struct reply_spans *s)
{
    api_spans_fini(&s->own);
}

void reply_spans_next_text(struct reply_spans *s)
{
    s->depth = s->object_depth = s->list_depth = s->word_len = 0;
    s->in_string = s->escaped = false;
    s->before = '\0';
    s->member = MEMBER_OTHER;
}

/* the engine's own lists */

static void end_list(struct reply_spans *s)
{
    struct api_spans list;

    s->n_lists++;
    if (!api_spans_read(&list, s->list, s->list_len) || s->is_odd) {
        s->is_odd = true;
    } else if (s->own.n == 0) {
        s->own = list;
        s->is_single = list.n == 1;
        return;
    } else {
        s->is_single = s->is_single && list.n == 1 &&
                       strcmp(list.list[0].version, s->own.list[0].version) == 0;
    }
    api_spans_fini(&list);
}

static void add_to_list(struct reply_spans *s, char c)
{
    if (s->list_depth == 0)
        return;
    if (s->list_len < REPLY_LIST_MAX)
        s->list[s->list_len++] = c;
    else
        s->is_odd = true;
    if (s->depth < s->list_depth) {
        end_list(s);
        s->list_depth = 0;
    }
}

/* JSON */

static void string_byte(struct reply_spans *s, char c)
{
    if (s->escaped) {
        s->escaped = false;
        s->word_len = REPLY_WORD_MAX; /* no name that is looked for has an escape */
    } else if (c == '\\') {
        s->escaped = true;
    } else if (c == '"') {
        s->in_string = false;
    } else if (s->word_len < REPLY_WORD_MAX) {
        s->word[s->word_len++] = c;
    }
}

static bool is_word(const struct reply_spans *s, const char *name)
{
    return s->word_len == strlen(name) && memcmp(s->word, name, s->word_len) == 0;
}

static void begin_value(struct reply_spans *s, char c)
{
    if (s->member == MEMBER_FINISH && c != 'n')
        s->n_finished++;
    if (s->member == MEMBER_VERSIONS && s->object_depth != 0 && s->depth == s->object_depth)
        s->has_member = true;
    if (s->member == MEMBER_VERSIONS && c == '[' && s->list_depth == 0) {
        s->list_depth = s->depth + 1;
        s->list_len = 0;
    }
    s->member = MEMBER_OTHER;
}

static void forget_own(struct reply_spans *s)
{
    api_spans_fini(&s->own);
    s->n_lists = s->n_finished = 0;
    s->is_odd = s->is_single = s->has_member = false;
}

static void begin_object(struct reply_spans *s)
{
    if (s->depth == 1 || (s->depth == 2 && s->object_depth == 0))
        s->object_depth = s->depth;
    if (s->depth == s->object_depth && !s->is_stream)
        forget_own(s);
}

static enum reply_object end_object(struct reply_spans *s)
{
    if (s->depth != s->object_depth || s->object_depth == 0 || s->has_member)
        return REPLY_OBJECT_NONE;
    return s->before == '{' ? REPLY_OBJECT_EMPTY : REPLY_OBJECT_FULL;
}

static enum reply_object structure_byte(struct reply_spans *s, char c)
{
    enum reply_object ends = REPLY_OBJECT_NONE;

    if (s->before == ':')
        begin_value(s, c);
    switch (c) {
    case '"':
        s->in_string = true;
        s->word_len = 0;
        break;
    case ':':
        s->member = is_word(s, "weight_versions") ? MEMBER_VERSIONS
                    : is_word(s, "finish_reason") ? MEMBER_FINISH
                                                  : MEMBER_OTHER;
        break;
    case '{':
        s->depth++;
        begin_object(s);
        break;
    case '[':
        s->depth++;
        break;
    case '}':
        ends = end_object(s);
        s->depth -= s->depth > 0;
        break;
    case ']':
        s->depth -= s->depth > 0;
        break;
    }
    s->before = c;
    return ends;
}

enum reply_object reply_spans_byte(struct reply_spans *s, char c)
{
    enum reply_object ends = REPLY_OBJECT_NONE;

    if (s->in_string)
        string_byte(s, c);
    else if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
        ends = structure_byte(s, c);
    add_to_list(s, c);
    return ends;
}

/* the member */

/* @v           NULL: not known
 * @start, @end  as of api_spans_put */
static void put_span(struct buf *out, const struct fleet_version *v, int64_t start, int64_t end,
                     bool exact)
{
    char label[FLEET_LABEL_MAX + 1] = "";
    const struct api_span_put span = {.version = label,
                                      .start = start,
                                      .end = end,
                                      .serial = v != NULL ? &v->serial : NULL,
                                      .exact = exact};

    if (v != NULL)
        memcpy(label, v->label, sizeof label);
    (void)utf8_clean(label);
    api_spans_put(out, &span);
}

/* Do two versions have the same label? Then a label does not tell which of them it is. */
static bool is_ambiguous(const struct fleet_versions *v)
{
    for (size_t i = 0; i < v->n; i++)
        for (size_t k = i + 1; k < v->n; k++)
            if (v->items[i].serial != v->items[k].serial &&
                strcmp(v->items[i].label, v->items[k].label) == 0)
                return true;
    return false;
}

/* Versions follow each other. Returns: the first one of this label, from *at on; NULL: none. */
static const struct fleet_version *find_version(const struct fleet_versions *v, const char *label,
                                                size_t *at)
{
    for (; *at < v->n; ++*at)
        if (strcmp(v->items[*at].label, label) == 0 &&
            (!v->one || v->items[*at].serial == v->items[0].serial))
            return &v->items[*at];
    return NULL;
}

/* Does the engine name each sequence's versions, all of which were served here since the grant? */
static bool own_are_known(const struct reply_spans *s, const struct fleet_versions *v)
{
    if (s->is_odd || (s->n_lists > 1 && !s->is_single) || (!v->one && !v->complete) ||
        (!v->one && is_ambiguous(v)))
        return false;
    for (size_t i = 0, at = 0; i < s->own.n; i++)
        if (find_version(v, s->own.list[i].version, &at) == NULL)
            return false;
    return true;
}

static void put_own(const struct reply_spans *s, const struct fleet_versions *v, struct buf *out)
{
    for (size_t i = 0, at = 0; i < s->own.n; i++) {
        const struct api_span *span = &s->own.list[i];
        const struct fleet_version *made = find_version(v, span->version, &at);

        buf_puts(out, i > 0 ? "," : "");
        put_span(out, made, span->start, s->n_lists > 1 ? -1 : span->end, true);
    }
}

static void put_first_and_last(const struct fleet_versions *v, struct buf *out)
{
    put_span(out, &v->items[0], -1, -1, false);
    if (v->n == 1 && !v->last_is_unknown)
        return;
    buf_puts(out, ",");
    put_span(out, v->last_is_unknown ? NULL : &v->items[v->n - 1], -1, -1, false);
}

void reply_spans_put(struct reply_spans *s, struct buf *out)
{
    struct fleet_versions v;
    bool has_own = s->n_lists > 0 && s->n_lists == s->n_finished;

    fleet_versions_since(s->fleet, s->t, &v);
    buf_puts(out, "\"weight_versions\":[");
    if (has_own && own_are_known(s, &v))
        put_own(s, &v, out);
    else if (!has_own && v.one)
        put_span(out, &v.items[0], 0, -1, true);
    else
        put_first_and_last(&v, out);
    buf_puts(out, "]");
}
