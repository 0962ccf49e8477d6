/* What upstreams.c, upstreams_call.c, upstreams_reload.c and upstreams_request.c share. */
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
    bool changing; /* one thread changes the slots, and alone may read them without the lock */
    void (*left_rotation)(void *arg, size_t upstream);
    void *left_rotation_arg;
    struct cnd ended;   /* a batch has ended or was posted */
    struct cnd changed; /* `changing` is false */

    struct upstreams_cfg cfg; /* immutable, and so are the pointers that follow */
    struct fleet *fleet;
    struct loop *loop;
    struct http_client *client; /* loop thread */
    struct prober *prober;
    struct loop_item stop;
    struct loop_timer down_check;

    struct retained *retained; /* of the thread that set `changing` */
};

/* upstreams_min_ready - the number of n engines that have to be ready; never 0. */
size_t upstreams_min_ready(const struct upstreams_cfg *cfg, size_t n);

/* upstreams_change_begin, upstreams_change_end - between the two no other thread changes the table.
 * No lock is held meanwhile, so files can be read. Blocks: up to UPSTREAMS_CHANGE_WAIT_US.
 * Errors: ERR_CONFLICT. */
int upstreams_change_begin(struct upstreams *u, struct err *e);
void upstreams_change_end(struct upstreams *u);

/* upstreams_find_slot - the index of the engine with this name, or of a removed one. Threads: of
 * the change. Returns: is there one? */
bool upstreams_find_slot(const struct upstreams *u, const char *name, size_t *out);

/* upstreams_apply - make the engines of the list, and those of `kept`, the only ones. Entries that
 * the table gets are moved out of the list.
 * @kept   [FLEET_MAX], by index: they stay as they are; changed here
 * @field  for errors
 * Threads: of the change.
 * Errors:  ERR_CONFLICT: no index is free; ERR_NO_MEMORY. After an error nothing has changed. */
int upstreams_apply(struct upstreams *u, struct upstream_config_list *list, bool *kept,
                    const char *field, struct err *e);

/* upstreams_retain - move entry i out of the list and keep it until upstreams_free. One that was
 * kept before is used again, so that engines which come and go take no memory each time.
 * @retained  memory for that; owned by u from here on. Threads: of the change. */
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
