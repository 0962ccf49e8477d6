/* What the engines of a fleet joined for transfers from a trainer: NCCL groups, or handles of GPU
 * memory. Changed by the owner of the operation lock only, which is asserted. Threads: any; no lock
 * held. */
#ifndef BATON_FLEET_CALLS_FLEET_TRANSFER_H
#define BATON_FLEET_CALLS_FLEET_TRANSFER_H

#include "base/err.h"
#include "fleet/api/api_object.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

enum {
    FLEET_GROUPS_MAX = 64,     /* of one trainer: one for each of its pipeline stages */
    FLEET_GROUP_NAME_MAX = 256 /* bytes */
};

/* Why a group ends, for messages. */
#define FLEET_GROUP_REFUSED "an update was refused while its trainer may broadcast it"

/* An engine that joined a group. */
struct fleet_group_member {
    uint64_t number;          /* upstream_number; 0: it left */
    uint64_t offset, n_ranks; /* its ranks in the group */
    uint64_t incarnation;     /* its process then (upstream_info) */
};

struct fleet_group {
    struct api_packing packing;
    uint64_t world_size, rank_offset, began_us;
    char name[FLEET_GROUP_NAME_MAX + 1]; /* "": it was joined without one */
    bool ends_if_refused;                /* as in struct nccl_join_cfg */
    size_t n_members;
    struct fleet_group_member members[FLEET_MAX]; /* [n_members] */
    struct api_object
        *list;          /* one reference: fleet_keep_list's columns; NULL: none, and in copies */
    unsigned n_running; /* requests whose tensors are received by it */
    bool left;          /* fleet_group_leave_refused: it is kept to refuse what still comes by it */
    bool asked;         /* then: the engines were asked to leave */
};

/* Of a trainer that sends handles and joins no group. */
struct fleet_handles {
    bool set;        /* engines were set up for handles */
    bool on, packed; /* on: the trainer's request has `packed` */
};

/* fleet_get_group - a copy of a group. A group that was joined without a name has SGLang's default
 * name too. @name  NULL: the latest. Returns: false: there is none, or it was left after a refusal
 * (zeroed then). */
bool fleet_get_group(struct fleet_control *fc, const char *name, struct fleet_group *out);

/* fleet_require_group - may tensors be received by this group? @name  as fleet_get_group's
 * Errors: ERR_GROUP_LEFT at /transport; ERR_CONFLICT at /transport or /group_name: there is none.
 */
int fleet_require_group(struct fleet_control *fc, const char *name, struct err *e);
void fleet_get_handles(struct fleet_control *fc, struct fleet_handles *out);

/* fleet_group_has - did this engine join the group, and is it the same process? A membership ends
 * with the process, and when the engine is removed, also if it is added again. */
bool fleet_group_has(struct fleet_control *fc, const struct fleet_group *g,
                     struct upstream *upstream);

/* fleet_group_member_of - the engine's membership, also if it has ended; NULL: there is none. */
struct fleet_group_member *fleet_group_member_of(struct fleet_group *g,
                                                 const struct upstream *upstream);

/* fleet_add_group - engines joined it. When there are FLEET_GROUPS_MAX the oldest is forgotten: its
 * trainer ended without leaving. */
void fleet_add_group(struct fleet_control *fc, const struct fleet_group *g);

/* fleet_forget_group - engines leave it, or failed to join it; @name as fleet_get_group's.
 * @out  a copy, also of one that was left; zeroed: there is none. NULL: not wanted
 * Returns: are there others? */
bool fleet_forget_group(struct fleet_control *fc, const char *name, struct fleet_group *out);
void fleet_forget_groups(struct fleet_control *fc);

/* fleet_set_handles - NULL: the trainer left. */
void fleet_set_handles(struct fleet_control *fc, const struct fleet_handles *handles);

/* fleet_keep_list - an update by that list (api_columns_of) was committed, of the group that began
 * then.
 * @list  NULL: there was no memory for it; @began_us  of fleet_group; another group keeps its own
 * fleet_group_list - the columns names, dtypes or dtype_names, and shapes of the list that was kept
 * last, or its plan_id (a reference). @name  as fleet_get_group's. NULL: there is none. Threads:
 * any. */
void fleet_keep_list(struct fleet_control *fc, struct api_object *list, uint64_t began_us);
struct api_object *fleet_group_list(struct fleet_control *fc, const char *name);

/* fleet_check_group_name - may a request name this group? @name  NULL: it names none
 * Errors: ERR_NOT_FOUND at /group_name: there are groups, and none of that name. */
int fleet_check_group_name(struct fleet_control *fc, const char *name, struct err *e);

#endif
