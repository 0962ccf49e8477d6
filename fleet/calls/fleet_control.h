/* The control plane of a fleet: what trainers asked of all engines together (the open update, the
 * pause, the sleep, the transfer groups, the adapters), and requests to all of them.
 *
 * No mutex is held while engines process requests. Operations exclude each other by
 * fleet/calls/fleet_locks.h. Requests that bring tensors of one update may overlap with each other
 * and with a pause. */
#ifndef BATON_FLEET_CALLS_FLEET_CONTROL_H
#define BATON_FLEET_CALLS_FLEET_CONTROL_H

#include "base/err.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/proof/fleet_proof.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct history;
struct http_request;
struct fleet;
struct fleet_control;
struct fleet_stats;
struct store;
struct upstreams;
struct workers;

/* All borrowed until fleet_control_free. */
struct fleet_control_cfg {
    struct upstreams *upstreams;
    struct workers *executor; /* of jobs that wait for engines */
    struct workers *blocking; /* of what blocks on a GPU, and of those that read committed bytes */
    uint64_t update_us;       /* for one step of an update at one engine */
    struct history *history;  /* of ended updates; NULL: none is kept */
    bool pause_fenced;        /* engines that are fenced for their weights are paused too */
    enum fleet_prove prove;   /* what each engine is asked for after an update */
    struct store *store;      /* the committed bytes, of --stage; NULL: none are here */
    const char *model_dir;    /* of the model that the engines serve; NULL: where they name it */
    bool recomputes;          /* running generations recompute their KV after an update */
    bool finishes;            /* an update waits until running generations have ended */
    bool allow_unseen; /* a configured model spec does not refuse tensors whose names are unseen */
};

/* fleet_of - what is known of each engine (fleet/members/fleet.h); borrowed. */
struct fleet *fleet_of(const struct fleet_control *fc);

/* fleet_update_us - how long one engine may take for a step of an update. */
uint64_t fleet_update_us(const struct fleet_control *fc);

size_t fleet_min_ready(struct fleet_control *fc);

/* fleet_reachable - the engines of a list that are configured and reply to probes.
 * @all      of upstreams_list; the targets are valid as long as it is
 * @targets  [FLEET_MAX], each with `args`. Returns: how many. */
size_t fleet_reachable(struct fleet_control *fc, const struct upstream_list *all,
                       const struct api_args *args, struct fleet_target *targets);

/* fleet_reachable_quorum - the same. Errors: ERR_UNSYNCED: fewer than --min-ready; the message
 * names the others. */
int fleet_reachable_quorum(struct fleet_control *fc, const struct upstream_list *all,
                           const struct api_args *args, struct fleet_target *targets, size_t *n,
                           struct err *e);

/* fleet_suspend_generation_probes - while on, engines get no probe that generates a token. Calls
 * are counted: each `true` needs a `false`. No lock held. */
void fleet_suspend_generation_probes(struct fleet_control *fc, bool on);

/* fleet_adapter_replacing - an adapter that is being loaded may replace one of the same name: while
 * on, new generates wait here for engines that know an adapter by its name. Counted, as above. */
void fleet_adapter_replacing(struct fleet_control *fc, bool on);

/* What of the fleet is asleep. */
struct fleet_sleep {
    bool weights, kv;
    int level; /* of the last sleep of the weights: 1 in host memory, 2 dropped */
};
void fleet_get_sleep(struct fleet_control *fc, struct fleet_sleep *out);

/* fleet_set_sleep - weights, KV caches or both were put to sleep, or woken.
 * @level  0: a wake. The caller owns the operation lock (asserted). */
void fleet_set_sleep(struct fleet_control *fc, bool weights, bool kv, int level);

/* fleet_check_serving - do enough engines serve, by what trainers asked? @s  fleet_stats' now
 * Errors: ERR_ASLEEP; ERR_PAUSED: by a trainer, or by the open update. */
int fleet_check_serving(struct fleet_control *fc, const struct fleet_stats *s, struct err *why);

/* fleet_fence_is_paused - is the engine paused because it is fenced (--pause-fenced)? Threads: any;
 * no lock held. */
bool fleet_fence_is_paused(struct fleet_control *fc, struct upstream *upstream);

/* fleet_resync_one - query which weights an engine serves, and put it back in rotation by that.
 * @x    the request whose client waits for the operation lock
 * @out  the engine; a reference; NULL: there is none of that name
 * Blocks: for the operation lock, then FLEET_QUERY_US for each of three queries, and for a wake or
 * sleep that the engine missed. Errors: fleet_op_lock's; ERR_NOT_FOUND: no such engine;
 * ERR_CONFLICT: the fleet is paused, the engine did not reply, or as fleet_resync;
 * ERR_NEEDS_UPDATE. */
int fleet_resync_one(struct fleet_control *fc, struct http_request *x, const char *name,
                     struct upstream **out, struct err *e);

#endif
