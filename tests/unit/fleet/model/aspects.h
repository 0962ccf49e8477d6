/* The table of aspects: in which ways an engine can differ from what it should be, and which
 * request makes it the same again. One row, one small file for each; a new kind of drift is one
 * row. tests/unit/fleet/model/aspects.c has the table, in the order in which aspects are driven.
 *
 * The functions are pure: they know facts (tests/unit/fleet/model/have.h), wants and the goal of
 * the open update (tests/unit/fleet/model/wants.h), and neither requests of clients nor phases. Who
 * sends what they plan calls have_doubt before the first byte, and have_answer with each answer.
 * Each row states by itself what it needs; nothing is safe only because another row comes before
 * it.
 *
 * Threads: the one that owns the fleet. Nothing blocks. */
#ifndef BATON_TESTS_MODEL_ASPECTS_H
#define BATON_TESTS_MODEL_ASPECTS_H

#include "fleet/members/retry.h"
#include "tests/unit/fleet/model/wants.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the order of the table. */
enum aspect {
    ASPECT_SLEEP,
    ASPECT_PACKING, /* the set-up for handles that the open update uses */
    ASPECT_LABEL_READ,
    ASPECT_PAUSE,
    ASPECT_LABEL_SET,
    ASPECT_OWN_UPDATE,
    ASPECT_WEIGHTS,
    ASPECT_CACHES,
    ASPECT_ADAPTERS,
    ASPECT_PROOF,
    ASPECTS
};

/* Why an engine is out of rotation, or does not get what it should. Row: constant, what a person
 * reads and can do; "": nothing has to be done, it is driven. */
#define REASONS_LIST(X)                                                                            \
    X(REASON_NONE, "")                                                                             \
    X(REASON_DOWN, "it does not answer: start it, or remove it")                                   \
    X(REASON_NOT_READY, "it cannot generate, not by this server: resume or wake it")               \
    X(REASON_DRIVEN, "")                                                                           \
    X(REASON_PAUSED, "the fleet is paused: resume it")                                             \
    X(REASON_ASLEEP, "the fleet sleeps: wake it")                                                  \
    X(REASON_UPDATE, "it takes part in the open update: finish or abort that")                     \
    X(REASON_PART_FAILED, "it cannot go on with the open update, which ends without it")           \
    X(REASON_SLEEP_UNKNOWN, "it may be asleep and cannot be asked: restart it")                    \
    X(REASON_NO_VERSION, "the fleet has no version: push an update, or resync")                    \
    X(REASON_OTHER_WEIGHTS, "it has other weights than the fleet: push an update, or resync")      \
    X(REASON_FENCED, "its weights are not whole: push a whole update")                             \
    X(REASON_WRONG, "a proof found its weights wrong: push a whole update, or restart it")
enum reason {
#define X(constant, text) constant,
    REASONS_LIST(X)
#undef X
        REASONS
};
const char *reason_text(enum reason reason); /* static */

/* Requests of one lane exclude each other; lanes_conflict says what else does. */
enum lane { LANE_NONE, LANE_GATE, LANE_WEIGHTS, LANE_ADAPTERS, LANES };

/* request_lane - REQUEST_PROVE has none: it may run beside all. */
enum lane request_lane(enum engine_request request);

/* lanes_conflict - may `next` not be sent while `under_way` is? */
bool lanes_conflict(enum engine_request under_way, enum engine_request next);

/* aspect_failed - an operation has left its aspect as it was: when it may be driven again. */
void aspect_failed(struct retry *retry, enum aspect aspect);

enum { PLAN_CALLS_MAX = 4 };

/* What one aspect of one engine comes to. */
struct step {
    enum { STEP_SAME, STEP_CALL, STEP_BLOCKED, STEP_STUCK } is;
    enum reason why;                   /* STEP_STUCK: until a person or another engine acts */
    struct call calls[PLAN_CALLS_MAX]; /* STEP_CALL: sent at the same time */
    size_t n_calls;
};

struct plan {
    enum aspect aspect; /* ASPECTS: none differs */
    struct step step;
    uint64_t due_us; /* without calls: when the first aspect that failed is due; UINT64_MAX: none */
};

/* aspect_next - find the first aspect, in the order of the table, that differs from its want, is
 * not blocked, is due, and whose lane is free.
 * @under_way  a bit for each enum engine_request that the engine has not answered
 * @retry      [ASPECTS]
 * @out        with false: why nothing is sent. `aspect` is the first that differs, step.why its
 *             reason: REASON_DRIVEN if another one has to be driven first, or a request is under
 *             way, or it is due later
 * Returns: is there anything to send? */
bool aspect_next(const struct engine_now *e, const struct wants *w, uint32_t under_way,
                 const struct retry *retry, uint64_t now_us, struct plan *out);

/* aspects_out - what keeps the engine out of rotation: a bit for each enum aspect that is not known
 * to be as wanted; AND ASPECTS_OUT_REACH for what others did or for no answer; AND
 * ASPECTS_OUT_PART while the open update holds it. 0: it is in rotation. */
enum { ASPECTS_OUT_REACH = 1 << ASPECTS, ASPECTS_OUT_PART = 1 << (ASPECTS + 1) };
unsigned aspects_out(const struct engine_now *e, const struct wants *w);

/* engine_reason - why it is out of rotation: what a person has to act on comes before what is
 * driven, which may be refused for ever because of it. REASON_NONE: it is in rotation. */
enum reason engine_reason(const struct engine_now *e, const struct wants *w);

#endif
