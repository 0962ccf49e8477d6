/* The chat members of a request to /v1/chat/completions or /tokenize: messages, tools, and options
 * of the chat template. */
#ifndef BATON_HANDLERS_GENERATE_CHAT_PARSE_H
#define BATON_HANDLERS_GENERATE_CHAT_PARSE_H

#include "base/buf.h"
#include "base/err.h"
#include "handlers/app.h"
#include "text/chat_template.h"

#include <jansson.h>
#include <stdbool.h>

enum { CHAT_MESSAGES_MAX = 16384, CHAT_PROMPT_NBYTES_MAX = 4 << 20 };

struct chat_request {
    json_t *messages;                   /* owned; in the form that the template expects */
    json_t *tools, *documents, *kwargs; /* owned, or NULL */
    bool add_generation_prompt, continue_final, add_special;
};

/* chat_check_app - check that this server can render messages.
 * Errors: ERR_NO_ENGINE without a tokenizer; ERR_BAD_REQUEST if the model has no chat template, or
 *         one that is not supported: the message gives the reason. */
int chat_check_app(const struct app *app, struct err *e);

/* chat_parse - parse the chat members of `body`.
 * Content is a string, or an array of parts of text. A template that iterates over parts gets the
 * array; any other template, and a message of role 'tool', gets the parts joined by newlines.
 * Missing content is an empty string; other members that are null, and empty tool calls, are left
 * out. The arguments of an assistant's tool calls come as JSON in a string and are parsed; what is
 * no object becomes an empty one.
 * Errors: ERR_BAD_REQUEST at the member ("/messages/0/content/1/type"); ERR_NO_MEMORY. The caller
 *         calls chat_request_fini also after an error. */
int chat_parse(struct chat_request *out, const json_t *body, const struct chat_template *t,
               struct err *e);
void chat_request_fini(struct chat_request *c); /* accepts a zeroed one */

/* chat_prompt - render the chat template and append the text of the prompt. Slow: call it on a
 * pool. Errors: those of chat_template_render; ERR_TOO_LARGE at /messages. */
int chat_prompt(const struct chat_request *c, const struct chat_template *t, struct buf *out,
                struct err *e);

#endif
