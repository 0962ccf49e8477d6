/* What the fake's files share: one state, the communicator, and the ways to wait that abort ends.
 */
#ifndef BATON_TESTS_FAKES_LIBNCCL_FAKENCCL_PRIV_H
#define BATON_TESTS_FAKES_LIBNCCL_FAKENCCL_PRIV_H

#include "driver/nccl.h"
#include "tests/fakes/libcuda/fakecuda.h"
#include "tests/fakes/libnccl/fakenccl.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { FAKE_RANKS_MAX = 128, FAKE_VERSION = 22809 };
#define FAKE_NO_FAULT UINT64_MAX

/* A fake that drifts from the rows does not build. */
#define X(field, symbol, required, returns, args) returns symbol args;
NCCL_SYMBOLS(X)
FAKENCCL_SYMBOLS(X)
#undef X

/* What a connection is for; the first three are rings. */
enum fake_purpose {
    FAKE_LIFE,
    FAKE_BROADCAST,
    FAKE_ALL_REDUCE,
    FAKE_RINGS,
    FAKE_HELLO,
    FAKE_TABLE
};

/* A rank, as it tells of itself; all of them are the table. */
struct fake_peer {
    int32_t rank, n_ranks, version, device, pid, cumem, hangs;
    uint32_t port;
};

struct fake_ring {
    int prev, next; /* sockets; -1 before the first use */
};

struct fake_faults {
    uint64_t die_after, stall_after, nbytes_short;
    bool refuse_join, hang_init, abort_sticks, abort_awaits_peers, sockets, fail_async, handshakes;
};

/* One collective, from its call to the stream's worker. */
struct fake_work {
    struct ncclComm *comm; /* a reference */
    enum fake_purpose what;
    const char *send; /* views; NULL where NULL was given */
    char *recv;
    size_t n_elements, nbytes;
    ncclDataType_t dtype;
    int root;
    void *stream;
    uint64_t seq;
};

struct ncclComm {
    struct ncclComm *next; /* these two under fake_nccl.lock */
    bool inside;           /* a thread is in a call */

    pthread_mutex_t lock; /* guards down to the blank line */
    pthread_cond_t changed;
    uint64_t n_enqueued, n_done; /* work */
    bool working;                /* a stream's worker is in it */

    int rank, n_ranks, device, version, cumem; /* immutable */
    bool blocking;
    ncclUniqueId id;
    struct fake_faults faults;
    int quit; /* an eventfd: readable for ever once aborted */

    bool job_started; /* the caller's thread: from here to the blank line */
    pthread_t job;
    bool finalized;

    struct fake_work *work; /* the job's: NULL for init */
    ncclResult_t forced;    /* what it must end with, ncclSuccess for what comes of it */
    int listener;
    int early[FAKE_RINGS]; /* connections that came before their time, -1 for none */
    struct fake_peer peers[FAKE_RANKS_MAX];

    struct fake_ring rings[FAKE_RINGS]; /* made by a job, used by the work after it */
    uint64_t nbytes;                    /* moved by broadcasts: the work's, in its order */

    atomic_int n_refs, state; /* state: what ncclCommGetAsyncError says */
    atomic_bool aborted, job_done;
};

struct fake_nccl {
    pthread_mutex_t lock; /* guards down to the blank line */
    pthread_cond_t changed;
    struct ncclComm *comms;
    uint64_t fail_nth;
    const char *fail_call;
    ncclResult_t fail_result;
    bool aborts_released;

    fakecuda_enqueue_fn *enqueue; /* libfakecuda's; bound under the lock, then immutable */
    fakecuda_view_fn *view;
    fakecuda_device_fn *device;

    /* relaxed: counters */
    atomic_uint_fast64_t n_comms, n_jobs, n_sockets, n_roots, n_hung, n_calls, n_comms_made,
        n_aborts, n_broadcasts, n_all_reduces, n_queued, n_gone, n_races, nbytes;
};
extern struct fake_nccl fake_nccl;

uint64_t fake_number(const char *name, uint64_t def);
/* What ncclGetLastError says from now on. */
__attribute__((format(printf, 1, 2))) void fake_warn(const char *fmt, ...);
int fake_version(void);

/* Counts the call; what it must return if it is the one to fail, else ncclSuccess. */
ncclResult_t fake_enter(const char *call);
/* The same, and puts the thread into the communicator; whatever comes back but ncclSuccess and
 * *entered true, it is not in. */
ncclResult_t fake_enter_comm(const char *call, ncclComm_t comm, bool *entered);
void fake_leave_comm(ncclComm_t comm);
/* ncclSuccess when the last call has ended well; spoils the communicator when it has not ended. */
ncclResult_t fake_ready(ncclComm_t comm);
/* Runs the job: `work` to enqueue, or NULL to join; at once or in a thread. */
ncclResult_t fake_start(ncclComm_t comm, struct fake_work *work, ncclResult_t forced);
/* The state, unless it is an error already. */
void fake_settle(ncclComm_t comm, ncclResult_t result);
void fake_unref(ncclComm_t comm);

/* The jobs. */
ncclResult_t fake_join(ncclComm_t comm);
ncclResult_t fake_launch(ncclComm_t comm, struct fake_work *work);

/* Waits that end well (0), or by abort (-1). */
int fake_wait(ncclComm_t comm, int fd, short events);
int fake_put(ncclComm_t comm, int fd, const void *bytes, size_t nbytes);
int fake_take(ncclComm_t comm, int fd, void *bytes, size_t nbytes);
/* Until abort: -1. */
int fake_hang(ncclComm_t comm);
/* Makes the ring once every rank is about to. */
int fake_ring_join(ncclComm_t comm, enum fake_purpose ring);
/* A listener on loopback; -1 when there is none to be had. */
int fake_listen(struct sockaddr_in *at);
void fake_close(int *fd);

#endif
