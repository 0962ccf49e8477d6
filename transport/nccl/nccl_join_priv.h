/* The state of a join, shared by nccl_join.c, nccl_rendezvous.c and nccl_join_source.c. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_JOIN_PRIV_H
#define BATON_TRANSPORT_NCCL_NCCL_JOIN_PRIV_H

#include "base/mtx.h"
#include "transport/nccl/nccl_join.h"
#include "transport/nccl/nccl_join_state.h"
#include "transport/nccl/tcpstore.h"

#include <pthread.h>

struct nccl_join {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed;
    enum join_state state;
    struct err end;           /* why the join ends: written once; clean until JOIN_ENDING */
    bool left;                /* the end was requested; written with `end`, never after it */
    bool answered;            /* the inviter was answered */
    bool doubt;               /* nccl_join_doubt */
    struct tensor_list *kept; /* one reference, or NULL; nccl_join_keep_list */
    bool has_id;              /* `id` is written */
    uint32_t n_users;         /* sources that are open; none is added from JOIN_ENDING on */
    uint32_t n_pins;          /* calls of nccl_group_info; none is added from JOIN_CLOSING on */
    struct nccl_group
        *group; /* the supervisor's; other threads use it while they are users or pin it */
    struct nccl_group_info last; /* the last info of a group that was freed */
    struct tcpstore *store;      /* once the ranks are counted; read by any thread, closed by the
                                    supervisor at the end */
    int trainer_version;
    void (*gone)(void *arg);
    void *gone_arg;

    struct nccl_join_cfg cfg; /* immutable, like the members down to the blank line */
    char host[NCCL_JOIN_HOST_MAX + 1], group_name[NCCL_JOIN_GROUP_NAME_MAX + 1];
    char master[NCCL_JOIN_MASTER_CAP];
    uint64_t begun_us;
    pthread_t supervisor;

    uint8_t id[NCCL_ID_NBYTES]; /* the joiner's until has_id; then immutable */
    struct progress progress;   /* the joiner's; its stop: any thread */
};

/* join_end_locked - end the join with that reason; the first cause is kept. */
void join_end_locked(struct nccl_join *j, const struct err *why);
void join_end(struct nccl_join *j, const struct err *why);

/* join_leave_if_refused_locked - end a join with ends_if_refused that is in doubt, once it is
 * joined and has no more than n_own sources: before that its trainer does not notice. */
void join_leave_if_refused_locked(struct nccl_join *j, uint32_t n_own);

/* nccl_rendezvous.c: called by the joiner, no lock held */

/* rendezvous_count - connect to the store and count this server's ranks in it. @out  owned, on
 * success only
 * Errors: those of tcpstore_open and tcpstore_join. */
int rendezvous_count(struct tcpstore **out, const struct nccl_join *j, struct err *e);

/* rendezvous_id - wait for the id. Errors: those of tcpstore_wait and tcpstore_get; the value is
 * not an id. */
int rendezvous_id(uint8_t id[NCCL_ID_NBYTES], const struct nccl_join *j, struct tcpstore *store,
                  struct err *e);

/* rendezvous_allow - check that NCCL may connect to the address in the id. Errors: ERR_FORBIDDEN.
 */
int rendezvous_allow(const uint8_t id[NCCL_ID_NBYTES], const struct nccl_join *j, struct err *e);

#endif
