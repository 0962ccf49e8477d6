/* What the engines of an update are sent by a hand-off: a vLLM and a baton one body, each SGLang
 * another, since each of its ranks reads an entry of its own of serialized_named_tensors. */
#ifndef BATON_FLEET_HANDOFF_HANDOFF_REQUEST_H
#define BATON_FLEET_HANDOFF_HANDOFF_REQUEST_H

#include "base/err.h"
#include "fleet/api/api_args.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>

struct fleet_control;
struct fleet_session;

struct handoff_request {
    struct fleet_control *fc; /* borrowed, as the next one */
    struct fleet_session *s;
    struct api_bucket_ranks ranks[FLEET_MAX]; /* by part; zeroed: no SGLang in the update */
    size_t n_sglangs;

    struct api_tensors tensors;            /* for vLLM and baton; owns nothing */
    struct api_tensors sglangs[FLEET_MAX]; /* by part; `entries` owned, its texts not */
    bool mapped[FLEET_MAX];                /* by part; once sent, as fleet_tensors has it */
};

/* handoff_request_new - ask the SGLangs in an update for their ranks. One that does not say how
 * many it has is out of the update, and is not fenced: nothing was sent to it. An earlier answer
 * does not count, because the engine may have been restarted with another number of ranks.
 * Threads: one at a time; no lock held. Blocks: up to the time of a step; as fleet_drop_engine.
 * Errors: those of fleet_query and fleet_drop_engine; ERR_NO_MEMORY. */
int handoff_request_new(struct handoff_request **out, struct fleet_control *fc,
                        struct fleet_session *s, struct err *e);
void handoff_request_free(struct handoff_request *r); /* accepts NULL */

/* handoff_request_drop - fleet_drop_engine. @why  without the engine's name */
int handoff_request_drop(const struct handoff_request *r, struct upstream *upstream,
                         const struct err *why, struct err *e);

/* handoff_request_entries - make the entries of a part, each NULL so far. Errors: ERR_NO_MEMORY;
 * NULL then. */
const char **handoff_request_entries(struct handoff_request *r, size_t part, struct err *e);

/* handoff_request_send - fleet_send_tensors. Errors: its own; ERR_NO_MEMORY.
 * handoff_request_clear - what was sent is forgotten, the ranks are not. */
int handoff_request_send(struct handoff_request *r, struct err *e);
void handoff_request_clear(struct handoff_request *r);

#endif
