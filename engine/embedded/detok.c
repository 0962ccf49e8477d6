/* Ids to text, a token at a time, by bytes: what is a whole character goes out, what may become one
 * waits (3 bytes at most), what can never be one goes out as U+FFFD. So the pieces joined are the
 * text of the whole, however it was cut, and a token costs its own length. Rejected: decoding a
 * window again for each token, as others do, which cannot tell a real U+FFFD from a half character.
 */
#include "engine/embedded/tokenizer_priv.h"

#include <assert.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.t = t, .skip_special = skip_special};
}

/* Adds one byte to the held ones; afterwards they are a proper start of a character again. */
static void push_byte(struct detok *d, unsigned char byte, struct buf *out)
{
    uint32_t cp;
    int n;

    assert(d->n_held < sizeof d->held);
    d->held[d->n_held++] = byte;
    n = utf8_scan(d->held, d->n_held, &cp);
    if (n > 0) {
        buf_append(out, d->held, d->n_held);
        d->n_held = 0;
    } else if (n < 0) {
        bool again = (unsigned)-n < d->n_held; /* the byte is not part of what went wrong */

        buf_puts(out, replacement);
        d->n_held = 0;
        if (again)
            push_byte(d, byte, out);
    }
}

void detok_bytes(struct detok *d, const unsigned char *bytes, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++)
        push_byte(d, bytes[i], out);
}

void detok_push(struct detok *d, uint32_t id, struct buf *out)
{
    const struct token *token = id < d->t->n_tokens ? &d->t->tokens[id] : NULL;

    if (token == NULL || token->text == NULL || (token->special && d->skip_special))
        return;
    if (d->n_held == 0 && token->whole)
        buf_append(out, token->bytes, token->n_bytes);
    else
        detok_bytes(d, token->bytes, token->n_bytes, out);
}

void detok_end(struct detok *d, struct buf *out)
{
    if (d->n_held > 0)
        buf_puts(out, replacement);
    d->n_held = 0;
}
