/* How a group's broadcasts are packed: what a request that joins a group says for all its updates,
 * and an update may say for itself. */
#ifndef BATON_HANDLERS_PACKING_JSON_H
#define BATON_HANDLERS_PACKING_JSON_H

#include "base/err.h"
#include "handlers/rows/update_request.h"

/* packing_settle - `bucket_nbytes` and `packed_buffer_size_bytes` are one: the first gets the
 * value that was given, and p->field its name. Errors: ERR_BAD_REQUEST if both were given. */
int packing_settle(struct packing_request *p, struct err *e);

/* packing_settle_join - packing_settle for a request that joins a group: a size needs `packed`. */
int packing_settle_join(struct packing_request *p, struct err *e);

#endif
