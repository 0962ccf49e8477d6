/* The group object of /v1/weight_transfer. */
#ifndef BATON_HANDLERS_TRANSFER_JSON_H
#define BATON_HANDLERS_TRANSFER_JSON_H

#include <jansson.h>

struct nccl_join_info;
struct weight_transfer;

json_t *transfer_json(struct weight_transfer *t); /* new, or NULL. Instant */

/* transfer_json_of - transfer_json of an info that the caller has. @info  NULL: there is no
 * group */
json_t *transfer_json_of(const struct weight_transfer *t, const struct nccl_join_info *info);

#endif
