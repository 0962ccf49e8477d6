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
 * sockets are closed here, the memory stays. */
#ifndef BATON_TRANSPORT_NCCL_SOCKETS_H
#define BATON_TRANSPORT_NCCL_SOCKETS_H

#include <stdbool.h>
#include <stdint.h>

/* TCP ports at which this process listens. */
struct listen_ports {
    uint8_t bits[(UINT16_MAX + 1) / 8];
};

/* A group's stay in this process; filled by nccl_sockets_enter. */
struct nccl_sockets {
    struct listen_ports others; /* that were there before */
    bool is_whole;              /* all of them, also those that libnccl keeps as long as the
                                   process: it has them since a first group joined */
    bool has_ipc;               /* a socket for ranks of the same host was there too */
};

/* nccl_sockets_enter - note what there is before a group is begun; each is left once.
 * Threads: any, no lock held. Blocks: while /proc/self/fd is read; where it cannot be, nothing is
 * closed later. */
void nccl_sockets_enter(struct nccl_sockets *out);

/* nccl_sockets_joined - a group of this process has joined. Threads: any. */
void nccl_sockets_joined(void);

/* nccl_sockets_leave - the group that entered is over, and libnccl has returned from aborting all
 * that was its own. Where it never joined, what is left of it is closed: listeners that came after
 * it entered, what they accepted, and the socket for ranks of the same host. But only if a group
 * had joined before it, since the first one leaves listeners that libnccl needs, and if no other
 * group is there, since these may be that one's. Nothing else of the process may begin to listen
 * while a group is there.
 * Threads: any, no lock held. Blocks: as above.
 * Returns: how many were closed. */
unsigned nccl_sockets_leave(const struct nccl_sockets *s, bool joined);

/* nccl_sockets_hang_up - shut down what other processes have connected to listeners that came after
 * the group entered.
 * Threads: any, no lock held. Blocks: as above.
 * Returns: how many. */
unsigned nccl_sockets_hang_up(const struct nccl_sockets *s);

#endif
