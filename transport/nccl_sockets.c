/* The descriptors of the process are walked: libnccl hands none of its own out. What it accepts
 * has the local port of a listener that came after the group was begun, and so cannot be a client
 * of this server, nor anything that this server connects to. Connections within the process are
 * left alone: their two ends are aborted anyway, and need them for that. */
#include "transport/nccl_sockets.h"

#include "base/mtx.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The process's, as its descriptors and libnccl's are. */
static struct mtx lock = {.m = PTHREAD_MUTEX_INITIALIZER, .rank = MTX_LEAF};
static unsigned n_groups;      /* under the lock: that entered and have not left */
static atomic_bool has_joined; /* one of them, ever */

static bool has_port(const struct listen_ports *p, uint16_t port)
{
    return (p->bits[port / 8] >> (port % 8)) & 1;
}

static void add_port(struct listen_ports *p, uint16_t port)
{
    p->bits[port / 8] |= (uint8_t)(1U << (port % 8));
}

/* 0: no internet address. */
static uint16_t port_of(const struct sockaddr_storage *at)
{
    if (at->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)(const void *)at)->sin_port);
    if (at->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)(const void *)at)->sin6_port);
    return 0;
}

struct seen {
    uint16_t local, peer; /* ports; peer 0: not connected */
    bool listens;
    bool is_ipc; /* none of TCP, but what a communicator's ranks of one host find each other by */
};

/* The abstract name that ncclIpcSocketInit gives it, and behind it the rank and a hash. */
static const char ipc_name[] = "\0tmp/nccl-socket-";

static bool is_ipc(const struct sockaddr_storage *at, socklen_t len)
{
    const struct sockaddr_un *u = (const void *)at;
    size_t n = sizeof ipc_name - 1;

    return at->ss_family == AF_UNIX && len >= offsetof(struct sockaddr_un, sun_path) + n &&
           memcmp(u->sun_path, ipc_name, n) == 0;
}

/* What a descriptor is; false: neither of both. */
static bool look_at(int fd, struct seen *out)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    int listens = 0, type = 0;

    *out = (struct seen){0};
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return false;
    out->is_ipc = is_ipc(&at, len);
    out->local = port_of(&at);
    len = sizeof type;
    if (out->local == 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 ||
        type != SOCK_STREAM)
        return out->is_ipc;
    len = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0)
        return false;
    out->listens = listens != 0;
    memset(&at, 0, sizeof at);
    len = sizeof at;
    if (getpeername(fd, (struct sockaddr *)&at, &len) == 0)
        out->peer = port_of(&at);
    return true;
}

/* Calls fn for every such socket of the process. Returns: could they be seen? */
static bool each_socket(void (*fn)(void *arg, int fd, const struct seen *s), void *arg)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    struct seen s;

    if (dir == NULL)
        return false;
    while ((entry = readdir(dir)) != NULL) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);

        if (end != entry->d_name && *end == '\0' && look_at((int)fd, &s))
            fn(arg, (int)fd, &s);
    }
    (void)closedir(dir);
    return true;
}

static void note_listener(void *arg, int fd, const struct seen *s)
{
    (void)fd;
    if (s->listens)
        add_port(arg, s->local);
}

static void note_before(void *arg, int fd, const struct seen *s)
{
    struct nccl_sockets *out = arg;

    note_listener(&out->others, fd, s);
    out->has_ipc |= s->is_ipc;
}

void nccl_sockets_enter(struct nccl_sockets *out)
{
    memset(out, 0, sizeof *out);
    out->is_whole = atomic_load(&has_joined);
    mtx_lock(&lock); /* a group that leaves takes none of this one's listeners for its own */
    n_groups++;
    out->is_whole &= each_socket(note_before, out);
    mtx_unlock(&lock);
}

void nccl_sockets_joined(void)
{
    atomic_store(&has_joined, true);
}

struct forgotten {
    const struct nccl_sockets *before;
    struct listen_ports ports; /* of listeners that came after */
    unsigned n;
};

static void note_forgotten(void *arg, int fd, const struct seen *s)
{
    struct forgotten *f = arg;

    (void)fd;
    if (s->listens && !has_port(&f->before->others, s->local))
        add_port(&f->ports, s->local);
}

/* The listener, what was accepted there, and the other kind. Nobody knows their numbers any more,
 * and so nobody closes them meanwhile. */
static void close_forgotten(void *arg, int fd, const struct seen *s)
{
    struct forgotten *f = arg;

    if (has_port(&f->ports, s->local) || (s->is_ipc && !f->before->has_ipc))
        f->n += close(fd) == 0;
}

unsigned nccl_sockets_leave(const struct nccl_sockets *s, bool joined)
{
    struct forgotten f = {.before = s};

    mtx_lock(&lock);
    n_groups--;
    if (n_groups == 0 && s->is_whole && !joined) {
        (void)each_socket(note_forgotten, &f);
        (void)each_socket(close_forgotten, &f);
    }
    mtx_unlock(&lock);
    return f.n;
}

struct hang_up {
    const struct listen_ports *others;
    struct listen_ports listeners, callers; /* ports of this process: it listens, it called from */
    unsigned n;
};

static void note_caller(void *arg, int fd, const struct seen *s)
{
    struct hang_up *h = arg;

    (void)fd;
    if (s->peer != 0 && !has_port(&h->listeners, s->local))
        add_port(&h->callers, s->local);
}

/* Has another process connected it to a listener that came after the group was begun? */
static bool is_peers(const struct hang_up *h, const struct seen *s)
{
    return s->peer != 0 && has_port(&h->listeners, s->local) && !has_port(h->others, s->local) &&
           !has_port(&h->callers, s->peer);
}

/* Its owner may close it meanwhile, and the number may be another's by now: what is shut down is
 * looked at by a number that is ours. */
static void hang_up(void *arg, int fd, const struct seen *s)
{
    struct hang_up *h = arg;
    struct seen now;
    int own;

    if (!is_peers(h, s))
        return;
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (look_at(own >= 0 ? own : fd, &now) && is_peers(h, &now))
        h->n += shutdown(own >= 0 ? own : fd, SHUT_RDWR) == 0;
    if (own >= 0)
        (void)close(own);
}

unsigned nccl_sockets_hang_up(const struct nccl_sockets *s)
{
    struct hang_up h = {.others = &s->others};

    (void)each_socket(note_listener, &h.listeners);
    (void)each_socket(note_caller, &h);
    (void)each_socket(hang_up, &h);
    return h.n;
}
