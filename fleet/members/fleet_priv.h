/* What the fleet's files share: its table, and how a change of it is begun and ended. */
#ifndef BATON_FLEET_MEMBERS_FLEET_PRIV_H
#define BATON_FLEET_MEMBERS_FLEET_PRIV_H

#include "base/mtx.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstream_state.h"

enum {
    FLEET_NAME_MAX = 200,      /* of a name in a message */
    FLEET_LABEL_TEXT_MAX = 60, /* of a version's */
};

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_GRANTED };

/* All of it is guarded by the fleet's lock, like the table that it is in. */
struct upstream {
    /* What it is: written when it joins, no_pause_controller by fleet_set_pause_queue. */
    const char *name; /* borrowed; NULL: it has none */
    uint64_t hash;    /* of the name, or else of the index: for affinity */
    bool no_pause_queue;

    /* What keeps it out of rotation: written by fleet_state_change alone, once it has joined. */
    unsigned out; /* set of enum upstream_out_reason, without what fleet_out_reasons adds */
    uint64_t fence_incarnation; /* n_lives when it was fenced for what it missed */

    /* What it said, and how often it said nothing (fleet.c). */
    uint64_t probe_ok_us;       /* 0: never */
    bool label_known;           /* saw.label is what it serves now, as far as it says */
    unsigned n_failures_in_row; /* in a row */
    unsigned n_probe_failures;  /* questions about itself, in a row, that gave no answer */
    uint64_t serial;
    struct upstream_report report;
    uint64_t n_failures;

    /* Permits (fleet_permits.c). */
    size_t n_outstanding[FLEET_QUEUES];
    uint64_t n_granted;

    /* Why it is out, in words: written by fleet_set_error and those that clear it. */
    struct err error;     /* why it is out of step, fenced or refused; clean: it is not */
    int64_t error_wall_s; /* since when that is so; 0: it is not */
    uint64_t error_hash;  /* a hash of them */
    struct err no_answer; /* to the last that it was asked; clean: it answered */
    int64_t no_answer_wall_s;

    /* What it has besides the weights (fleet_required_adapters.c). */
    bool requires_adapters;
    uint64_t incarnation, adapters_incarnation; /* processes so far; of which `lack` speaks */
    uint64_t adapters_change;
    struct err missing; /* clean: nothing */

    /* What was told of its state (fleet_info.c). */
    enum upstream_state state, last_seen; /* told last; seen last */
    uint64_t reports_us;                  /* since when n_moves are counted */
    unsigned n_reports;
    uint64_t n_unreported;
};

struct permit_queue {
    struct fleet_ticket *head, **tail;
    size_t n_waiting, n_running;
    uint64_t n_refused, n_cancelled;
};

struct fleet {
    struct mtx lock;            /* rank MTX_ADMISSION; guards down to the blank line */
    struct upstream *upstreams; /* [FLEET_MAX], of which n are used */
    size_t n, min_ready;
    struct permit_queue queues[FLEET_QUEUES];
    size_t next_upstream; /* where the search for the least loaded begins: equals take turns */
    uint64_t serial, weights_epoch, quiesce_order, hold_order;
    char label[FLEET_LABEL_MAX + 1]; /* of the version that is decided */
    bool decided, updating, quiesced, closed, requires_adapters;
    bool generates_held; /* generates for those without a gate wait here */

    struct fleet_cfg cfg; /* immutable */
};

struct fleet_name {
    char text[FLEET_NAME_MAX];
};

/* fleet_name - "http://10.0.0.1:8000", or "upstream 3" of one without a name. */
struct fleet_name fleet_name(const struct fleet *f, size_t upstream);

uint64_t fleet_hash_mix(uint64_t x); /* spreads whatever bits differ over the whole word */

/* fleet_set_error - why it is out of step from now on; the same words again are not news. */
void fleet_set_error(struct upstream *u, const struct err *why);

/* FLEET_SET_ERROR - fleet_set_error with ERR_UNSYNCED and a formatted text. */
#define FLEET_SET_ERROR(u, ...)                                                                    \
    do {                                                                                           \
        struct err why_ = {0};                                                                     \
        (void)err_set(&why_, ERR_UNSYNCED, "", __VA_ARGS__);                                       \
        fleet_set_error((u), &why_);                                                               \
    } while (0)

/* fleet_error_of - what is wrong with it, and since when or when last: that it does not answer goes
 * first, and is forgotten when it does. */
const struct err *fleet_error_of(const struct upstream *u, int64_t *wall_s);

/* fleet_clear_failure_locked - it answered somebody: unless its own questions go unanswered, or it
 * is down, nothing else is held against it. */
void fleet_clear_failure_locked(struct upstream *u);

/* fleet_is_out - is any of these what keeps it out of rotation? Not of what fleet_out_reasons adds.
 */
static inline bool fleet_is_out(const struct upstream *u, unsigned any)
{
    return (u->out & any) != 0;
}

/* fleet_apply_event - an event happened to one of the fleet's. Asserts that the lock is held, and
 * what upstream_state_apply does. */
static inline void fleet_apply_event(const struct fleet *f, struct upstream *u,
                                     enum upstream_event event)
{
    mtx_assert_held(&f->lock);
    upstream_state_apply(&u->out, event);
}

/* fleet_is_alive - does it answer? fleet_is_synced - does it serve the fleet's version? */
static inline bool fleet_is_alive(const struct upstream *u)
{
    return !fleet_is_out(u, OUT_UNREACHABLE);
}

static inline bool fleet_is_synced(const struct upstream *u)
{
    return !fleet_is_out(u, OUT_OTHER_WEIGHTS);
}

/* fleet_is_reliable - does what runs there run as it should? */
static inline bool fleet_is_reliable(const struct upstream *u)
{
    return !fleet_is_out(u, OUT_UNRELIABLE);
}

/* fleet_has_adapters - does it have all that it is to have besides the weights? */
static inline bool fleet_has_adapters(const struct upstream *u)
{
    return !u->requires_adapters ||
           (u->adapters_incarnation == u->incarnation && u->missing.code == ERR_NONE);
}

/* fleet_out_reasons - all that keeps it out of rotation: a set of enum upstream_out_reason. */
static inline unsigned fleet_out_reasons(const struct upstream *u)
{
    return u->out | (u->n_probe_failures >= FLEET_PROBE_FAILURES_MAX ? OUT_PROBES_FAIL : 0) |
           (fleet_has_adapters(u) ? 0 : OUT_ADAPTERS) |
           (u->report.not_ready[0] != '\0' ? OUT_NOT_READY : 0);
}

static inline enum upstream_state fleet_state_of(const struct upstream *u)
{
    return upstream_state_of(fleet_out_reasons(u));
}

static inline bool fleet_in_rotation(const struct upstream *u)
{
    return fleet_out_reasons(u) == 0;
}

bool fleet_any_serving_locked(const struct fleet *f);

/* Each change of the table is made between these two: the second takes down what follows for the
 * fleet's version, lets go of the lock, and tells. */
struct fleet_change {
    size_t n;
    struct fleet_rotation { /* a removed one that is sound serves what it has, and no more */
        bool sound, open;
    } before[FLEET_MAX], after[FLEET_MAX];
};
void fleet_change_begin(struct fleet *f, struct fleet_change *c); /* takes the lock */
void fleet_change_end(struct fleet *f, struct fleet_change *c);

/* ---- fleet_permits.c ---- */

/* fleet_grant_all - somebody entered rotation, who brought room. No lock held. */
void fleet_grant_all(struct fleet *f);

/* ---- fleet_version.c ---- */

/* fleet_label_text - "'step-3'", or "none that has a name". */
struct fleet_label_text {
    char text[FLEET_LABEL_TEXT_MAX + 3];
};
struct fleet_label_text fleet_label_text(const char *label);

/* fleet_decide_version_locked - before the first update: which version is the fleet's, and who has
 * it. */
void fleet_decide_version_locked(struct fleet *f);

/* fleet_awaits_probes_locked - is the version undecided only because some have not answered yet? */
bool fleet_awaits_probes_locked(const struct fleet *f);

/* fleet_version_undecided_locked - no version is decided, and some answered. @e  clean; then set,
 * with which versions there are and what to do */
bool fleet_version_undecided_locked(const struct fleet *f, struct err *e);

/* ---- fleet_reports.c ---- */

/* fleet_store_report_locked - keep what a probe reported. */
void fleet_store_report_locked(const struct fleet *f, struct upstream *u,
                               const struct upstream_report *report);

/* ---- fleet_required_adapters.c ---- */

/* fleet_set_missing_errors_locked - that one lacks something, is not as still as the others, or
 * refuses our key, is told where nothing worse is. */
void fleet_set_missing_errors_locked(struct fleet *f);

/* ---- fleet_info.c ---- */

/* fleet_report_states - says what states have changed. No lock held. */
void fleet_report_states(struct fleet *f);

#endif
