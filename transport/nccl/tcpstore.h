/* A client of torch's TCPStore, the rendezvous at which a trainer's group is formed.
 *
 * It makes only the requests by which torch's own client joins: VALIDATE, PING, ADD, WAIT, GET.
 * Every call ends by its deadline, and no reply is trusted: lengths are checked before
 * anything is read.
 *
 * After a call that failed with anything but a clean timeout of WAIT, later bytes on the
 * connection have no meaning: such a store refuses every further call and can only be closed.
 * There is no reconnect here: an ADD whose reply was lost may have been counted, and if it is
 * counted twice, the trainer starts with a rank missing, and hangs. */
#ifndef BATON_TRANSPORT_NCCL_TCPSTORE_H
#define BATON_TRANSPORT_NCCL_TCPSTORE_H

#include "base/err.h"
#include "base/net/tcp_dial.h"
#include "weights/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TCPSTORE_KEY_LEN_MAX = 8191, /* libuv servers close the connection at more than 8192 bytes, the
                                    leading slash included */
    TCPSTORE_VALUE_NBYTES_MAX = 4096 /* an id has 128 bytes, pickled 253 */
};

struct tcpstore;

/* tcpstore_open - connect and shake hands; nothing is counted yet.
 * @out  written on success only
 * @cfg  borrowed for the call
 *
 * Threads: any; a store has one user at a time, except for tcpstore_closed.
 * Blocks:  until p's deadline or stop, like every call here but tcpstore_closed and
 * tcpstore_close. A stop is noticed within 100 ms.
 * Errors:  those of tcp_dial; ERR_UNREADABLE (the listener is not a store, or closes the
 * connection). */
int tcpstore_open(struct tcpstore **out, const struct tcp_dial_cfg *cfg, const struct progress *p,
                  struct err *e);

void tcpstore_close(struct tcpstore *s); /* accepts NULL */

/* The calls. Keys are given without the slash that precedes each on the wire: 1 to
 * TCPSTORE_KEY_LEN_MAX bytes, no control characters.
 * Errors of all: ERR_BAD_REQUEST (an invalid key), ERR_TIMEOUT, ERR_CONFLICT (stopped),
 * ERR_UNREADABLE (closed, reset, or an invalid reply: names the address, the call and the reply).
 */

/* tcpstore_join - add ranks to the trainer's count of workers. Exactly once for each rank and
 * store, and after every check that can be made without it, because the trainer then enters a wait
 * without a deadline. Never sent twice: after an error the ranks may have been counted.
 * Asserts that this store was not joined before.
 * @n_ranks  of this process, >= 1
 * @n_joined  written on success only: ranks counted so far, including the trainer and these; more
 * than the world size means that the store is shared or used again */
int tcpstore_join(struct tcpstore *s, uint32_t n_ranks, uint64_t *n_joined,
                  const struct progress *p, struct err *e);

/* tcpstore_wait - wait until the key is set. If the deadline comes first, the wait is cancelled,
 * and the store stays usable if the server confirms that within TCPSTORE_CANCEL_US: this call may
 * take these 50 ms beyond its deadline. A key that is set meanwhile is a success. */
int tcpstore_wait(struct tcpstore *s, const char *key, const struct progress *p, struct err *e);
enum { TCPSTORE_CANCEL_US = 50 * 1000 };

/* tcpstore_get - get the value of a key that is set (tcpstore_wait): for any other key, one kind
 * of server closes the connection and the other replies with no bytes.
 * @value, nbytes  written on success only */
int tcpstore_get(struct tcpstore *s, const char *key, uint8_t value[TCPSTORE_VALUE_NBYTES_MAX],
                 size_t *nbytes, const struct progress *p, struct err *e);

/* tcpstore_closed - has the peer closed the connection? The store is part of the trainer's
 * process: when that dies, the connection closes. Reads nothing. Threads: any, while the store is
 * open. Blocks: no. */
bool tcpstore_closed(const struct tcpstore *s);

#endif
