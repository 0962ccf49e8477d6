/* One question to some parts of an update at the same time, and what each answered. */
#ifndef BATON_FLEET_UPDATE_FLEET_FANOUT_H
#define BATON_FLEET_UPDATE_FLEET_FANOUT_H

#include "fleet/fleet_priv.h"

/* Some parts, as they are asked. */
struct fleet_batch {
    size_t n;
    size_t part[FLEET_MAX]; /* indexes of s->parts */
    struct fleet_target targets[FLEET_MAX];
};
void batch_add(struct fleet_batch *b, struct fleet_session *s, size_t part, const json_t *body);

/* Parts of one update, by their indexes. */
struct part_set {
    bool has[FLEET_MAX];
};

/* What is asked, of whom, and what follows from an answer. The functions are called with the lock
 * of the fleet's control, and call nothing that blocks. */
struct fanout {
    bool is_query; /* `question` is asked, else `op` */
    enum api_op op;
    enum api_query question;
    const json_t *body;          /* borrowed; NULL: an empty one */
    json_t *const *bodies;       /* borrowed, one for each part; NULL: `body` for all */
    uint64_t timeout_us;         /* 0: fleet_step_us */
    const struct part_set *only; /* borrowed; NULL: any */
    /* Is it asked? NULL: all of `only` are. */
    bool (*select)(const struct fleet_part *p, const void *arg);
    /* @results  its text may be moved out of it. NULL: nothing follows. */
    void (*on_result)(struct fleet_part *p, size_t part, struct fleet_result *results, void *arg);
    void *arg;
    bool fence_failed; /* then: those that did not do it, for what they said */
};

/* fanout_select - those that would be asked now. Returns: how many. */
size_t fanout_select(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                     struct fleet_batch *b);

/* fanout_apply - ask them, and take down what each answered. Nobody selected: nothing is done.
 * Threads: the owner of the parts (fleet/update/fleet_part.h); asserted. No lock held. Blocks: up
 * to timeout_us. Errors: fleet_request's; nothing was taken down then. */
int fanout_apply(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                 struct err *e);

/* fanout_apply_or_fail - the same; where nobody could be asked each of them is taken to have given
 * no answer, for the reason `why`.
 * @why  clean, or why it is not even tried */
void fanout_apply_or_fail(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                          struct err *why);

#endif
