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
    GATE_NOT_RESUMED, /* it was paused, or may have been, and a resume failed since */
    GATE_PAUSED
};

/* An engine's own update, of those that keep one (batons). */
enum own_fact {
    OWN_UNKNOWN,
    OWN_NOT_OURS, /* an earlier server may have left one open */
    OWN_CLOSED,
    OWN_OPEN
};

enum sleep_fact { SLEEP_UNKNOWN, SLEEP_NOT_OURS, SLEEP_AWAKE, SLEEP_ASLEEP };

enum weights_fact {
    WEIGHTS_UNKNOWN,
    WEIGHTS_SERIAL, /* those of one version of the fleet */
    WEIGHTS_OTHER   /* others, or those of a process that has not reported any */
};

/* Why its weights are not used, whichever version they are: a fence. It stays for another process,
 * until an update has ended well there; a resync ends the first two. */
enum weights_fault {
    FAULT_NONE,
    FAULT_SLEEP_MISSED, /* it was not reached when the others were put to sleep */
    FAULT_WAKE_MISSED,  /* ... or woken */
    FAULT_TORN,         /* a change of it failed, as an update that never ended */
    FAULT_DROPPED,      /* a sleep of level 2 dropped them */
    FAULT_WRONG         /* a proof found them wrong; a restart and a resync end this too */
};

/* Requests of one kind. Where two that are under way overlap, which came last is not known. */
struct have_calls {
    unsigned n; /* under way */
    bool overlap;
    bool asked; /* one was sent since a report has shown which process is there */
};

/* What it has under an adapter's name: none, any or none, or the one that the load of this number
 * brought (api_args.number). */
enum { ADAPTER_NONE, ADAPTER_UNKNOWN, ADAPTER_NUMBER_MIN };

struct adapter_have {
    uint32_t has;
    uint32_t settled; /* what it had before the requests that change it began: for rotation */
    uint32_t refused; /* the last load that it refused, though nothing was in its way; 0: none */
    uint16_t n_calls; /* loads and unloads under way */
    bool overlap;     /* of those: which came last is not known */
    /* As they were last derived (fleet_adapters.c). */
    bool has_this, blocks, differs;
};

/* What it has cached. The numbers are those of changes, and only grow. */
struct cache_facts {
    uint64_t changes;     /* of its weights, of adapters that its caches know by name only, and of
                             its process */
    uint64_t overwritten; /* the last one of its weights; 0: not since its process is known */
    uint64_t emptied;     /* it has no entry older than this one; 0: never emptied by this server */
    uint64_t due;         /* the last one without a request under way that empties them for it */
};

struct engine_have {
    enum gate_fact gate;
    enum own_fact own;
    struct {
        enum sleep_fact weights, kv;
        bool
            slept; /* it has answered a sleep well, and no wake since: so it has a route for both */
        bool told; /* it has told whether it sleeps: so it has one too */
        bool awake;  /* ... and that it does not, since it was last asked to sleep */
        bool missed; /* a wake of all, or this server has put it to sleep without a good answer, and
                        it may still sleep: it is woken, also if another client put it to sleep */
    } sleep;
    struct {
        enum weights_fact state;
        uint64_t serial; /* the last one that it was given since it was added; 0: none */
        enum weights_fault fault;
        bool fault_is_older; /* than this process, or than this server */
        bool earlier_name;   /* they are those of `serial` under an earlier name of it, or were so
                                before it was last asked to take the present one */
    } weights;

    struct cache_facts caches;

    struct have_calls gate_calls, sleep_calls;
    uint64_t change; /* grows with each of them, and with each answer */
};

enum have_answer {
    HAVE_LOST,    /* none came: it was executed, or not, or it will be */
    HAVE_BROKE,   /* an error of its own (5xx): it may have been executed */
    HAVE_UNSENT,  /* it was not sent */
    HAVE_REFUSED, /* not executed */
    HAVE_GOOD
};

/* What a request made unknown, so that a refusal gives it back. */
struct have_before {
    uint64_t incarnation; /* of the engine's process (upstream_info) */
    enum gate_fact gate;
    enum own_fact own;
    enum sleep_fact weights, kv;
    struct adapter_have *adapter; /* of a load or unload; NULL: the fleet does not know its name */
    uint32_t had;
    bool keyed_by_name; /* so are its caches: they may have entries of another adapter */
    bool replaces;      /* a load is not refused for an adapter that has the name already */
};

/* have_init - nothing is known of the engine: not ours. */
void have_init(struct engine_have *have);

/* have_seen - the process has reported, and it is the same. @change  when it was asked
 * have_told - it has reported whether it sleeps. */
void have_seen(struct engine_have *have, uint64_t change);
void have_told(struct engine_have *have, uint64_t change, bool asleep);

/* have_reset - begin the facts of another process, which may have executed what was sent since the
 * one before was last seen.
 * @certain  it is another one; false: it may be the same, as it does not name itself
 * have_reset_adapter - the same of what it has under one name. */
void have_reset(struct engine_have *have, bool certain);
void have_reset_adapter(struct adapter_have *a, bool certain);

/* have_doubt - the operation is about to be sent.
 * @args    of the operation; NULL: none
 * @before  for have_answer; in: `adapter`, `keyed_by_name` and `replaces`; `incarnation` is the
 * caller's */
void have_doubt(struct engine_have *have, enum api_op op, const struct api_args *args,
                struct have_before *before);

/* have_answer - it was answered, or its answer is lost. Once for each have_doubt.
 * @same  the process is the one of have_doubt; false: the facts are of another by now */
void have_answer(struct engine_have *have, enum api_op op, const struct api_args *args,
                 const struct have_before *before, enum have_answer answer, bool same);

/* have_missed_sleep - the others were put to sleep, or woken, without it. An earlier fault stays.
 * have_missed_wake - so it may sleep, though this server has not put it to sleep.
 * @of  the parts that the request was about */
void have_missed_sleep(struct engine_have *have, bool asleep, const struct api_sleep *of);
void have_missed_wake(struct engine_have *have, const struct api_sleep *of);

/* have_found_awake - it made a token, or has no route to be put to sleep: so it is awake, unless it
 * was asked to sleep or to wake since. @change  when it was asked for that */
void have_found_awake(struct engine_have *have, uint64_t change);

/* have_version - it was given the fleet's version of this serial, or is declared to have it. */
void have_version(struct engine_have *have, uint64_t serial);

/* have_fault - a fault of the process that is there now. */
void have_fault(struct engine_have *have, enum weights_fault fault);

/* have_sleeps_by_client - it reports that it sleeps, and has answered no sleep of this server: it
 * is shown, and woken when a client asks for it, or before an update. */
bool have_sleeps_by_client(const struct engine_have *have, const struct upstream_report *report);

static inline bool sleep_is_doubted(enum sleep_fact fact)
{
    return fact == SLEEP_UNKNOWN || fact == SLEEP_ASLEEP;
}

/* have_may_be_paused - by this server: it is, or a pause or a resume has no answer yet, or failed.
 */
static inline bool have_may_be_paused(const struct engine_have *have)
{
    return have->gate != GATE_NOT_OURS && have->gate != GATE_RUNNING;
}

/* have_is_asleep, have_may_sleep - wholly or in part. have_has_missed - a sleep or a wake, since
 * which its weights are not vouched for. have_is_broken - does it need a whole update? */
static inline bool have_is_asleep(const struct engine_have *have)
{
    return have->sleep.weights == SLEEP_ASLEEP || have->sleep.kv == SLEEP_ASLEEP;
}

/* have_may_lack_wake - may it have no route to be woken by? Then nothing has put it to sleep. */
static inline bool have_may_lack_wake(const struct engine_have *have)
{
    return !have->sleep.slept && (!have->sleep.told || have->sleep.awake);
}

static inline bool have_may_sleep(const struct engine_have *have)
{
    return sleep_is_doubted(have->sleep.weights) || sleep_is_doubted(have->sleep.kv);
}

static inline bool have_has_missed(const struct engine_have *have)
{
    return have->weights.fault == FAULT_SLEEP_MISSED || have->weights.fault == FAULT_WAKE_MISSED;
}

static inline bool have_is_broken(const struct engine_have *have)
{
    return have->weights.fault >= FAULT_TORN;
}

/* have_caches_changed - what they were made with has changed; they are not out of rotation for it
 * before have_caches_settle. @weights  of the engine; false: an adapter, or its process
 * Returns: the number of the change. */
uint64_t have_caches_changed(struct engine_have *have, bool weights);

/* have_caches_settle - no request is under way that empties them for a client who holds back new
 * requests meanwhile.
 * have_caches_are_stale - may they have entries older than a change that is settled?
 * have_may_lack_reset_route - may it have no route to empty its caches by? Only an engine whose
 * weights can be changed must have one.
 * have_may_have - may it have an adapter of that name, whichever? */
static inline void have_caches_settle(struct engine_have *have)
{
    have->caches.due = have->caches.changes;
}

static inline bool have_may_have(uint32_t has)
{
    return has != ADAPTER_NONE;
}

static inline bool have_caches_are_stale(const struct engine_have *have)
{
    return have->caches.emptied < have->caches.due;
}

static inline bool have_may_lack_reset_route(const struct engine_have *have)
{
    return have->caches.emptied >= have->caches.overwritten;
}

#endif
