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

/* Other requests to engines of the update, sent at the same time. */
struct fanout_with {
    const struct fleet_target *targets; /* [n], borrowed; each with its operation */
    size_t n;
    struct fleet_results results; /* out, of the caller; in: zeroed; none: nothing was sent */
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
    bool (*select)(const struct fleet_part *p, const void *arg); /* does it go to this part? */
    /* @result  its text may be moved out of it. NULL: part_drop_failed. */
    void (*on_result)(struct fleet_part *p, struct fleet_result *result, void *arg);
    void *arg;
    /* After that, without a lock. NULL: nothing */
    void (*then)(struct fleet_control *fc, struct fleet_session *s, struct fleet_part *p);
    bool has_begun;           /* an update is open at the engines, though the parts have not begun
                                 it */
    bool before_bytes;        /* before the first byte: an abort ends it, and an engine that is late
                                 is left out if the others are enough (--min-ready) */
    bool patient;             /* ... but none is left out for being late */
    bool fence_failed;        /* fence each engine on which it failed */
    bool fail_each;           /* nothing could be sent: each part gets FLEET_UNKNOWN */
    struct fanout_with *with; /* borrowed, not with a query; NULL: nothing */
};

/* fanout_select - the parts to which the request would go now. Returns: how many. */
size_t fanout_select(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                     struct fleet_batch *b);

/* fanout_validate - can the parts that overwrite their weights be asked for it? Nothing is sent.
 * Errors: fleet_validate's. */
int fanout_validate(struct fleet_control *fc, struct fleet_session *s, enum api_op op,
                    const struct api_args *args, struct err *e);

/* fanout_apply - send the request and apply the results. Threads: the owner of the parts
 * (fleet/update/fleet_part.h), asserted; no lock held. Blocks: up to timeout_us.
 * Each result is applied as soon as it is known.
 * Returns: the number of parts that were asked, or -1. Errors: fleet_request's. No result was
 * applied then, unless answers are lost (ERR_DRAINING): the parts that lack one get FLEET_UNKNOWN.
 */
int fanout_apply(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                 struct err *e);

#endif
