/* NCCL's connections with other processes, which it keeps to itself.
 *
 * Aborting a communicator does not end before each of them is closed by the other side: libnccl's
 * proxy thread goes on serving whoever is connected. A trainer that was killed closes its own; one
 * that is stopped, or hangs, never does. */
#ifndef BATON_TRANSPORT_NCCL_SOCKETS_H
#define BATON_TRANSPORT_NCCL_SOCKETS_H

#include <stdint.h>

/* TCP ports at which this process listens. */
struct listen_ports {
    uint8_t bits[(UINT16_MAX + 1) / 8];
};

/* listen_ports_now - those of this moment. Threads: any. Blocks: while /proc/self/fd is read; one
 * that cannot be read has none. */
void listen_ports_now(struct listen_ports *out);

/* nccl_sockets_hang_up - shut down what other processes have connected to listeners that are not
 * among `others`: those that were there before the group was.
 * Threads: any, no lock held. Blocks: as above.
 * Returns: how many. */
unsigned nccl_sockets_hang_up(const struct listen_ports *others);

#endif
