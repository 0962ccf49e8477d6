/* What the replies of all generate routes share: version spans, usage, logprobs, events. */
#ifndef BATON_HANDLERS_GENERATE_GENERATION_REPLY_H
#define BATON_HANDLERS_GENERATE_GENERATION_REPLY_H

#include "base/buf.h"
#include "control/unread.h"
#include "handlers/generate/generation.h"

#include <jansson.h>

/* system_fingerprint: OpenAI's clients use it to identify the server's build. */
#define GENERATION_FINGERPRINT "baton-" BATON_VERSION

double generation_logprob(float logprob); /* batch_logprob */

/* All return a new reference, or NULL if there is no memory. */
json_t *generation_versions_json(const struct gen_output *out);
json_t *generation_finish_json(const struct gen_output *out);      /* null while out is NULL */
json_t *generation_stop_reason_json(const struct gen_output *out); /* string, id or null */
/* {name, revision} of the adapter; revision is null if nothing was generated. null for the base
 * model. */
json_t *generation_adapter_json(const struct generation *g);
/* Of the whole request. Cached tokens are those of each prompt's first choice: the others nearly
 * always find the prompt, because that one has computed it. */
json_t *generation_usage_json(const struct generation *g, uint64_t n_completion);
/* The usage in an event of a stream: of the choice that the event is of, as in vLLM; null unless
 * each event has one. */
json_t *generation_usage_each(const struct generation_seq *seq, bool each);
json_t *generation_ids_json(const uint32_t *ids, uint32_t n);

/* Large parts are written as text (handlers/json_put.h). */
void generation_put_token_ids(struct buf *out, const struct gen_token *tokens, uint32_t first,
                              uint32_t end);

/* generation_put_prompt_logprobs - append [null, {"<id>": {logprob, rank, decoded_token}}, ...], or
 * null if none were requested.
 * @made       the output that has them, or NULL
 * @n_top_max  most likely tokens to list beside the prompt's own
 * @t          decodes decoded_token; NULL: it is null */
void generation_put_prompt_logprobs(struct buf *out, const struct gen_output *made,
                                    uint32_t n_top_max, const struct tokenizer *t);

/* generation_token_text - append the text of one token; bytes that are no character become U+FFFD.
 */
void generation_token_text(const struct tokenizer *t, uint32_t id, struct buf *out);
void generation_put_token_text(struct buf *out, const struct tokenizer *t, uint32_t id);

/* generation_n_cached - tokens of the sequence's prompt whose KV was there; 0 before its first
 * token. */
uint32_t generation_n_cached(const struct generation_seq *seq);

/* Tokens sent so far (streams); tokens generated. */
uint64_t generation_n_sent(const struct generation *g);
uint64_t generation_n_made(const struct generation *g);

/* generation_outputs_nbytes - memory of the outputs of the sequences that have ended.
 * generation_text_nbytes - about the length of their text in a whole reply. */
uint64_t generation_outputs_nbytes(const struct generation *g);
uint64_t generation_text_nbytes(const struct generation *g);

/* generation_fill_body - make the text, which is emptied, and a newline the data of a body.
 * Errors: ERR_NO_MEMORY, also if text->failed. */
int generation_fill_body(struct unread_body *b, struct buf *text, struct err *e);

/* generation_reply_body - answer with 200 and a body that counts as unread.
 * @b             owned from now on
 * @content_type  static */
void generation_reply_body(struct http_request *x, struct unread_body *b, const char *content_type);

/* generation_reply_whole - called in finish, for a reply of JSON that is not streamed: answer with
 * what `put` writes, or with why there is no reply.
 * @put  sets out->failed if it gives up: the client is gone, or there is no memory */
void generation_reply_whole(struct generation *g,
                            void (*put)(struct buf *out, struct generation *g));

/* generation_client_keeps_up - does the client read the stream fast enough? If not, on_tokens sends
 * nothing more, and is called again once the client has read: until then the answer stays false,
 * so that nothing is skipped. */
enum { GENERATION_UNSENT_MAX = 65536 /* unsent bytes; above it the client is too slow */ };
bool generation_client_keeps_up(struct generation *g);

/* generation_event_tokens_max - how many tokens of a sequence the next event may have. Normally 1.
 * If the client was slow, the tokens since then share one event of at most about
 * GENERATION_UNSENT_MAX bytes; there is no limit where each event repeats all tokens. */
enum { GENERATION_LOGPROB_NBYTES = 100 /* approximate size of a logprob in a reply or event */ };
uint32_t generation_event_tokens_max(const struct generation *g);

/* generation_stream - send bytes of a stream; the first ones open it, as @content_type. If they
 * cannot be sent, the generation is cancelled. */
void generation_stream(struct generation *g, const char *content_type, const void *data,
                       size_t len);

/* generation_break_stream - send no more, cancel the generation, and cut the stream at its end. */
void generation_break_stream(struct generation *g);

/* generation_event - send the JSON in `event`, started by generation_event_begin, as one
 * server-sent event, and free the buffer. The first event opens the stream. If it cannot be sent,
 * the generation is cancelled. */
void generation_event_begin(struct buf *event); /* @event  empty */
void generation_event(struct generation *g, struct buf *event);

/* generation_end - called in finish, for a stream: report a failure, if there is one, and close.
 * Before the first event a failure is a normal error reply, after it an event. */
void generation_end(struct generation *g);

#endif
