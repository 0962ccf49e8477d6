/* Opening a TCP connection to a trainer before a deadline: name look-up, allow-list, retries. */
#ifndef BATON_BASE_NET_TCP_DIAL_H
#define BATON_BASE_NET_TCP_DIAL_H

#include "base/err.h"
#include "base/net/cidr.h"
#include "base/progress.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct tcp_dial_cfg {
    const char *host; /* borrowed, as everything here: a name or a numeric address */
    uint16_t port;    /* 1..65535 */

    /* Called for every address before connecting to it; cidr_list_match with a struct cidr_list, or
     * a callback of that form. NULL allows all. */
    bool (*allows)(const void *arg, const struct sockaddr *addr);
    const void *allows_arg;

    const char *field; /* of the address, for errors: "/master_address" */
    const char *what;  /* the name of the peer, for errors: "the trainer's store" */
};

/* tcp_dial - connect. If the peer is not listening yet, try again with growing pauses until the
 * deadline. Of several addresses, those that are allowed are tried in turn.
 * @fd    written on success only; the caller's: non-blocking, close-on-exec, TCP_NODELAY, and with
 *        keep-alive probes that find a dead host within half a minute
 * @peer  "10.0.0.17:29500": the address that answered
 *
 * Threads: any. Blocks: as poll_wait.
 * Errors: ERR_BAD_REQUEST  port 0, no such host
 *         ERR_FORBIDDEN    none of the addresses is allowed (names one)
 *         ERR_UNREADABLE   no address can be reached, and a retry would not help
 *         ERR_TIMEOUT      the deadline passed, also while connections were refused
 *         ERR_CONFLICT     stopped
 *         ERR_OVERLOADED, ERR_NO_MEMORY, ERR_INTERNAL (no socket) */
int tcp_dial(int *fd, char peer[CIDR_ADDR_TEXT_CAP], const struct tcp_dial_cfg *cfg,
             const struct progress *p, struct err *e);

#endif
