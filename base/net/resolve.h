/* A host's addresses, before a deadline.
 *
 * getaddrinfo blocks, for as long as resolv.conf says and then some, and cannot be called off. So
 * a numeric address is read in place, and a name is looked up on a thread of its own that shares
 * nothing with the caller but one counted record: at the deadline the caller lets go of it, and the
 * thread frees it whenever the resolver returns. Rejected: getaddrinfo_a, which hides the same
 * thread and wants the caller's memory until it ends; a resolver library, which would not know what
 * nsswitch.conf says on this host. */
#ifndef BATON_BASE_NET_RESOLVE_H
#define BATON_BASE_NET_RESOLVE_H

#include "base/err.h"
#include "base/progress.h"

#include <stdint.h>
#include <sys/socket.h>

enum {
    RESOLVE_ADDRS_MAX = 16, /* of one host; more are left out */
    RESOLVE_NAME_LEN_MAX = 253,
    RESOLVE_RUNNING_MAX = 8 /* look-ups at once in this process, abandoned ones included */
};

struct resolve_addr {
    struct sockaddr_storage addr; /* AF_INET or AF_INET6, with the port */
    socklen_t len;
};

struct resolve_addrs {
    uint32_t n;
    struct resolve_addr items[RESOLVE_ADDRS_MAX];
};

/* resolve_host - a name's or a numeric address's sockaddrs, in the resolver's order.
 * @out    written on success only; n >= 1
 * @host   borrowed; 1..RESOLVE_NAME_LEN_MAX printable ASCII characters, no white space
 * @field  what the error points at
 *
 * Threads: any. Blocks: until the answer, p's deadline or p's stop.
 * Errors: ERR_BAD_REQUEST  no such name, or no name at all
 *         ERR_UNREADABLE   the resolver failed (says how)
 *         ERR_OVERLOADED   RESOLVE_RUNNING_MAX look-ups have not returned yet
 *         ERR_TIMEOUT, ERR_CONFLICT (stopped), ERR_NO_MEMORY, ERR_INTERNAL (no thread, no
 *         descriptor) */
int resolve_host(struct resolve_addrs *out, const char *host, uint16_t port, const char *field,
                 const struct progress *p, struct err *e);

/* resolve_running - look-ups that have not returned yet; at 0 their memory and descriptors are
 * back. Threads: any. */
unsigned resolve_running(void);

#endif
