/* The upstream engines: which there are, what is true of each, and which gets the next request.
 *
 * No I/O happens here. Whoever talks to an upstream reports what it saw; from that alone follows
 * whether it is in rotation:
 *   alive    it answers
 *   synced   it serves the fleet's version: the last one that was committed through here. Whoever
 *            restarts, or serves another label, is not until the next update or a resync. Before
 *            the first update the fleet's version is the one that most of them have, if at least
 *            min_ready do, and to name none is a version like any other; until it is decided
 *            nobody is synced.
 *   unready  it says that it would serve nobody: it starts, drains, or has no weights yet
 *   silent   it answers clients, but for FLEET_PROBE_FAILURES_MAX questions in a row not what it
 * serves refused  it does not take our key unfit    it lacks something that all are to have besides
 * the weights, or may: adapters strayed  all others stand still (a pause, a sleep), and it may not
 * have been told: until they go on fenced   an update touched it and did not end well there, maybe
 * one of a server before this one: until the next one that does; or it was away when the others
 * were put to sleep or woken: until a resync, too removed  the configuration names it no more: it
 * gets nothing new, and what runs there may end
 *
 * An upstream's index is its own until it is removed and idle, and somebody says that it may go to
 * another (fleet_add).
 *
 * Permits are counted for each upstream and lane (generate, text), the line is one for each lane.
 * Who gets the next request: its session's own upstream unless that has more than its share
 * (rendezvous hashing with bounded load), else the one with the fewest outstanding. */
#ifndef BATON_FLEET_MEMBERS_FLEET_H
#define BATON_FLEET_MEMBERS_FLEET_H

#include "base/err.h"
#include "fleet/members/upstream_state.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FLEET_MAX = 256, /* indexes */
    FLEET_FAILURES_DOWN =
        3, /* probes in a row without an answer; a refused connection counts once */
    FLEET_PROBE_FAILURES_MAX =
        10, /* questions in a row without an answer, whatever clients got meanwhile */
    FLEET_REPORTS_MAX = 10,      /* changes of one upstream's state that are told of within … */
    FLEET_REPORTS_US = 60000000, /* … this time */
    FLEET_LABEL_MAX = 128,       /* bytes of a version's label, and of what names a process */
    FLEET_RELEASE_MAX = 63,      /* bytes of the name of a release of its software */
    FLEET_LOAD_PERCENT = 125     /* of its fair share: how much affinity may load one upstream */
};

enum fleet_queue { FLEET_GENERATE, FLEET_TEXT, FLEET_QUEUES };

struct fleet;

/* What one that overwrites what it serves, and takes names, is named from before the first byte of
 * an update to its end, with the update's id behind: a server after the one that began it fences
 * it. */
#define FLEET_DIRTY_MARKER "baton:unfinished:"

/* fleet_is_dirty_marker - is it such a name? */
bool fleet_is_dirty_marker(const char *label);

/* A change of an upstream's state. Those that follow each other are told in their order, unless two
 * threads make them at the same moment. */
struct fleet_state_change {
    size_t upstream;
    const char *name; /* or NULL */
    enum upstream_state from, to;
    char label[FLEET_LABEL_MAX + 1]; /* of what it serves, as far as that is known */
    struct err why;                  /* clean: it serves */
    bool is_last;          /* for FLEET_REPORTS_US: what follows of it is told after that */
    uint64_t n_unreported; /* states since the last that was told */
};

struct fleet_cfg {
    size_t n_upstreams;             /* 1.. FLEET_MAX, to begin with */
    const char *const *names;       /* [n_upstreams], each borrowed until fleet_free; NULL: none */
    size_t n_permits[FLEET_QUEUES]; /* of each upstream */
    size_t n_queue_max[FLEET_QUEUES]; /* that wait for any */
    size_t min_ready;                 /* 1.. */
    /* An upstream left rotation: what is outstanding there may never end. Of FLEET_MAX: nobody is
     * in rotation any more, and whoever waits waits for nothing. No lock held; any thread; must
     * not block. May be NULL. */
    void (*left_rotation)(void *arg, size_t upstream);
    /* The state of one has changed. As left. May be NULL. */
    void (*state_changed)(void *arg, const struct fleet_state_change *move);
    void *arg;
};

/* fleet_new - nobody is alive yet. Errors: ERR_NO_MEMORY. */
int fleet_new(struct fleet **out, const struct fleet_cfg *cfg, struct err *e);
void fleet_free(struct fleet *f); /* nothing queued or granted; accepts NULL */

/* ---- which there are ---- */

/* fleet_add - one more, of which nothing is known yet; once the fleet has a version it is out of
 * step until it says that it has the same, and after the first update until the next.
 * @upstream  the next index, or one that was removed: of another only if it is idle and nobody
 *            remembers it
 * @name      borrowed until fleet_free
 * Threads: one at a time, and so are the next two. */
void fleet_add(struct fleet *f, size_t upstream, const char *name);

/* fleet_remove - it gets nothing more; what runs there may end. */
void fleet_remove(struct fleet *f, size_t upstream);

/* fleet_set_min_ready - how many have to serve. */
void fleet_set_min_ready(struct fleet *f, size_t min_ready);

/* ---- what was seen ---- */

/* An upstream's answer to a question about itself; "" where it does not say. */
struct upstream_report {
    char process[FLEET_LABEL_MAX + 1];   /* names the process: new at each of its starts */
    char label[FLEET_LABEL_MAX + 1];     /* of the weights that it serves */
    char not_ready[FLEET_LABEL_MAX + 1]; /* why it would serve nobody now; "" where it would */
    char release[FLEET_RELEASE_MAX + 1]; /* of its software, where its wire differs by that */
    bool is_stale; /* label and unready may be of before the last fleet_weights_epoch, and are not
                      looked at */
};

/* fleet_probe_ok - it answered. While an update is under way labels are not judged.
 * Threads: any. */
void fleet_probe_ok(struct fleet *f, size_t upstream, const struct upstream_report *report);

/* fleet_check_process - an answer (to a client, or to a step of an update) named the process that
 * made it. False: that is another than was known, so it is out of step, and is the one known from
 * now on. Threads: any. */
bool fleet_check_process(struct fleet *f, size_t upstream, const char *process);

/* fleet_may_report_version - may an answer to a client name this version? Not if the fleet has
 * another, and had it when this was asked: who made it is no longer what was put into step. What
 * changed since is an update's to prove.
 * @epoch  of fleet_weights_epoch, when it was asked. Threads: any. */
bool fleet_may_report_version(struct fleet *f, const char *label, uint64_t weights_epoch);

/* fleet_request_failed - it did not answer a client, or gave no token.
 * fleet_probe_failed - it did not answer a question about itself, or not well.
 * @refused  nobody listens there: it is down at once */
void fleet_request_failed(struct fleet *f, size_t upstream, bool refused, const struct err *why);
void fleet_probe_failed(struct fleet *f, size_t upstream, bool refused, const struct err *why);

/* fleet_auth_failed - it did not take our key, for what clients want (WORK: until fleet_auth_ok) or
 * for a question about itself (STATUS: until fleet_probe_ok). What runs there may end.
 * @why  of ERR_UPSTREAM_KEY */
enum fleet_auth { FLEET_AUTH_PROBE, FLEET_AUTH_REQUEST };
void fleet_auth_failed(struct fleet *f, size_t upstream, enum fleet_auth what,
                       const struct err *why);
void fleet_auth_ok(struct fleet *f, size_t upstream);

/* fleet_set_updating - an update begins to change what upstreams serve, or has ended without a new
 * version (fleet_commit_version ends it too): meanwhile a label of the new version, or of the old
 * one, puts nobody out of step. */
void fleet_set_updating(struct fleet *f, bool on);

/* fleet_quiesce - all are told to stand still, or go on: whoever is away now, or is another process
 * meanwhile, gets nothing while that lasts. Before they are asked.
 * @order  more than before, or it is older than what is known. Threads: any. */
void fleet_quiesce(struct fleet *f, bool on, uint64_t order);

/* fleet_hold_generates - from now on, or not any more, generates for upstreams without a gate wait
 * here: they stand still, and what waits within one of them might read what it had cached before.
 * @order  as fleet_quiesce's. Threads: any. */
void fleet_hold_generates(struct fleet *f, bool on, uint64_t order);

/* fleet_set_pause_queue - has it a gate of its own, which keeps what comes while it stands still?
 * A baton has; at first an upstream has. Threads: as fleet_add. */
void fleet_set_pause_queue(struct fleet *f, size_t upstream, bool has_pause_queue);

/* fleet_confirm_quiesced - one that was away has been told.
 * @life  of upstream_info: n_lives before that; of another than it is now nothing is believed */
void fleet_confirm_quiesced(struct fleet *f, size_t upstream, uint64_t incarnation);

/* fleet_weights_epoch - another number after each fleet_set_updating and fleet_commit_version: a
 * label that was asked for under another one may be of before. */
uint64_t fleet_weights_epoch(struct fleet *f);

/* What keeps it out until it is made good. */
enum fleet_fence {
    FLEET_FENCE_NONE,
    FLEET_FENCE_SLEEP, /* it was away when the others were put to sleep: it is awake */
    FLEET_FENCE_WAKE,  /* … when they were woken: it may sleep, if it is the same process */
    FLEET_FENCE_UPDATE /* nobody knows what it has: a whole update */
};

/* fleet_fence_missed - it was away then: until fleet_resync, if nothing worse fences it already.
 * @what  FLEET_FENCE_SLEEP or _WAKE */
void fleet_fence_missed(struct fleet *f, size_t upstream, enum fleet_fence what);

/* fleet_note_sleep - one that is fenced as absent was put to sleep, or woken, with the others
 * since: what that left it in is known, and that it is to be vouched for stays. */
void fleet_note_sleep(struct fleet *f, size_t upstream, bool asleep);

/* fleet_fence - an update began to change it and did not end well there. */
void fleet_fence(struct fleet *f, size_t upstream, const struct err *why);

/* fleet_may_resync - would it be refused whatever it says? Errors: as fleet_resync's. */
int fleet_may_resync(struct fleet *f, size_t upstream, struct err *e);

/* fleet_resync - somebody vouches for its weights. Where no version is decided yet, its own is.
 * @saw  its answer just now
 * Errors: ERR_NEEDS_UPDATE: it is fenced by an update; ERR_CONFLICT: it is unready, serves another
 * version than the fleet (to name none is no contradiction after the first update), or an update is
 * under way;
 *         ERR_NOT_FOUND: it is removed. */
int fleet_resync(struct fleet *f, size_t upstream, const struct upstream_report *report,
                 struct err *e);

/* fleet_require_adapters - from now on there may be something that all are to have besides the
 * weights: whoever may be another process than before is out of rotation until it is said that it
 * has it. */
void fleet_require_adapters(struct fleet *f);

/* fleet_set_missing_adapters - what a process of an upstream was found to lack of that.
 * @life    of upstream_info: n_lives when that was found; of one before it nothing is believed
 * @change  grows with each change of what all are to have, or of who has it: nothing older than
 *          what is known is believed
 * @lack    clean: nothing */
struct fleet_adapter_check {
    uint64_t incarnation, change;
    const struct err *missing;
};
void fleet_set_missing_adapters(struct fleet *f, size_t upstream,
                                const struct fleet_adapter_check *check);

/* fleet_version_undecided - do upstreams answer, and nobody knows which version is the fleet's?
 * @e  clean; then set: which versions there are, and what to do */
bool fleet_version_undecided(struct fleet *f, struct err *e);

/* fleet_commit_version - an update ended: those of `done` serve `label` now, under a new serial,
 * and are no longer fenced; the others are out of step.
 * @done   [FLEET_MAX]: who was added meanwhile is none of them
 * @named  [FLEET_MAX]: those of them that said that they serve it under that label; NULL: nobody
 * Returns: the serial. */
uint64_t fleet_commit_version(struct fleet *f, const char *label, const bool *done,
                              const bool *named);

/* fleet_set_label - those of `named` serve what they served, under another label; the others that
 * served the fleet's version are out of step. Ends fleet_set_updating.
 * @named  [n]. Returns: the serial, which stays. */
uint64_t fleet_set_label(struct fleet *f, const char *label, const bool *named);

/* ---- permits ---- */

struct fleet_ticket {
    enum fleet_queue queue;
    uint64_t affinity; /* of a session; 0: none */
    /* Called once when a permit is granted: by fleet_permit_acquire itself, or later by the thread
     * that left, or that heard from an upstream. No lock held; must not block. */
    void (*granted)(void *arg, size_t upstream);
    void *arg;
    bool avoid_one; /* rather not `avoid`: it has just failed */
    size_t avoid;
    bool responded; /* the upstream has said something: told with fleet_permit_release */

    /* Of the fleet. */
    struct fleet_ticket *next, **prev_next;
    size_t upstream;
    int state;
};

/* fleet_permit_acquire - take a permit now, or queue.
 * Errors: ERR_UNSYNCED (no upstream is in rotation: why is told of one), ERR_UPSTREAM_KEY (since
 *         all refuse our key), ERR_OVERLOADED (the line is full), ERR_DRAINING. */
int fleet_permit_acquire(struct fleet *f, struct fleet_ticket *t, struct err *e);

/* fleet_permit_cancel - take a queued ticket out. False: it was granted already. */
bool fleet_permit_cancel(struct fleet *f, struct fleet_ticket *t);

/* fleet_permit_release - give a granted permit back. Who answered has missed nothing. */
void fleet_permit_release(struct fleet *f, struct fleet_ticket *t);

/* fleet_permits_close - from now on enter is ERR_DRAINING. */
void fleet_permits_close(struct fleet *f);

/* fleet_serves - is it in rotation? Threads: any. */
bool fleet_serves(struct fleet *f, size_t upstream);

/* fleet_affinity - of a session's name; 0 for "". */
uint64_t fleet_affinity(const char *session);

/* ---- the truth ---- */

struct upstream_info {
    bool alive; /* it answers us */
    bool synced, fenced, removed;
    enum fleet_fence fence;
    uint64_t fence_incarnation; /* n_lives when it was fenced */
    bool request_auth_failed;   /* fleet_auth_failed */
    bool missing_adapters;      /* fleet_adapter_check; or it has not been looked at */
    uint64_t incarnation; /* processes that it was, as far as can be told; never the same again */
    enum upstream_state state;
    uint64_t serial; /* of the fleet's versions, the one that it serves; 0: what it began with */
    struct upstream_report report; /* last */
    size_t n_outstanding[FLEET_QUEUES];
    uint64_t n_granted;
    uint64_t n_failures; /* questions and requests that it did not answer, or not as it should */
    uint64_t
        probe_ok_us;  /* when it last answered a question about itself; 0: never. base/clock.h */
    struct err error; /* what is wrong with it; clean: nothing */
    int64_t
        error_wall_s; /* since when that is so; of what it did not answer, when it did not last */
};
void fleet_info(struct fleet *f, size_t upstream, struct upstream_info *out);

struct fleet_stats {
    size_t n_upstreams, n_serving, min_ready; /* the removed are not counted */
    size_t n_waiting[FLEET_QUEUES], n_running[FLEET_QUEUES];
    uint64_t n_refused[FLEET_QUEUES], n_cancelled[FLEET_QUEUES];
    uint64_t serial;
    char label[FLEET_LABEL_MAX + 1]; /* of its version; "": none is decided, or it has no name */
    bool ready;                      /* n_serving >= min_ready */
};
void fleet_stats(struct fleet *f, struct fleet_stats *out);

#endif
