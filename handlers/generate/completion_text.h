/* Text of one sequence as it grows: decoded, held back while a stop string may still match, cut
 * where one did.
 *
 * Tokens go in by completion_text_push; what may be told comes out of `pending`. Text that could be
 * the beginning of a stop string stays in until more tokens or the end decide. */
#ifndef BATON_HANDLERS_GENERATE_COMPLETION_TEXT_H
#define BATON_HANDLERS_GENERATE_COMPLETION_TEXT_H

#include "base/buf.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct completion_text {
    struct detok detok;
    struct buf pending;             /* decoded and not taken yet */
    size_t n_old;                   /* bytes of it that came before the last completion_text_more */
    uint64_t n_decoded;             /* code points that came out of detok so far */
    uint64_t n_chars;               /* the same and the text that detok holds */
    const struct gen_params *stops; /* borrowed: the stop strings */
    bool include_stop;
};

/* completion_text_init - @n_chars  where its first character stands (after an echoed prompt). */
void completion_text_init(struct completion_text *c, const struct tokenizer *t, bool skip_special,
                          const struct gen_params *stops, bool include_stop, uint64_t n_chars);
/* completion_text_follow - after init: the text continues that of these ids (the prompt). */
void completion_text_follow(struct completion_text *c, const uint32_t *ids, size_t n);
void completion_text_fini(struct completion_text *c); /* accepts a zeroed one */

/* completion_text_more - tokens follow that came after the engine had not stopped at what is here,
 * so a whole stop string in it was none. */
void completion_text_more(struct completion_text *c);
void completion_text_push(struct completion_text *c, uint32_t id);

/* completion_text_ready - bytes at the beginning of `pending` that can be told now. */
size_t completion_text_ready(const struct completion_text *c);

/* completion_text_end - the sequence ended: flush, and cut at the stop string if one matched.
 * All of `pending` can be told then.
 * @stop_text  the stop string, or NULL;  @cut  as gen_output.stop_text_cut */
void completion_text_end(struct completion_text *c, const char *stop_text, uint32_t cut);

/* completion_text_take - move the first n bytes of `pending` to the end of `out`. */
void completion_text_take(struct completion_text *c, size_t n, struct buf *out);

/* completion_text_chars - code points in UTF-8 text. */
uint64_t completion_text_chars(const char *text, size_t len);

#endif
