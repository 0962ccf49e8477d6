/* An update as JSON, in every reply that shows one, and the rows of it. */
#ifndef BATON_HANDLERS_UPDATE_JSON_H
#define BATON_HANDLERS_UPDATE_JSON_H

#include "handlers/rows/member.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <stdint.h>

extern const struct member update_reply[];  /* of struct update_info */
extern const struct member sender_reply[];  /* of struct update_sender */
extern const struct member staging_reply[]; /* of struct update_room */
extern const struct member changes_reply[]; /* of struct change_counts */

/* update_json - the update object (new), or NULL for lack of memory. */
json_t *update_json(const struct update_info *info);

/* update_details - the details of an error about an update: its id, phase and missing tensors
 * (new). */
json_t *update_details(const struct update_info *info);

/* base_json - how the base of an update is known (new). @base  a struct update_base */
json_t *base_json(const void *base);

/* changes_json - what a commit changed (new): null if it is not known.
 * @counts  a struct change_counts; for .make of rows */
json_t *changes_json(const void *counts);

/* names_json - up to UPDATE_MISSING_MAX names as an array (new). */
json_t *names_json(const char *const *names, uint32_t n);

#endif
