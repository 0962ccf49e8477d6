/* One weight update of the whole fleet: who takes part, how far each is, and what follows from what
 * each of them said. No I/O and no lock here: whoever runs the steps owns it.
 *
 * Two kinds of upstream take part (fleet/update/fleet_part.h). Those in two phases (batons) prove
 * what they got and serve it only when told: all of them must, or none does. The others overwrite
 * what they serve, so each stands still from its first byte to its end, and one that did not get
 * there is fenced. */
#ifndef BATON_FLEET_UPDATE_FLEET_SESSION_H
#define BATON_FLEET_UPDATE_FLEET_SESSION_H

#include "base/err.h"
#include "base/lease_timer.h"
#include "fleet/api/upstream_api.h"
#include "fleet/fleet_request.h"
#include "fleet/members/fleet.h"
#include "fleet/update/fleet_coverage.h"
#include "fleet/update/fleet_part.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert((int)API_VERSION_MAX > (int)VERSION_LABEL_MAX,
               "a name of ours is told from a longer one");

/* Written with the lock of the fleet's control. Only the holder of the operation lock begins it,
 * makes it ready and ends it; a request of it writes what it brings (label, selector, lease), and
 * that it is under way. */
struct fleet_session {
    unsigned n_refs;
    char id[UPDATE_ID_MAX + 1];
    enum update_phase phase;
    bool auto_commit, anonymous, partial, sharded;
    bool prepare_begun; /* those that are not in two phases are being stopped, or stand still */
    bool prepared;      /* they do, are marked, and have begun */
    char label[VERSION_LABEL_MAX + 1];
    /* Static: of the start, or of the first that says one; NULL: none does. */
    const char *selector;
    struct lease_timer lease;
    unsigned n_running;              /* requests that bring tensors, under way */
    bool sending;                    /* one of them has the upstreams to itself */
    pthread_t sender;                /* while `sending`: that one's, the last that began */
    uint64_t n_received;             /* requests that brought some */
    uint64_t serial;                 /* of the fleet, once committed */
    struct err error;                /* why it was aborted */
    struct fleet_coverage *coverage; /* owned; NULL: only those in two phases take part */
    json_t *report; /* owned, never changed; the last that a two-phase part said of its update, or
                     without one what has come (fleet_cover.h) */
    size_t n_parts;
    struct fleet_part parts[];
};

/* fleet_session_new - with room for parts. Errors: ERR_NO_MEMORY. */
int fleet_session_new(struct fleet_session **out, size_t n_parts, struct err *e);
void fleet_session_unref(struct fleet_session *s); /* accepts NULL */

bool fleet_session_is_open(const struct fleet_session *s);

/* fleet_session_has_part - does anybody (who is not out) take part in two phases; otherwise? */
bool fleet_session_has_part(const struct fleet_session *s, bool two_phase);

/* fleet_session_overwrites - does anybody take part whose weights change as they come? */
bool fleet_session_overwrites(const struct fleet_session *s);

/* part_drop - a part failed. What it means for the rest: fleet_session_has_quorum. */
void part_drop(struct fleet_part *p, enum fleet_outcome end, int status, const struct err *why);

/* fleet_session_has_quorum - can it still be committed? Every part in two phases takes part, and at
 * least min_ready parts in all. */
bool fleet_session_has_quorum(const struct fleet_session *s, size_t min_ready);

enum session_verdict {
    VERDICT_CONTINUE,
    VERDICT_RETRY, /* nobody took it: it may be sent again */
    VERDICT_ABORT  /* parts differ now, or too few are left */
};

/* fleet_session_apply_results - tensors were sent: take down what each said of them.
 * @results    [n], in the order of `parts` [n], indexes of s->parts
 * @repeats  a request that was taken may come again where it was
 * Every part that is not in two phases was moved by PART_ON_SEND before. */
enum session_verdict fleet_session_apply_results(struct fleet_session *s,
                                                 const struct fleet_result *results,
                                                 const size_t *parts, size_t n, size_t min_ready,
                                                 bool repeats);

/* fleet_client_error - what a part said, as our client is told it: what an upstream does not find
 * is not what the client named. @e  clean; set */
void fleet_client_error(const struct err *why, struct err *e);

/* fleet_session_cause_error - the error that a client is told: of the parts that are out, the first
 * that was refused, else the first. @e  clean; set. */
void fleet_session_cause_error(const struct fleet_session *s, size_t min_ready, struct err *e);

#endif
