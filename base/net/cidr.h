/* Blocks of IP addresses ("10.0.0.0/8", "fd00::/8", "192.0.2.7"): who may be connected to.
 *
 * An IPv4 address that travels inside IPv6 (::ffff:10.0.0.1) is that IPv4 address, in a block and
 * in what is matched: otherwise the same peer would be inside or outside as the socket happens to
 * be. So ::/0 is every IPv6 address and no IPv4 one. */
#ifndef BATON_BASE_NET_CIDR_H
#define BATON_BASE_NET_CIDR_H

#include "base/err.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    CIDR_LIST_MAX = 64,
    CIDR_ADDR_TEXT_CAP = INET6_ADDRSTRLEN + 20 /* "[<address>%<scope>]:65535" and a NUL */
};

struct cidr {
    bool v6;
    uint8_t prefix_len; /* bits: 0..32, or 0..128 when v6 */
    uint8_t addr[16];   /* network order; IPv4 is the first 4; zero beyond the prefix */
};

/* A zeroed list is empty, and holds no address. */
struct cidr_list {
    uint32_t n;
    struct cidr items[CIDR_LIST_MAX];
};

/* cidr_list_add - append "<address>/<bits>", or an address alone, which is a block of one.
 * @text   numeric; no scope ("%eth0"), no white space
 * @field  what the error points at ("--nccl-allow-cidr")
 *
 * Threads: any.
 * Errors: ERR_BAD_REQUEST  not of that form, or bits beyond the prefix are set ("10.1.2.3/8": one
 *                          of the two is a mistake, and guessing which would open or close a door),
 *                          or CIDR_LIST_MAX are there; the list is then as it was */
int cidr_list_add(struct cidr_list *list, const char *text, const char *field, struct err *e);

/* cidr_list_match - whether the address (its port and scope do not count) lies in any of them;
 * false for families that are not IP. `list` is a struct cidr_list: so the function can be given as
 * a callback (base/net/tcp_dial.h, transport/nccl/nccl_id.h) with the list for its argument. */
bool cidr_list_match(const void *list, const struct sockaddr *addr);

/* cidr_addr_text - "10.0.0.17:45123", "[fd00::17]:50000", "[fe80::1%2]:80"; "an address of family
 * <n>" for what is not IP. Returns out. */
const char *cidr_addr_text(const struct sockaddr *addr, char out[CIDR_ADDR_TEXT_CAP]);

#endif
