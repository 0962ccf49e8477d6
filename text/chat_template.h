/* The chat template of a model directory: messages to the text that the model was trained to read.
 *
 * As transformers does it: chat_template.jinja and additional_chat_templates/NAME.jinja, or else
 * `chat_template` of tokenizer_config.json, a string or a list of {name, template}. "tool_use"
 * serves requests with tools, "default", which is also that of chat_template.jinja, the others. The
 * special tokens of tokenizer_config.json are variables of the template. A message's reasoning is
 * read by any of its names: reasoning_content, thinking, reasoning. */
#ifndef BATON_TEXT_CHAT_TEMPLATE_H
#define BATON_TEXT_CHAT_TEMPLATE_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHAT_CONFIG_NBYTES_MAX = 16 << 20 }; /* of tokenizer_config.json */

struct chat_template;

/* chat_template_load - read and parse the template of DIR.
 * Errors: ERR_NOT_FOUND (DIR has none); ERR_BAD_REQUEST at /chat_template: what is not supported or
 *         malformed, with its line, or a tokenizer_config.json that cannot be read; ERR_UNREADABLE;
 *         ERR_NO_MEMORY. */
int chat_template_load(struct chat_template **out, const char *dir, struct err *e);

/* chat_template_parse - from memory: what chat_template_load does with what it read.
 * @source  NULL: `chat_template` of @config
 * @config  tokenizer_config.json, also for the special tokens; borrowed; may be NULL
 * Errors: of chat_template_load, but for those of reading. */
int chat_template_parse(struct chat_template **out, const char *source, size_t len,
                        const json_t *config, struct err *e);
void chat_template_free(struct chat_template *t); /* accepts NULL */

/* chat_template_takes_parts - does it walk over a message's content, so that an array of parts can
 * be handed on as it is? Other templates expect text. */
bool chat_template_takes_parts(const struct chat_template *t, bool has_tools);

struct chat_input {
    const json_t *messages; /* borrowed: an array of objects, not empty */
    const json_t *tools;    /* borrowed: an array, or NULL */
    const json_t *documents;
    const json_t *kwargs; /* borrowed: an object of further variables, which go before the
                             others', or NULL */
    bool add_generation_prompt;
    bool continue_final; /* end the text where the last message's content does, also where that
                            is empty or the template trims it; as transformers does it */
    int64_t now_s;       /* the time of strftime_now, in seconds since the epoch, UTC */
};

/* chat_template_render - append the text.
 * Errors: ERR_BAD_REQUEST at /messages: the message of the template's raise_exception, or the
 *         failure with its line, or a final message that the text does not show; ERR_NO_MEMORY.
 *         After an error *out is as it was.
 * Time and memory are bounded, whatever the messages are (text/jinja/jinja.h).
 * Threads: any; many may render with one template. */
int chat_template_render(const struct chat_template *t, const struct chat_input *in,
                         struct buf *out, struct err *e);

#endif
