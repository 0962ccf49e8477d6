/* A tensor's shape in a reply. */
#ifndef BATON_HANDLERS_WEIGHTS_SHAPE_JSON_H
#define BATON_HANDLERS_WEIGHTS_SHAPE_JSON_H

#include "weights/tensor_list.h"

#include <jansson.h>

/* shape_json - [1024, 128] (new), or NULL for lack of memory. */
json_t *shape_json(const struct tensor_spec *t);

#endif
