/* The normalizer: a list of steps over one piece of text, and Metaspace, which is called a
 * pre-tokenizer but rewrites text like a normalizer. */
#include "text/tokenizer_members.h"
#include "text/tokenizer_priv.h"

#include <string.h>

int affix_read(struct affix *out, const json_t *v, const char *field, struct err *e)
{
    size_t len = json_string_length(v);

    if (!json_is_string(v))
        return member_wrong_type(field, v, "a string", e);
    if (len < 1 || len > TOKENIZER_AFFIX_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "%zu bytes; 1 to %d are allowed", len,
                       TOKENIZER_AFFIX_NBYTES_MAX);
    memcpy(out->text, json_string_value(v), len);
    out->len = len;
    return 0;
}

int replace_read(struct affix *from, struct affix *to, const json_t *v, const char *field,
                 struct err *e)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const json_t *string = json_object_get(pattern, "String");
    struct pointer base = pointer_member(field, "pattern");

    if (!json_is_string(string) || json_object_size(pattern) != 1)
        return err_set(e, ERR_BAD_REQUEST, base.text,
                       "only a pattern {\"String\": string} is supported");
    if (affix_read(from, string, pointer_member(base.text, "String").text, e) != 0 ||
        affix_read(to, json_object_get(v, "content"), pointer_member(field, "content").text, e) !=
            0)
        return -1;
    if (to->len > TOKENIZER_REPLACE_GROWTH_MAX * from->len)
        return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "content").text,
                       "%zu bytes in place of %zu; %zu are allowed", to->len, from->len,
                       TOKENIZER_REPLACE_GROWTH_MAX * from->len);
    return 0;
}

static int tokenizer_normal_parse_step(struct tokenizer *t, const json_t *v, const char *type,
                                       const char *field, struct err *e)
{
    struct normal_step *step = &t->normal[t->n_normal];

    if (t->n_normal == TOKENIZER_NORMAL_STEPS_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "more than %d normalizers",
                       TOKENIZER_NORMAL_STEPS_MAX);
    if (strcmp(type, "NFC") == 0) {
        step->kind = NORMAL_NFC;
    } else if (strcmp(type, "Prepend") == 0) {
        step->kind = NORMAL_PREPEND;
        if (affix_read(&step->to, json_object_get(v, "prepend"),
                       pointer_member(field, "prepend").text, e) != 0)
            return -1;
    } else if (strcmp(type, "Replace") == 0) {
        step->kind = NORMAL_REPLACE;
        if (replace_read(&step->from, &step->to, v, field, e) != 0)
            return -1;
    } else {
        return member_unsupported(field, type, "NFC, Prepend, Replace, Sequence or null", e);
    }
    t->n_normal++;
    return 0;
}

static int parse_normalizer(struct tokenizer *t, const json_t *v, const char *field, unsigned depth,
                            struct err *e)
{
    const json_t *list, *child;
    const char *type;
    size_t i;

    if (v == NULL || json_is_null(v))
        return 0;
    if (member_type(&type, v, field, e) != 0)
        return -1;
    if (strcmp(type, "Sequence") != 0)
        return tokenizer_normal_parse_step(t, v, type, field, e);
    if (depth == TOKENIZER_NESTING_MAX)
        return member_too_deep(field, e);
    if (member_array(&list, v, field, "normalizers", e) != 0)
        return -1;
    json_array_foreach(list, i, child)
    {
        struct pointer base = pointer_member(field, "normalizers");

        if (parse_normalizer(t, child, pointer_index(base.text, i).text, depth + 1, e) != 0)
            return -1;
    }
    return 0;
}

int tokenizer_parse_normalizer(struct tokenizer *t, const json_t *v, struct err *e)
{
    return parse_normalizer(t, v, "/normalizer", 0, e);
}

/* Appends `text` with every `from`, left to right, replaced by `to`. Stops replacing once `out` is
 * longer than TOKENIZER_NORMAL_NBYTES_MAX. */
static void affix_replace(struct buf *out, const char *text, size_t len, const struct affix *from,
                          const struct affix *to)
{
    const char *at = text, *end = text + len, *next;

    while ((next = memmem(at, (size_t)(end - at), from->text, from->len)) != NULL &&
           out->len <= TOKENIZER_NORMAL_NBYTES_MAX) {
        buf_append(out, at, (size_t)(next - at));
        buf_append(out, to->text, to->len);
        at = next + from->len;
    }
    buf_append(out, at, (size_t)(end - at));
}

static int apply_step(const struct normal_step *step, struct buf *out, const char *text, size_t len,
                      struct err *e)
{
    out->len = 0;
    switch (step->kind) {
    case NORMAL_NFC:
        return nfc_append(out, text, len, e);
    case NORMAL_PREPEND:
        buf_append(out, step->to.text, step->to.len);
        buf_append(out, text, len);
        break;
    case NORMAL_REPLACE:
        affix_replace(out, text, len, &step->from, &step->to);
        break;
    }
    if (out->failed)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to normalise the text");
    return 0;
}

int normal_apply(const struct tokenizer *t, struct buf scratch[2], const char **text, size_t *len,
                 struct err *e)
{
    for (size_t i = 0; i<t->n_normal && * len> 0; i++) {
        struct buf *out = &scratch[i % 2];

        if (apply_step(&t->normal[i], out, *text, *len, e) != 0)
            return -1;
        if (out->len > TOKENIZER_NORMAL_NBYTES_MAX)
            return err_set(e, ERR_BAD_REQUEST, "",
                           "the text grows past %d bytes when it is normalised",
                           TOKENIZER_NORMAL_NBYTES_MAX);
        *text = out->data;
        *len = out->len;
    }
    return 0;
}

int metaspace_apply(const struct metaspace *m, struct buf *out, const char *text, size_t len,
                    bool first, struct err *e)
{
    static const struct affix space = {.text = " ", .len = 1};
    bool marked = len >= m->mark.len && memcmp(text, m->mark.text, m->mark.len) == 0;
    bool prepend = m->scheme == METASPACE_ALWAYS || (m->scheme == METASPACE_FIRST && first);

    out->len = 0;
    if (prepend && !marked && text[0] != ' ')
        buf_append(out, m->mark.text, m->mark.len);
    affix_replace(out, text, len, &space, &m->mark);
    if (out->failed)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to normalise the text");
    return 0;
}
