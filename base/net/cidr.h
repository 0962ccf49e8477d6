/* Blocks of IP addresses ("10.0.0.0/8", "fd00::/8", "192.0.2.7"), for lists of allowed peers.
 *
 * An IPv4-mapped IPv6 address (::ffff:10.0.0.1) is treated as that IPv4 address, both in a block
 * and in an address that is matched: otherwise the kind of socket would decide whether a peer is
 * in a block. So ::/0 contains every IPv6 address and no IPv4 address. */
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
 * Errors: ERR_BAD_REQUEST  `text` has another form, or bits beyond the prefix are set
 *                          ("10.1.2.3/8": either the address or the prefix is a mistake, and a
 *                          wrong guess would allow or refuse the wrong peers), or the list already
 *                          has CIDR_LIST_MAX items; the list is unchanged */
int cidr_list_add(struct cidr_list *list, const char *text, const char *field, struct err *e);

/* cidr_list_match - is the address in any block of the list? Its port and scope are ignored; other
 * families than IP are in none. `list` is a struct cidr_list; its type is void so that the function
 * can serve as a callback (base/net/tcp_dial.h, transport/nccl/nccl_id.h) with the list as its
 * argument. */
bool cidr_list_match(const void *list, const struct sockaddr *addr);

/* cidr_addr_text - "10.0.0.17:45123", "[fd00::17]:50000", "[fe80::1%2]:80"; "an address of family
 * <n>" for other families. Returns out. */
const char *cidr_addr_text(const struct sockaddr *addr, char out[CIDR_ADDR_TEXT_CAP]);

#endif
