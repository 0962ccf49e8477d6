/* A TCP connection to a trainer, before a deadline: the name, the allow-list, the retries. */
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

    /* Asked of every address before it is connected to; cidr_list_match with a struct cidr_list, or
     * a callback of that form. NULL allows all. */
    bool (*allows)(const void *arg, const struct sockaddr *addr);
    const void *allows_arg;

    const char *field; /* of the address, for errors: "/master_address" */
    const char *what;  /* who is there, for errors: "the trainer's store" */
};

/* tcp_dial - connect; whoever is not listening yet is tried again, with growing pauses, until the
 * deadline. Of several addresses, those that are allowed are tried in turn.
 * @fd    written on success only; the caller's: non-blocking, close-on-exec, TCP_NODELAY, and with
 *        keep-alive probes that find a dead host within half a minute
 * @peer  "10.0.0.17:29500": the address that answered
 *
 * Threads: any. Blocks: as poll_wait.
 * Errors: ERR_BAD_REQUEST  port 0, no such host
 *         ERR_FORBIDDEN    none of the addresses is allowed (names one)
 *         ERR_UNREADABLE   no address can be reached, for a reason that waiting does not cure
 *         ERR_TIMEOUT      also: refused until the deadline; ERR_CONFLICT (stopped)
 *         ERR_OVERLOADED, ERR_NO_MEMORY, ERR_INTERNAL (no socket) */
int tcp_dial(int *fd, char peer[CIDR_ADDR_TEXT_CAP], const struct tcp_dial_cfg *cfg,
             const struct progress *p, struct err *e);

#endif
