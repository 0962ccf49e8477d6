/* The text of one sequence while it grows: decoded, held back while a stop string may still match,
 * and cut where one matched.
 *
 * completion_text_push adds tokens; text that can be sent is at the start of `pending`. Text that
 * may be the beginning of a stop string is held back until more tokens, or the end of the sequence,
 * decide. */
#ifndef BATON_HANDLERS_GENERATE_COMPLETION_TEXT_H
#define BATON_HANDLERS_GENERATE_COMPLETION_TEXT_H

#include "base/buf.h"
#include "engine/gen.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct completion_text {
    struct detok detok;
    struct buf pending;             /* decoded, not taken yet */
    size_t n_old;                   /* its bytes from before the last completion_text_more */
    uint64_t n_decoded;             /* code points that detok has returned so far */
    uint64_t n_chars;               /* n_decoded plus the code points that detok still holds */
    const struct gen_params *stops; /* borrowed: the stop strings */
    bool include_stop;
};

/* completion_text_init - start with no text.
 * @n_chars  offset of its first character: the length of an echoed prompt, else 0 */
void completion_text_init(struct completion_text *c, const struct tokenizer *t, bool skip_special,
                          const struct gen_params *stops, bool include_stop, uint64_t n_chars);
/* completion_text_follow - call after init: the text continues that of these ids (the prompt). */
void completion_text_follow(struct completion_text *c, const uint32_t *ids, size_t n);
void completion_text_fini(struct completion_text *c); /* accepts a zeroed one */

/* completion_text_more - new tokens follow. The engine did not stop at the text that is pending, so
 * a complete stop string in it is no match (min_tokens). */
void completion_text_more(struct completion_text *c);
void completion_text_push(struct completion_text *c, uint32_t id);

/* completion_text_ready - the number of bytes at the start of `pending` that can be sent now. */
size_t completion_text_ready(const struct completion_text *c);

/* completion_text_end - the sequence ended: flush, and cut at the stop string if one matched.
 * After it all of `pending` can be sent.
 * @stop_text  the stop string that matched, or NULL
 * @cut        as gen_output.stop_text_cut */
void completion_text_end(struct completion_text *c, const char *stop_text, uint32_t cut);

/* completion_text_take - move the first n bytes of `pending` to the end of `out`. */
void completion_text_take(struct completion_text *c, size_t n, struct buf *out);

/* completion_text_chars - code points in UTF-8 text. */
uint64_t completion_text_chars(const char *text, size_t len);

#endif
