/* Finding the tensor that a request names. */
#ifndef BATON_HANDLERS_WEIGHTS_WEIGHTS_FIND_H
#define BATON_HANDLERS_WEIGHTS_WEIGHTS_FIND_H

#include "base/err.h"
#include "weights/model_spec.h"

#include <stdint.h>

/* weights_find - index of a tensor of the model spec, by its own name or a tied name.
 * Errors: ERR_NOT_FOUND. */
int weights_find(const struct model_spec *m, const char *name, uint32_t *index, struct err *e);

#endif
