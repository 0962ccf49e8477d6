/* The upstream engines: their addresses, their state (struct fleet), and the one thread that sends
 * them probes and control requests. Requests of clients do not pass here: the loops of the HTTP
 * server send them (fleet/proxy/proxy.h), with permits of the fleet.
 *
 * Engines come from the configuration, whose file is read again on SIGHUP, and from requests
 * (upstreams_add). A new engine starts with state "unknown"; a removed one gets no more requests,
 * and those that run there may finish. An engine that was added by a request stays over SIGHUP, and
 * belongs to the configuration once that names it; one of the configuration that a request removed
 * is back after SIGHUP. Engines by name: upstream_names.h. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAMS_H
#define BATON_FLEET_MEMBERS_UPSTREAMS_H

#include "base/err.h"
#include "base/net/resolve.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstream_fanout.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct upstreams;

struct upstreams_cfg {
    const char *const *entries; /* [n_entries], as in fleet/members/upstream_config.h; borrowed */
    size_t n_entries;
    const char *file; /* with more entries; NULL: none; borrowed */
    size_t min_ready; /* 0: all engines there are, at least one */
    bool staged;      /* as in fleet_cfg; so is boot_id */
    const char *boot_id;
    size_t n_permits[FLEET_QUEUES], n_queue_max[FLEET_QUEUES];
    uint64_t probe_interval_us, probe_timeout_us;
    unsigned generation_probe_every; /* as in prober_cfg */
    uint64_t dns_interval_us;        /* between two look-ups of a name */
};

/* upstreams_new - read the configuration; no request is sent yet.
 * Threads: main, after http_init.
 * Errors:  ERR_BAD_REQUEST  at --upstream or --upstream-file: no entry and no file, more than
 * FLEET_MAX, a URL twice, a malformed entry (which one, and why), a file that cannot be read
 *          ERR_NO_MEMORY */
int upstreams_new(struct upstreams **out, const struct upstreams_cfg *cfg, struct err *e);

/* upstreams_start - start the threads and the probes. Errors: ERR_INTERNAL. */
int upstreams_start(struct upstreams *u, struct err *e);

/* upstreams_look_up - start the thread that looks names up, if there are names and it does not run:
 * after upstreams_start, and after each upstreams_reload. upstreams_stop ends it. Threads: main.
 * Errors: ERR_INTERNAL. */
int upstreams_look_up(struct upstreams *u, struct err *e);

/* upstreams_reload - read the file and all keys again. If there are FLEET_MAX engines, a new one
 * takes the place of the removed one that joined first of those which nothing refers to any more.
 * Engines without an entry are removed, unless a request added them. A changed key, CA or kind is
 * used from now on.
 * Threads: any but the loop's.
 * Blocks:  on the disk, and up to UPSTREAMS_CHANGE_WAIT_US on another change, also of the next two.
 * Errors:  as of upstreams_new, and ERR_CONFLICT: no place is free, or another change does not end.
 *          After an error nothing has changed. */
enum { UPSTREAMS_CHANGE_WAIT_US = 10000000 };
int upstreams_reload(struct upstreams *u, struct err *e);

/* upstreams_add - add the engine that a request describes. If it is there already with the same
 * description nothing changes.
 * @entry  as in fleet/members/upstream_config.h; it may name only files that the configuration
 *         names, at --upstream or in the file
 * @out    the engine; a reference
 * Threads, blocking: as upstreams_reload.
 * Errors:  at /upstream: ERR_BAD_REQUEST  as of upstreams_new
 *          ERR_CONFLICT  it is there with another description; and as of upstreams_reload
 *          After an error nothing has changed. */
int upstreams_add(struct upstreams *u, const char *entry, struct upstream **out, struct err *e);

/* upstreams_stop - end the probes and the thread. Calls of upstreams_call, those under way and
 * later ones, fail with ERR_DRAINING. Timers on the loop do not fire any more. Accepts NULL.
 * Threads: main. */
void upstreams_stop(struct upstreams *u);
void upstreams_free(struct upstreams *u); /* stops first; accepts NULL */

struct fleet *upstreams_fleet(struct upstreams *u);

/* upstreams_n_needed - how many of n engines have to serve: --min-ready, or all; never 0. Threads:
 * any. */
size_t upstreams_n_needed(const struct upstreams *u, size_t n);

/* upstreams_list - all engines there are, the removed ones included; a reference. Threads: any. */
struct upstream_list *upstreams_list(struct upstreams *u);

/* upstreams_find - the engine with this name; a reference. Threads: any.
 * Errors: ERR_NOT_FOUND, with a few names that exist. */
int upstreams_find(struct upstreams *u, const char *name, struct upstream **out, struct err *e);

/* upstreams_name - the i-th name of the configuration. Returns: false: there are fewer. Threads:
 * any. */
struct upstream_name_info {
    char name[RESOLVE_NAME_LEN_MAX + sizeof "dns+https://:65535"]; /* "dns+http://NAME:PORT" */
    size_t n_addresses;                                            /* of its last answer */
    uint64_t answered_us; /* when that came (base/clock.h); 0: never */
    uint64_t n_failures;  /* look-ups without one */
    struct err why;       /* clean: the last look-up was answered */
};
bool upstreams_name(struct upstreams *u, size_t i, struct upstream_name_info *out);

/* upstreams_remove - remove an engine: it gets no more requests, and those that run there may
 * finish. The last one may be removed too.
 * @out  the engine; a reference
 * Threads, blocking: as upstreams_reload.
 * Errors:  ERR_NOT_FOUND, as of upstreams_find; ERR_CONFLICT: another change does not end. */
int upstreams_remove(struct upstreams *u, const char *name, struct upstream **out, struct err *e);

/* upstreams_on_joined - call `joined` for each engine there is, and for each that joins, before
 * another thread has it. On any thread, without a lock. Before upstreams_start. Errors: of
 * `joined`, which may fail. */
typedef int upstreams_joined_fn(void *arg, struct upstream *upstream, struct err *e);
int upstreams_on_joined(struct upstreams *u, upstreams_joined_fn *joined, void *arg, struct err *e);

/* upstreams_call - send one request to each of several engines at the same time, and wait until
 * each has replied or its timeout is over. `answered` is called for each reply as soon as it is
 * there, or will never be, on this thread and without a lock; after an error not for all.
 * @calls    [n]; their requests are moved in, also on an error; each has a timeout_us > 0
 * @replies  [n]; the caller ends each with upstream_reply_fini, also after an error
 * Threads: any but this module's loop and those of the HTTP server.
 * Blocks:  up to the longest timeout_us.
 * Errors:  ERR_NO_MEMORY  no request was sent
 *          ERR_DRAINING   some requests may have been sent; their outcome is not known */
typedef void upstreams_answered_fn(void *arg, size_t at);
int upstreams_call(struct upstreams *u, struct upstream_call *calls, size_t n,
                   struct upstream_reply *replies, upstreams_answered_fn *answered, void *arg,
                   struct err *e);

/* upstreams_send - one request whose reply nobody waits for: upstream_fanout_start, for one part.
 * Cancel it before upstreams_free. Threads: the loop's. */
int upstreams_send(struct upstreams *u, struct upstream_fanout **out, struct upstream_call *call,
                   upstream_fanout_done_fn *done, void *arg, struct err *e);

/* upstreams_probe_now - as prober_probe_now; for when the known state may be wrong. Threads: any.
 */
void upstreams_probe_now(struct upstreams *u);

/* upstreams_live - is the loop's thread working? Threads: any.
 * Errors: ERR_INTERNAL, with the time since its last round of probes. */
int upstreams_live(struct upstreams *u, struct err *why);

/* upstreams_loop - the loop of probes and control requests, for timers of control operations. */
struct loop *upstreams_loop(struct upstreams *u);

/* upstreams_on_left_rotation - call fn as fleet_cfg.left_rotation. Set it before upstreams_start;
 * reset it (NULL) after all users of permits have stopped. */
void upstreams_on_left_rotation(struct upstreams *u, void (*fn)(void *arg), void *arg);

#endif
