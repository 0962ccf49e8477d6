/* NCCL's sockets, which it keeps to itself: those that other processes have connected, and those
 * that it forgets.
 *
 * Aborting a communicator does not end before each of its connections is closed by the other side:
 * libnccl's proxy thread goes on serving whoever is connected. A trainer that was killed closes its
 * own; one that is stopped, or hangs, never does.
 *
 * A communicator whose ranks never knew of each other, since the trainer died or did not come, is
 * not freed by ncclCommAbort (2.28.9; told by the calls that opened and allocated what stayed of 86
 * such groups): two listeners, what was accepted there, rarely its socket for ranks of the same
 * host, 1.8 MB of this process's memory and 1.1 MB of the GPU's. libnccl offers no other way; the
 * sockets are closed here, the memory stays.
 *
 * Nothing else of the process may begin to listen for TCP while a group is there. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_SOCKETS_H
#define BATON_TRANSPORT_NCCL_NCCL_SOCKETS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { NCCL_IPC_MAX = 16 };

/* A group's stay in this process; filled by nccl_sockets_enter. */
struct nccl_sockets {
    uint8_t
        ports[(UINT16_MAX + 1) / 8]; /* of TCP at which the process listened before: a bit each */
    ino_t ipc[NCCL_IPC_MAX];         /* sockets for ranks of the same host that were there */
    unsigned n_ipc;
    bool is_whole;     /* all that there was could be seen */
    uint64_t n_joined; /* groups of this process that had joined, ever */
};

/* nccl_sockets_enter - note what there is before a group is begun; each is left once.
 * Threads: any, no lock held. Blocks: while /proc/self/fd is read, by another group too: 2 to 4 us
 * for each descriptor. Where it cannot be read, nothing is closed later. */
void nccl_sockets_enter(struct nccl_sockets *out);

/* nccl_sockets_joined - a communicator of this process is complete. Threads: any. */
void nccl_sockets_joined(void);

/* nccl_sockets_leave - the group that entered is over. What libnccl has forgotten of it is closed:
 * listeners that came after it entered, what was accepted there, and the socket for ranks of the
 * same host. But only if a group had joined before, since with the first one come listeners that
 * libnccl (its RAS), or a plugin of it, keeps as long as the process; if none has since, this one
 * included; and if no other group is there, since these may be that one's.
 * @freed  libnccl has said of all that was the group's that it is aborted; else nothing is closed
 * Threads: any, no lock held. Blocks: as above.
 * Returns: how many were closed. */
unsigned nccl_sockets_leave(const struct nccl_sockets *s, bool freed);

/* nccl_sockets_hang_up - shut down what other processes have connected to listeners that came after
 * the group entered.
 * Threads: any, no lock held. Blocks: as above.
 * Returns: how many. */
unsigned nccl_sockets_hang_up(const struct nccl_sockets *s);

#endif
