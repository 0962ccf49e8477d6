/* A fleet of doubles under a fake clock: the loop that drives each engine from its facts to what is
 * wanted, updates as phases with barriers, faults, and what must hold after each turn.
 *
 * A rule can be broken on purpose (enum sim_broken): a simulation that does not notice it proves
 * nothing about the rule. */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_FLEET_H
#define BATON_TESTS_UNIT_FLEET_SIM_FLEET_H

#include "tests/unit/fleet/model/sim_double.h"

/* What becomes of a request, other than that it is answered well. */
enum sim_fault {
    FAULT_REFUSED,
    FAULT_UNSENT,
    FAULT_LOST,
    FAULT_LOST_EXECUTED,
    FAULT_RESTARTED,
    FAULT_RESTARTED_EXECUTED,
    SIM_FAULTS /* none */
};

enum { SIM_ENGINES = 4, SIM_OPS = 8, SIM_ASKS = 8, MS = 1000, S = 1000000 };

/* Row: constant, the invariant that is to notice it ("": any), what is done wrong. Where two rules
 * cover each other, both are broken. */
#define SIM_BROKEN_LIST(X)                                                                         \
    X(BROKEN_NOTHING, "", "nothing")                                                               \
    X(BROKEN_DOUBT, "I2", "facts stay known while a request changes them")                         \
    X(BROKEN_ANSWER, "", "an answer of the process before counts (I3)")                            \
    X(BROKEN_RESET, "", "a restart resets nothing (I3)")                                           \
    X(BROKEN_RESET_SENT, "", "what was sent since a process was last seen is forgotten (I3)")      \
    X(BROKEN_FIRST_CACHES, "I4", "a first contact counts as emptied caches")                       \
    X(BROKEN_RESET_ADAPTERS, "I4", "a restart leaves the adapters known (I3)")                     \
    X(BROKEN_RESET_GROUPS, "C4", "a restart leaves the groups known (I3)")                         \
    X(BROKEN_OUT_REACH, "I4", "an engine that does not serve is in rotation")                      \
    X(BROKEN_OUT_SLEEP, "I4", "rotation does not ask for sleep, nor for reports")                  \
    X(BROKEN_OUT_PAUSE, "I4", "rotation does not ask for pauses, nor for reports")                 \
    X(BROKEN_OUT_LABEL, "I4", "rotation does not ask for labels")                                  \
    X(BROKEN_OUT_WEIGHTS, "I4", "rotation does not ask for weights")                               \
    X(BROKEN_OUT_CACHES, "I4", "rotation does not ask for caches")                                 \
    X(BROKEN_OUT_ADAPTERS, "I4", "rotation does not ask for adapters")                             \
    X(BROKEN_OUT_FINISH, "I17",                                                                    \
      "while it ends an update, neither that nor its weights are asked for")                       \
    X(BROKEN_LANES, "I6", "lanes are ignored")                                                     \
    X(BROKEN_WAKE, "I7", "an SGLang is woken from unknown")                                        \
    X(BROKEN_ASLEEP, "I7", "tensors are sent without knowing of sleep")                            \
    X(BROKEN_RUNNING, "I7", "tensors are sent without a pause")                                    \
    X(BROKEN_MARKER, "I7", "tensors are sent without the marker")                                  \
    X(BROKEN_OWN, "I7", "tensors are sent without a start")                                        \
    X(BROKEN_TWICE, "I7", "tensors without an answer are sent again")                              \
    X(BROKEN_VERIFY, "",                                                                           \
      "which process has the tensors is not read, and its release takes any finish (I7)")          \
    X(BROKEN_PREPARED, "I8", "bytes before all are prepared")                                      \
    X(BROKEN_ENDED, "I8", "a resume before all have ended")                                        \
    X(BROKEN_TORN, "I14", "torn weights are taken for whole ones")                                 \
    X(BROKEN_TORN_MARKED, "I8",                                                                    \
      "torn weights are taken for whole ones that have the fleet's label")                         \
    X(BROKEN_RESUME_OWN, "I8", "a resume before its own update is closed")                         \
    X(BROKEN_RESUME_LABEL, "I8", "a resume before its label is set")                               \
    X(BROKEN_RESUME_CACHES, "I8", "a resume before its caches are tried")                          \
    X(BROKEN_SWITCH, "I9",                                                                         \
      "the register switches after the resumes, which do not ask for its serial")                  \
    X(BROKEN_SERIAL, "I9", "an abort sets the register back")                                      \
    X(BROKEN_ASK_DEADLINE, "I10", "a pause waits beyond its deadline")                             \
    X(BROKEN_ASK_TWICE, "I10", "a pause ends twice")                                               \
    X(BROKEN_DUE, "I11", "what failed is never due again")                                         \
    X(BROKEN_REMOVED, "I15", "a removed engine gets what is wanted of the others")                 \
    X(BROKEN_OTHERS, "rule 6", "a pause of another client counts as one of ours")                  \
    X(BROKEN_ROW_SLEEP, "I11", "sleep is not driven")                                              \
    X(BROKEN_ROW_PACKING, "I11", "packing is not driven")                                          \
    X(BROKEN_ROW_LABEL_READ, "I11", "labels are not read")                                         \
    X(BROKEN_ROW_PAUSE, "I11", "pauses are not driven")                                            \
    X(BROKEN_ROW_LABEL_SET, "I11", "labels are not set")                                           \
    X(BROKEN_ROW_OWN, "I11", "own updates are not driven")                                         \
    X(BROKEN_ROW_WEIGHTS, "I11", "weights are not driven")                                         \
    X(BROKEN_ROW_CACHES, "I11", "caches are not driven")                                           \
    X(BROKEN_ROW_ADAPTERS, "I11", "adapters are not driven")                                       \
    X(BROKEN_ROW_PROOF, "I11", "proofs are not driven")
enum sim_broken {
#define X(constant, noticed, text) constant,
    SIM_BROKEN_LIST(X)
#undef X
        SIM_BROKEN
};
const char *sim_broken_text(enum sim_broken broken);
const char *sim_broken_noticed(enum sim_broken broken);

struct sim_op {
    bool is_used, is_executed;
    enum aspect aspect;
    uint64_t process; /* that was known when it was sent */
    uint64_t execute_us, end_us;
    size_t n_calls;
    struct call calls[PLAN_CALLS_MAX];
    struct have_before before[PLAN_CALLS_MAX];
    enum answer answers[PLAN_CALLS_MAX];
    struct reply replies[PLAN_CALLS_MAX];
    char label[SIM_LABEL_MAX];      /* that a read got */
    char text[API_VERSION_MAX + 1]; /* that a set or a finish brings */
    uint64_t target;                /* process that listened when it was sent */
    uint64_t update;
    int serial;
};

struct sim_engine {
    struct sim_double d;
    uint64_t up_us; /* it starts again then; in the past: it is up */
    bool is_used, removed, was_down;
    bool reachable, serves;
    uint64_t known, probe_us;
    uint64_t stray; /* process that got tensors or a label meant for the one before it */
    uint32_t sent;  /* since `known` was last seen */
    struct engine_have have;
    struct adapter_have adapters[SIM_ADAPTERS];
    struct part_want part;
    bool reading_again;
    bool skipped_reset; /* it was not asked to empty its caches since it got tensors */
    struct retry retry[ASPECTS];
    struct sim_op ops[SIM_OPS];
};

enum sim_phase {
    PHASE_NONE,
    PHASE_STARTING,
    PHASE_OPEN,
    PHASE_PREPARING,
    PHASE_SENDING,
    PHASE_VERIFYING,
    PHASE_FINISHING,
    PHASE_RELEASING,
    PHASE_ABORTING
};

struct sim_update {
    enum sim_phase phase;
    uint64_t number;
    int serial;
    bool repair, switched, misses_baton;
    unsigned n_chunks, n_wanted;
    uint64_t end_us; /* of the phase */
    char marker[SIM_LABEL_MAX], label[SIM_LABEL_MAX];
};

struct sim_ask {
    bool is_open;
    uint64_t end_us;
    uint64_t targets[SIM_ENGINES]; /* process of each; 0: none */
    enum gate_fact before;
    unsigned n_ends;
};

struct sim {
    enum sim_broken broken;
    uint64_t random, now_us, next_us;
    bool forces_fault; /* of the next request */
    enum sim_fault forced;
    unsigned faults; /* of a thousand requests, of each kind of fault */
    struct sim_engine engines[SIM_ENGINES];
    struct wants w;
    struct adapter_want adapters[SIM_ADAPTERS];
    struct sim_update update;
    struct sim_ask ask; /* the pause that waits */
    uint64_t n_updates;
    int last_serial;
    uint64_t highest;        /* serial that the register had */
    struct engine_have seen; /* what the table was told last: its plan borrows from both */
    struct wants seen_wants;
    char log[1024];        /* the requests that were sent; "+": at the same time */
    const char *violation; /* the first; NULL: none */
    size_t n_served, n_healed, n_committed, n_aborted, n_turns, n_repairs;
};

void sim_init(struct sim *s, enum sim_broken broken, uint64_t seed);
unsigned sim_random(struct sim *s, unsigned n); /* 0..n-1 */

struct sim_engine *sim_join(struct sim *s, enum upstream_kind kind); /* NULL: there are too many */
void sim_restart(struct sim *s, struct sim_engine *e);
void sim_pause(struct sim *s);
void sim_resume(struct sim *s);
/* sim_rename - give the fleet's version another name, if no update is open. A label is read anew
 * before it is set: the process may have been replaced. */
void sim_rename(struct sim *s);
/* sim_start - start an update, if none is open and the fleet is awake. Returns: has it started? */
bool sim_start(struct sim *s, unsigned n_chunks);
void sim_abort(struct sim *s);

/* sim_run - turns until the time has passed, or something is violated. */
void sim_run(struct sim *s, uint64_t us);
void sim_turn(struct sim *s);

/* Private to the simulation's files. */
void sim_violate(struct sim *s, const char *what);
struct engine_now sim_now(const struct sim_engine *e);
bool sim_is_up(const struct sim *s, const struct sim_engine *e);
bool sim_has_op(const struct sim_engine *e, enum engine_request request);
unsigned sim_out(const struct sim *s, const struct sim_engine *e);
void sim_wants(const struct sim *s, const struct sim_engine *e, struct wants *out);
bool sim_plan(struct sim *s, struct sim_engine *e, uint32_t under_way, struct plan *plan);
void sim_reset(struct sim *s, struct sim_engine *e);
void sim_see_report(struct sim_engine *e);
void sim_op_start(struct sim *s, struct sim_engine *e, const struct plan *plan);
void sim_ops_hear(struct sim *s, struct sim_engine *e);
void sim_update_advance(struct sim *s);
void sim_part_failed(struct sim *s, struct sim_engine *e);
void sim_see(const struct sim *s, const struct sim_engine *e, struct engine_have *out);
uint32_t sim_under_way(const struct sim_engine *e);
void sim_check(struct sim *s);
void sim_begin_repair(struct sim *s, struct sim_engine *e);

#endif
