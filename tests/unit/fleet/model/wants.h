/* What was asked of all engines of a fleet, and what the open update asks of one of them. What one
 * engine should be is computed from both; nothing is stored in the engine, so that one which joins
 * or restarts has nothing to be told. Pure functions. Threads: the one that owns the fleet. */
#ifndef BATON_TESTS_MODEL_WANTS_H
#define BATON_TESTS_MODEL_WANTS_H

#include "tests/unit/fleet/model/have.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sleep_want {
    WANT_AWAKE,
    WANT_WEIGHTS, /* a step of waking: an engine that is awake already stays so */
    WANT_ASLEEP
};

struct adapter_want {
    uint32_t revision; /* 0: it was removed; engines that may have it unload it */
    bool required;     /* an engine of the fleet has it: one that has not is out of rotation */
};

struct wants {
    enum gate_fact pause; /* GATE_RUNNING: none; else how */
    enum sleep_want sleep;
    unsigned sleep_level;
    bool pauses_fenced; /* --pause-fenced */
    bool stage;         /* the hand-off can give an engine the fleet's version again */
    uint64_t proof;     /* that each engine is to pass; 0: none */
    struct {
        bool decided;
        uint64_t serial;
        char label[API_VERSION_MAX + 1];
    } version;
    const struct adapter_want *adapters; /* borrowed: [n_adapters] */
    size_t n_adapters;
};

/* Where the open update wants one of its engines. In this order. */
enum part_goal {
    GOAL_NONE,     /* takes no part */
    GOAL_OPENED,   /* two-phase engines have started it; the others are as without it */
    GOAL_PREPARED, /* engines that overwrite their weights stand still with the marker, and have
                      started it */
    GOAL_SENT,     /* the chunk `n_wanted` was sent */
    GOAL_VERIFIED, /* what arrived is known to have arrived at this process */
    GOAL_FINISHED, /* it has the new version and its label */
    GOAL_RELEASED, /* as without it, but kept out of rotation until its label was read once more */
    GOAL_ABORTED   /* as without it */
};

struct part_want {
    enum part_goal goal;
    uint64_t update;    /* number of the update; of one update only */
    uint64_t serial;    /* of its version */
    const char *marker; /* borrowed */
    const char *label;  /* borrowed; of its version */
    uint64_t n_wanted;  /* chunks that were asked for */
    uint64_t n_sent;    /* chunks that were sent to it, each at most once */
    uint64_t packing;   /* the set-up for its handles; 0: none is needed */
    uint64_t groups;    /* bit of the trainer's group by which its tensors come; 0: none */
    bool verified;      /* it answered REQUEST_VERIFY */
    bool confirmed;     /* with GOAL_RELEASED: its label was read after its resume */
};

/* What aspects look at. All borrowed. */
struct engine_now {
    enum upstream_kind kind;
    bool reachable; /* it answers */
    bool serves;    /* its last report, or a token: it can generate, whatever others did to it */
    const struct engine_have *have;
    const struct part_want *part; /* GOAL_NONE: takes no part */
};

/* part_holds - must it stand still, or stay awake, for the open update? */
bool part_holds(const struct engine_now *e);

/* part_overwrites - is it, from its first byte to its end, without whole weights? */
bool part_overwrites(const struct engine_now *e);

/* want_gate - how it should be paused; GATE_RUNNING: not at all. */
enum gate_fact want_gate(const struct engine_now *e, const struct wants *w);

/* want_label - the label that it should report; NULL: whatever it reports is left alone. Borrowed.
 */
const char *want_label(const struct engine_now *e, const struct wants *w);

/* serves_version - does it have the fleet's weights? */
bool serves_version(const struct engine_now *e, const struct wants *w);

/* wants_of_removed - an engine that was removed gets only the end of what this server began. */
void wants_of_removed(struct wants *out, const struct wants *w);

/* is_fenced - are its weights known, or feared, to be none that may serve? */
bool is_fenced(const struct engine_have *have);

#endif
