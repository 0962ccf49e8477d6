/* What the answers of generate and completions have in common: spans, usage, logprobs, events. */
#ifndef BATON_HANDLERS_GENERATE_GENERATION_REPLY_H
#define BATON_HANDLERS_GENERATE_GENERATION_REPLY_H

#include "base/buf.h"
#include "handlers/generate/generation.h"

#include <jansson.h>

/* A JSON number must be finite, and some readers refuse anything below this. */
#define GENERATION_LOGPROB_MIN (-9999.0)

/* What OpenAI's clients know a server's build by. */
#define GENERATION_FINGERPRINT "baton-" BATON_VERSION

double generation_logprob(float logprob); /* floored; not finite becomes the floor */

/* All return a new reference, or NULL when there was no memory. */
json_t *generation_versions_json(const struct gen_output *out);
json_t *generation_finish_json(const struct gen_output *out);      /* null while out is NULL */
json_t *generation_stop_reason_json(const struct gen_output *out); /* string, id or null */
/* {name, revision} of the adapter that all of the reply was made with; revision is null when
 * nothing was made; null for the base model. */
json_t *generation_adapter_json(const struct generation *g);
json_t *generation_usage_json(uint64_t n_prompt, uint64_t n_completion);
json_t *generation_ids_json(const uint32_t *ids, uint32_t n);

/* What can be large is written as text (handlers/json_put.h). */
void generation_put_token_ids(struct buf *out, const struct gen_token *tokens, uint32_t first,
                              uint32_t end);

/* generation_put_prompt_logprobs - [null, {"<id>": {logprob, rank, decoded_token}}, ...], or null
 * when none were asked for.
 * @made       the output that carries them, or NULL
 * @n_top_max  best tokens told beside the prompt's own
 * @t          spells decoded_token; NULL leaves it null */
void generation_put_prompt_logprobs(struct buf *out, const struct gen_output *made,
                                    uint32_t n_top_max, const struct tokenizer *t);

/* generation_token_text - one token's own text, alone; bytes that are no character are U+FFFD. */
void generation_token_text(const struct tokenizer *t, uint32_t id, struct buf *out);
void generation_put_token_text(struct buf *out, const struct tokenizer *t, uint32_t id);

/* Tokens of the prompts, counted once each; tokens told so far (streams) or made (answers). */
uint64_t generation_n_prompt(const struct generation *g);
uint64_t generation_n_sent(const struct generation *g);
uint64_t generation_n_made(const struct generation *g);

/* generation_client_keeps_up - does the client of a stream take what it is sent? Else news tells
 * nothing more, and is called again when it has. */
enum { GENERATION_UNSENT_MAX = 65536 /* bytes; beyond it, it does not */ };
bool generation_client_keeps_up(const struct generation *g);

/* generation_event_tokens_max - how many tokens of a sequence its next event may tell: each has one
 * of its own unless the client was behind; then what came since shares one, of about
 * GENERATION_UNSENT_MAX bytes at most where an event tells each token once. */
enum { GENERATION_LOGPROB_NBYTES = 100 /* about: a logprob in an event */ };
uint32_t generation_event_tokens_max(const struct generation *g);

/* generation_event - send the JSON that was written to `event`, which generation_event_begin began
 * and this frees, as one server-sent event; the first one opens the stream. A stream that cannot go
 * on cancels the generation. */
void generation_event_begin(struct buf *event); /* @event  empty */
void generation_event(struct generation *g, struct buf *event);

/* generation_end - in finish, for a stream: tell the failure, if there is one, and close. Before
 * the first event a failure is a plain error reply; after it an event of its own. */
void generation_end(struct generation *g);

#endif
