/* One running POST /v1/rollouts: a generation whose reply is one batch of tensors, or a stream of
 * them. Shared by rollouts.c (the request) and rollouts_reply.c (the reply). */
#ifndef BATON_HANDLERS_GENERATE_ROLLOUTS_H
#define BATON_HANDLERS_GENERATE_ROLLOUTS_H

#include "control/unread.h"
#include "handlers/batch/batch.h"
#include "handlers/generate/generation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rollouts_op {
    struct generation g; /* first: generation_ops.free gets its address */
    char *request_id;    /* owned */
    int64_t created_s;
    bool stream, one_prompt; /* one_prompt: a request to /v1/generate */
    struct batch_options options;
    struct batch_routes routes;

    /* Of a stream; pool's job only. */
    bool *group_sent; /* owned; [n_prompts]: the group that this prompt begins has its frame */
    struct unread_body *frame; /* owned; the frame that is being written, or NULL */
    size_t n_written;
    uint32_t n_groups_sent;
    struct err frame_error; /* a frame could not be made: no further one is */
};

static inline struct rollouts_op *rollouts_of(struct generation *g)
{
    return (struct rollouts_op *)(void *)g;
}

/* rollouts_on_ended, rollouts_finish - the on_tokens (of a stream) and finish of its
 * generation_ops. */
void rollouts_on_ended(struct generation *g);
void rollouts_finish(struct generation *g);

#endif
