/* /v1/chat/completions as a completion whose prompt a template makes: what differs from
 * /v1/completions. A struct completions_op is a chat's when its `chat` is set. */
#ifndef BATON_HANDLERS_GENERATE_CHAT_H
#define BATON_HANDLERS_GENERATE_CHAT_H

#include "handlers/generate/completions.h"

/* chat_op_parse - a chat request, of messages.
 * @op  of completions_new
 * Errors: at its members; see generation_parse_names, completions_parse_sampling, chat_parse. */
int chat_op_parse(struct completions_op *op, const json_t *body, struct err *e);

/* chat_render - the text of the one prompt, on app->text_executor, before it is encoded. */
int chat_render(struct completions_op *op, struct err *e);

/* Of chat_reply.c: JSON, as handlers/json_put.h writes it. */

/* chat_put_logprob - an entry of logprobs.content. */
void chat_put_logprob(struct buf *out, const struct completions_op *op, const struct gen_token *t);

/* chat_put_choice - a choice: with `message`, or in a stream with `delta`, which names the role in
 * its first event. */
void chat_put_choice(struct buf *out, const struct completions_part *p);

/* chat_put_tail - the members that every answer and every event has behind its choices.
 * @usage  stolen */
void chat_put_tail(struct buf *out, struct completions_op *op, json_t *usage);

#endif
