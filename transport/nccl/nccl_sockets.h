/* NCCL's sockets, which it keeps to itself: those that other processes have connected.
 *
 * Aborting a communicator does not end before each of its connections is closed by the other side:
 * libnccl's proxy thread goes on serving whoever is connected. A trainer that was killed closes its
 * own; one that is stopped, or hangs, never does.
 *
 * A communicator whose ranks never knew of each other, since the trainer died or did not come, is
 * not freed by ncclCommAbort (2.28.9; told by the calls that opened and allocated what stayed of 86
 * such groups): two listeners, what was accepted there, rarely its socket for ranks of the same
 * host, 1.8 MB of this process's memory and 1.1 MB of the GPU's. libnccl offers no other way; they
 * stay until the process ends.
 *
 * Nothing else of the process may begin to listen for TCP while a group is there. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_SOCKETS_H
#define BATON_TRANSPORT_NCCL_NCCL_SOCKETS_H

#include <stdbool.h>
#include <stdint.h>

/* A group's stay in this process; filled by nccl_sockets_enter. */
struct nccl_sockets {
    uint8_t
        ports[(UINT16_MAX + 1) / 8]; /* of TCP at which the process listened before: a bit each */
    bool is_whole;                   /* all that there was could be seen */
};

/* nccl_sockets_enter - note what there is before a group is begun.
 * Threads: any. Blocks: while /proc/self/fd is read: 2 to 4 us for each descriptor. Where it cannot
 * be read, nothing is shut down later. */
void nccl_sockets_enter(struct nccl_sockets *out);

/* nccl_sockets_hang_up - shut down what other processes have connected to listeners that came after
 * the group entered.
 * Threads: any, no lock held. Blocks: as above.
 * Returns: how many. */
unsigned nccl_sockets_hang_up(const struct nccl_sockets *s);

#endif
