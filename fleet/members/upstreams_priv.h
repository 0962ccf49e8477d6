/* What upstreams.c, upstreams_call.c and upstreams_reload.c share. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAMS_PRIV_H
#define BATON_FLEET_MEMBERS_UPSTREAMS_PRIV_H

#include "base/loop.h"
#include "base/mtx.h"
#include "fleet/members/prober.h"
#include "fleet/members/upstream_config.h"
#include "fleet/members/upstreams.h"

/* A configuration that is, or was, in the table: kept until upstreams_free. */
struct retained {
    struct retained *next;          /* of all */
    struct upstream_config *config; /* owned */
};

struct slot {
    const struct upstream_config *config; /* of a retained one; NULL: the index was never used */
    bool removed;
};

/* One call of upstreams_call; lives on its caller's stack. */
struct call_batch {
    struct loop_item item;
    struct upstreams *upstreams;
    struct upstream_call *calls;
    size_t n;
    struct upstream_fanout *fanout; /* loop thread */
    struct upstream_reply *replies; /* the caller's; written before `ended` */
    struct call_batch *next,
        **prev_next; /* guarded by the lock of struct upstreams, with what follows */
    bool posted;     /* false: the item is about to be posted */
    bool ended;
    struct err error;
};

struct upstreams {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct slot slots[FLEET_MAX];
    size_t n, n_holds;
    struct call_batch *batches;
    bool stopped;
    void (*left_rotation)(void *arg, size_t upstream);
    void *left_rotation_arg;
    struct cnd ended; /* a batch has ended or was posted */

    struct upstreams_cfg cfg; /* immutable, and so are the pointers that follow */
    struct fleet *fleet;
    struct loop *loop;
    struct http_client *client; /* loop thread */
    struct prober *prober;
    struct loop_item stop;
    struct loop_timer down_check;

    struct retained *retained; /* main's thread */
};

/* upstreams_check_list - could min_ready of these engines be ready, and does each take what this
 * server sends? Errors: ERR_BAD_REQUEST. */
int upstreams_check_list(const struct upstreams_cfg *cfg, const struct upstream_config_list *list,
                         struct err *e);

/* upstreams_min_ready - the number of n engines that have to be ready. */
size_t upstreams_min_ready(const struct upstreams_cfg *cfg, size_t n);

/* upstreams_retain - move entry i out of the list and keep it until upstreams_free.
 * @retained  memory for that; owned by u from here on. Threads: main. */
const struct upstream_config *upstreams_retain(struct upstreams *u,
                                               struct upstream_config_list *list, size_t i,
                                               struct retained *retained);

/* upstreams_fail_calls - end all calls under way with ERR_DRAINING. @arg  struct upstreams.
 * Threads: the loop's, or any if it never started. */
void upstreams_fail_calls(void *arg);

/* upstreams_check_down - stop waiting for engines that are down, for calls with until_down. @arg
 * struct upstreams. Threads: the loop's. */
void upstreams_check_down(void *arg);

#endif
