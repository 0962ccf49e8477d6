/* Blocks of IP addresses. Numeric only: a name would have to be resolved, at an arbitrary moment.
 */
#include "base/net/cidr.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum {
    V4_BITS = 32,
    V6_BITS = 128,
    MAPPED_BITS = 96,
    ADDR_LEN_MAX = INET6_ADDRSTRLEN - 1,
    CIDR_TEXT_CAP = INET6_ADDRSTRLEN + 5 /* "<address>/128" and a NUL */
};

static const uint8_t mapped[MAPPED_BITS / 8] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static int cidr_refuse(const char *text, const char *why, const char *field, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'%.80s': %s; expected an address or a block, as 10.0.0.0/8 or fd00::/8", text,
                   why);
}

/* Digits only, at most three, no leading zero: "8", not "08", "+8" or " 8". */
static bool read_bits(unsigned *out, const char *text)
{
    size_t len = strlen(text);
    unsigned n = 0;

    if (len < 1 || len > 3 || strspn(text, "0123456789") != len || (text[0] == '0' && len > 1))
        return false;
    for (size_t i = 0; i < len; i++)
        n = n * 10 + (unsigned)(text[i] - '0');
    *out = n;
    return true;
}

/* Zeroes the bits beyond the prefix. Returns whether that changed anything. */
static bool cidr_cut(struct cidr *c)
{
    unsigned n_bytes = c->v6 ? 16 : 4;
    bool changed = false;

    for (unsigned i = 0; i < n_bytes; i++) {
        unsigned kept = c->prefix_len > i * 8 ? c->prefix_len - i * 8 : 0;
        uint8_t mask = kept >= 8 ? 0xff : (uint8_t)(0xff00U >> kept);
        changed = changed || (c->addr[i] & (uint8_t)~mask) != 0;
        c->addr[i] &= mask;
    }
    return changed;
}

static void cidr_unmap(struct cidr *c)
{
    if (!c->v6 || c->prefix_len < MAPPED_BITS || memcmp(c->addr, mapped, sizeof mapped) != 0)
        return;
    memmove(c->addr, c->addr + sizeof mapped, 4);
    memset(c->addr + 4, 0, sizeof c->addr - 4);
    c->prefix_len = (uint8_t)(c->prefix_len - MAPPED_BITS);
    c->v6 = false;
}

/* "10.0.0.0/8", for messages. Returns out. */
static const char *cidr_text(const struct cidr *c, char out[CIDR_TEXT_CAP])
{
    char addr[INET6_ADDRSTRLEN] = "";

    (void)inet_ntop(c->v6 ? AF_INET6 : AF_INET, c->addr, addr, sizeof addr);
    (void)snprintf(out, CIDR_TEXT_CAP, "%s/%u", addr, c->prefix_len);
    return out;
}

static int cidr_parse(struct cidr *out, const char *text, const char *field, struct err *e)
{
    const char *slash = strchr(text, '/');
    size_t len = slash != NULL ? (size_t)(slash - text) : strlen(text);
    char addr[ADDR_LEN_MAX + 1], block[CIDR_TEXT_CAP];
    struct cidr c = {0};
    unsigned bits;

    if (len == 0 || len > ADDR_LEN_MAX)
        return cidr_refuse(text, "the address is empty or too long", field, e);
    memcpy(addr, text, len);
    addr[len] = '\0';
    c.v6 = strchr(addr, ':') != NULL;
    if (inet_pton(c.v6 ? AF_INET6 : AF_INET, addr, c.addr) != 1)
        return cidr_refuse(text, "that is no numeric address", field, e);
    bits = c.v6 ? V6_BITS : V4_BITS;
    if (slash != NULL &&
        (!read_bits(&bits, slash + 1) || bits > (unsigned)(c.v6 ? V6_BITS : V4_BITS)))
        return cidr_refuse(text,
                           c.v6 ? "the prefix is not a number of bits from 0 to 128"
                                : "the prefix is not a number of bits from 0 to 32",
                           field, e);
    c.prefix_len = (uint8_t)bits;
    if (cidr_cut(&c))
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.80s' has bits set beyond its prefix; the block is %s", text,
                       cidr_text(&c, block));
    cidr_unmap(&c);
    *out = c;
    return 0;
}

int cidr_list_add(struct cidr_list *list, const char *text, const char *field, struct err *e)
{
    if (list->n >= CIDR_LIST_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "more than %d blocks of addresses",
                       (int)CIDR_LIST_MAX);
    if (cidr_parse(&list->items[list->n], text, field, e) != 0)
        return -1;
    list->n++;
    return 0;
}

/* The address as a block of one; false when it is not IP. Copied out byte by byte, because the
 * caller's sockaddr may lie anywhere. */
static bool from_sockaddr(struct cidr *out, const struct sockaddr *addr)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    memset(out, 0, sizeof *out);
    if (addr->sa_family == AF_INET) {
        memcpy(&v4, addr, sizeof v4);
        memcpy(out->addr, &v4.sin_addr, 4);
        out->prefix_len = V4_BITS;
        return true;
    }
    if (addr->sa_family != AF_INET6)
        return false;
    memcpy(&v6, addr, sizeof v6);
    memcpy(out->addr, &v6.sin6_addr, 16);
    out->v6 = true;
    out->prefix_len = V6_BITS;
    cidr_unmap(out);
    return true;
}

static bool cidr_holds(const struct cidr *c, const struct cidr *one)
{
    struct cidr block = *one;

    if (c->v6 != one->v6)
        return false;
    block.prefix_len = c->prefix_len;
    (void)cidr_cut(&block);
    return memcmp(block.addr, c->addr, sizeof block.addr) == 0;
}

bool cidr_list_match(const void *list, const struct sockaddr *addr)
{
    const struct cidr_list *l = list;
    struct cidr one;

    if (!from_sockaddr(&one, addr))
        return false;
    for (uint32_t i = 0; i < l->n; i++)
        if (cidr_holds(&l->items[i], &one))
            return true;
    return false;
}

const char *cidr_addr_text(const struct sockaddr *addr, char out[CIDR_ADDR_TEXT_CAP])
{
    char text[INET6_ADDRSTRLEN] = "", scope[12] = "";
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (addr->sa_family == AF_INET) {
        memcpy(&v4, addr, sizeof v4);
        (void)inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
        (void)snprintf(out, CIDR_ADDR_TEXT_CAP, "%s:%u", text, ntohs(v4.sin_port));
    } else if (addr->sa_family == AF_INET6) {
        memcpy(&v6, addr, sizeof v6);
        (void)inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
        if (v6.sin6_scope_id != 0)
            (void)snprintf(scope, sizeof scope, "%%%u", (unsigned)v6.sin6_scope_id);
        (void)snprintf(out, CIDR_ADDR_TEXT_CAP, "[%s%s]:%u", text, scope, ntohs(v6.sin6_port));
    } else {
        (void)snprintf(out, CIDR_ADDR_TEXT_CAP, "an address of family %d", (int)addr->sa_family);
    }
    return out;
}
