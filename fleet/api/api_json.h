/* The JSON of the APIs, for handlers: the bodies of our clients, and what engines reported. */
#ifndef BATON_FLEET_API_API_JSON_H
#define BATON_FLEET_API_API_JSON_H

#include "fleet/api/api_object.h"
#include "fleet/api/upstream_api.h"

#include <jansson.h>
#include <stdatomic.h>

struct api_object {
    const json_t *json; /* not changed while this is in use */
    char *text;         /* owned; the same as text, once a baton got it; NULL: not yet */
    json_t *owned;      /* NULL: `json` is borrowed, and this is the caller's: api_object_fini */
    atomic_uint n_refs; /* of one that owns */
};
void api_object_fini(struct api_object *o); /* accepts a zeroed one */

/* api_object_json - borrowed; NULL of NULL. */
const json_t *api_object_json(const struct api_object *o);

/* api_read_config - of a reply 200 to API_GET_CONFIG: an object with the names of a vLLM's
 * configuration, of an SGLang the equivalent of these. New; NULL on errors.
 * Errors: ERR_UNREADABLE: it does not say. */
json_t *api_read_config(enum upstream_kind kind, const char *text, size_t len, struct err *e);

#endif
