/* /v1/chat/completions as a completion whose prompt a template makes: what differs from
 * /v1/completions. A struct completions_op is a chat's when its `chat` is set. */
#ifndef BATON_HANDLERS_CHAT_H
#define BATON_HANDLERS_CHAT_H

#include "handlers/completions.h"

/* chat_op_parse - a chat request, of messages.
 * @op  of completions_new
 * Errors: at its members; see generation_parse_names, completions_sampling, chat_parse. */
int chat_op_parse(struct completions_op *op, const json_t *body, struct err *e);

/* chat_render - the text of the one prompt, on app->text, before it is encoded. */
int chat_render(struct completions_op *op, struct err *e);

/* Of chat_reply.c. All return new references, or NULL when there was no memory. */

/* chat_logprob_json - an entry of logprobs.content. */
json_t *chat_logprob_json(const struct completions_op *op, const struct gen_token *t);

/* chat_choice_json - a choice: with `message`, or in a stream with `delta`, which names the role in
 * its first event. @logprobs  borrowed; NULL for null */
json_t *chat_choice_json(const struct completions_part *p);

/* chat_envelope - what every answer and every event says. @choices and @usage are stolen. */
json_t *chat_envelope(struct completions_op *op, json_t *choices, json_t *usage);

#endif
