/* NCCL's sockets, which it does not expose: connections that other processes made to it.
 *
 * The abort of a communicator does not complete before each of its connections is closed by the
 * other side: libnccl's proxy thread continues to serve connected peers. A trainer that was killed
 * closes its connections; a trainer that is stopped, or hangs, never does.
 *
 * A communicator whose ranks never met, because the trainer died or did not come, is not freed by
 * ncclCommAbort (2.28.9; found by the calls that opened and allocated what remained of 86 such
 * groups). Two listeners remain, accepted connections, rarely its socket for ranks of the same
 * host, 1.8 MB of this process's memory and 1.1 MB of the GPU's. libnccl offers no other way to
 * free them; they remain until the process ends.
 *
 * No other part of the process may begin to listen for TCP while a group exists. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_SOCKETS_H
#define BATON_TRANSPORT_NCCL_NCCL_SOCKETS_H

#include <stdbool.h>
#include <stdint.h>

/* The listeners that existed before a group began; filled by nccl_sockets_enter. */
struct nccl_sockets {
    uint8_t ports[(UINT16_MAX + 1) / 8]; /* a bit for each TCP port at which the process listened */
    bool is_whole;                       /* all descriptors could be read */
};

/* nccl_sockets_enter - record the listeners that exist before a group begins.
 * Threads: any. Blocks: while /proc/self/fd is read: 2 to 4 us for each descriptor. If it cannot
 * be read, nothing is shut down later. */
void nccl_sockets_enter(struct nccl_sockets *out);

/* nccl_sockets_close_peers - shut down connections that other processes made to listeners created
 * after the group began.
 * Threads: any, no lock held. Blocks: as above.
 * Returns: how many. */
unsigned nccl_sockets_close_peers(const struct nccl_sockets *s);

#endif
