/* The members around the model in tokenizer.json: pre_tokenizer and post_processor. */
#include "text/tokenizer_members.h"
#include "text/tokenizer_priv.h"

#include <string.h>

/* ---- pre_tokenizer ---- */

static int new_stage(struct tokenizer *t, struct stage **out, const char *field, struct err *e)
{
    if (t->n_stages == TOKENIZER_STAGES_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "more than %d stages", TOKENIZER_STAGES_MAX);
    *out = &t->stages[t->n_stages++];
    return 0;
}

/* Split: every match and every gap is a word of its own, so `invert` changes nothing. */
static int parse_split(struct tokenizer *t, const json_t *v, const char *field, struct err *e)
{
    const json_t *pattern = json_object_get(v, "pattern"), *regex, *string;
    struct pointer base = pointer_member(field, "pattern");
    struct stage *stage;
    const char *behavior;
    bool invert;

    if (member_str(&behavior, v, field, "behavior", e) != 0 ||
        member_bool(&invert, v, field, "invert", e) != 0)
        return -1;
    if (strcmp(behavior, "Isolated") != 0)
        return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "behavior").text,
                       "'%s' is not supported; Isolated is", member_quote(behavior).text);
    regex = json_object_get(pattern, "Regex");
    string = json_object_get(pattern, "String");
    if (json_is_string(regex) == json_is_string(string))
        return err_set(e, ERR_BAD_REQUEST, base.text,
                       "a pattern is {\"Regex\": string} or {\"String\": string}");
    if (new_stage(t, &stage, field, e) != 0)
        return -1;
    if (json_is_string(regex))
        return regex_new(&stage->re, json_string_value(regex), json_string_length(regex), false,
                         pointer_member(base.text, "Regex").text, e);
    return regex_new(&stage->re, json_string_value(string), json_string_length(string), true,
                     pointer_member(base.text, "String").text, e);
}

/* Digits: numbers are words of their own, or each of their characters is. */
static int parse_digits(struct tokenizer *t, const json_t *v, const char *field, struct err *e)
{
    struct stage *stage;
    bool individual;

    if (member_bool(&individual, v, field, "individual_digits", e) != 0 ||
        new_stage(t, &stage, field, e) != 0)
        return -1;
    return regex_new(&stage->re, "\\p{N}+", individual ? 5 : 6, false, field, e);
}

/* ByteLevel. Its mapping of bytes to characters is undone in the vocabulary. */
static int parse_byte_level(struct tokenizer *t, const json_t *v, const char *field, struct err *e)
{
    struct stage *stage;
    bool use_regex, prefix;

    if (member_bool(&prefix, v, field, "add_prefix_space", e) != 0 ||
        member_bool_or(&use_regex, v, field, "use_regex", true, e) != 0 ||
        new_stage(t, &stage, field, e) != 0)
        return -1;
    stage->add_prefix_space = prefix;
    if (!use_regex)
        return 0;
    return regex_new(&stage->re, REGEX_GPT2, strlen(REGEX_GPT2), false, field, e);
}

/* Metaspace: the sole stage, because it rewrites what a stage before it would have cut. */
static int parse_metaspace(struct tokenizer *t, const json_t *v, const char *field, struct err *e)
{
    static const char *const schemes[] = {"", "always", "first", "never"};
    struct metaspace *m = &t->metaspace;
    const json_t *prefix = json_object_get(v, "add_prefix_space");
    const char *scheme;

    if (t->n_stages > 0 || m->scheme != METASPACE_OFF)
        return err_set(e, ERR_BAD_REQUEST, field, "Metaspace beside others is not supported");
    if (affix_read(&m->mark, json_object_get(v, "replacement"),
                   pointer_member(field, "replacement").text, e) != 0 ||
        member_str(&scheme, v, field, "prepend_scheme", e) != 0 ||
        member_bool_or(&m->split, v, field, "split", true, e) != 0)
        return -1;
    for (int i = METASPACE_ALWAYS; i <= METASPACE_NEVER; i++)
        if (strcmp(scheme, schemes[i]) == 0)
            m->scheme = (enum metaspace_scheme)i;
    if (m->scheme == METASPACE_OFF)
        return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "prepend_scheme").text,
                       "'%s' is not one of always, first, never", member_quote(scheme).text);
    if (json_is_boolean(prefix) && json_is_true(prefix) == (m->scheme == METASPACE_NEVER))
        return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "add_prefix_space").text,
                       "contradicts prepend_scheme '%s'", scheme);
    return 0;
}

/* *byte_level: whether ByteLevel was met; nothing may follow it. */
static int parse_pre(struct tokenizer *t, const json_t *v, const char *field, unsigned depth,
                     bool *byte_level, struct err *e)
{
    const json_t *list, *child;
    const char *type;
    size_t i;

    if (member_type(&type, v, field, e) != 0)
        return -1;
    if (*byte_level || t->metaspace.scheme != METASPACE_OFF)
        return err_set(e, ERR_BAD_REQUEST, field, "'%s' after %s is not supported",
                       member_quote(type).text, *byte_level ? "ByteLevel" : "Metaspace");
    if (strcmp(type, "Split") == 0)
        return parse_split(t, v, field, e);
    if (strcmp(type, "Digits") == 0)
        return parse_digits(t, v, field, e);
    if (strcmp(type, "ByteLevel") == 0 && t->decoder.kind == DECODER_BYTE_LEVEL) {
        *byte_level = true;
        return parse_byte_level(t, v, field, e);
    }
    if (strcmp(type, "Metaspace") == 0 && t->decoder.kind == DECODER_SPELLED)
        return parse_metaspace(t, v, field, e);
    if (strcmp(type, "Sequence") != 0)
        return member_unsupported(field, type,
                                  t->decoder.kind == DECODER_BYTE_LEVEL
                                      ? "Split, Digits, ByteLevel or Sequence"
                                      : "with this decoder Split, Digits, Metaspace or Sequence",
                                  e);
    if (depth == TOKENIZER_NESTING_MAX)
        return member_too_deep(field, e);
    if (member_array(&list, v, field, "pretokenizers", e) != 0)
        return -1;
    json_array_foreach(list, i, child)
    {
        struct pointer base = pointer_member(field, "pretokenizers");

        if (parse_pre(t, child, pointer_index(base.text, i).text, depth + 1, byte_level, e) != 0)
            return -1;
    }
    return 0;
}

int tokenizer_parse_pre(struct tokenizer *t, const json_t *v, struct err *e)
{
    bool byte_level = false;

    if (t->decoder.kind == DECODER_SPELLED && (v == NULL || json_is_null(v)))
        return 0; /* the whole text is one word */
    if (parse_pre(t, v, "/pre_tokenizer", 0, &byte_level, e) != 0)
        return -1;
    if (t->decoder.kind == DECODER_BYTE_LEVEL && !byte_level)
        return err_set(e, ERR_BAD_REQUEST, "/pre_tokenizer",
                       "ends without ByteLevel, which the decoder is");
    return 0;
}

/* ---- post_processor ---- */

/* The ids of one special token of a template, appended to side[0 .. *n). */
static int template_ids(const struct tokenizer *t, const json_t *special_tokens,
                        const json_t *piece, const char *field, uint32_t *side, size_t *n,
                        struct err *e)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = name == NULL
                            ? NULL
                            : json_object_get(json_object_get(special_tokens, name), "ids");
    const json_t *v;
    size_t i;

    if (!json_is_array(ids))
        return err_set(e, ERR_BAD_REQUEST, field, "names no entry of special_tokens with ids");
    json_array_foreach(ids, i, v)
    {
        uint32_t id;

        if (member_id(&id, v, field, e) != 0)
            return -1;
        if (id >= t->n_tokens || t->tokens[id].text == NULL)
            return err_set(e, ERR_BAD_REQUEST, field, "id %u is not in the vocabulary", id);
        if (*n == TOKENIZER_TEMPLATE_IDS_MAX)
            return err_set(e, ERR_BAD_REQUEST, field, "more than %d ids on one side of the text",
                           TOKENIZER_TEMPLATE_IDS_MAX);
        side[(*n)++] = id;
    }
    return 0;
}

/* TemplateProcessing: what the template for one text puts before and after it. A second one would
 * see the parts of the first as two texts, so it is refused. */
static int parse_template(struct tokenizer *t, const json_t *v, const char *field, struct err *e)
{
    struct pointer base = pointer_member(field, "single");
    const json_t *single, *piece;
    size_t n_texts = 0, i;

    if (t->n_prefix + t->n_suffix > 0)
        return err_set(e, ERR_BAD_REQUEST, field, "more than one TemplateProcessing");
    if (member_array(&single, v, field, "single", e) != 0)
        return -1;
    json_array_foreach(single, i, piece)
    {
        const json_t *token = json_object_get(piece, "SpecialToken");
        const json_t *text = json_object_get(json_object_get(piece, "Sequence"), "id");
        struct pointer at = pointer_index(base.text, i);

        if (json_is_string(text) && strcmp(json_string_value(text), "A") == 0)
            n_texts++;
        else if (token == NULL)
            return err_set(e, ERR_BAD_REQUEST, at.text, "is neither a SpecialToken nor Sequence A");
        else if (template_ids(t, json_object_get(v, "special_tokens"), token, at.text,
                              n_texts == 0 ? t->prefix : t->suffix,
                              n_texts == 0 ? &t->n_prefix : &t->n_suffix, e) != 0)
            return -1;
    }
    if (n_texts != 1)
        return err_set(e, ERR_BAD_REQUEST, base.text, "has the text %zu times, not once", n_texts);
    return 0;
}

static int parse_post(struct tokenizer *t, const json_t *v, const char *field, unsigned depth,
                      struct err *e)
{
    const json_t *list, *child;
    const char *type;
    size_t i;

    if (v == NULL || json_is_null(v))
        return 0;
    if (member_type(&type, v, field, e) != 0)
        return -1;
    if (strcmp(type, "ByteLevel") == 0)
        return 0; /* adjusts offsets, which are not used here */
    if (strcmp(type, "TemplateProcessing") == 0)
        return parse_template(t, v, field, e);
    if (strcmp(type, "Sequence") != 0)
        return member_unsupported(field, type, "ByteLevel, TemplateProcessing, Sequence or null",
                                  e);
    if (depth == TOKENIZER_NESTING_MAX)
        return member_too_deep(field, e);
    if (member_array(&list, v, field, "processors", e) != 0)
        return -1;
    json_array_foreach(list, i, child)
    {
        struct pointer base = pointer_member(field, "processors");

        if (parse_post(t, child, pointer_index(base.text, i).text, depth + 1, e) != 0)
            return -1;
    }
    return 0;
}

int tokenizer_parse_post(struct tokenizer *t, const json_t *v, struct err *e)
{
    return parse_post(t, v, "/post_processor", 0, e);
}
