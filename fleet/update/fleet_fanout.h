/* One request to some parts of an update at the same time, and what follows from each result. */
#ifndef BATON_FLEET_UPDATE_FLEET_FANOUT_H
#define BATON_FLEET_UPDATE_FLEET_FANOUT_H

#include "fleet/calls/fleet_priv.h"

/* Parts of one update, with the requests to send. */
struct fleet_batch {
    size_t n;
    size_t part[FLEET_MAX]; /* indexes of s->parts */
    struct fleet_target targets[FLEET_MAX];
};
void batch_add(struct fleet_batch *b, struct fleet_session *s, size_t part,
               const struct api_args *args);

/* A set of parts of one update, by index. */
struct part_set {
    bool has[FLEET_MAX];
};

/* Other requests to engines of the update, sent at the same time. */
struct fanout_with {
    const struct fleet_target *targets; /* [n], borrowed; each with its operation */
    size_t n;
    struct fleet_result *results; /* out, of the caller: [n], fleet_results_free; NULL: none was
                                     sent */
};

/* A request, the parts that it goes to, and what follows from a result. The functions are called
 * under the lock of the fleet's control and must not block. */
struct fanout {
    bool is_query; /* `query` is sent, else `op` */
    enum api_op op;
    enum api_query query;
    const struct api_args *args; /* borrowed; NULL: none */
    const struct api_args *of;   /* borrowed, of each part; NULL: `args` for all */
    uint64_t timeout_us;         /* 0: fleet_step_us */
    const struct part_set *only; /* borrowed; NULL: all parts */
    /* Does the request go to this part? NULL: to all of `only`. */
    bool (*select)(const struct fleet_part *p, const void *arg);
    /* @result  its text may be moved out of it. NULL: nothing follows from a result. */
    void (*on_result)(struct fleet_part *p, size_t part, struct fleet_result *results, void *arg);
    void *arg;
    bool fence_failed;        /* fence each engine on which it failed */
    struct fanout_with *with; /* borrowed, not with a query; NULL: nothing */
};

/* fanout_select - the parts to which the request would go now. Returns: how many. */
size_t fanout_select(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                     struct fleet_batch *b);

/* fanout_apply - send the request and apply the results. Does nothing if no part is selected.
 * Threads: the owner of the parts (fleet/update/fleet_part.h), asserted; no lock held. Blocks: up
 * to timeout_us. Errors: fleet_request's; no result was applied then. */
int fanout_apply(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                 struct err *e);

/* fanout_apply_or_fail - the same. If nothing can be sent, on_result gets FLEET_UNKNOWN for each
 * part.
 * @why  clean, or the reason why nothing is sent; set if the request fails */
void fanout_apply_or_fail(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                          struct err *why);

#endif
