/* What the files fleet*.c share: the table, and how each change of it begins and ends. */
#ifndef BATON_FLEET_MEMBERS_FLEET_PRIV_H
#define BATON_FLEET_MEMBERS_FLEET_PRIV_H

#include "base/clock.h"
#include "base/mtx.h"
#include "control/arrivals.h"
#include "fleet/members/fleet.h"
#include "fleet/members/fleet_adapters.h"
#include "fleet/members/prober.h"
#include "fleet/members/retry.h"
#include "fleet/members/upstream_fanout.h"
#include "fleet/members/upstream_state.h"

#include <string.h>

enum {
    FLEET_LABEL_TEXT_MAX = 60,        /* bytes of a label in a message */
    UPSTREAM_START_LOST_US = 30000000 /* so long a start without an answer may still be executed */
};

enum switch_part {
    SWITCH_NO_PART,
    SWITCH_AWAITED, /* it is about to have the version, or has it, which is not confirmed */
    SWITCH_CONFIRMED
};

/* The probe of one engine (fleet/members/prober.c). Of the prober's loop. */
struct probe {
    struct prober *prober;
    struct upstream *upstream;            /* counted while a probe is under way */
    struct upstream_fanout *fanout;       /* NULL: no probe is under way */
    const struct upstream_config *config; /* when the last one was sent */
    enum api_query query;
    uint64_t weights_epoch; /* when the probe was sent */
    uint64_t have_change;   /* the same of have.change */
    uint64_t incarnation;   /* ... of the engine's process */
    uint64_t n_granted;     /* at the last probe; unchanged since: the engine is idle */
    uint64_t still_order;   /* the same of upstream_info.still_order */
    unsigned n_probes;
    bool no_token; /* the last generation probe failed */
    bool awakes;   /* the probe is for fleet_found_awake */
};

/* How an engine gets one of the things that it needs. */
struct fleet_need_state {
    struct retry retry;
    struct err why; /* of the last failure */
};

/* One engine. Guarded by the fleet's lock, unless a line says otherwise. */
struct upstream {
    atomic_uint n_refs;
    atomic_uint n_strong;         /* of those: without the ones of upstream_loosen */
    uint64_t number;              /* immutable */
    struct fleet *fleet;          /* immutable once it is in a list */
    struct fleet_engine *control; /* owned; immutable once it is in a list; NULL: none */
    void (*control_free)(struct fleet_engine *control);
    struct probe probe; /* of the prober's loop */

    /* Written by the thread that changes the table. */
    _Atomic(const struct upstream_config *) config; /* NULL: it is not in a list yet */
    atomic_bool removed;                            /* of those without the lock too */

    /* Written by fleet_add. */
    uint64_t hash;       /* of the name: for affinity */
    uint64_t join_order; /* a larger number joined later; 0: not yet */
    atomic_uint n_lost;  /* how often what runs there became unreliable; relaxed reads need no lock
                          */

    /* What keeps it out of rotation: REASON_BITs. Written by fleet_derive_locked alone. */
    unsigned out;
    struct upstream_error why[UPSTREAM_REASONS]; /* as text; clean where it has no such reason */

    struct engine_have have;       /* of the process `incarnation` */
    uint64_t quiesced_incarnation; /* of the process that is quiesced, or is about to be, with the
                                      others; the rest of them missed it */

    /* What it reported, and what failed (fleet_reports.c). */
    uint64_t probe_ok_us;       /* 0: never */
    bool down;                  /* it does not answer any more, or not in time after it was added */
    bool key_rejected[2];       /* by enum fleet_auth */
    bool label_known;           /* report.label is what it serves now, as far as it reports that */
    unsigned n_failures_in_row; /* of probes and requests */
    unsigned n_probe_failures;  /* of status probes, in a row */
    enum switch_part switching; /* its part in the switch of the fleet's version under way */
    char update_id[FLEET_UPDATE_ID_MAX + 1]; /* its own update of the fleet's version; "": none */
    uint64_t own_start_lost_us; /* when the answer to a start of its own update was given up, or
                                   lost; 0: never */
    char earlier_label[FLEET_LABEL_MAX + 1]; /* with have.weights.earlier_name */
    struct upstream_report report;
    uint64_t n_failures;

    /* Permits (fleet_permits.c). */
    size_t n_outstanding[FLEET_QUEUES];
    uint64_t n_granted;
    uint64_t n_overwrites; /* fleet_note_overwrite */

    struct upstream_error no_answer; /* why the last probe or request failed; clean: it succeeded */

    uint64_t incarnation; /* of its process now */

    /* What it needs besides the weights (fleet_needs.c, fleet_adapters.c). */
    struct adapter_have adapters[FLEET_ADAPTERS_MAX]; /* by fleet_adapter.slot */
    size_t n_block, n_differ;                         /* of those */
    uint32_t blocking;                                /* the first that blocks it, if n_block > 0 */
    struct fleet_need_state needs[FLEET_NEEDS];

    /* Reports of its state (fleet_info.c). */
    enum upstream_state state, last_seen; /* last reported; last seen */
    uint64_t reports_us;                  /* since when n_reports are counted */
    unsigned n_reports;
    uint64_t n_unreported;
};

_Static_assert(offsetof(struct fleet_ticket, ticket) == 0, "a queue has the tickets");

struct fleet {
    struct mtx lock;            /* rank MTX_ADMISSION; guards down to the blank line */
    struct upstream_list *list; /* a reference */
    size_t min_ready;
    struct ticket_queue queues[FLEET_QUEUES];
    size_t next_upstream; /* the place in the list where the search for the least loaded begins:
                             round robin of equals */
    uint64_t serial, weights_epoch, n_joined;
    char label[FLEET_LABEL_MAX + 1]; /* of the fleet's version, once it is decided */
    uint64_t n_named;                /* versions and names of versions that were set */
    struct fleet_version named[FLEET_VERSIONS_MAX]; /* the newest of them; each at its number */
    struct cnd idle; /* an engine has no generate request any more, and fleet_await_idle waits */
    unsigned n_idle_waits;
    bool decided, updating, closed;
    bool renaming; /* engines may report names that are about to be the fleet's, since
                      fleet_begin_switch or fleet_begin_naming; until the end of `updating` */
    struct fleet_still still;
    bool switching, switched; /* since fleet_begin_switch, fleet_switch_version; until its end */
    struct {
        bool weights, kv;
    } asleep;               /* what is to be: fleet_want_sleep */
    struct api_sleep woken; /* the engines were; one that joins may have missed it */
    struct fleet_adapters adapters;
    bool awaits_commit;           /* fleet_await_commit, and no version is committed yet */
    char awaits_why[ERR_MSG_MAX]; /* what is answered then; "": it is not handed over yet */
    struct arrivals arrivals;     /* generates that no engine is known to have yet */
    uint64_t abort_line,
        cut_line;              /* of tickets: smaller ones are aborted; also if they were sent */
    bool since_held;           /* generates that came since the line wait here */
    struct cnd before_settled; /* all of those before the line are known to be in an engine, or
                                  ended; or closed */

    struct fleet_cfg cfg; /* immutable */
};

/* fleet_remedy_or_resync - the same as fleet_remedy, for an engine that may have the version. */
const char *fleet_remedy_or_resync(const struct fleet *f);

uint64_t fleet_hash_mix(uint64_t x); /* spreads the bits that differ over the whole word */

/* fleet_set_why - the text of this reason, from now on until it ends. The same text as before keeps
 * its time.
 * @which  REASON_BROKEN, REASON_AUTH_*, REASON_OTHER_WEIGHTS: the others follow from what is known
 */
void fleet_set_why(struct upstream *u, enum upstream_reason which, const struct err *why);

/* FLEET_SET_WHY - fleet_set_why with ERR_UNSYNCED and a formatted text. */
#define FLEET_SET_WHY(u, which, ...)                                                               \
    do {                                                                                           \
        struct err why_ = {0};                                                                     \
        (void)err_set(&why_, ERR_UNSYNCED, "", __VA_ARGS__);                                       \
        fleet_set_why((u), (which), &why_);                                                        \
    } while (0)

/* fleet_derive_locked - make the reasons and their texts agree with what is known. fleet_change_end
 * does it. */
void fleet_derive_locked(const struct fleet *f, struct upstream *u);

/* fleet_error_of - the gravest of fleet_errors; clean: nothing is wrong.
 * fleet_key_error_of - of one that rejects our key */
void fleet_error_of(const struct upstream *u, struct upstream_error *out);
const struct err *fleet_key_error_of(const struct upstream *u);

/* fleet_clear_failure_locked - a request succeeded: clear no_answer, unless the engine is down or
 * its status probes fail. */
void fleet_clear_failure_locked(struct upstream *u);

/* fleet_is_out - is it out of rotation for one of these reasons? As the last change ended: within a
 * change, look at what is known. */
static inline bool fleet_is_out(const struct upstream *u, unsigned any)
{
    return (u->out & any) != 0;
}

/* upstream_start_may_come - may a start that was not answered still be executed there? */
static inline bool upstream_start_may_come(const struct upstream *u)
{
    return u->own_start_lost_us > 0 &&
           clock_now_us() < u->own_start_lost_us + UPSTREAM_START_LOST_US;
}

/* fleet_is_alive - does it answer? */
static inline bool fleet_is_alive(const struct upstream *u)
{
    return !u->down && u->probe_ok_us != 0;
}

/* fleet_is_synced - does it serve the fleet's version? One that was removed: the version on which
 * its requests began, unless its process has ended. While the fleet switches, the one before too.
 */
static inline bool fleet_is_synced(const struct fleet *f, const struct upstream *u)
{
    return u->have.weights.state == WEIGHTS_SERIAL &&
           (u->have.weights.serial == f->serial || upstream_is_removed(u) ||
            u->switching == SWITCH_AWAITED);
}

/* fleet_may_seed - may the weights of another engine take the place of its own? What a proof found
 * wrong, or a sleep has changed, needs more. */
static inline bool fleet_may_seed(const struct upstream *u)
{
    return u->have.weights.fault == FAULT_NONE || u->have.weights.fault == FAULT_TORN;
}

/* fleet_has_stale_caches - may they hold entries of other weights? Those of a two-phase engine are
 * its own business. */
static inline bool fleet_has_stale_caches(const struct upstream *u)
{
    return !upstream_caps_of(u)->two_phase && have_caches_are_stale(&u->have);
}

/* fleet_has_needs - has it what it needs besides the weights? */
static inline bool fleet_has_needs(const struct upstream *u)
{
    return !fleet_has_stale_caches(u) && u->n_block == 0;
}

/* fleet_may_sleep - may it, wholly or in part, while the others are awake? */
static inline bool fleet_may_sleep(const struct fleet *f, const struct upstream *u)
{
    return (!f->asleep.weights && sleep_is_doubted(u->have.sleep.weights)) ||
           (!f->asleep.kv && sleep_is_doubted(u->have.sleep.kv));
}

/* fleet_hides_sleep - does no query say whether it sleeps? */
static inline bool fleet_hides_sleep(const struct upstream *u)
{
    return upstream_caps_of(u)->hides_pause;
}

/* fleet_to_wake - what of it sleeps while the others are awake, and can be woken. A second wake
 * might end an engine that hides whether it sleeps: of one it is what is known to.
 * fleet_needs_token - may it sleep, and would only a token show that it does not? Not if it is
 * known to: the token might end it. */
struct api_sleep fleet_to_wake(const struct fleet *f, const struct upstream *u);
bool fleet_needs_token(const struct fleet *f, const struct upstream *u);

/* fleet_has_missed_pause - are the others quiesced, and it may not be? */
static inline bool fleet_has_missed_pause(const struct fleet *f, const struct upstream *u)
{
    return f->still.quiesced && u->quiesced_incarnation != u->incarnation &&
           u->have.gate != GATE_PAUSED;
}

static inline bool fleet_in_rotation(const struct upstream *u)
{
    return u->out == 0;
}

bool fleet_any_serving_locked(const struct fleet *f);

/* Each change of the table is made between these two. fleet_change_end decides the fleet's version
 * anew if that is still open, derives what is out of rotation, releases the lock, and then calls
 * the callbacks of fleet_cfg and grants permits. */
void fleet_change_begin(struct fleet *f); /* takes the lock */
void fleet_change_end(struct fleet *f);

/* ---- fleet_adapters.c ---- */

void fleet_adapters_fini(struct fleet_adapters *fa);

/* fleet_adapter_add_locked - the one of that name, which need not be loaded. NULL: as
 * fleet_adapter_begin fails. */
struct fleet_adapter *fleet_adapter_add_locked(struct fleet *f, const char *name, struct err *e);

/* fleet_derive_adapter_locked - make what follows of this adapter agree with the facts of all
 * engines, and forget it if it was unloaded and none has it: O(engines).
 * fleet_derive_adapters_of_locked - those of one engine have changed, of all adapters.
 * fleet_forget_adapters_locked - an engine has left the list. */
void fleet_derive_adapter_locked(struct fleet *f, struct fleet_adapter *a);
void fleet_derive_adapters_of_locked(struct upstream *u);
void fleet_forget_adapters_locked(struct fleet *f);

/* fleet_blocking_adapter - one that keeps it out of rotation; NULL: none does. */
const struct fleet_adapter *fleet_blocking_adapter(const struct fleet *f, const struct upstream *u);

/* fleet_reset_needs_locked - have_reset of what is kept here. */
void fleet_reset_needs_locked(struct upstream *u, bool certain);

/* fleet_adapter_before_locked - what have_doubt needs to know of a load or an unload.
 * fleet_adapter_is_same_locked - has an engine loaded the same files as the one that answered
 * first? @digest  NULL: it does not say
 * fleet_adapter_answered_locked - have_answer has changed before->adapter. */
void fleet_adapter_before_locked(struct fleet *f, struct upstream *u, enum api_op op,
                                 const struct api_args *args, struct have_before *before);
bool fleet_adapter_is_same_locked(struct fleet *f, enum api_op op, const struct api_args *args,
                                  const char *digest);
void fleet_adapter_answered_locked(struct fleet *f, struct upstream *u,
                                   const struct have_before *before);

/* ---- upstream.c ---- */

/* upstream_new - an engine of which nothing is known; one reference. NULL: no memory.
 * @config  NULL: it gets one before it is in a list
 * upstream_is_idle - are all references to it loose? Those of lists are.
 * upstream_list_new - an empty list with room for n. NULL: no memory.
 * upstream_list_add - at its end, with a reference. Before other threads have the list. */
struct upstream *upstream_new(const struct upstream_config *config);
bool upstream_is_idle(const struct upstream *u);
struct upstream_list *upstream_list_new(size_t n);
void upstream_list_add(struct upstream_list *list, struct upstream *u);

/* ---- fleet_permits.c ---- */

/* fleet_grant_all - grant permits to waiting requests: an engine has entered rotation. No lock
 * held. */
void fleet_grant_all(struct fleet *f);

/* ---- fleet_versions_since.c ---- */

/* fleet_keep_name_locked - the fleet has another version, or another label. */
void fleet_keep_name_locked(struct fleet *f);

/* ---- fleet_before.c ---- */

/* fleet_is_kept_locked - may the ticket not be granted now, whatever engines are free? */
bool fleet_is_kept_locked(const struct fleet *f, const struct fleet_ticket *t);

/* fleet_arrive_locked - the ticket is about to be granted or to queue: number it, the first time.
 * Errors: ERR_ABORTED. */
int fleet_arrive_locked(struct fleet *f, struct fleet_ticket *t, struct err *e);

/* ---- fleet_decide.c, fleet_version.c ---- */

/* fleet_label_text - a label for a message: "'step-3'", or "(no label)". */
struct fleet_label_text {
    char text[FLEET_LABEL_TEXT_MAX + 3];
};
struct fleet_label_text fleet_label_text(const char *label);

/* fleet_decide_version_locked - before the first update: decide which version is the fleet's, and
 * which engines are synced. */
void fleet_decide_version_locked(struct fleet *f);

/* fleet_awaits_name - is it to be given the last name? Not weights that a fault has changed. */
static inline bool fleet_awaits_name(const struct upstream *u)
{
    return u->have.weights.earlier_name && !have_is_broken(&u->have);
}

/* fleet_has_earlier_name - does it serve the fleet's version, under this earlier name of it?
 * fleet_check_name_locked - what a report tells of an engine that has not taken the last name. */
static inline bool fleet_has_earlier_name(const struct upstream *u, const char *label)
{
    return u->have.weights.earlier_name && strcmp(label, u->earlier_label) == 0;
}

void fleet_check_name_locked(struct fleet *f, struct upstream *u,
                             const struct upstream_report *report);

/* fleet_is_among - is the engine in the list? @list  [n] */
bool fleet_is_among(const struct upstream *const *list, size_t n, const struct upstream *u);

/* fleet_awaits_probes_locked - is the version undecided because engines have yet to answer? */
bool fleet_awaits_probes_locked(const struct fleet *f);

/* fleet_version_undecided_locked - as fleet_version_undecided. */
bool fleet_version_undecided_locked(const struct fleet *f, struct err *e);

/* ---- fleet_reports.c ---- */

/* fleet_probe_failed_locked - as fleet_probe_failed. */
void fleet_probe_failed_locked(struct upstream *u, bool refused, const struct err *why);

/* fleet_reset_locked - another process of it is there. @certain  as of have_reset */
void fleet_reset_locked(struct upstream *u, bool certain);

/* fleet_store_report_locked - keep what a probe reported, and note a restart. */
void fleet_store_report_locked(struct upstream *u, const struct upstream_report *report);

/* ---- fleet_alias.c ---- */

/* fleet_check_alias_locked - may this engine, of this identity, serve? Errors:
 * ERR_PRECONDITION: it is this server itself; ERR_CONFLICT: an engine that joined earlier. */
int fleet_check_alias_locked(const struct fleet *f, struct upstream *u, const char *identity,
                             struct err *e);

/* fleet_reject_alias_locked - as fleet_reject_alias. If it is not rejected, the engines that
 * joined later and have this identity are down. */
bool fleet_reject_alias_locked(struct fleet *f, struct upstream *u, const char *identity);

/* ---- fleet_info.c ---- */

/* fleet_report_states - call state_changed for the states that have changed. No lock held. */
void fleet_report_states(struct fleet *f);

#endif
