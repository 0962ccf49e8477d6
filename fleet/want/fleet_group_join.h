/* A trainer's NCCL group, joined and left by the engines of a fleet.
 *
 * Each engine is asked how many ranks it has, and gets the ranks that follow those of the engine
 * before it. Either all engines join, or those that did leave again, where their API can. */
#ifndef BATON_FLEET_WANT_FLEET_GROUP_JOIN_H
#define BATON_FLEET_WANT_FLEET_GROUP_JOIN_H

#include "base/err.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/calls/fleet_transfer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

enum {
    FLEET_WORLD_SIZE_MAX = 65536,
    FLEET_LEAVE_US = 30000000 /* for an engine to leave a group */
};

struct fleet_join_request {
    uint64_t world_size, rank_offset, timeout_us;
    const char *group_name;              /* borrowed; NULL: it names none */
    struct api_packing packing;          /* of a group */
    bool ends_if_refused;                /* as in struct fleet_group */
    bool offset_given;                   /* else the engines have to fill the group */
    const struct fleet_handles *handles; /* borrowed: no group is joined; NULL: one is */
};

/* fleet_group_join - all engines that answer join a group, or are set up for handles of GPU memory.
 * @native  the client's body
 * @reply   to the last request; in: zeroed; also set on errors, as far as engines were asked
 * Threads: the owner of the operation lock (fleet/calls/fleet_locks.h). Blocks: up to timeout_us,
 * fleet_step_us and FLEET_LEAVE_US.
 * Errors: ERR_UNSYNCED (fewer than --min-ready engines answer), ERR_BAD_REQUEST at /world_size (the
 * engines' ranks do not fit), ERR_NO_GPU (an engine has none); an engine's: those that joined the
 * group have been asked to leave. A group that this one was to replace is forgotten then too, since
 * engines leave it before they join. */
int fleet_group_join(struct fleet_control *fc, const struct fleet_join_request *req,
                     struct api_object *native, struct fleet_results *reply, struct err *e);

/* fleet_group_leave - all engines that joined leave, and what they set up for handles is undone.
 * @name   NULL: every group
 * @reply  as fleet_group_join's. The group is forgotten, whatever they reply.
 * Threads: as fleet_group_join. Blocks: up to FLEET_LEAVE_US for each group.
 * Errors: ERR_NOT_FOUND at /group_name; an engine's. */
int fleet_group_leave(struct fleet_control *fc, const char *name, struct fleet_results *reply,
                      struct err *e);

/* fleet_group_leave_refused - an update by a group was refused, or failed: if its trainer may be in
 * its broadcast by then (ends_if_refused), each later update by the group is an ERR_GROUP_LEFT, and
 * the engines leave it: at once, or when no tensors are received by it any more.
 * @name     as fleet_get_group's
 * @sent_us  when the request came: a group that was joined later is not meant
 * @e        the reason; its message tells which engine has not left
 * fleet_group_end_receive - a request that counted itself in the group's n_running has ended.
 * @began_us  of the group
 * Threads: any that owns no lock of the fleet. Blocks: for the operation lock, and as
 * fleet_group_leave. */
void fleet_group_leave_refused(struct fleet_control *fc, const char *name, uint64_t sent_us,
                               struct err *e);
void fleet_group_end_receive(struct fleet_control *fc, uint64_t began_us);

#endif
