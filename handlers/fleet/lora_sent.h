/* The adapter in a request whose body is its tensors, in front of upstreams. */
#ifndef BATON_HANDLERS_FLEET_LORA_SENT_H
#define BATON_HANDLERS_FLEET_LORA_SENT_H

#include "base/err.h"
#include "fleet/ask/adapter_dir.h"
#include "http/http_request.h"

#include <jansson.h>

/* Borrowed from the request. */
struct lora_sent {
    struct http_request *x;
    struct adapter_content content; /* tensors NULL: the body of the request is JSON */
};

/* lora_sent_parse - read the whole body, and the members in the query.
 * @body  the members as those of a request in JSON, without its source; new, also on an error, or
 *        NULL
 * Threads: any. Blocks: no.
 * Errors: ERR_BAD_REQUEST at the member, or in the body; ERR_NO_MEMORY. */
int lora_sent_parse(struct lora_sent *out, json_t **body, struct http_request *x, struct err *e);

/* lora_sent_write - write the adapter, and let `body` load it from there (lora_path). Frees the
 * tensors, since the engines may take minutes: once for each `sent`.
 * @path  the directory, for free(); NULL on an error
 * Threads and errors: as adapter_dir_write. Blocks: on the disk. */
int lora_sent_write(struct lora_sent *sent, const struct adapter_dir *dir, json_t *body,
                    char **path, struct err *e);

#endif
