/* Walks the descriptors of the process, because libnccl does not expose its own. A connection that
 * libnccl accepted has the local address of a listener that was created after the group began.
 * Such a connection is no client of this server, and none that this server made. A comparison of
 * ports alone would not suffice, because the kernel lets a listener use a port that a connection
 * from another address uses. Connections within the process are left alone: both ends are aborted
 * anyway, and need the connection for that. */
#include "transport/nccl/nccl_sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LISTENERS_MAX = 256, /* for all groups at a time: two for each of 128 ranks */
    CALLERS_MAX = 1024   /* connections within the process */
};

/* An internet address and port; port 0: none. */
struct addr {
    sa_family_t family;
    uint16_t port;
    uint8_t bytes[sizeof(struct in6_addr)];
};

static struct addr addr_of(const struct sockaddr_storage *at)
{
    struct addr a = {.family = at->ss_family};

    if (at->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)at;

        a.port = ntohs(in->sin_port);
        memcpy(a.bytes, &in->sin_addr, sizeof in->sin_addr);
    } else if (at->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)at;

        a.port = ntohs(in6->sin6_port);
        memcpy(a.bytes, &in6->sin6_addr, sizeof in6->sin6_addr);
    }
    return a;
}

static bool addr_equal(const struct addr *a, const struct addr *b)
{
    return a->family == b->family && a->port == b->port &&
           memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static bool addrs_contain(const struct addr *items, unsigned n, const struct addr *a)
{
    for (unsigned i = 0; i < n; i++)
        if (addr_equal(&items[i], a))
            return true;
    return false;
}

static bool has_port(const struct nccl_sockets *s, uint16_t port)
{
    return (s->ports[port / 8] >> (port % 8)) & 1;
}

struct socket_addrs {
    struct addr local, peer; /* peer: port 0 if it is not connected */
    bool listens;
};

/* The addresses of a descriptor; false: it is not a TCP socket. */
static bool nccl_sockets_read_socket(int fd, struct socket_addrs *out)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    int listens = 0, type = 0;

    *out = (struct socket_addrs){0};
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return false;
    out->local = addr_of(&at);
    len = sizeof type;
    if (out->local.port == 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 ||
        type != SOCK_STREAM)
        return false;
    len = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0)
        return false;
    out->listens = listens != 0;
    memset(&at, 0, sizeof at);
    len = sizeof at;
    if (getpeername(fd, (struct sockaddr *)&at, &len) == 0)
        out->peer = addr_of(&at);
    return true;
}

/* Calls fn for every TCP socket of the process. Returns: were all descriptors read? */
static bool each_socket(void (*fn)(void *arg, int fd, const struct socket_addrs *s), void *arg)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    bool whole, found_itself = false;
    struct socket_addrs s;

    if (dir == NULL)
        return false;
    while (errno = 0, (entry = readdir(dir)) != NULL) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);

        if (end == entry->d_name || *end != '\0')
            continue;
        found_itself |= fd == dirfd(dir);
        if (nccl_sockets_read_socket((int)fd, &s))
            fn(arg, (int)fd, &s);
    }
    whole = errno == 0 && found_itself;
    (void)closedir(dir);
    return whole;
}

static void note_before(void *arg, int fd, const struct socket_addrs *s)
{
    struct nccl_sockets *out = arg;

    (void)fd;
    if (s->listens)
        out->ports[s->local.port / 8] |= (uint8_t)(1U << (s->local.port % 8));
}

void nccl_sockets_enter(struct nccl_sockets *out)
{
    memset(out, 0, sizeof *out);
    out->is_whole = each_socket(note_before, out);
}

/* Listeners that were created after the group began; when the list is full, further ones are
 * ignored. */
struct listeners {
    const struct nccl_sockets *before;
    struct addr items[LISTENERS_MAX];
    unsigned n;
};

static void note_listener(void *arg, int fd, const struct socket_addrs *s)
{
    struct listeners *l = arg;

    (void)fd;
    if (s->listens && !has_port(l->before, s->local.port) && l->n < LISTENERS_MAX)
        l->items[l->n++] = s->local;
}

struct close_peers {
    struct listeners listeners;
    struct addr
        callers[CALLERS_MAX]; /* local addresses of connections to these from within the process */
    unsigned n_callers, n;
};

static void note_caller(void *arg, int fd, const struct socket_addrs *s)
{
    struct close_peers *h = arg;

    (void)fd;
    if (s->peer.port != 0 && addrs_contain(h->listeners.items, h->listeners.n, &s->peer) &&
        h->n_callers < CALLERS_MAX)
        h->callers[h->n_callers++] = s->local;
}

/* Did another process connect this socket to a listener that was created after the group began? */
static bool is_peers(const struct close_peers *h, const struct socket_addrs *s)
{
    return s->peer.port != 0 && addrs_contain(h->listeners.items, h->listeners.n, &s->local) &&
           !addrs_contain(h->callers, h->n_callers, &s->peer);
}

/* Its owner may close it meanwhile, and the number may then be another socket's: a duplicate
 * descriptor is checked again before it is shut down. */
static void close_peers(void *arg, int fd, const struct socket_addrs *s)
{
    struct close_peers *h = arg;
    struct socket_addrs now;
    int own;

    if (!is_peers(h, s))
        return;
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (nccl_sockets_read_socket(own >= 0 ? own : fd, &now) && is_peers(h, &now))
        h->n += shutdown(own >= 0 ? own : fd, SHUT_RDWR) == 0;
    if (own >= 0)
        (void)close(own);
}

unsigned nccl_sockets_close_peers(const struct nccl_sockets *s)
{
    struct close_peers h = {.listeners.before = s};

    if (!s->is_whole)
        return 0;
    (void)each_socket(note_listener, &h.listeners);
    (void)each_socket(note_caller, &h);
    (void)each_socket(close_peers, &h);
    return h.n;
}
