/* tokenizer.json to a tokenizer. Every member that could change an id is either applied as Hugging
 * Face's tokenizers applies it, or refused by name: none is skipped.
 *
 * Supported: BPE, byte-level (GPT-2, Qwen, Llama 3) or spelled, with byte fallback or without
 * (Llama 2, Mistral). The decoder decides which of the two; the other members must agree. */
#include "base/json_parse.h"
#include "text/tokenizer_members.h"
#include "text/tokenizer_priv.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What parsing needs besides the tokenizer it fills. */
struct parse {
    struct tokenizer *t;
    const json_t *root;  /* borrowed */
    const json_t *vocab; /* borrowed from root: spelling -> id */
    json_t *added;       /* owned: content -> id of the added tokens seen so far */
    size_t arena_used, arena_cap;
    int64_t added_id_max; /* -1: none yet */
};

/* ---- tokens ---- */

/* The byte whose printable stand-in is `cp`; -1 for other characters. 188 bytes map to
 * themselves, the other 68, in ascending order, to U+0100 and up. */
static int byte_of(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp >= 0x100 && cp <= 0x120)
        return (int)cp - 0x100;
    if (cp >= 0x121 && cp <= 0x142)
        return (int)cp - 0x121 + 127;
    return cp == 0x143 ? 173 : -1;
}

/* The bytes that a token's spelling means; `bytes` has space for `len`. Returns: false if a
 * character is not one of the alphabet's 256; `bytes` is undefined then. */
static bool byte_level_unmap(const char *text, size_t len, unsigned char *bytes, size_t *n_bytes)
{
    size_t n = 0;
    uint32_t cp;

    for (size_t at = 0; at < len; n++) {
        int k = utf8_scan((const unsigned char *)text + at, len - at, &cp);
        int byte = k > 0 ? byte_of(cp) : -1;

        if (byte < 0)
            return false;
        bytes[n] = (unsigned char)byte;
        at += (size_t)k;
    }
    *n_bytes = n;
    return true;
}

static char *arena_take(struct parse *p, size_t nbytes)
{
    char *block = p->t->arena + p->arena_used;

    assert(nbytes <= p->arena_cap - p->arena_used); /* reserve_tokens counted */
    p->arena_used += nbytes;
    return block;
}

/* Arena bytes of one token at most: the spelling, and what it decodes to. */
static size_t token_nbytes(size_t len)
{
    return len + 1 + TOKENIZER_REPLACE_GROWTH_MAX * len;
}

/* What a token with this spelling decodes to; `bytes` has space for TOKENIZER_REPLACE_GROWTH_MAX
 * times `len`. */
static void tokenizer_json_put_bytes(struct token *token, const struct decoder *d, const char *text,
                                     size_t len, unsigned char *bytes)
{
    size_t n_bytes = 0;

    token->byte = -1;
    token->mapped = d->kind == DECODER_BYTE_LEVEL && byte_level_unmap(text, len, bytes, &n_bytes);
    if (!token->mapped) {
        memcpy(bytes, text, len);
        n_bytes = len;
    }
    if (d->kind == DECODER_SPELLED)
        n_bytes = spelled_bytes(d, text, len, bytes);
    if (d->byte_fallback)
        token->byte = (int16_t)byte_token((const char *)bytes, n_bytes);
    token->bytes = bytes;
    token->n_bytes = (uint32_t)n_bytes;
    token->whole = utf8_valid_prefix((const char *)bytes, n_bytes) == n_bytes;
}

/* Gives an id its spelling and its bytes. */
static void tokenizer_put_token(struct parse *p, uint32_t id, const char *text, size_t len)
{
    struct token *token = &p->t->tokens[id];
    char *copy = arena_take(p, token_nbytes(len));

    memcpy(copy, text, len + 1);
    token->text = copy;
    token->text_len = (uint32_t)len;
    tokenizer_json_put_bytes(token, &p->t->decoder, text, len, (unsigned char *)copy + len + 1);
}

/* Counts what the tokens take, and allocates it. Ids are checked here, before they size anything.
 */
static int reserve_tokens(struct parse *p, const json_t *added, struct err *e)
{
    uint32_t id = 0, id_max = 0;
    size_t nbytes = 1, i;
    const char *text;
    json_t *v;

    json_object_foreach(json_mutable(p->vocab), text, v)
    {
        if (member_id(&id, v, "/model/vocab", e) != 0)
            return -1;
        id_max = id > id_max ? id : id_max;
        nbytes += token_nbytes(strlen(text));
    }
    json_array_foreach(added, i, v)
    {
        struct pointer base = pointer_index("/added_tokens", i);

        if (member_id(&id, json_object_get(v, "id"), pointer_member(base.text, "id").text, e) !=
                0 ||
            member_str(&text, v, base.text, "content", e) != 0)
            return -1;
        if (strlen(text) < 1 || strlen(text) > TOKENIZER_ADDED_NBYTES_MAX)
            return err_set(e, ERR_BAD_REQUEST, pointer_member(base.text, "content").text,
                           "%zu bytes; 1 to %d are allowed", strlen(text),
                           TOKENIZER_ADDED_NBYTES_MAX);
        id_max = id > id_max ? id : id_max;
        nbytes += token_nbytes(strlen(text));
    }
    p->t->arena = malloc(nbytes);
    p->t->tokens = calloc((size_t)id_max + 1, sizeof *p->t->tokens);
    if (p->t->arena == NULL || p->t->tokens == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u tokens", id_max + 1);
    p->arena_cap = nbytes;
    p->t->n_tokens = id_max + 1;
    return 0;
}

/* Encoding knows the bytes' tokens by their capital spelling only. */
static bool is_fallback(const char *text)
{
    return byte_token(text, strlen(text)) >= 0 && strpbrk(text, "abcdef") == NULL;
}

static int parse_vocab(struct parse *p, struct err *e)
{
    const char *text;
    json_t *v;

    for (size_t byte = 0; byte < 256; byte++)
        p->t->bpe.byte_ids[byte] = TOKENIZER_ID_NONE;
    json_object_foreach(json_mutable(p->vocab), text, v)
    {
        uint32_t id = (uint32_t)json_integer_value(v);
        struct token *token = &p->t->tokens[id];

        if (token->text != NULL)
            return err_set(e, ERR_BAD_REQUEST, "/model/vocab", "id %u names both '%s' and '%s'", id,
                           member_quote(token->text).text, member_quote(text).text);
        tokenizer_put_token(p, id, text, strlen(text));
        token->in_model = true;
        if (token->mapped && token->n_bytes == 1)
            p->t->bpe.byte_ids[token->bytes[0]] = id;
        if (p->t->bpe.byte_fallback && is_fallback(text))
            p->t->bpe.byte_ids[byte_token(text, strlen(text))] = id;
    }
    return 0;
}

/* ---- added tokens ---- */

/* The id that Hugging Face's tokenizers gives an added token, whatever the file declares. */
static uint32_t effective_id(const struct parse *p, const char *content)
{
    const json_t *known = json_object_get(p->vocab, content);
    int64_t n_vocab = (int64_t)json_object_size(p->vocab);

    if (known != NULL)
        return (uint32_t)json_integer_value(known);
    return (uint32_t)(p->added_id_max >= n_vocab ? p->added_id_max + 1 : n_vocab);
}

static int check_added_id(struct parse *p, const char *content, uint32_t id, const char *base,
                          struct err *e)
{
    uint32_t effective = effective_id(p, content);
    struct pointer field = pointer_member(base, "id");

    if (json_object_get(p->added, content) != NULL)
        return err_set(e, ERR_BAD_REQUEST, pointer_member(base, "content").text,
                       "'%s' is listed twice", member_quote(content).text);
    if (id != effective)
        return err_set(e, ERR_BAD_REQUEST, field.text,
                       "'%s' has id %u, but its place in the vocabulary is %u",
                       member_quote(content).text, id, effective);
    if (p->t->tokens[id].text != NULL && strcmp(p->t->tokens[id].text, content) != 0)
        return err_set(e, ERR_BAD_REQUEST, field.text, "id %u names both '%s' and '%s'", id,
                       member_quote(p->t->tokens[id].text).text, member_quote(content).text);
    if (json_object_set_new(p->added, content, json_true()) != 0)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the added tokens");
    p->added_id_max = id > p->added_id_max ? id : p->added_id_max;
    return 0;
}

/* An added token that is looked for in normalised text is itself normalised first, as Hugging
 * Face's tokenizers does: with a step Prepend it is found where a text begins or after a space. One
 * that this changes is decoded in the new form, and is not special (tokenizers 0.23: it looks for
 * the new form among the special ones as they are given). */
static int normal_content(struct added_token *a, const struct tokenizer *t, struct err *e)
{
    struct token *token = &t->tokens[a->id];
    struct buf scratch[2] = {{0}, {0}};
    const char *text = a->content;
    size_t len = a->len;
    int rc = normal_apply(t, scratch, &text, &len, e);

    if (rc == 0) {
        a->normal = malloc(token_nbytes(len));
        rc = a->normal != NULL ? 0
                               : err_set(e, ERR_NO_MEMORY, "", "no memory for the added tokens");
    }
    if (rc == 0) {
        memcpy(a->normal, text, len);
        if (len != a->len || memcmp(text, a->content, len) != 0) {
            tokenizer_json_put_bytes(token, &t->decoder, a->normal, len,
                                     (unsigned char *)a->normal + len);
            token->special = false;
        }
        a->content = a->normal;
        a->len = len;
    }
    buf_fini(&scratch[0]);
    buf_fini(&scratch[1]);
    return rc;
}

/* Two that are normalised to the same text could not be told apart. */
static int check_distinct(const struct added_set *set, struct err *e)
{
    for (size_t i = 1; i < set->n; i++) {
        const struct added_token *a = &set->tokens[i - 1], *b = &set->tokens[i];

        if (a->len == b->len && memcmp(a->content, b->content, a->len) == 0)
            return err_set(e, ERR_BAD_REQUEST, "/added_tokens",
                           "tokens %u and %u are the same text once they are normalised", a->id,
                           b->id);
    }
    return 0;
}

static int parse_added_token(struct parse *p, const json_t *v, const char *base, struct err *e)
{
    struct added_token a = {0};
    struct added_set *set;
    const char *content;
    bool special, normalized;

    if (member_str(&content, v, base, "content", e) != 0 ||
        member_id(&a.id, json_object_get(v, "id"), pointer_member(base, "id").text, e) != 0 ||
        member_bool(&a.single_word, v, base, "single_word", e) != 0 ||
        member_bool(&a.lstrip, v, base, "lstrip", e) != 0 ||
        member_bool(&a.rstrip, v, base, "rstrip", e) != 0 ||
        member_bool(&normalized, v, base, "normalized", e) != 0 ||
        member_bool(&special, v, base, "special", e) != 0 ||
        check_added_id(p, content, a.id, base, e) != 0)
        return -1;
    if (p->t->tokens[a.id].text == NULL)
        tokenizer_put_token(p, a.id, content, strlen(content));
    p->t->tokens[a.id].special = special;
    a.content = p->t->tokens[a.id].text;
    a.len = p->t->tokens[a.id].text_len;
    if (normalized && normal_content(&a, p->t, e) != 0)
        return -1;
    set = normalized ? &p->t->added_normalized : &p->t->added_raw;
    set->tokens[set->n++] = a;
    return 0;
}

static int parse_added(struct parse *p, const json_t *added, struct err *e)
{
    size_t n = json_array_size(added), i;
    struct added_set *sets[] = {&p->t->added_raw, &p->t->added_normalized};
    const json_t *v;

    p->added = json_object();
    if (p->added == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the added tokens");
    for (i = 0; n > 0 && i < 2; i++) {
        sets[i]->tokens = calloc(n, sizeof *sets[i]->tokens);
        if (sets[i]->tokens == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu added tokens", n);
    }
    json_array_foreach(added, i, v)
    {
        if (parse_added_token(p, v, pointer_index("/added_tokens", i).text, e) != 0)
            return -1;
    }
    added_set_sort(sets[0]);
    added_set_sort(sets[1]);
    return check_distinct(sets[1], e);
}

/* ---- model ---- */

static int model_id(const struct parse *p, const char *text, size_t len, const char *field,
                    uint32_t *id, struct err *e)
{
    const json_t *v = json_object_getn(p->vocab, text, len);

    if (v == NULL) {
        char copy[QUOTED_MAX + 4] = {0};

        memcpy(copy, text, len < sizeof copy - 1 ? len : sizeof copy - 1);
        return err_set(e, ERR_BAD_REQUEST, field, "'%s' is not in the vocabulary",
                       member_quote(copy).text);
    }
    *id = (uint32_t)json_integer_value(v);
    return 0;
}

/* One merge: "a b", or ["a", "b"]; `joined` is scratch. */
static int parse_merge(const struct parse *p, const json_t *v, const char *field,
                       struct merge *merge, struct buf *joined, struct err *e)
{
    const char *left, *right;
    size_t n_left;

    if (json_is_string(v)) {
        left = json_string_value(v);
        right = strchr(left, ' ');
        if (right == NULL || strchr(right + 1, ' ') != NULL)
            return err_set(e, ERR_BAD_REQUEST, field, "'%s' is not two tokens with one space",
                           member_quote(left).text);
        n_left = (size_t)(right++ - left);
    } else {
        left = json_string_value(json_array_get(v, 0));
        right = json_string_value(json_array_get(v, 1));
        if (json_array_size(v) != 2 || left == NULL || right == NULL)
            return err_set(e, ERR_BAD_REQUEST, field, "a merge is \"a b\" or [\"a\", \"b\"]");
        n_left = strlen(left);
    }
    joined->len = 0;
    buf_append(joined, left, n_left);
    buf_puts(joined, right);
    if (joined->failed)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a merge");
    if (model_id(p, left, n_left, field, &merge->left, e) != 0 ||
        model_id(p, right, strlen(right), field, &merge->right, e) != 0)
        return -1;
    return model_id(p, joined->data, joined->len, field, &merge->result, e);
}

static int parse_merges(struct parse *p, const json_t *model, struct err *e)
{
    struct bpe *b = &p->t->bpe;
    const json_t *merges, *v;
    struct buf joined = {0};
    int rc = 0;
    size_t i;

    if (member_array(&merges, model, "/model", "merges", e) != 0)
        return -1;
    if (json_array_size(merges) > TOKENIZER_MERGES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/model/merges", "%zu merges; %d are allowed",
                       json_array_size(merges), TOKENIZER_MERGES_MAX);
    b->merges = malloc((json_array_size(merges) + 1) * sizeof *b->merges);
    if (b->merges == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu merges", json_array_size(merges));
    json_array_foreach(merges, i, v)
    {
        if (json_is_string(v) && strncmp(json_string_value(v), "#version", 8) == 0)
            continue;
        if (json_typeof(v) != json_typeof(json_array_get(merges, 0)))
            rc = member_wrong_type(pointer_index("/model/merges", i).text, v,
                                   "what the first merge is", e);
        else
            rc = parse_merge(p, v, pointer_index("/model/merges", i).text,
                             &b->merges[b->n_merges++], &joined, e);
        if (rc != 0)
            break;
    }
    buf_fini(&joined);
    return rc;
}

/* Members that must be absent, null or empty. */
static int check_model_unused(const json_t *model, struct err *e)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");

    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, affixes[i]);

        if (v != NULL && !json_is_null(v) && (!json_is_string(v) || json_string_length(v) != 0))
            return err_set(e, ERR_BAD_REQUEST, pointer_member("/model", affixes[i]).text,
                           "only null or an empty string is supported");
    }
    if (dropout != NULL && !json_is_null(dropout) &&
        !(json_is_number(dropout) && fpclassify(json_number_value(dropout)) == FP_ZERO))
        return err_set(e, ERR_BAD_REQUEST, "/model/dropout", "only null or 0 is supported");
    return 0;
}

static int parse_model_options(struct parse *p, const json_t *model, struct err *e)
{
    const json_t *type = json_object_get(model, "type"), *unk = json_object_get(model, "unk_token");
    struct bpe *b = &p->t->bpe;

    if (!json_is_object(model))
        return member_wrong_type("/model", model, "an object", e);
    if (type != NULL && !json_is_string(type))
        return member_wrong_type("/model/type", type, "a string", e);
    if (type != NULL && strcmp(json_string_value(type), "BPE") != 0)
        return member_unsupported("/model", json_string_value(type), "BPE", e);
    if (member_bool_or(&b->byte_fallback, model, "/model", "byte_fallback", false, e) != 0 ||
        member_bool_or(&b->fuse_unk, model, "/model", "fuse_unk", false, e) != 0 ||
        member_bool_or(&b->ignore_merges, model, "/model", "ignore_merges", false, e) != 0)
        return -1;
    b->spelled = p->t->decoder.kind == DECODER_SPELLED;
    if (b->byte_fallback && !b->spelled)
        return err_set(e, ERR_BAD_REQUEST, "/model/byte_fallback",
                       "true does not go with a ByteLevel decoder: byte-level BPE has every byte");
    if (check_model_unused(model, e) != 0)
        return -1;
    p->vocab = json_object_get(model, "vocab");
    if (!json_is_object(p->vocab))
        return member_wrong_type("/model/vocab", p->vocab, "an object", e);
    if (json_object_size(p->vocab) == 0)
        return err_set(e, ERR_BAD_REQUEST, "/model/vocab", "the vocabulary is empty");
    if (unk != NULL && !json_is_null(unk) && !json_is_string(unk))
        return member_wrong_type("/model/unk_token", unk, "a string or null", e);
    b->unk_id = TOKENIZER_ID_NONE;
    return 0;
}

static int parse_unk(struct parse *p, const json_t *model, struct err *e)
{
    const json_t *unk = json_object_get(model, "unk_token");

    if (!json_is_string(unk))
        return 0;
    return model_id(p, json_string_value(unk), json_string_length(unk), "/model/unk_token",
                    &p->t->bpe.unk_id, e);
}

/* ---- the whole ---- */

static int check_root(const json_t *root, const json_t **added, struct err *e)
{
    const json_t *version = json_object_get(root, "version");

    if (!json_is_object(root))
        return member_wrong_type("", root, "an object", e);
    if (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/version", "only version \"1.0\" is supported");
    if (json_object_get(root, "added_tokens") == NULL) {
        *added = NULL;
        return 0;
    }
    if (member_array(added, root, "", "added_tokens", e) != 0)
        return -1;
    if (json_array_size(*added) > TOKENIZER_ADDED_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/added_tokens", "%zu added tokens; %d are allowed",
                       json_array_size(*added), TOKENIZER_ADDED_MAX);
    return 0;
}

static int parse_root(struct parse *p, struct err *e)
{
    const json_t *root = p->root, *model = json_object_get(root, "model"), *added;
    struct tokenizer *t = p->t;

    if (check_root(root, &added, e) != 0 ||
        tokenizer_parse_decoder(t, json_object_get(root, "decoder"), e) != 0 ||
        parse_model_options(p, model, e) != 0 ||
        tokenizer_parse_normalizer(t, json_object_get(root, "normalizer"), e) != 0 ||
        tokenizer_parse_pre(t, json_object_get(root, "pre_tokenizer"), e) != 0 ||
        reserve_tokens(p, added, e) != 0 || parse_vocab(p, e) != 0 ||
        parse_added(p, added, e) != 0 || parse_unk(p, model, e) != 0 ||
        parse_merges(p, model, e) != 0 ||
        tokenizer_parse_post(t, json_object_get(root, "post_processor"), e) != 0)
        return -1;
    return bpe_index(&t->bpe, t, e);
}

static int tokenizer_load_json(json_t **out, const char *json, size_t len, struct err *e)
{
    json_error_t error;
    bool starved;

    if (len > TOKENIZER_JSON_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "tokenizer.json has %zu bytes; %d are allowed", len,
                       TOKENIZER_JSON_NBYTES_MAX);
    *out = json_parse_file(json, len, JSON_REJECT_DUPLICATES, &error, &starved);
    if (*out != NULL)
        return 0;
    if (starved)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to read tokenizer.json");
    return err_set(e, ERR_BAD_REQUEST, "", "tokenizer.json, line %d: %s", error.line,
                   member_quote(error.text).text);
}

int tokenizer_parse(struct tokenizer **out, const char *json, size_t len, struct err *e)
{
    struct parse p = {.added_id_max = -1};
    json_t *root;
    int rc;

    if (tokenizer_load_json(&root, json, len, e) != 0)
        return -1;
    p.root = root;
    p.t = calloc(1, sizeof *p.t);
    rc = p.t == NULL ? err_set(e, ERR_NO_MEMORY, "", "no memory for a tokenizer")
                     : parse_root(&p, e);
    json_decref(p.added);
    json_decref(root);
    if (rc != 0) {
        tokenizer_free(p.t);
        return -1;
    }
    *out = p.t;
    return 0;
}
