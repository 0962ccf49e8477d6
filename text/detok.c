/* Ids to text, a token at a time, by bytes. Byte-level: what is a whole character goes out, what
 * may become one waits (3 bytes at most), what can never be one goes out as U+FFFD. Spelled: text
 * goes out, runs of byte tokens wait for their end. So the pieces joined are the text of the whole,
 * however it was cut, and a token costs its own length. Rejected: decoding a window again for each
 * token, as others do, which cannot distinguish a real U+FFFD from a half character. */
#include "text/tokenizer_priv.h"

#include <assert.h>
#include <string.h>

enum { CHAR_NBYTES_MAX = 4 };
static const char replacement[] = "\xef\xbf\xbd";

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    d->t = t;
    d->skip_special = skip_special;
    d->broken = false;
    d->n_strip = t->decoder.n_strip;
    d->n_held = d->n_whole = 0;
}

/* How many of the bytes are spaces that the text loses. */
static size_t to_strip(const struct detok *d, const void *text, size_t n)
{
    const char *bytes = text;
    size_t k = 0;

    while (k < n && k < d->n_strip && bytes[k] == ' ')
        k++;
    return k;
}

/* Hands out decided text; without `out` it is dropped. */
static void detok_emit(struct detok *d, const void *text, size_t n, struct buf *out)
{
    size_t k = to_strip(d, text, n);

    d->n_strip = k == n ? d->n_strip - (unsigned)k : 0;
    if (out != NULL)
        buf_append(out, (const char *)text + k, n - k);
}

static void emit_replacements(struct detok *d, unsigned n, struct buf *out)
{
    while (n-- > 0)
        detok_emit(d, replacement, sizeof replacement - 1, out);
}

/* Byte-level: adds one byte to the held ones; afterwards they are a proper start of a character
 * again. */
static void push_byte(struct detok *d, unsigned char byte, struct buf *out)
{
    uint32_t cp;
    int n;

    assert(d->n_held < CHAR_NBYTES_MAX);
    d->held[d->n_held++] = byte;
    n = utf8_scan(d->held, d->n_held, &cp);
    if (n > 0) {
        detok_emit(d, d->held, d->n_held, out);
        d->n_held = 0;
    } else if (n < 0) {
        bool again = (unsigned)-n < d->n_held; /* the byte is not part of the invalid sequence */

        emit_replacements(d, 1, out);
        d->n_held = 0;
        if (again)
            push_byte(d, byte, out);
    }
}

/* The run is longer than the buffer: its whole characters are output. */
static void tell_some(struct detok *d, struct buf *out)
{
    unsigned rest = d->n_held - d->n_whole;

    assert(rest < CHAR_NBYTES_MAX);
    detok_emit(d, d->held, d->n_whole, out);
    memmove(d->held, d->held + d->n_whole, rest);
    d->n_held = rest;
    d->n_whole = 0;
}

/* Spelled: one more byte of a run. */
static void push_run(struct detok *d, unsigned char byte, struct buf *out)
{
    uint32_t cp;
    int n;

    if (d->broken) {
        emit_replacements(d, 1, out);
        return;
    }
    if (d->n_held == DETOK_RUN_MAX)
        tell_some(d, out);
    d->held[d->n_held++] = byte;
    n = utf8_scan(d->held + d->n_whole, d->n_held - d->n_whole, &cp);
    if (n > 0)
        d->n_whole = d->n_held;
    if (n < 0) {
        d->broken = true;
        emit_replacements(d, d->n_held, out);
        d->n_held = d->n_whole = 0;
    }
}

/* Spelled: no byte follows. */
static void end_run(struct detok *d, struct buf *out)
{
    if (d->n_whole == d->n_held)
        detok_emit(d, d->held, d->n_held, out);
    else
        emit_replacements(d, d->n_held, out);
    d->broken = false;
    d->n_held = d->n_whole = 0;
}

static void push_token(struct detok *d, const struct token *token, struct buf *out)
{
    if (d->t->decoder.kind == DECODER_SPELLED) {
        if (token->byte >= 0) {
            push_run(d, (unsigned char)token->byte, out);
            return;
        }
        end_run(d, out);
    } else if (d->n_held > 0 || !token->whole) {
        for (size_t i = 0; i < token->n_bytes; i++)
            push_byte(d, token->bytes[i], out);
        return;
    }
    detok_emit(d, token->bytes, token->n_bytes, out);
}

void detok_push(struct detok *d, uint32_t id, struct buf *out)
{
    const struct token *token = id < d->t->n_tokens ? &d->t->tokens[id] : NULL;

    if (token != NULL && token->text != NULL && !(token->special && d->skip_special))
        push_token(d, token, out);
}

void detok_end(struct detok *d, struct buf *out)
{
    if (d->t->decoder.kind == DECODER_SPELLED)
        end_run(d, out);
    else if (d->n_held > 0)
        emit_replacements(d, 1, out);
    d->n_held = 0;
}

void detok_follow(struct detok *d, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n && d->n_strip > 0; i++)
        detok_push(d, ids[i], NULL);
    if (d->t->decoder.kind == DECODER_SPELLED)
        end_run(d, NULL);
    d->n_held = 0;
}

size_t detok_peek(const struct detok *d, const char **text)
{
    size_t k;

    if (d->n_held == 0 || d->n_whole != d->n_held)
        return 0;
    k = to_strip(d, d->held, d->n_held);
    *text = (const char *)d->held + k;
    return d->n_held - k;
}

void tokenizer_token_text(const struct tokenizer *t, uint32_t id, struct buf *out)
{
    struct detok d;

    detok_init(&d, t, false);
    d.n_strip = 0;
    detok_push(&d, id, out);
    detok_end(&d, out);
}
