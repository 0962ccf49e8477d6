/* A fleet with its doubles, a trainer, and what interferes. */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_WORLD_H
#define BATON_TESTS_UNIT_FLEET_SIM_WORLD_H

#include "fleet/calls/fleet_priv.h"
#include "fleet/fleet_root.h"
#include "fleet/members/fleet_priv.h"
#include "fleet/update/fleet_update_priv.h"

#include "tests/unit/fleet/sim/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ENGINES_MAX = 4,
    TARGETS_MAX = 32,
    TARGETS_KEPT = 8, /* of them for the end of a history: more than that needs */
    FOREIGN = 99,     /* version of another client */
    CHUNKS = 2,
    PROBE_US = 1000000, /* timeout of probes, and of no other status */
    ASKS_MAX = 32
};

/* Does this server keep versions, and hand them over: whole, or through windows? */
enum stage { STAGE_NOT, STAGE_WHOLE, STAGE_WINDOWS };

/* How a request fails. DONE: it was executed all the same. */
enum failure {
    FAIL_NOT,
    FAIL_UNSENT,
    FAIL_REFUSED,
    FAIL_ERROR,
    FAIL_ERROR_DONE,
    FAIL_LOST,
    FAIL_LOST_DONE,
    FAIL_LOST_PART, /* of tensors */
    FAIL_HANGS,
    FAIL_HANGS_DONE,
    FAIL_LATE, /* it takes its time */
    FAILURES,
    FAILURES_FIRST = FAIL_LATE
};

/* What happens at a moment. */
enum event {
    EVENT_NONE,
    EVENT_RESTART,  /* the engine that is asked; it is away for a while */
    EVENT_REPLACED, /* the same, and it is back at once */
    EVENT_REMOVE,   /* ... leaves */
    EVENT_READD,    /* ... and joins again */
    EVENT_PAUSE,    /* by the trainer, and a resume later */
    EVENT_RESUME,
    EVENT_SLEEP, /* and a wake later */
    EVENT_WAKE,
    EVENT_ABORT,
    EVENT_SILENCE, /* the trainer sends nothing any more: its lease ends */
    EVENT_PROBE,
    EVENT_SECOND_UPDATE,
    EVENT_ADAPTER,
    EVENT_ABORT_REQUESTS,
    EVENT_RENAME,
    EVENT_SLEEP_2, /* of level 2: weights are dropped */
    EVENT_GONE,    /* as RESTART, for long */
    EVENT_FOREIGN, /* another client pushes a version of its own */
    EVENT_COMMIT,  /* with a store of this server: the next version */
    EVENT_RESYNC,  /* by an operator */
    EVENTS,
    EVENTS_FIRST = EVENT_RENAME
};

enum scenario {
    UPDATE,
    UPDATE_OF_TWO,
    PAUSE,
    SLEEP,
    JOIN,
    LEAVE,
    ADAPTER,
    SCENARIOS,
    /* An update, and its first engine restarts while it waits for another one ... */
    UPDATE_RESTARTED = SCENARIOS,
    UPDATE_PAUSED, /* ... and leaves while the fleet is paused */
    HANDOFF,
    HANDOFF_OF_TWO,
    REPAIR,      /* of one that was restarted */
    REPAIR_JOIN, /* ... that joins */
    STAGE_SCENARIOS
};

/* A request of the trainer's, or of an operator's. */
struct ask {
    const char *what; /* NULL: it has ended */
    uint64_t end_by_us;
};

struct world_cfg {
    uint64_t seed; /* 0: what is ready runs in its order */
    size_t n_engines;
    enum upstream_kind kinds[ENGINES_MAX];
    size_t min_ready; /* 0: all */
    bool recomputes, pause_fenced;
    unsigned fail_percent, yield_percent, event_percent, memory_percent;
    unsigned n_events, n_failures; /* the first of them that may happen */
    enum stage stage;

    uint64_t at_turn; /* then this happens, or this failure; 0: never */
    enum event event;
    enum failure failure;
};

extern struct world {
    struct world_cfg cfg;
    struct upstreams *upstreams;
    struct fleet *fleet;
    struct fleet_control *fc;
    struct engine engines[ENGINES_MAX];
    size_t n_engines;
    uint64_t turn;
    bool quiet;  /* nothing fails any more */
    bool silent; /* the trainer has gone */

    int target; /* the last update that a trainer began */
    unsigned accepted[TARGETS_MAX], sent[TARGETS_MAX][CHUNKS];
    struct {
        bool is_part;
        int base; /* the version that it is a part of */
    } parts[TARGETS_MAX];
    unsigned got[TARGETS_MAX];        /* a bit for each engine that got all of it, once */
    uint64_t first_byte[TARGETS_MAX]; /* turn */
    int newest;                       /* version that clients have seen */
    uint64_t serial;                  /* the highest */
    int n_names;
    int adapter, n_adapters; /* the revision that the fleet has for certain; 0: none */
    unsigned n_wakes; /* that a trainer has asked for: a client's own goes to all that may sleep */
    unsigned n_loads; /* under way, as those */
    bool adapter_unsure;
    bool asked_unknown; /* an engine is, by a request for which another process may have been meant
                         */
    bool asked_removed; /* ... is, by a request that was sent while it was removed */
    unsigned n_pauses;  /* under way, as those */
    struct ask asks[ASKS_MAX];
    bool traced;
} world;

__attribute__((format(printf, 1, 2))) void world_trace(const char *fmt, ...);

/* world_open - a fleet, of which so many engines have joined, until all serve. Nothing fails.
 * world_run - so long. world_is_right - does it serve the fleet's version, and all is in order?
 * world_close - Returns: NULL, or what must not be. */
void world_open(const struct world_cfg *cfg, size_t n_joined);
void world_run(uint64_t us);
bool world_is_right(const struct engine *g);
const char *world_close(void);

/* world_history - one from its begin to its end. Returns: NULL, or what must not be. */
const char *world_history(const struct world_cfg *cfg, enum scenario scenario);

/* world_n_turns - of the scenario of the last history, before it was healed. */
uint64_t world_n_turns(void);

/* world_at_turn - a request, or an answer, is about to arrive: what happens then. */
enum failure world_at_turn(struct engine *g, enum api_op op);

/* world_happens - now, with this engine. */
void world_happens(enum event event, struct engine *g);

/* world_restart - it ends, and begins again after this time. */
void world_restart(struct engine *g, uint64_t away_us);

/* world_note_down - it is away; if the fleet knows, its next process is known to be another. */
void world_note_down(struct engine *g);

int world_version(void); /* the fleet's; TORN: none */
const char *world_url(size_t i);
struct upstream *world_upstream(const struct engine *g);
uint64_t world_incarnation(const struct engine *g); /* how many the fleet has counted */
int world_label(const char *label);                 /* the version that it names; TORN: none */

#endif
