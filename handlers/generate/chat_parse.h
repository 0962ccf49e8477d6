/* The chat half of a request, /v1/chat/completions' and /tokenize's: messages, tools, and how the
 * prompt is made of them. */
#ifndef BATON_HANDLERS_GENERATE_CHAT_PARSE_H
#define BATON_HANDLERS_GENERATE_CHAT_PARSE_H

#include "base/buf.h"
#include "base/err.h"
#include "handlers/app.h"
#include "text/chat_template.h"

#include <jansson.h>
#include <stdbool.h>

enum { CHAT_MESSAGES_MAX = 16384, CHAT_PROMPT_NBYTES_MAX = 4 << 20 };

/* The members that chat_parse reads, each followed by a comma. */
#define CHAT_MEMBERS                                                                               \
    "messages", "tools", "tool_choice", "documents", "add_generation_prompt",                      \
        "continue_final_message", "chat_template", "chat_template_kwargs", "add_special_tokens",

struct chat_request {
    json_t *messages;                   /* owned; as the template gets them */
    json_t *tools, *documents, *kwargs; /* owned, or NULL */
    bool add_generation_prompt, continue_final, add_special;
};

/* chat_check_app - can messages become a prompt here?
 * Errors: ERR_NO_ENGINE without a tokenizer; ERR_BAD_REQUEST when the model has no chat template or
 *         one that is not supported: the message says which and why. */
int chat_check_app(const struct app *app, struct err *e);

/* chat_parse - content is text, or parts of type text: an array for a template that walks over
 * parts, else joined by newlines; absent content is empty text. The arguments of an assistant's
 * tool calls, JSON in a string, become what they say. Errors: ERR_BAD_REQUEST at the member
 * ("/messages/0/content/1/type"); ERR_NO_MEMORY. *out is then to be given to chat_request_fini all
 * the same. */
int chat_parse(struct chat_request *out, const json_t *body, const struct chat_template *t,
               struct err *e);
void chat_request_fini(struct chat_request *c); /* accepts a zeroed one */

/* chat_prompt - append the text of the prompt.
 * Errors: as chat_template_render; ERR_TOO_LARGE at /messages. Slow: on a pool. */
int chat_prompt(const struct chat_request *c, const struct chat_template *t, struct buf *out,
                struct err *e);

#endif
