/* The NCCL group that this server's GPUs have joined with a trainer: at most one, and the outcome
 * of the last one.
 *
 * Every request to join, leave or receive comes here; transport/nccl/nccl_join.h does the work. */
#ifndef BATON_CONTROL_WEIGHT_TRANSFER_H
#define BATON_CONTROL_WEIGHT_TRANSFER_H

#include "base/err.h"
#include "base/net/cidr.h"
#include "driver/nccl_info.h"
#include "memory/device.h"
#include "transport/nccl/nccl_join.h"
#include "weights/update/update.h"

#include <stdbool.h>
#include <stdint.h>

struct weight_transfer;

struct weight_transfer_cfg {
    const struct nccl_info *nccl;  /* borrowed, as all here; outlives the transfer */
    struct device *const *devices; /* the ranks */
    uint32_t n_devices;            /* 0: no GPUs, so no group can be joined */
    const struct cidr_list *allow; /* addresses of trainers; empty: every address */
    uint64_t join_timeout_us;      /* for an invitation without one */
};

/* How the tensors of a group are packed if the update does not specify it; zeroed: each tensor is a
 * broadcast of its own. */
struct nccl_packing {
    bool packed;
    uint64_t bucket_nbytes; /* 0: the default */
};

int weight_transfer_new(struct weight_transfer **out, const struct weight_transfer_cfg *cfg,
                        struct err *e);

/* weight_transfer_stop - leave the group, answer waiting requests, join the threads. Later calls
 * fail with ERR_DRAINING.
 * Threads: the owner's, after the updates have stopped. Blocks: until aborts have ended. */
void weight_transfer_stop(struct weight_transfer *t);

/* weight_transfer_free - stops first; accepts NULL. */
void weight_transfer_free(struct weight_transfer *t);

/* weight_transfer_live - false when an abort has not returned: the process then has to be
 * restarted, and the devices must not be freed. Threads: any. Blocks: no. */
bool weight_transfer_live(struct weight_transfer *t, struct err *why);

const struct weight_transfer_cfg *weight_transfer_config(const struct weight_transfer *t);

/* weight_transfer_info - get the state of the group. Returns false when there is none.
 * Threads: any. Blocks: no. */
bool weight_transfer_info(struct weight_transfer *t, struct nccl_join_info *info);

/* weight_transfer_able - can this server join a group at all? Errors: ERR_NO_GPU, ERR_NO_NCCL. */
int weight_transfer_able(const struct weight_transfer *t, struct err *e);

/* weight_transfer_join - begin to join a group; leaves the current group first.
 * @invitation  form, id, host, port, group_name, the times, answer, answer_arg and x are used, and
 *              of `group` world_size, rank_offset and warm_up; the server fills in its own values
 * @packing     for updates that do not specify it
 * @serial      that is served: what the trainer's patches build on (weight_transfer_chain)
 * Threads: any. Blocks: no.
 * Errors: ERR_DRAINING; the reason why an abort is stuck; ERR_CONFLICT (an update receives by the
 *         current group); those of nccl_join_new. The invitation's answer is then not called. */
int weight_transfer_join(struct weight_transfer *t, const struct nccl_join_cfg *invitation,
                         const struct nccl_packing *packing, uint64_t serial, struct err *e);

/* weight_transfer_leave - leave the group, if there is one.
 * @group_name  the name it was joined under; NULL: any
 * @left        called when the group has been left completely, if this returns 1
 * Returns: 0 left completely; 1 not yet; -1 failed. Threads: any. Blocks: no.
 * Errors: ERR_CONFLICT at /group_name: the group has another name. */
int weight_transfer_leave(struct weight_transfer *t, const char *group_name,
                          void (*left)(void *arg), void *arg, struct err *e);

/* weight_transfer_source - make a source of the next broadcasts of the group.
 * @chunks      moved in, also on failure
 * @group_name  the name that the group was joined under; NULL: any
 * @packing     from weight_transfer_packing, by which `chunks` were cut; NULL: the request
 *              specified it
 * @sure        as nccl_join_source_new
 * Threads: any. Blocks: no.
 * Errors: ERR_NO_GPU, ERR_NO_NCCL, ERR_DRAINING; ERR_CONFLICT: there is no group (the message names
 *         the call that joins one), the group has another name (at /group_name), a source of it is
 *         open, it has since been joined with other `packing`, or those of nccl_join_source_new;
 *         ERR_NO_MEMORY. */
int weight_transfer_source(struct weight_transfer *t, struct source **out,
                           struct tensor_list *tensor_list, struct packed_chunks *chunks,
                           const char *group_name, const struct nccl_packing *packing, bool sure,
                           struct err *e);

/* weight_transfer_packing - get the packing that the group was joined with; zeroed without a group.
 * Threads: any. */
void weight_transfer_packing(struct weight_transfer *t, struct nccl_packing *out);

/* weight_transfer_doubt - an update by the group was refused (nccl_join_doubt).
 * @group_name  of the update; a group of another name is not in doubt. NULL: not given
 * @sent_us     as nccl_join_doubt's
 * @e           the reason; its message tells that the group was left, if it was
 * Threads: any. */
void weight_transfer_doubt(struct weight_transfer *t, const char *group_name, uint64_t sent_us,
                           struct err *e);

/* weight_transfer_tell - a request by a group has failed, and its source is closed: add to the
 * error that the group was left, if it was.
 * @group  as struct source_ops has it
 * Threads: any. Blocks: no. */
void weight_transfer_tell(struct weight_transfer *t, uint64_t group, struct err *e);

/* weight_transfer_chain - may this update bring patches, which say not what they build on? It may
 * if what is served is what the trainer of the group built on last: the version that was served
 * when the group was joined, or that its own last update made. From the first patch, and from any
 * source of other tensors, until the commit there is no such version, only this update: what was
 * refused or given up would be missing below the next patches.
 * @serial  that is served; 0: the update has brought patches before
 * Threads: any. Blocks: no.
 * Errors: as weight_transfer_list's first; ERR_PRECONDITION, which says what came in between and
 *         what to do. */
int weight_transfer_chain(struct weight_transfer *t, uint64_t serial, const char *update_id,
                          struct err *e);

/* weight_transfer_committed - an update was committed. If the group brought its last tensors,
 * patches build on it now, and unless it was a delta, its list is the one that weight_transfer_list
 * finds. weight_transfer_list - find the list of the last committed update by the group that is
 * joined; a group that is joined forgets the one of the group before.
 * @group_name  as weight_transfer_source's
 * Threads: any. Blocks: no. Errors: as weight_transfer_source, then nccl_join_list. */
void weight_transfer_committed(struct weight_transfer *t, const struct update_info *info);
int weight_transfer_list(struct weight_transfer *t, struct tensor_list **out,
                         const char *group_name, struct err *e);

/* For metrics: "none", "joining"..., static; and the totals of all groups so far. */
const char *weight_transfer_state(struct weight_transfer *t);
const struct nccl_join_stats *weight_transfer_stats(const struct weight_transfer *t);

#endif
