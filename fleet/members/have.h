/* What is known about one process of an engine.
 *
 * Two rules make these facts safe to act on. Doubt first: before the first byte of a request that
 * changes something is sent, have_doubt makes what it changes unknown, and only an answer makes it
 * known again (have_answer). So a lost answer, a request that was given up and a forgotten error
 * path are one case. And one process: facts are of one process of the engine; have_reset begins
 * those of another, and an answer of the one before changes nothing.
 *
 * Facts begin as "not ours": what others did to an engine is shown, and is not undone. Pure
 * functions: nothing is sent. Threads: those that hold the fleet's lock; nothing blocks. */
#ifndef BATON_FLEET_MEMBERS_HAVE_H
#define BATON_FLEET_MEMBERS_HAVE_H

#include "fleet/api/upstream_api.h"

#include <stdbool.h>
#include <stdint.h>

/* The 0 of each enum is "unknown": it may be anything, because a request of ours was sent. */
enum gate_fact {
    GATE_UNKNOWN,
    GATE_NOT_OURS, /* this server has neither paused nor resumed it */
    GATE_RUNNING,
    GATE_PAUSED
};

/* An engine's own update, of those that keep one (batons). */
enum own_fact {
    OWN_UNKNOWN,
    OWN_NOT_OURS, /* an earlier server may have left one open */
    OWN_CLOSED,
    OWN_OPEN
};

struct engine_have {
    enum gate_fact gate;
    enum own_fact own;

    /* Pauses and resumes under way. Where two overlap, which came last is not known. */
    unsigned n_gate_calls;
    bool gate_calls_overlap;
    uint64_t gate_change; /* grows with each call and each answer */
    bool gate_asked;      /* a call was sent since a report has shown which process is there */
};

enum have_answer {
    HAVE_LOST,    /* none came, or of an error of its own: it was executed, or not, or it will be */
    HAVE_REFUSED, /* not executed, or not sent */
    HAVE_GOOD
};

/* What a request made unknown, so that a refusal gives it back. */
struct have_before {
    uint64_t incarnation; /* of the engine's process (upstream_info) */
    enum gate_fact gate;
    enum own_fact own;
};

/* have_init - nothing is known of the engine: not ours. */
void have_init(struct engine_have *have);

/* have_seen - the process has reported, and it is the same. @gate_change  when it was asked */
void have_seen(struct engine_have *have, uint64_t gate_change);

/* have_reset - begin the facts of another process, which may have executed what was sent since the
 * one before was last seen.
 * @certain  it is another one; false: it may be the same, as it does not name itself */
void have_reset(struct engine_have *have, bool certain);

/* have_doubt - the operation is about to be sent. @before  for have_answer; without `incarnation`
 */
void have_doubt(struct engine_have *have, enum api_op op, struct have_before *before);

/* have_answer - it was answered, or its answer is lost. Once for each have_doubt.
 * @same  the process is the one of have_doubt; false: the facts are of another by now */
void have_answer(struct engine_have *have, enum api_op op, const struct have_before *before,
                 enum have_answer answer, bool same);

#endif
