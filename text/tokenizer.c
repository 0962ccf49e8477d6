/* The tokenizer: loading, encoding, decoding. tokenizer_priv.h describes the
 * steps from text to ids. */
#include "text/tokenizer_priv.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

int tokenizer_load(struct tokenizer **out, const char *dir, struct err *e)
{
    struct file_cfg file = {
        .dir = dir, .path = "tokenizer.json", .nbytes_max = TOKENIZER_JSON_NBYTES_MAX};
    char *text;
    size_t len;
    int rc;

    if (file_read(&text, &len, &file, e) != 0)
        return -1;
    rc = tokenizer_parse(out, text, len, e);
    free(text);
    return rc;
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n_stages; i++)
        regex_free(t->stages[i].re);
    bpe_fini(&t->bpe);
    free(t->added_raw.tokens);
    for (size_t i = 0; i < t->added_normalized.n; i++)
        free(t->added_normalized.tokens[i].normal);
    free(t->added_normalized.tokens);
    free(t->tokens);
    free(t->arena);
    free(t);
}

uint32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->n_tokens;
}

const char *tokenizer_token(const struct tokenizer *t, uint32_t id)
{
    return id < t->n_tokens ? t->tokens[id].text : NULL;
}

/* One call of tokenizer_encode. */
struct encoding {
    const struct tokenizer *t;
    struct id_list ids;
    struct matcher *matcher;
    struct bpe_scratch bpe;
    struct buf normal[2];                      /* one piece, normalised */
    struct buf marked;                         /* the same after Metaspace */
    struct buf prefixed[TOKENIZER_STAGES_MAX]; /* one word of each stage, with its space */
};

static void encoding_fini(struct encoding *x)
{
    for (size_t i = 0; i < TOKENIZER_STAGES_MAX; i++)
        buf_fini(&x->prefixed[i]);
    buf_fini(&x->normal[0]);
    buf_fini(&x->normal[1]);
    buf_fini(&x->marked);
    bpe_scratch_fini(&x->bpe);
    matcher_free(x->matcher);
    free(x->ids.ids);
}

static int tokenizer_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory to encode the text");
}

static int tokenizer_encode_word(struct encoding *x, size_t i_stage, const char *word, size_t len,
                                 struct err *e);

/* Cuts a word at the stage's pattern; the parts go on to the next stage. */
static int cut_word(struct encoding *x, size_t i_stage, const char *word, size_t len, struct err *e)
{
    struct regex_walk w = {.text = word, .len = len, .last_end = SIZE_MAX};
    size_t done = 0;
    int rc;

    while ((rc = regex_next(x->t->stages[i_stage].re, x->matcher, &w, e)) == 1) {
        if (tokenizer_encode_word(x, i_stage + 1, word + done, w.start - done, e) != 0 ||
            tokenizer_encode_word(x, i_stage + 1, word + w.start, w.end - w.start, e) != 0)
            return -1;
        done = w.end;
    }
    return rc != 0 ? -1 : tokenizer_encode_word(x, i_stage + 1, word + done, len - done, e);
}

/* Takes a word through the stages from `i_stage` on (at most TOKENIZER_STAGES_MAX deep). */
static int tokenizer_encode_word(struct encoding *x, size_t i_stage, const char *word, size_t len,
                                 struct err *e)
{
    const struct stage *stage = &x->t->stages[i_stage];

    if (len == 0)
        return 0;
    if (i_stage == x->t->n_stages)
        return bpe_word(&x->t->bpe, x->t, word, len, &x->bpe, &x->ids, e);
    if (stage->add_prefix_space && word[0] != ' ') {
        struct buf *prefixed = &x->prefixed[i_stage];

        prefixed->len = 0;
        buf_puts(prefixed, " ");
        buf_append(prefixed, word, len);
        if (prefixed->failed)
            return tokenizer_no_memory(e);
        word = prefixed->data;
        len = prefixed->len;
    }
    if (stage->re == NULL)
        return tokenizer_encode_word(x, i_stage + 1, word, len, e);
    return cut_word(x, i_stage, word, len, e);
}

/* Text between added tokens, cut at the marks if that is asked for.
 * @first  the whole text begins with it */
static int encode_marked(struct encoding *x, const char *text, size_t len, bool first,
                         struct err *e)
{
    const struct metaspace *m = &x->t->metaspace;
    size_t done = 0, mark = m->mark.len;

    if (m->scheme == METASPACE_OFF)
        return tokenizer_encode_word(x, 0, text, len, e);
    if (metaspace_apply(m, &x->marked, text, len, first, e) != 0)
        return -1;
    text = x->marked.data;
    len = x->marked.len;
    for (size_t at = 1; m->split && at + mark <= len; at++) {
        if (memcmp(text + at, m->mark.text, mark) != 0)
            continue;
        if (tokenizer_encode_word(x, 0, text + done, at - done, e) != 0)
            return -1;
        done = at;
    }
    return tokenizer_encode_word(x, 0, text + done, len - done, e);
}

/* Text between the added tokens that are found before normalisation. */
static int encode_piece(struct encoding *x, const char *text, size_t len, bool first, struct err *e)
{
    struct added_walk w = {.text = text, .len = len};
    struct added_piece piece;
    int rc = normal_apply(x->t, x->normal, &w.text, &w.len, e);

    while (rc == 0 && added_next(&x->t->added_normalized, &w, &piece))
        rc = piece.id != TOKENIZER_ID_NONE
                 ? id_list_push(&x->ids, piece.id, e)
                 : encode_marked(x, w.text + piece.start, piece.end - piece.start,
                                 first && piece.start == 0, e);
    return rc;
}

static int push_ids(struct encoding *x, const uint32_t *ids, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (id_list_push(&x->ids, ids[i], e) != 0)
            return -1;
    return 0;
}

static int encode_text(struct encoding *x, const char *text, size_t len, bool add_special,
                       struct err *e)
{
    const struct tokenizer *t = x->t;
    struct added_walk w = {.text = text, .len = len};
    struct added_piece piece;
    int rc = 0;

    if (add_special && push_ids(x, t->prefix, t->n_prefix, e) != 0)
        return -1;
    while (rc == 0 && added_next(&t->added_raw, &w, &piece))
        rc = piece.id != TOKENIZER_ID_NONE
                 ? id_list_push(&x->ids, piece.id, e)
                 : encode_piece(x, text + piece.start, piece.end - piece.start, piece.start == 0,
                                e);
    if (rc == 0 && add_special)
        rc = push_ids(x, t->suffix, t->n_suffix, e);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool add_special,
                     uint32_t **ids, size_t *n, struct err *e)
{
    struct encoding x = {.t = t};
    size_t valid;
    int rc = -1;

    if (len > TOKENIZER_TEXT_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "a text of %zu bytes; %d are allowed", len,
                       TOKENIZER_TEXT_NBYTES_MAX);
    valid = utf8_valid_prefix(text, len);
    if (valid != len)
        return err_set(e, ERR_BAD_REQUEST, "", "the text is not UTF-8 at byte %zu", valid);
    x.matcher = matcher_new(len);
    x.ids.cap = 64;
    x.ids.ids = malloc(x.ids.cap * sizeof *x.ids.ids); /* an array, even when it stays empty */
    if (x.matcher == NULL || x.ids.ids == NULL)
        (void)tokenizer_no_memory(e);
    else
        rc = encode_text(&x, text, len, add_special, e);
    if (rc == 0) {
        *ids = x.ids.ids;
        *n = x.ids.n;
        x.ids.ids = NULL;
    }
    encoding_fini(&x);
    return rc;
}

int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                     struct buf *out, struct err *e)
{
    struct detok d;

    for (size_t i = 0; i < n; i++) {
        if (tokenizer_token(t, ids[i]) == NULL) {
            char field[ERR_FIELD_MAX];

            (void)snprintf(field, sizeof field, "/tokens/%zu", i);
            return err_set(e, ERR_BAD_REQUEST, field,
                           "id %u is not in the vocabulary, which ends at %u", ids[i],
                           t->n_tokens - 1);
        }
    }
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], out);
    detok_end(&d, out);
    if (out->failed)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the decoded text");
    return 0;
}
