/* One engine's part in an update of the fleet: what it serves, and whether it still takes part.
 *
 * A two-phase engine (a baton) verifies the tensors that it got, and serves them only when it is
 * told to finish: its weights are never torn. The other kinds overwrite the weights that they
 * serve, so from before the first byte to the end of the update these are torn. Only an answer that
 * proves that no tensor was taken makes them what they were. An engine that is out stays out; with
 * torn weights it has to be fenced.
 *
 * Ownership: the members that are not immutable are written under the lock of the fleet's control,
 * by the owner of the operation lock (fleet_step_lock) or of the abort lock (fleet_abort_lock), or
 * by the one request that sends tensors (fleet_session.sending). */
#ifndef BATON_FLEET_UPDATE_FLEET_PART_H
#define BATON_FLEET_UPDATE_FLEET_PART_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/calls/fleet_result.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum part_weights {
    PART_AS_BEFORE, /* what it served before the update */
    PART_TORN,      /* maybe half of the update */
    PART_NEW
};

/* The engine's state when the update started. */
enum part_before {
    PART_WAS_IN_STEP,
    PART_WAS_UNDECIDED,   /* out of rotation: the fleet had no version yet */
    PART_WAS_OUT_OF_STEP, /* with the version that the others served */
    PART_WAS_FENCED
};

/* The update that the engine itself keeps, to which tensors belong. */
enum part_update {
    PART_UPDATE_CLOSED,
    PART_UPDATE_EARLIER, /* not told to start, but one of before this update may be open there */
    PART_UPDATE_OPEN,    /* it was, or may have been, told to start, and not yet to finish */
    PART_UPDATE_NONE     /* it has no route to start one */
};

enum fleet_packing_state { FLEET_PACKING_UNKNOWN, FLEET_UNPACKED, FLEET_PACKED };

/* What tells an engine's process from a later one at the same address. */
struct fleet_incarnation {
    char process[FLEET_LABEL_MAX + 1]; /* "": it does not name its process */
    uint64_t incarnation;              /* of upstream_info */
    uint64_t n_failures;
    bool synced;
};

struct fleet_part {
    struct upstream *upstream; /* a reference; NULL: the update is shown only. Immutable since the
                                  update started, and so are the next six */
    uint64_t number;           /* of the engine (upstream_number) */
    bool two_phase;
    bool no_process_id; /* it does not name its process; its version names the update (update_id)
                           instead */
    bool finish_takes_no_label; /* the end of its own update takes no version */
    enum part_before before;
    bool closes_any; /* an earlier update, which may be open there, is closed too */

    enum part_weights weights;
    enum part_weights weights_sent; /* what they were when its last tensors were sent */
    bool out;                       /* it takes part no more: `outcome`, `status` and `why` */
    enum part_update own_update;    /* a start and a finish without tensors change nothing there */
    bool drains_late;               /* its requests did not end in time (--on-update finish) */
    bool may_have_marker;           /* its version is, or may be, our dirty marker */
    bool removed;   /* its engine was seen removed: it still gets the update, and counts
                       for nothing; an engine that is added again is another one */
    bool committed; /* it has committed the update, though its finish failed: the
                       engines behind it lack the version so far */
    enum fleet_packing_state packing; /* of handles, as sent to it in this update */
    enum api_names names;             /* of its parameters */
    bool names_known;                 /* it was asked; else they are plain */
    struct fleet_incarnation
        incarnation; /* when it began to be prepared, or was last asked for its marker and had it;
                        two-phase: when its first tensors were sent, and then its finish */
    struct fleet_incarnation asked; /* when it was asked last: of that process is the answer */
    char old_label[API_VERSION_MAX +
                   1]; /* the version that it reported before it was marked; "": none */
    char label[API_VERSION_MAX + 1];       /* the version that it reported last */
    bool label_read;                       /* and no request has changed it since */
    char update_id[API_UPDATE_ID_MAX + 1]; /* of its own update; else its dirty marker */
    enum fleet_outcome outcome;            /* of the last step */
    int status;
    struct err why;         /* why it failed */
    struct err cache_error; /* why its caches were not emptied; clean: they were */
};

/* part_set_result - record the result of the last step. */
void part_set_result(struct fleet_part *p, enum fleet_outcome end, int status,
                     const struct err *why);

/* part_send - tensors are about to be sent to it.
 * part_not_taken - it took none of those.
 * part_finish - it reports that it serves the new version.
 * part_drop - it failed, and is out. If it served the new version, it is not known to any more.
 *     part_drop_failed: the same if its request failed.
 * part_set_in_doubt - what it got no tensors of may still change it, as a marker or a start of an
 *     update that is over: it needs a whole update. The reason why it is out stays.
 * Whether the update can go on: fleet_session_has_quorum. */
void part_send(struct fleet_part *p);
void part_not_taken(struct fleet_part *p);
void part_finish(struct fleet_part *p);
void part_drop(struct fleet_part *p, enum fleet_outcome end, int status, const struct err *why);
void part_drop_failed(struct fleet_part *p, const struct fleet_result *result);
void part_set_in_doubt(struct fleet_part *p, const struct err *why);

/* part_note_same - it has shown that it was the prepared process when it was asked: failures of
 * before then say nothing. @whatever  was thought of it by then */
void part_note_same(struct fleet_part *p, bool whatever);

/* part_is_unchanged - does it serve what it served before the update?
 * part_has_finished - does it have the new version, and still take part?
 * part_serves - and was its resume not refused or lost?
 * part_reports - has it reported this version, and was not given another one since?
 * part_needs_start - has it to be told to start and to finish an update, as far as is known? */
static inline bool part_is_unchanged(const struct fleet_part *p)
{
    return p->weights == PART_AS_BEFORE;
}

static inline bool part_has_finished(const struct fleet_part *p)
{
    return p->weights == PART_NEW && !p->out;
}

static inline bool part_serves(const struct fleet_part *p)
{
    return part_has_finished(p) && (p->outcome == FLEET_OK || p->outcome == FLEET_SKIPPED);
}

static inline bool part_reports(const struct fleet_part *p, const char *label)
{
    return p->label_read && strcmp(p->label, label) == 0;
}

/* part_may_hang - was its last answer given up, as it was late or an abort came? */
static inline bool part_may_hang(const struct fleet_part *p)
{
    return p->out && p->outcome == FLEET_UNKNOWN && p->why.code == ERR_UNSYNCED;
}

static inline bool part_needs_start(const struct fleet_part *p)
{
    return !p->two_phase && p->own_update != PART_UPDATE_NONE;
}

#endif
