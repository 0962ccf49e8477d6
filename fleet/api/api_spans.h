/* The member `weight_versions` of a reply to a generate: which version made which of its tokens, as
 * vLLM 0.33 and SGLang 0.5.23 write it, and as this server does. */
#ifndef BATON_FLEET_API_API_SPANS_H
#define BATON_FLEET_API_API_SPANS_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An engine's own list. */
struct api_spans {
    struct api_span {
        const char *version; /* borrowed from `json` */
        int64_t start, end;  /* tokens */
    } * list;                /* owned; [n] */
    size_t n;
    void *json; /* owned */
};

/* api_spans_read - Returns: false, and *out is zeroed: it is no such list, or there is no memory.
 */
bool api_spans_read(struct api_spans *out, const char *text, size_t len);
void api_spans_fini(struct api_spans *s); /* zeroes it; accepts a zeroed one */

/* api_spans_put - append one of our own. out->failed: no memory.
 * @span    version "": none; start, end -1: not known; of `end` also: the last token
 * @serial  of the fleet; NULL: not known */
void api_spans_put(struct buf *out, const struct api_span *span, const uint64_t *serial,
                   bool exact);

#endif
