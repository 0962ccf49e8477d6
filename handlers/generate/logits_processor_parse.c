/* Each list is checked against its limit before anything is allocated for it.
 *
 * Rejected design: accept an id twice in logit_bias ("5" and "05") and let the last one win. The
 * order of JSON members is arbitrary. */
#include "handlers/generate/logits_processor_parse.h"

#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/generate/generate_params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_allowed(struct logits_processor *s, const json_t *o, const char *at,
                        uint32_t vocab_size, struct err *e)
{
    const json_t *array = NULL;
    char field[ERR_FIELD_MAX];
    uint32_t *ids = NULL, n = 0;

    if (body_array(&array, o, at, "allowed_token_ids", e) != 0)
        return -1;
    if (array == NULL)
        return 0;
    (void)snprintf(field, sizeof field, "%s/allowed_token_ids", at);
    if (json_array_size(array) == 0)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'allowed_token_ids' is an empty array; at least 1 id is needed, or null to "
                       "allow all");
    if (generate_parse_ids(&ids, &n, array, field, vocab_size, vocab_size, e) != 0)
        return -1;
    logits_processor_allow(s, ids, n);
    return 0;
}

/* A decimal number as JSON would write it, below vocab_size. */
static bool read_key(uint32_t *id, const char *key, uint32_t vocab_size)
{
    uint64_t v = 0;

    if (key[0] == '\0' || (key[0] == '0' && key[1] != '\0'))
        return false;
    for (const char *p = key; *p != '\0'; p++) {
        if (*p < '0' || *p > '9')
            return false;
        v = v * 10 + (uint64_t)(*p - '0');
        if (v >= vocab_size)
            return false;
    }
    *id = (uint32_t)v;
    return true;
}

static int read_bias(struct logits_processor *s, const char *key, const json_t *v,
                     const char *field, uint32_t vocab_size, struct err *e)
{
    char member[ERR_FIELD_MAX];
    uint32_t id;

    if (!read_key(&id, key, vocab_size))
        return err_set(
            e, ERR_BAD_REQUEST, field,
            "'%.40s' is not a token id; the members of 'logit_bias' are ids from 0 to %u in "
            "decimal digits",
            key, vocab_size - 1);
    if (!json_is_number(v)) {
        (void)snprintf(member, sizeof member, "%.120s/%u", field, id);
        return err_set(e, ERR_BAD_REQUEST, member, "a bias must be a number, found %s",
                       body_type_name(v));
    }
    if (!logits_processor_add_bias(s, id, json_number_value(v)))
        return err_set(e, ERR_BAD_REQUEST, field, "more than %d biases",
                       LOGITS_PROCESSOR_BIASES_MAX);
    return 0;
}

static int read_biases(struct logits_processor *s, const json_t *o, const char *at,
                       uint32_t vocab_size, struct err *e)
{
    const json_t *biases = NULL;
    char field[ERR_FIELD_MAX];
    const char *key;
    json_t *v;

    if (body_object(&biases, o, at, "logit_bias", e) != 0)
        return -1;
    if (biases == NULL)
        return 0;
    (void)snprintf(field, sizeof field, "%s/logit_bias", at);
    if (json_object_size(biases) > LOGITS_PROCESSOR_BIASES_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "%zu biases; at most %d are allowed",
                       json_object_size(biases), LOGITS_PROCESSOR_BIASES_MAX);
    json_object_foreach(json_mutable(biases), key, v)
    {
        if (read_bias(s, key, v, field, vocab_size, e) != 0)
            return -1;
    }
    return 0;
}

/* Length in bytes of the white-space character (as in Python) that the text begins with, or 0. */
static size_t space_len(const char *text, size_t len)
{
    static const char *const spaces[] = {
        "\t",           "\n",           "\v",           "\f",           "\r",
        "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        size_t n = strlen(spaces[i]);

        if (len >= n && memcmp(text, spaces[i], n) == 0)
            return n;
    }
    return 0;
}

/* The token sequences of one bad word. */
struct word {
    uint32_t *ids[2]; /* owned; without and with a space before it */
    size_t n[2];
};

static int encode_word(struct word *w, const struct tokenizer *t, const char *text, size_t len,
                       const char *field, struct err *e)
{
    char spaced[1 + GENERATE_BAD_WORD_LEN_MAX] = " ";

    for (size_t n; (n = space_len(text, len)) > 0; len -= n)
        text += n;
    memcpy(spaced + 1, text, len);
    if (tokenizer_encode(t, spaced + 1, len, false, &w->ids[0], &w->n[0], e) != 0 ||
        tokenizer_encode(t, spaced, len + 1, false, &w->ids[1], &w->n[1], e) != 0) {
        (void)snprintf(e->field, sizeof e->field, "%s", field);
        return -1;
    }
    if (w->n[0] == 0)
        return err_set(e, ERR_BAD_REQUEST, field, "a bad word has no tokens; at least 1 is needed");
    return 0;
}

/* vLLM's rule: the form with a space is forbidden too if it has as many tokens and another first
 * token. */
static int forbid_word(struct logits_processor *s, const struct word *w, const char *field,
                       struct err *e)
{
    bool both = w->n[1] == w->n[0] && w->ids[1][0] != w->ids[0][0];

    for (size_t i = 0; i < (both ? 2 : 1); i++) {
        if (w->n[i] > LOGITS_PROCESSOR_BAD_TOKENS_MAX ||
            !logits_processor_forbid(s, w->ids[i], (uint32_t)w->n[i]))
            return err_set(
                e, ERR_BAD_REQUEST, field,
                "the bad words up to this one have too many tokens; at most %d are allowed",
                LOGITS_PROCESSOR_BAD_TOKENS_MAX);
    }
    return 0;
}

static int read_word(struct logits_processor *s, const json_t *v, const struct tokenizer *t,
                     const char *field, struct err *e)
{
    size_t len = json_string_length(v);
    struct word w = {0};
    int rc;

    if (!json_is_string(v))
        return err_set(e, ERR_BAD_REQUEST, field, "a bad word must be a string, found %s",
                       body_type_name(v));
    if (len == 0 || len > GENERATE_BAD_WORD_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "a bad word has %zu bytes; expected 1 to %d", len,
                       GENERATE_BAD_WORD_LEN_MAX);
    rc = encode_word(&w, t, json_string_value(v), len, field, e);
    if (rc == 0)
        rc = forbid_word(s, &w, field, e);
    free(w.ids[0]);
    free(w.ids[1]);
    return rc;
}

static int read_words(struct logits_processor *s, const json_t *o, const char *at,
                      const struct tokenizer *t, struct err *e)
{
    const json_t *words = NULL;
    char field[ERR_FIELD_MAX];

    if (body_array(&words, o, at, "bad_words", e) != 0)
        return -1;
    if (words == NULL || json_array_size(words) == 0)
        return 0;
    (void)snprintf(field, sizeof field, "%s/bad_words", at);
    if (t == NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "bad words need a tokenizer, and this model has none");
    if (json_array_size(words) > GENERATE_BAD_WORDS_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "%zu bad words; at most %d are allowed",
                       json_array_size(words), GENERATE_BAD_WORDS_MAX);
    for (size_t i = 0; i < json_array_size(words); i++) {
        (void)snprintf(field, sizeof field, "%s/bad_words/%zu", at, i);
        if (read_word(s, json_array_get(words, i), t, field, e) != 0)
            return -1;
    }
    return 0;
}

int logits_processor_parse(struct logits_processor **out, const json_t *object, const char *at,
                           uint32_t vocab_size, const struct tokenizer *t, struct err *e)
{
    struct logits_processor *s;

    if (body_given(object, "allowed_token_ids") == NULL &&
        body_given(object, "logit_bias") == NULL && body_given(object, "bad_words") == NULL) {
        *out = NULL;
        return 0;
    }
    if (logits_processor_new(&s, e) != 0)
        return -1;
    if (read_allowed(s, object, at, vocab_size, e) != 0 ||
        read_biases(s, object, at, vocab_size, e) != 0 || read_words(s, object, at, t, e) != 0)
        goto err_unref;
    *out = s;
    return 0;

err_unref:
    logits_processor_unref(s);
    return -1;
}
