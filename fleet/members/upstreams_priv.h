/* What the files of upstreams_*.c share. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAMS_PRIV_H
#define BATON_FLEET_MEMBERS_UPSTREAMS_PRIV_H

#include "base/loop.h"
#include "base/mtx.h"
#include "fleet/members/prober.h"
#include "fleet/members/upstream_config.h"
#include "fleet/members/upstreams.h"

/* A spec that was taken in. */
struct retained {
    struct retained *next;          /* of all there ever were */
    struct upstream_config *config; /* owned */
};

struct slot {
    const struct upstream_config *config; /* of a known one; NULL: the index was never used */
    bool removed;
};

/* One call of upstreams_call, on its caller's stack. */
struct batch {
    struct loop_item item;
    struct upstreams *upstreams;
    struct upstream_call *calls;
    size_t n;
    struct upstream_fanout *fanout;  /* loop thread */
    struct upstream_reply *replies;  /* the caller's; written before `ended` */
    struct batch *next, **prev_next; /* under the room's lock, and so is what follows */
    bool posted;                     /* its item has been; else it is about to be */
    bool ended;
    struct err error;
};

struct upstreams {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct slot slots[FLEET_MAX];
    size_t n, n_holds;
    struct batch *batches;
    bool stopped;
    void (*left_rotation)(void *arg, size_t upstream);
    void *left_rotation_arg;
    struct cnd ended; /* an ask, or posted */

    struct upstreams_cfg cfg; /* immutable, and so are the pointers that follow */
    struct fleet *fleet;
    struct loop *loop;
    struct http_client *client; /* loop thread */
    struct prober *prober;
    struct loop_item stop;
    struct loop_timer down_check;

    struct retained *retained; /* main's thread */
};

int upstreams_check_min_ready(const struct upstreams_cfg *cfg, size_t n, struct err *e);
size_t upstreams_min_ready(const struct upstreams_cfg *cfg, size_t n);
const struct upstream_config *upstreams_retain(struct upstreams *u,
                                               struct upstream_config_list *list, size_t i,
                                               struct retained *retained);
void upstreams_fail_calls(void *arg);
void upstreams_check_down(void *arg);

#endif
