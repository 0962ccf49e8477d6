/* libfakenccl.so: NCCL's calls (driver/nccl_symbols.h) on a CPU, between processes of one host.
 *
 * The unique id holds what the real one holds, a random number and the address of a thread in the
 * minting process. Every rank opens a listener, tells that thread, and hangs up; when all have come
 * it calls each of them back with the table of all. The ranks are then joined in rings of loopback
 * connections: one for life, made by init, and one for each kind of collective, made by the first
 * of it, whose call is therefore in progress until every rank has made it. Data is bytes in a
 * stream, without frames: ranks that disagree on a count wait, or read what is not theirs, and
 * nobody is told. The work is done in the order of libfakecuda's streams, by their workers.
 *
 * As the real library behaves (2.28.9; read in its source and measured on H200s):
 * - without blocking, calls return ncclInProgress and a thread of ours goes on; a call before
 *   ncclCommGetAsyncError said ncclSuccess is refused and spoils the communicator.
 * - ranks of other versions all fail; other world sizes, or one rank's other NCCL_CUMEM_ENABLE,
 *   hang in init without any word; NCCL_COMM_BLOCKING overrides the configuration.
 * - a peer that is gone is not noticed (FAKENCCL_TRANSPORT=p2p, the default): only abort ends the
 *   wait. Over "socket", ncclCommGetAsyncError says ncclRemoteError, and the work waits all the
 *   same.
 * - ncclCommFinalize does not return while the ring's previous rank keeps its communicator.
 * - two ranks on one device of a process are refused; a thread without a context is on device 0.
 * Stricter than the real one: a second thread in one communicator, also to abort it, is refused and
 * counted; a communicator that is no more is refused, where the real library would read freed
 * memory.
 *
 * Environment, read when a communicator is made, unless said otherwise:
 *   FAKENCCL_VERSION   what ncclGetVersion says and peers compare; default 22809; at each call
 *   FAKENCCL_CUDA      the libfakecuda.so that is loaded; default: found by its name
 *   FAKENCCL_TRANSPORT p2p or socket
 *   FAKENCCL_DIE_AFTER_BYTES    SIGKILL to itself once broadcasts have moved so many bytes here
 *   FAKENCCL_STALL_AFTER_BYTES  moves no more, until abort
 *   FAKENCCL_SHORT     as root, sends so many bytes fewer of each broadcast, and goes on
 *   FAKENCCL_REFUSE_JOIN  1: init fails at once (ncclSystemError) and tells nobody
 *   FAKENCCL_MISMATCH  handshake: another version is told of as where two ranks first connect, by
 *                      the address; default: where the table of ranks is compared, by the rank
 *
 *   FAKENCCL_HANG_INIT     1: this rank joins, and then no rank's init ends
 *
 *   FAKENCCL_ABORT_STICKS  1: ncclCommAbort does not return before fakenccl_release_aborts
 *
 *   FAKENCCL_ABORT_AWAITS_PEERS  1: nor before whoever connected to this rank has hung up, or was
 *                      hung up on, as libnccl 2.28
 *
 *   FAKENCCL_FAIL_ASYNC    1: a call told to fail does it, where it can, by ncclCommGetAsyncError
 *
 * At the first call:
 *
 *   FAKENCCL_FAIL_NTH  the n-th call (from 1) fails; a release is done all the same
 *
 *   FAKENCCL_FAIL_CALL count only calls of this exported name
 *   FAKENCCL_FAIL_RESULT  with this result; default 3, ncclInternalError
 *   FAKENCCL_REPORT    FILE: at the process's end, the counts as one line of JSON */
#ifndef BATON_TESTS_FAKES_LIBNCCL_FAKENCCL_H
#define BATON_TESTS_FAKES_LIBNCCL_FAKENCCL_H

#include <stddef.h>
#include <stdint.h>

/* Exported too, for trainers; baton has no use for them. Rows as in driver/nccl_symbols.h. */
#define FAKENCCL_SYMBOLS(X)                                                                        \
    X(comm_init_rank, ncclCommInitRank, true, ncclResult_t,                                        \
      (ncclComm_t * comm, int n_ranks, ncclUniqueId id, int rank))                                 \
    X(comm_finalize, ncclCommFinalize, true, ncclResult_t, (ncclComm_t comm))

/* Alive now in this process; and what was ever done. */
struct fakenccl_counts {
    uint64_t n_comms, n_jobs, n_sockets;
    uint64_t n_roots; /* ids whose ranks have not all come */
    uint64_t n_hung;  /* threads that wait for an abort; in finalize, for the peer to leave */
    uint64_t n_calls, n_comms_made, n_aborts, n_broadcasts, n_all_reduces;
    uint64_t n_gone;  /* peers found gone */
    uint64_t n_races; /* calls on a communicator that another thread was in */
    uint64_t nbytes;  /* that broadcasts moved: sent by a root, received by others */
};

/* Looked up with dlsym; the names are their types' with "_fn". Threads: any. */
typedef void fakenccl_counts_fn(struct fakenccl_counts *out);
/* Collectives that are on streams now and have not ended. */
typedef uint64_t fakenccl_queued_fn(void);
/* The nth call from now fails, of this exported name or (NULL) of any; 0: nothing fails. */
typedef void fakenccl_fail_fn(const char *call, uint64_t nth);
/* Lets aborts that stick go, those to come too. */
typedef void fakenccl_release_aborts_fn(void);

fakenccl_counts_fn fakenccl_counts;
fakenccl_queued_fn fakenccl_queued;
fakenccl_fail_fn fakenccl_fail;
fakenccl_release_aborts_fn fakenccl_release_aborts;

#endif
