/* The status of a server with weights of its own. */
#ifndef BATON_HANDLERS_STATUS_STATUS_H
#define BATON_HANDLERS_STATUS_STATUS_H

#include <jansson.h>

struct app;

/* status_json - the reply of GET /v1/status (new); NULL: no memory. Threads: any. Blocks: on short
 * locks only. */
json_t *status_json(const struct app *app);

#endif
