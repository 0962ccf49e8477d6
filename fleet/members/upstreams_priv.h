/* What upstreams.c, upstreams_call.c and upstreams_change.c share. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAMS_PRIV_H
#define BATON_FLEET_MEMBERS_UPSTREAMS_PRIV_H

#include "base/loop.h"
#include "base/mtx.h"
#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"
#include "fleet/members/upstream_names.h"
#include "fleet/members/upstreams.h"

/* One call of upstreams_call; lives on its caller's stack. */
struct call_batch {
    struct loop_item item;
    struct upstreams *upstreams;
    struct upstream_call *calls;
    size_t n;
    struct upstream_fanout *fanout; /* loop thread */
    struct upstream_reply *replies; /* the caller's; guarded by the lock of struct upstreams, with
                                       what follows, until it has read them */
    struct call_batch *next, **prev_next;
    bool posted; /* false: the item is about to be posted */
    bool ended;
    struct err error;
};

struct upstreams {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct call_batch *batches;
    bool stopped;
    bool changing; /* one thread changes engines, and alone may read what they have without it */
    void (*left_rotation)(void *arg);
    void *left_rotation_arg;
    struct cnd ended;             /* a batch has ended, was posted or has an answer */
    struct cnd changed;           /* `changing` is false */
    struct upstream_names *names; /* owned; the thread of the change reads it without the lock */

    upstreams_joined_fn *joined; /* immutable since upstreams_start; NULL: nothing to call */
    void *joined_arg;

    struct upstreams_cfg cfg; /* immutable, and so are the pointers that follow */
    struct fleet *fleet;
    struct loop *loop;
    struct http_client *client; /* loop thread */
    struct prober *prober;
    struct loop_item stop;
    struct loop_timer down_check;

    /* All that are, or were, in the table; owned; of the thread that set `changing`. */
    struct upstream_config *retained;

    bool names_run; /* main's thread, and so is the next */
    pthread_t names_thread;

    int names_fd;                      /* immutable; owned; wakes the thread of the names */
    atomic_bool names_stop, names_ask; /* relaxed: hints, and a wake-up follows */
};

/* upstreams_find_any - the engine with this name in the list, or a removed one; NULL: none. */
struct upstream *upstreams_find_any(const struct upstream_list *list, const char *name);

/* upstreams_retain - move entry i out of the list and keep it until upstreams_free. One that was
 * kept before is used again, so that engines which come and go take no memory each time. Threads:
 * of the change. */
const struct upstream_config *upstreams_retain(struct upstreams *u,
                                               struct upstream_config_list *list, size_t i);

/* upstreams_change_begin - until upstreams_change_end no other thread changes the table. No lock is
 * held meanwhile, so files can be read. Blocks: up to UPSTREAMS_CHANGE_WAIT_US. Errors:
 * ERR_CONFLICT. */
int upstreams_change_begin(struct upstreams *u, struct err *e);
void upstreams_change_end(struct upstreams *u);

/* upstreams_change_addresses - a name has other addresses now than n->answer: engines join and
 * leave. Threads: of the change. Errors: as of upstreams_add; no engine has joined then. */
int upstreams_change_addresses(struct upstreams *u, const struct upstream_name *n,
                               const struct resolve_all *found, struct err *e);

/* upstreams_fail_calls - end all calls under way with ERR_DRAINING. @arg  struct upstreams.
 * Threads: the loop's, or any if it never started. */
void upstreams_fail_calls(void *arg);

/* upstreams_check_down - stop waiting for engines that are down or late, for calls that say so.
 * @arg struct upstreams. Threads: the loop's. */
void upstreams_check_down(void *arg);

#endif
