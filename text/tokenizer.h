/* The tokenizer of a Hugging Face directory: text to ids, ids to text. Immutable once loaded; any
 * number of threads may use one. Time is linear in the input (one word of 1 MB included). */
#ifndef BATON_TEXT_TOKENIZER_H
#define BATON_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* tokenizer_load - read DIR/tokenizer.json.
 * Errors: ERR_NOT_FOUND; ERR_UNREADABLE (no regular file, no permission); ERR_BAD_REQUEST, field =
 *         JSON pointer of the member that is not supported or malformed; ERR_NO_MEMORY. */
int tokenizer_load(struct tokenizer **out, const char *dir, struct err *e);

/* tokenizer_parse - the same from memory (`len` bytes of tokenizer.json). For tests and fuzzing. */
int tokenizer_parse(struct tokenizer **out, const char *json, size_t len, struct err *e);
void tokenizer_free(struct tokenizer *t); /* accepts NULL */

uint32_t tokenizer_vocab_size(const struct tokenizer *t); /* largest id + 1 */

/* tokenizer_encode - text to ids.
 * @text         UTF-8, 16 MiB at most
 * @add_special  apply the post processor's template (BOS and the like)
 * @ids, @n      on success a malloc'ed array, the caller's
 * Errors: ERR_BAD_REQUEST  not UTF-8 (the message names the byte), too long, or the tokenizer's
 *                          pattern hit a limit on this text
 *         ERR_NO_MEMORY    after any error ids and n are as they were */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool add_special,
                     uint32_t **ids, size_t *n, struct err *e);

/* tokenizer_decode - ids to text, appended to `out`; bytes that are no UTF-8 become U+FFFD, one for
 * each maximal invalid part. Unknown ids are ERR_BAD_REQUEST at /tokens/<i>. */
int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                     struct buf *out, struct err *e);

/* tokenizer_token - the token's own spelling ("Ġthe"), or NULL for an unknown id. */
const char *tokenizer_token(const struct tokenizer *t, uint32_t id);
/* tokenizer_token_text - what the token decodes to within a text, appended to `out`: as
 * tokenizer_decode, but a space that only the beginning of a text loses stays. Unknown ids add
 * nothing. */
void tokenizer_token_text(const struct tokenizer *t, uint32_t id, struct buf *out);

/* Incremental decoding: never splits a character, never loses one; what is pushed, joined, is what
 * tokenizer_decode gives. Caller's storage.
 *
 * Byte fallback: a run of byte tokens ("<0x0A>") is text if all of it is UTF-8, and one U+FFFD for
 * each byte if not, so it is held until it ends; only the beginning of a run that is longer than
 * DETOK_RUN_MAX goes out before, whatever follows (Hugging Face's tokenizers would still turn it
 * into U+FFFD). */
enum { DETOK_RUN_MAX = 1024 };
struct detok {
    const struct tokenizer *t; /* borrowed */
    bool skip_special;
    bool broken;                       /* the run of byte tokens is no UTF-8 */
    unsigned n_strip;                  /* spaces that the text may still lose at its beginning */
    unsigned n_held, n_whole;          /* bytes held; of a run: how many are whole characters */
    unsigned char held[DETOK_RUN_MAX]; /* what is not decided */
};
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
void detok_push(struct detok *d, uint32_t id, struct buf *out); /* unknown ids add nothing */
void detok_end(struct detok *d, struct buf *out);               /* flush what is held */

/* detok_follow - after detok_init: what is pushed continues the text of `ids` (a prompt), so that a
 * space at its beginning is only stripped where the whole text begins. */
void detok_follow(struct detok *d, const uint32_t *ids, size_t n);

/* detok_peek - the held bytes, if they are valid text that detok_end would give unchanged. 0 when
 * nothing is held, or when it ends within a character. *text is borrowed, until the next call. */
size_t detok_peek(const struct detok *d, const char **text);

#endif
