/* A client of torch's TCPStore: the rendezvous at which a trainer's group is made.
 *
 * What torch's own client does to join, no more: VALIDATE, PING, ADD, WAIT, GET, CHECK. Every call
 * ends by its deadline, and no answer is believed: lengths are compared before anything is read.
 *
 * After a call that failed with anything but a clean timeout of WAIT, what comes next on the
 * connection means nothing: such a store refuses every further call and can only be closed. There
 * is no reconnecting in here: an ADD whose answer was lost may have been counted, and counted twice
 * it makes the trainer start with a rank missing, and hang. */
#ifndef BATON_TRANSPORT_NCCL_TCPSTORE_H
#define BATON_TRANSPORT_NCCL_TCPSTORE_H

#include "base/err.h"
#include "base/net/tcp_dial.h"
#include "weights/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TCPSTORE_KEY_LEN_MAX = 8191, /* libuv servers close at more than 8192 with the leading slash */
    TCPSTORE_VALUE_NBYTES_MAX = 4096 /* an id needs 128, pickled 253 */
};

struct tcpstore;

/* tcpstore_open - connect and shake hands; nothing is counted yet.
 * @out  written on success only
 * @cfg  borrowed for the call
 *
 * Threads: any; a store has one user at a time, except for tcpstore_closed.
 * Blocks:  until p's deadline or stop, as every call here but tcpstore_closed and _close. Under it
 *          a stop is noticed within 100 ms.
 * Errors:  those of tcp_dial; ERR_UNREADABLE (whoever listens there is no store, or hangs up) */
int tcpstore_open(struct tcpstore **out, const struct tcp_dial_cfg *cfg, const struct progress *p,
                  struct err *e);

/* tcpstore_from_fd - as tcpstore_open, over a connection that is there already.
 * @fd    consumed, also on failure
 * @what  who is at the other end, with its address, for errors; cut at 127 bytes */
int tcpstore_from_fd(struct tcpstore **out, int fd, const char *what, const struct progress *p,
                     struct err *e);
void tcpstore_close(struct tcpstore *s); /* accepts NULL */

/* The calls. Keys are the caller's, without the slash that goes before each on the wire: 1 to
 * TCPSTORE_KEY_LEN_MAX bytes, no control characters.
 * Errors of all: ERR_BAD_REQUEST (such a key), ERR_TIMEOUT, ERR_CONFLICT (stopped), ERR_UNREADABLE
 * (closed, reset, or an answer that is none: names the address, the call and what came). */

/* tcpstore_join - count ranks into the trainer's group (the worker count): exactly once for each
 * rank and store, after every check that can be made without it, because the trainer then walks
 * into a wait that has no deadline. Asserts that this store was not joined before.
 * @n_ranks  of this process, >= 1
 * @n_joined  written on success only: how many have been counted so far, the trainer and these
 *           included; more than the world size means a store that is shared or used again */
int tcpstore_join(struct tcpstore *s, uint32_t n_ranks, uint64_t *n_joined,
                  const struct progress *p, struct err *e);

/* tcpstore_add - add to a counter, which is made if need be. Never sent twice: after an error it is
 * not known whether it was counted. @value written on success only: the sum. */
int tcpstore_add(struct tcpstore *s, const char *key, int64_t delta, int64_t *value,
                 const struct progress *p, struct err *e);

/* tcpstore_wait - until the key is there. When the deadline comes first, the wait is taken back,
 * and the store stays usable if the server confirms that within TCPSTORE_CANCEL_US: 50 ms that this
 * call may take beyond its deadline. A key that appears in them is a success.  */
int tcpstore_wait(struct tcpstore *s, const char *key, const struct progress *p, struct err *e);
enum { TCPSTORE_CANCEL_US = 50 * 1000 };

/* tcpstore_check - is the key there now? @present written on success only. */
int tcpstore_check(struct tcpstore *s, const char *key, bool *present, const struct progress *p,
                   struct err *e);

/* tcpstore_get - the value of a key that is there (tcpstore_wait): for another, one kind of server
 * hangs up and the other answers with no bytes.
 * @value, nbytes  written on success only */
int tcpstore_get(struct tcpstore *s, const char *key, uint8_t value[TCPSTORE_VALUE_NBYTES_MAX],
                 size_t *nbytes, const struct progress *p, struct err *e);

/* tcpstore_closed - has the other end gone? The store lives in the trainer's process: it hangs up
 * when that dies. Reads nothing. Threads: any, while the store is open. Blocks: no. */
bool tcpstore_closed(const struct tcpstore *s);

#endif
