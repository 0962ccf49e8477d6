/* The ranks of the SGLangs in an update: each reads an entry of its own of
 * serialized_named_tensors. */
#ifndef BATON_FLEET_HANDOFF_HANDOFF_RANKS_H
#define BATON_FLEET_HANDOFF_HANDOFF_RANKS_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>

struct fleet_control;
struct fleet_session;

struct handoff_ranks {
    bool is_in[FLEET_MAX];                 /* by part: an SGLang in the update */
    struct api_bucket_ranks of[FLEET_MAX]; /* by part: of such a one */
};

/* handoff_ranks_read - ask the SGLangs in an update. One that does not say how many ranks it has is
 * out of the update, and is not fenced: nothing was sent to it. An earlier answer does not count,
 * because the engine may have been restarted with another number of ranks.
 * @ranks  out
 * Threads: one at a time; no lock held. Blocks: up to the time of a step; as fleet_drop_engine.
 * Errors: those of fleet_query and fleet_drop_engine. */
int handoff_ranks_read(struct handoff_ranks *ranks, struct fleet_control *fc,
                       struct fleet_session *s, struct err *e);

#endif
