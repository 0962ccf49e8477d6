/* The room of the upstream engines: where each of them is, what is true of it (its fleet), and the
 * one thread that asks them questions and tells them what to do. What their clients send them goes
 * over the HTTP server's loops (fleet/proxy/proxy.h), which hold its permits.
 *
 * Upstreams come from the configuration only. The file is read again on SIGHUP: who is new begins
 * as unknown, who is gone gets nothing more, and what runs there may end. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAMS_H
#define BATON_FLEET_MEMBERS_UPSTREAMS_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstream_fanout.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct upstreams;

struct upstreams_cfg {
    const char *const
        *entries; /* [n_specs], as fleet/members/upstream_config.h has them; borrowed */
    size_t n_entries;
    const char *file; /* more of them; NULL: none; borrowed */
    size_t min_ready; /* 0: all that are configured */
    size_t n_permits[FLEET_QUEUES], n_queue_max[FLEET_QUEUES];
    uint64_t probe_interval_us, probe_timeout_us;
    unsigned generation_probe_every; /* as prober_cfg's */
};

/* upstreams_new - read the specs; nothing is asked yet.
 * Errors: ERR_BAD_REQUEST at --upstream, --upstream-file or --min-ready: none at all, more than
 *         FLEET_MAX, one twice, a spec that is none (which, and why), a file that cannot be read;
 *         ERR_NO_MEMORY. Threads: main's, after http_init. */
int upstreams_new(struct upstreams **out, const struct upstreams_cfg *cfg, struct err *e);

/* upstreams_start - start the thread and the probes. Errors: ERR_INTERNAL. */
int upstreams_start(struct upstreams *u, struct err *e);

/* upstreams_reload - read the file and all keys again. Who is new gets an index: one that was never
 * used, or one of a removed upstream where nothing runs any more, unless somebody holds them. Who
 * is gone is removed. A changed key, CA or dialect is used from now on. Errors: as upstreams_new's,
 * and ERR_CONFLICT: no index is free. Everything stays as it was then. Threads: main's. */
int upstreams_reload(struct upstreams *u, struct err *e);

/* upstreams_stop - end probes and thread; who waits in upstreams_call, and who asks from now on, is
 * told ERR_DRAINING. Timers on its loop do not fire any more. Accepts NULL. Threads: main's. */
void upstreams_stop(struct upstreams *u);
void upstreams_free(struct upstreams *u); /* stops first; accepts NULL */

struct fleet *upstreams_fleet(struct upstreams *u);

/* One of them. Its index is that of the fleet, and stays its own until it was removed: then another
 * may get it, but not while somebody holds the indexes. */
struct upstream_endpoint {
    const struct http_target *target; /* until upstreams_free, also if it changes meanwhile */
    const char *name;                 /* its URL; until upstreams_free */
    enum upstream_kind kind;
    bool removed; /* no longer configured */
};

/* upstreams_hold_indexes, upstreams_release_indexes - between the two no index goes to another
 * upstream: for whoever remembers indexes longer than one request, as an update does. Any number
 * may. Threads: any. */
void upstreams_hold_indexes(struct upstreams *u);
void upstreams_release_indexes(struct upstreams *u);

/* upstreams_n - indexes used so far, those of the removed included. Threads: any. */
size_t upstreams_n(struct upstreams *u);
/* upstreams_get - Threads: any. @i  < upstreams_n */
void upstreams_get(struct upstreams *u, size_t i, struct upstream_endpoint *out);

/* upstreams_find - the index of a name. Errors: ERR_NOT_FOUND, which lists a few that there are. */
int upstreams_find(struct upstreams *u, const char *name, size_t *out, struct err *e);

/* upstreams_call - one request to each of several, at the same time; returns when the last has
 * answered or its own time is over.
 * @parts    [n]; requests are moved in, also on an error; each has a timeout_us > 0
 * @answers  [n]; each to be ended with upstream_reply_fini (only after success)
 * Threads: any but the room's and the HTTP server's loops. Blocks: up to the longest timeout_us.
 * Errors: ERR_NO_MEMORY: nobody was asked; ERR_DRAINING: what became of them is not known. */
int upstreams_call(struct upstreams *u, struct upstream_call *calls, size_t n,
                   struct upstream_reply *replies, struct err *e);

/* upstreams_enable_generation_probes - as prober_enable_generation_probes. */
void upstreams_enable_generation_probes(struct upstreams *u, bool on);

/* upstreams_probe_now - as prober_probe_now: what is known of them may be wrong. Threads: any. */
void upstreams_probe_now(struct upstreams *u);

/* upstreams_live - does the room's thread do its work? Threads: any.
 * Errors: ERR_INTERNAL, with how long it has not. */
int upstreams_live(struct upstreams *u, struct err *why);

/* upstreams_loop - the room's own loop, for timers of those who tell upstreams what to do. */
struct loop *upstreams_loop(struct upstreams *u);

/* upstreams_on_left_rotation - call fn when an upstream leaves rotation, as fleet_cfg.left is; set
 * before upstreams_start, taken back (NULL) after everything that asks has stopped. */
void upstreams_on_left_rotation(struct upstreams *u, void (*fn)(void *arg, size_t upstream),
                                void *arg);

#endif
