/* The last updates and errors as JSON, for /v1/status. */
#ifndef BATON_HANDLERS_HISTORY_JSON_H
#define BATON_HANDLERS_HISTORY_JSON_H

#include "handlers/rows/member.h"

#include <jansson.h>

struct history;

extern const struct member update_record_reply[], error_record_reply[];

/* recent_updates_json, recent_errors_json - the records of `h`, the oldest first (new); NULL
 * without memory. Threads: any; take MTX_LEAF. Block: no. */
json_t *recent_updates_json(struct history *h);
json_t *recent_errors_json(struct history *h);

#endif
