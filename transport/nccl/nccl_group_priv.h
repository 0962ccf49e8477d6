/* A group as nccl_group.c, whose callers wait, and nccl_owner.c, whose threads do the work, share
 * it.
 *
 * A request is left under the lock for every rank at once; who left it waits, and looks at its
 * deadline and stop there. Owners look only at `give_up`, never at what a caller lent them: a
 * caller may be gone when an owner comes back from a call that took too long.
 *
 * Broadcasts are one request that never ends: they are posted in a ring from which every owner
 * takes at its own pace. Both sides look at counters for a while before they sleep, since small
 * broadcasts are over sooner than a thread is woken. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_GROUP_PRIV_H
#define BATON_TRANSPORT_NCCL_NCCL_GROUP_PRIV_H

#include "base/mtx.h"
#include "driver/nccl_info.h"
#include "transport/nccl/nccl_group.h"
#include "transport/nccl/communicator.h"
#include "transport/nccl/nccl_sockets.h"

#include <pthread.h>
#include <stdatomic.h>

enum { GROUP_SPIN_US = 200 }; /* as long, before a thread sleeps */

enum request { REQUEST_OPEN, REQUEST_JOIN, REQUEST_WARM_UP, REQUEST_RECEIVE };

struct member {
    struct nccl_group *g; /* counted while the thread runs */
    uint32_t i;           /* immutable */
    bool ended;           /* under the group's lock: nothing of the devices is used any more */
    uint64_t n_landed;    /* under the group's lock: broadcasts that are there, ever */
    pthread_t thread;     /* of new and free */
    struct communicator rank; /* the owner's, and so is the next */
    uint64_t n_taken;     /* broadcasts that it has entered, ever */
};

struct nccl_group {
    struct mtx lock;    /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed; /* anything of what follows */
    enum nccl_group_state state;
    struct err error;           /* the first cause; clean while there is none */
    uint64_t abort_deadline_us; /* once failed */
    enum request what;          /* the last request */
    uint8_t id[NCCL_ID_NBYTES]; /* its id */
    uint64_t *dst; /* owned; [SOURCE_POSTED_MAX][n_ranks], of the broadcasts in the ring ... */
    uint64_t nbytes[SOURCE_POSTED_MAX]; /* ... and how large they are */
    uint64_t n_received;                /* of n_posted, handed over to the caller */
    uint32_t n_pending;                 /* ranks that are not done with it */
    uint32_t n_threads, n_aborted;      /* started; whose communicator is no more, ... */
    uint32_t n_quiet, n_ended; /* ... whose stream is done; which use their device no more */
    bool join_called;
    bool hung_up; /* on the peers, once: an abort took too long */
    bool stuck_logged;
    uint64_t nbytes_received, n_broadcasts;

    const struct nccl_api *nccl; /* borrowed; it and all below are immutable after new */
    uint32_t n_ranks, world_size, rank_offset;
    bool warm_up;
    uint64_t abort_timeout_us;
    struct nccl_sockets sockets; /* entered for the group's life */
    char version[NCCL_VERSION_TEXT_MAX];
    struct member *members; /* owned; [n_ranks] */

    atomic_uint_fast64_t n_requests; /* written under the lock; relaxed elsewhere: a hint to look;
                                        those below as well */
    atomic_uint_fast64_t n_posted; /* broadcasts, ever; none is asked for before the join is over */
    atomic_uint_fast64_t n_landed; /* of these, on every rank */
    atomic_bool give_up;           /* set when failed */
    atomic_uint n_refs;            /* of the caller and of each thread */
};

/* group_failed_locked - has it, stuck or not? */
bool group_failed_locked(const struct nccl_group *g);

/* group_fail_locked - the first cause wins; every owner is told to give up. */
void group_fail_locked(struct nccl_group *g, const struct err *cause);

void group_unref(struct nccl_group *g);

/* owner_main - a thread's whole life; @arg a struct member, and a reference to its group. */
void *owner_main(void *arg);

#endif
