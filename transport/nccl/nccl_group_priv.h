/* The state shared by nccl_group.c, whose callers wait, and nccl_owner.c, whose threads do the
 * work.
 *
 * A request is posted under the lock for every rank at once. The caller that posted it waits, and
 * checks its own deadline and stop. Owners check only `give_up`, never memory of a caller: the
 * caller may be gone when an owner returns from a call that took too long.
 *
 * Broadcasts are one request that never ends: they are posted in a ring, from which every owner
 * takes at its own pace. Both sides poll counters for a while before they sleep, because small
 * broadcasts finish faster than a thread wakes up. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_GROUP_PRIV_H
#define BATON_TRANSPORT_NCCL_NCCL_GROUP_PRIV_H

#include "base/mtx.h"
#include "driver/nccl_info.h"
#include "transport/nccl/communicator.h"
#include "transport/nccl/nccl_group.h"
#include "transport/nccl/nccl_sockets.h"

#include <pthread.h>
#include <stdatomic.h>

enum { GROUP_SPIN_US = 200 }; /* a thread polls this long before it sleeps */

enum request { REQUEST_OPEN, REQUEST_JOIN, REQUEST_WARM_UP, REQUEST_RECEIVE };

struct member {
    struct nccl_group *g;     /* referenced while the thread runs */
    uint32_t i;               /* immutable */
    bool ended;               /* guarded by the group's lock: this thread uses no device any more */
    uint64_t n_landed;        /* guarded by the group's lock: broadcasts that have arrived, ever */
    pthread_t thread;         /* used by nccl_group_new and nccl_group_free */
    struct communicator rank; /* the owner thread's, like the next */
    uint64_t n_taken;         /* broadcasts that it has entered, ever */
};

struct nccl_group {
    struct mtx lock;    /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed; /* any member below */
    enum nccl_group_state state;
    struct err error;           /* the first cause; clean while there is none */
    uint64_t abort_deadline_us; /* once failed */
    enum request what;          /* the last request */
    uint8_t id[NCCL_ID_NBYTES]; /* the id of REQUEST_JOIN */
    uint64_t
        *dst; /* owned; [SOURCE_POSTED_MAX][n_ranks], addresses of the broadcasts in the ring */
    uint64_t nbytes[SOURCE_POSTED_MAX]; /* their sizes */
    uint64_t n_received;                /* broadcasts that were returned to the caller */
    uint32_t n_pending;                 /* ranks that have not completed `what` */
    uint32_t n_threads, n_aborted; /* threads started; threads whose communicator was aborted */
    uint32_t n_quiet,
        n_ended; /* threads whose stream is done; threads that use their device no more */
    bool join_called;
    bool peers_closed; /* peers' connections were shut down, because an abort took too long */
    bool stuck_logged;
    uint64_t nbytes_received, n_broadcasts;

    const struct nccl_api *nccl; /* borrowed; it and all below are immutable after new */
    uint32_t n_ranks, world_size, rank_offset;
    bool warm_up;
    uint64_t abort_timeout_us;
    struct nccl_sockets sockets; /* listeners that existed before the group */
    char version[NCCL_VERSION_TEXT_MAX];
    struct member *members; /* owned; [n_ranks] */

    atomic_uint_fast64_t n_requests; /* written under the lock; relaxed elsewhere, as a hint to
                                        check under the lock; so are those below */
    atomic_uint_fast64_t
        n_posted; /* broadcasts, ever; none is posted before the join has completed */
    atomic_uint_fast64_t n_landed; /* of these, arrived on every rank */
    atomic_bool give_up;           /* set when failed */
    atomic_uint n_refs;            /* one of the caller and one of each thread */
};

/* group_failed_locked - has the group failed, stuck or not? */
bool group_failed_locked(const struct nccl_group *g);

/* group_fail_locked - fail the group, and tell every owner to give up. The first cause is kept. */
void group_fail_locked(struct nccl_group *g, const struct err *cause);

void group_unref(struct nccl_group *g);

/* owner_main - the owner thread of a rank. @arg  a struct member, and a reference to its group */
void *owner_main(void *arg);

#endif
