/* The upstream engines: which there are, what is true of each, and which gets the next request.
 *
 * No I/O happens here. Whoever talks to an upstream reports what it saw; from that alone follows
 * whether it is in rotation:
 *   alive    it answers
 *   synced   it serves the fleet's version: the last one that was committed through here. Whoever
 *            restarts, or serves another label, is not until the next update or a resync. Before
 *            the first update nobody can be out of step.
 *   unready  it says that it would serve nobody: it starts, drains, or has no weights yet
 *   fenced   an update touched it and did not end well there: until the next one that does
 *   removed  the configuration names it no more: it gets nothing new, and what runs there may end
 *
 * An upstream's index is its own until it is removed and idle, and somebody says that it may go to
 * another (fleet_add).
 *
 * Permits are counted for each upstream and lane (generate, text), the line is one for each lane.
 * Who gets the next request: its session's own upstream unless that has more than its share
 * (rendezvous hashing with bounded load), else the one with the fewest outstanding. */
#ifndef BATON_ENGINE_UPSTREAM_FLEET_H
#define BATON_ENGINE_UPSTREAM_FLEET_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FLEET_MAX = 256,       /* indexes */
    FLEET_MISSES_DOWN = 3, /* probes in a row without an answer; a refused connection counts once */
    FLEET_LABEL_MAX = 128, /* bytes of a version's label, and of what names a process */
    FLEET_LOAD_PERCENT = 125 /* of its fair share: how much affinity may load one upstream */
};

enum fleet_lane { FLEET_GENERATE, FLEET_TEXT, FLEET_LANES };

struct fleet;

struct fleet_cfg {
    size_t n_upstreams;              /* 1.. FLEET_MAX, to begin with */
    const char *const *names;        /* [n_upstreams], each borrowed until fleet_free; NULL: none */
    size_t n_permits[FLEET_LANES];   /* of each upstream */
    size_t n_queue_max[FLEET_LANES]; /* that wait for any */
    size_t min_ready;                /* 1.. */
    /* An upstream left rotation: what is outstanding there may never end. Of FLEET_MAX: nobody is
     * in rotation any more, and whoever waits waits for nothing. No lock held; any thread; must
     * not block. May be NULL. */
    void (*left)(void *arg, size_t upstream);
    void *arg;
};

/* fleet_new - nobody is alive yet. Errors: ERR_NO_MEMORY. */
int fleet_new(struct fleet **out, const struct fleet_cfg *cfg, struct err *e);
void fleet_free(struct fleet *f); /* nothing queued or granted; accepts NULL */

/* ---- which there are ---- */

/* fleet_add - one more, of which nothing is known yet; after the first update it is out of step.
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
struct upstream_saw {
    char process[FLEET_LABEL_MAX + 1]; /* names the process: new at each of its starts */
    char label[FLEET_LABEL_MAX + 1];   /* of the weights that it serves */
    char unready[FLEET_LABEL_MAX + 1]; /* why it would serve nobody now; "" where it would */
};

/* fleet_heard - it answered. While an update is under way labels are not judged.
 * Threads: any. */
void fleet_heard(struct fleet *f, size_t upstream, const struct upstream_saw *saw);

/* fleet_confirm - an answer to a client named the process that made it. False: that is another than
 * was put into step, and so is out of it now. Threads: any. */
bool fleet_confirm(struct fleet *f, size_t upstream, const char *process);

/* fleet_missed - it did not.
 * @refused  nobody listens there: it is down at once */
void fleet_missed(struct fleet *f, size_t upstream, bool refused, const struct err *why);

/* fleet_updating - an update begins to change what upstreams serve, or has ended without a new
 * version (fleet_committed ends it too): meanwhile a label of the new version, or of the old one,
 * puts nobody out of step. */
void fleet_updating(struct fleet *f, bool on);

/* fleet_epoch - another number after each fleet_updating and fleet_committed: a label that was
 * asked for under another one may be of before. */
uint64_t fleet_epoch(struct fleet *f);

/* fleet_fence - an update began to change it and did not end well there. */
void fleet_fence(struct fleet *f, size_t upstream, const struct err *why);

/* fleet_resync - somebody vouches for its weights. Errors: ERR_CONFLICT: it is fenced or down. */
int fleet_resync(struct fleet *f, size_t upstream, struct err *e);

/* fleet_committed - an update ended: those of `done` serve `label` now, under a new serial, and are
 * no longer fenced; the others are out of step.
 * @done  [FLEET_MAX]: who was added meanwhile is none of them. Returns: the serial. */
uint64_t fleet_committed(struct fleet *f, const char *label, const bool *done);

/* fleet_relabelled - those of `named` serve what they served, under another label; the others that
 * served the fleet's version are out of step. Ends fleet_updating.
 * @named  [n]. Returns: the serial, which stays. */
uint64_t fleet_relabelled(struct fleet *f, const char *label, const bool *named);

/* ---- permits ---- */

struct fleet_ticket {
    enum fleet_lane lane;
    uint64_t affinity; /* of a session; 0: none */
    /* Called once when a permit is granted: by fleet_enter itself, or later by the thread that
     * left, or that heard from an upstream. No lock held; must not block. */
    void (*granted)(void *arg, size_t upstream);
    void *arg;
    bool avoid_one; /* rather not `avoid`: it has just failed */
    size_t avoid;
    bool answered; /* the upstream has said something: told with fleet_leave */

    /* Of the fleet. */
    struct fleet_ticket *next, **prev_next;
    size_t upstream;
    int state;
};

/* fleet_enter - take a permit now, or queue.
 * Errors: ERR_UNSYNCED (no upstream is in rotation: why is told of one), ERR_OVERLOADED (the line
 *         is full), ERR_DRAINING. */
int fleet_enter(struct fleet *f, struct fleet_ticket *t, struct err *e);

/* fleet_cancel - take a queued ticket out. False: it was granted already. */
bool fleet_cancel(struct fleet *f, struct fleet_ticket *t);

/* fleet_leave - give a granted permit back. Who answered has missed nothing. */
void fleet_leave(struct fleet *f, struct fleet_ticket *t);

/* fleet_close - from now on enter is ERR_DRAINING. */
void fleet_close(struct fleet *f);

/* fleet_serves - is it in rotation? Threads: any. */
bool fleet_serves(struct fleet *f, size_t upstream);

/* fleet_affinity - of a session's name; 0 for "". */
uint64_t fleet_affinity(const char *session);

/* ---- the truth ---- */

struct upstream_info {
    bool alive, synced, fenced, removed;
    /* static: "serving", "unready", "unsynced", "fenced", "down", "unknown", "removed" */
    const char *state;
    uint64_t serial; /* of the fleet's versions, the one that it serves; 0: what it began with */
    struct upstream_saw saw; /* last */
    size_t n_outstanding[FLEET_LANES];
    uint64_t n_granted, n_missed, heard_us; /* heard_us: of base/clock.h; 0: never */
    struct err error;                       /* the last one; clean: none */
};
void fleet_info(struct fleet *f, size_t upstream, struct upstream_info *out);

struct fleet_stats {
    size_t n_upstreams, n_serving, min_ready; /* the removed are not counted */
    size_t n_waiting[FLEET_LANES], n_running[FLEET_LANES];
    uint64_t n_refused[FLEET_LANES], n_cancelled[FLEET_LANES];
    uint64_t serial;
    char label[FLEET_LABEL_MAX + 1];
    bool ready; /* n_serving >= min_ready */
};
void fleet_stats(struct fleet *f, struct fleet_stats *out);

#endif
