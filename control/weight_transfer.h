/* The group that this server's GPUs are in with a trainer: at most one, and what became of the
 * last.
 *
 * Whoever joins, leaves or receives asks here; what happens then is
 * transport/nccl/nccl_join.h's. */
#ifndef BATON_CONTROL_WEIGHT_TRANSFER_H
#define BATON_CONTROL_WEIGHT_TRANSFER_H

#include "base/err.h"
#include "base/net/cidr.h"
#include "driver/nccl_info.h"
#include "memory/device.h"
#include "transport/nccl/nccl_join.h"

#include <stdbool.h>
#include <stdint.h>

struct weight_transfer;

struct weight_transfer_cfg {
    const struct nccl_info *nccl;  /* borrowed, as all here; outlives the transfer */
    struct device *const *devices; /* the ranks */
    uint32_t n_devices;            /* 0: without GPUs nothing is joined */
    const struct cidr_list *allow; /* trainers; empty: every address */
    uint64_t join_timeout_us;      /* of an invitation that says none */
};

/* How the tensors of a group are packed where an update does not say it; zeroed: each tensor is a
 * broadcast of its own. */
struct nccl_packing {
    bool packed;
    uint64_t bucket_nbytes; /* 0: as it is by default */
};

int weight_transfer_new(struct weight_transfer **out, const struct weight_transfer_cfg *cfg,
                        struct err *e);

/* weight_transfer_stop - leave, answer who waits, join the threads; later calls are ERR_DRAINING.
 * Threads: the owner's, after the updates have stopped. Blocks: until aborts are over. */
void weight_transfer_stop(struct weight_transfer *t);

/* weight_transfer_free - stops first; accepts NULL. */
void weight_transfer_free(struct weight_transfer *t);

/* weight_transfer_live - false when an abort has not come back: then the process has to be started
 * anew, and the devices must not be freed. Threads: any. Blocks: no. */
bool weight_transfer_live(struct weight_transfer *t, struct err *why);

const struct weight_transfer_cfg *weight_transfer_config(const struct weight_transfer *t);

/* weight_transfer_info - how the group is. Returns false when there is none. Instant; any thread.
 */
bool weight_transfer_info(struct weight_transfer *t, struct nccl_join_info *info);

/* weight_transfer_able - can this server join a group at all? Errors: ERR_NO_GPU, ERR_NO_NCCL. */
int weight_transfer_able(const struct weight_transfer *t, struct err *e);

/* weight_transfer_join - begin to join; the group before is left first.
 * @invitation  form, id, host, port, group_name, the times, answer, answer_arg and x are used, and
 *              of `group` world_size, rank_offset and warm_up; what is the server's own is put in
 * @packing     of its updates that do not say it
 * Threads: any. Blocks: no.
 * Errors: ERR_DRAINING; why an abort is stuck; ERR_CONFLICT (an update receives by the group there
 *         is); those of nccl_join_new. The invitation's answer is then not called. */
int weight_transfer_join(struct weight_transfer *t, const struct nccl_join_cfg *invitation,
                         const struct nccl_packing *packing, struct err *e);

/* weight_transfer_leave - leave the group, if there is one.
 * @group_name  it must have been joined under it; NULL: whichever there is
 * @left        called when nothing of it is left, if this returns 1
 * Returns: 0 nothing of it is left; 1 later; -1. Threads: any. Blocks: no.
 * Errors: ERR_CONFLICT at /group_name: another one. */
int weight_transfer_leave(struct weight_transfer *t, const char *group_name,
                          void (*left)(void *arg), void *arg, struct err *e);

/* weight_transfer_source - the next broadcasts of the group as a source.
 * @chunks      moved in, also on failure
 * @group_name  the group must have been joined under it; NULL: whichever there is
 * @packing     of weight_transfer_packing, by which `chunks` were cut; NULL: the request said how
 * @sure        as nccl_join_source_new
 * Threads: any. Blocks: no.
 * Errors: ERR_NO_GPU, ERR_NO_NCCL, ERR_DRAINING; ERR_CONFLICT: no group (says what to call), at
 *         /group_name another one, a source of it is open, it was joined with other `packing` by
 *         now, or those of nccl_join_source_new; ERR_NO_MEMORY. */
int weight_transfer_source(struct weight_transfer *t, struct source **out,
                           struct tensor_list *tensor_list, struct packed_chunks *chunks,
                           const char *group_name, const struct nccl_packing *packing, bool sure,
                           struct err *e);

/* weight_transfer_packing - as was said when the group was joined; zeroed without one.
 * Threads: any. */
void weight_transfer_packing(struct weight_transfer *t, struct nccl_packing *out);

/* weight_transfer_doubt - an update by the group was refused (nccl_join_doubt).
 * @group_name  of the update; another group is in no doubt. NULL: not said
 * Threads: any. */
void weight_transfer_doubt(struct weight_transfer *t, const char *group_name);

/* For metrics: "none", "joining"..., static; and what all groups so far came to. */
const char *weight_transfer_state(struct weight_transfer *t);
const struct nccl_join_stats *weight_transfer_stats(const struct weight_transfer *t);

#endif
