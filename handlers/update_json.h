/* An update as JSON, in every reply that shows one. */
#ifndef BATON_HANDLERS_UPDATE_JSON_H
#define BATON_HANDLERS_UPDATE_JSON_H

#include "weights/update/update.h"

#include <jansson.h>
#include <stdint.h>

/* update_json - the update object (new), or NULL for lack of memory. */
json_t *update_json(const struct update_info *info);

/* update_details - the details of an error about an update: its id, phase and missing tensors
 * (new). */
json_t *update_details(const struct update_info *info);

/* changes_json - what a commit changed (new): null if it is not known. */
json_t *changes_json(const struct change_counts *c);

/* names_json - up to UPDATE_MISSING_MAX names as an array (new). */
json_t *names_json(const char *const *names, uint32_t n);

#endif
