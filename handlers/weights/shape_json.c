/* A tensor's shape in a reply. */
#include "handlers/weights/shape_json.h"

json_t *shape_json(const struct tensor_spec *t)
{
    json_t *list = json_array();

    for (uint32_t k = 0; k < t->ndim; k++) {
        if (json_array_append_new(list, json_integer((json_int_t)t->shape[k])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}
