/* /v1/chat/completions: a completion whose prompt is rendered by the model's chat template. Only
 * what differs from /v1/completions is here. A struct completions_op is a chat if its `chat` is
 * set. */
#ifndef BATON_HANDLERS_GENERATE_CHAT_H
#define BATON_HANDLERS_GENERATE_CHAT_H

#include "handlers/generate/completions.h"

/* chat_op_parse - parse the body of a chat request into `op`.
 * @op  from completions_new
 * Errors: at the offending member; see generation_read, completions_parse_sampling,
 * chat_parse. */
int chat_op_parse(struct completions_op *op, const json_t *body, struct err *e);

/* chat_render - render the text of the prompt, before it is tokenized. Runs on app->text_executor.
 */
int chat_render(struct completions_op *op, struct err *e);

/* chat_reply.c: append JSON to a buffer (handlers/json_put.h). */

/* chat_put_choice - append a choice: with `message`, or in a stream with `delta`. The first `delta`
 * of a sequence has the role. */
void chat_put_choice(struct buf *out, const struct completions_part *p);

/* chat_put_tail - append the members that follow the choices in each reply and each event.
 * @usage  stolen */
void chat_put_tail(struct buf *out, struct completions_op *op, json_t *usage);

#endif
