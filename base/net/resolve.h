/* Resolving a host's addresses before a deadline.
 *
 * getaddrinfo may block longer than the timeouts in resolv.conf, and cannot be cancelled. So a
 * numeric address is parsed directly, and a name is looked up on a thread of its own, which shares
 * only one reference-counted record with the caller. At the deadline the caller drops its reference
 * and returns; the thread frees the record when the resolver returns. Rejected: getaddrinfo_a,
 * which uses such a thread internally and needs the caller's memory until it ends; a resolver
 * library, which would ignore this host's nsswitch.conf. */
#ifndef BATON_BASE_NET_RESOLVE_H
#define BATON_BASE_NET_RESOLVE_H

#include "base/err.h"
#include "base/net/cidr.h"
#include "base/progress.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    RESOLVE_ADDRS_MAX = 16, /* of one host; further ones are ignored */
    RESOLVE_ALL_MAX = 256,  /* of one answer of which all are wanted; more are an error */
    RESOLVE_NAME_LEN_MAX = 253,
    RESOLVE_RUNNING_MAX = 16 /* look-ups at once in this process, abandoned ones included */
};

struct resolve_addr {
    struct sockaddr_storage addr; /* AF_INET or AF_INET6, with the port */
    socklen_t len;
};

struct resolve_addrs {
    uint32_t n;
    struct resolve_addr items[RESOLVE_ADDRS_MAX];
};

/* resolve_host - the socket addresses of a name or a numeric address, in the resolver's order.
 * @out    written on success only; n >= 1
 * @host   borrowed; 1..RESOLVE_NAME_LEN_MAX printable ASCII characters, no white space
 * @field  what the error points at
 *
 * Threads: any. Blocks: until the answer, p's deadline or p's stop.
 * Errors: ERR_BAD_REQUEST  the name does not exist, or `host` is not a valid name
 *         ERR_UNREADABLE   the resolver failed; the message has its error
 *         ERR_OVERLOADED   RESOLVE_RUNNING_MAX look-ups have not returned yet
 *         ERR_TIMEOUT, ERR_CONFLICT (stopped), ERR_NO_MEMORY, ERR_INTERNAL (no thread, no
 *         descriptor) */
int resolve_host(struct resolve_addrs *out, const char *host, uint16_t port, const char *field,
                 const struct progress *p, struct err *e);

/* All addresses of a name, each once, with the port: "10.0.0.3:8000"; of a name that has none of
 * IPv4 those of IPv6, "[fd00::3]:8000". A host that has both would be there twice. */
struct resolve_all {
    size_t n;
    char items[RESOLVE_ALL_MAX][CIDR_ADDR_TEXT_CAP];
};

/* resolve_start - look up all addresses of a host, without waiting.
 * @event_fd  borrowed for the call; written to when the look-up has ended
 * Threads: any. Blocks: no. Errors: as of resolve_host, but for those of the resolver.
 *
 * resolve_ended - has it? Threads: any. resolve_has - is it one of them?
 * resolve_take - what it found, for one that has ended. Errors: ERR_BAD_REQUEST: the name has no
 * address; ERR_UNREADABLE: the resolver failed; ERR_TOO_LARGE: more than RESOLVE_ALL_MAX; *out is
 * then undefined.
 * resolve_drop - end it, or leave one behind that has not ended. Accepts NULL. */
struct resolve_lookup;
int resolve_start(struct resolve_lookup **out, const char *host, uint16_t port, int event_fd,
                  struct err *e);
bool resolve_has(const struct resolve_all *all, const char *address);
bool resolve_ended(const struct resolve_lookup *l);
int resolve_take(const struct resolve_lookup *l, struct resolve_all *out, struct err *e);
void resolve_drop(struct resolve_lookup *l);

#endif
