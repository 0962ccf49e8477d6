/* An update as JSON, in every reply that shows one. */
#ifndef BATON_HANDLERS_UPDATE_JSON_H
#define BATON_HANDLERS_UPDATE_JSON_H

#include "weights/update.h"

#include <jansson.h>

/* update_json - the update object (new), or NULL for lack of memory. */
json_t *update_json(const struct update_info *info);

/* update_details - what an error about an update adds: its id, phase and what is missing (new). */
json_t *update_details(const struct update_info *info);

/* update_answered - an update_done_fn; arg is the struct exchange: answers with either. */
void update_answered(void *arg, const struct update_info *info, const struct err *e);

/* error_json - {code, message, param, retryable} (new), or JSON null for a clean one. */
json_t *error_json(const struct err *cause);

/* names_json - up to UPDATE_MISSING_MAX names as an array (new). */
json_t *names_json(const char *const *names, uint32_t n);

#endif
