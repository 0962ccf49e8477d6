/* A join as nccl_join.c, nccl_rendezvous.c and nccl_join_source.c share it. */
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
    struct err end;           /* why it ends: written once; clean until JOIN_ENDING */
    bool left;                /* the end was asked for; written with `end`, never after it */
    bool answered;            /* whoever invited */
    bool doubt;               /* nccl_join_doubt */
    bool has_id;              /* `id` is written */
    uint32_t n_users;         /* sources that are open; none is added from JOIN_ENDING on */
    uint32_t n_pins;          /* calls of nccl_group_info; none is added from JOIN_CLOSING on */
    struct nccl_group *group; /* the supervisor's; others use it while they are users or pin it */
    struct nccl_group_info last; /* of a group that is no more */
    struct tcpstore *store; /* once counted; read by anyone, closed by the supervisor at the end */
    int trainer_version;
    void (*gone)(void *arg);
    void *gone_arg;

    struct nccl_join_cfg cfg; /* immutable, and so are those down to the blank line */
    char host[NCCL_JOIN_HOST_MAX + 1], group_name[NCCL_JOIN_GROUP_NAME_MAX + 1];
    char master[NCCL_JOIN_MASTER_CAP];
    uint64_t begun_us;
    pthread_t supervisor;

    uint8_t id[NCCL_ID_NBYTES]; /* joiner's until has_id; then immutable */
    struct progress progress;   /* joiner's; its stop: anyone */
};

/* join_end_locked - say why it ends; the first cause stays. */
void join_end_locked(struct nccl_join *j, const struct err *why);
void join_end(struct nccl_join *j, const struct err *why);

/* nccl_rendezvous.c: the joiner's, no lock held. */

/* rendezvous_count - reach the store and be counted in. @out owned, on success only
 * Errors: those of tcpstore_open and tcpstore_join. */
int rendezvous_count(struct tcpstore **out, const struct nccl_join *j, struct err *e);

/* rendezvous_id - wait for the id. Errors: those of tcpstore_wait and tcpstore_get; what is there
 * is no id. */
int rendezvous_id(uint8_t id[NCCL_ID_NBYTES], const struct nccl_join *j, struct tcpstore *store,
                  struct err *e);

/* rendezvous_allow - may NCCL be sent where the id says? Errors: ERR_FORBIDDEN. */
int rendezvous_allow(const uint8_t id[NCCL_ID_NBYTES], const struct nccl_join *j, struct err *e);

#endif
