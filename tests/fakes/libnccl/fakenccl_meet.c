/* How ranks meet: the unique id and the thread behind it, the table, the rings; and the waits. */
#include "tests/fakes/libnccl/fakenccl_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 256, GREETING_MS = 2000, CONNECT_TRIES = 34, CONNECT_STEP_MS = 100 };

struct greeting {
    uint64_t magic;
    uint32_t purpose, from;
};

/* The front of a unique id; the rest of its 128 bytes is zero. */
struct handle {
    uint64_t magic;
    struct sockaddr_in at;
};

_Static_assert(offsetof(struct handle, at) == 8, "the address begins at the ninth byte");
_Static_assert(sizeof(struct handle) <= sizeof(ncclUniqueId), "it travels in an id");

struct root {
    int listener;
    uint64_t magic;
};

static struct handle handle_of(const ncclUniqueId *id)
{
    struct handle h;

    memcpy(&h, id->internal, sizeof h);
    return h;
}

static struct sockaddr_in loopback(uint32_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

void fake_close(int *fd)
{
    if (*fd < 0)
        return;
    (void)close(*fd);
    *fd = -1;
    (void)atomic_fetch_sub(&fake_nccl.n_sockets, 1);
}

/* Counts it, if it is one. */
static int owned(int fd)
{
    if (fd >= 0)
        (void)atomic_fetch_add(&fake_nccl.n_sockets, 1);
    return fd;
}

int fake_listen(struct sockaddr_in *at)
{
    int fd = owned(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t len = sizeof *at;

    *at = loopback(0);
    if (fd >= 0 && (bind(fd, (const struct sockaddr *)at, sizeof *at) != 0 ||
                    listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)at, &len) != 0))
        fake_close(&fd);
    return fd;
}

/* Connects and greets; -1: nobody listens there. */
static int call_up(const struct sockaddr_in *at, uint64_t magic, enum fake_purpose purpose,
                   uint32_t from)
{
    struct greeting g = {magic, purpose, from};
    int fd = owned(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), one = 1;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (const struct sockaddr *)at, sizeof *at) != 0 ||
        send(fd, &g, sizeof g, MSG_NOSIGNAL) != (ssize_t)sizeof g)
        fake_close(&fd);
    return fd;
}

/* Accepts one that knows the magic; -1: it did not, or said nothing. */
static int answer(int listener, uint64_t magic, struct greeting *g)
{
    struct timeval limit = {GREETING_MS / 1000, 0};
    int fd = owned(accept4(listener, NULL, NULL, SOCK_CLOEXEC)), one = 1;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (recv(fd, g, sizeof *g, MSG_WAITALL) != (ssize_t)sizeof *g || g->magic != magic)
        fake_close(&fd);
    return fd;
}

/* Collects the ranks; false when they do not agree, and then nobody is told. */
static bool collect(const struct root *root, struct fake_peer peers[FAKE_RANKS_MAX], int *n_ranks)
{
    int n = 0;

    *n_ranks = 0;
    do {
        struct greeting g;
        struct fake_peer p;
        int fd = answer(root->listener, root->magic, &g);
        bool whole = fd >= 0 && g.purpose == FAKE_HELLO &&
                     recv(fd, &p, sizeof p, MSG_WAITALL) == (ssize_t)sizeof p &&
                     p.n_ranks <= FAKE_RANKS_MAX && p.rank >= 0 && p.rank < p.n_ranks;
        fake_close(&fd);
        if (!whole)
            continue;
        if (n++ == 0)
            *n_ranks = p.n_ranks;
        if (p.n_ranks != *n_ranks) {
            fake_warn("Bootstrap Root : mismatch in rank count from procs %d : %d", *n_ranks,
                      p.n_ranks);
            return false;
        }
        if (peers[p.rank].n_ranks != 0) {
            fake_warn("Bootstrap Root : rank %d of %d ranks has already checked in", p.rank,
                      *n_ranks);
            return false;
        }
        peers[p.rank] = p;
    } while (n == 0 || n < *n_ranks);
    return true;
}

static void *serve_root(void *arg)
{
    struct root *root = arg;
    struct fake_peer *peers = calloc(FAKE_RANKS_MAX, sizeof *peers);
    int n_ranks;

    if (peers != NULL && collect(root, peers, &n_ranks)) {
        for (int i = 0; i < n_ranks; i++) {
            struct sockaddr_in at = loopback(peers[i].port);
            int fd = call_up(&at, root->magic, FAKE_TABLE, (uint32_t)n_ranks);
            if (fd >= 0)
                (void)send(fd, peers, (size_t)n_ranks * sizeof *peers, MSG_NOSIGNAL);
            fake_close(&fd);
        }
    }
    free(peers);
    fake_close(&root->listener);
    free(root);
    (void)atomic_fetch_sub(&fake_nccl.n_roots, 1);
    return NULL;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ncclResult_t result = fake_enter("ncclGetUniqueId");
    struct handle h = {0};
    struct root *root;
    pthread_t thread;

    if (result != ncclSuccess)
        return result;
    if (id == NULL) {
        fake_warn("GetUniqueId : out argument is NULL");
        return ncclInvalidArgument;
    }
    root = calloc(1, sizeof *root);
    if (root == NULL)
        return ncclSystemError;
    root->listener = fake_listen(&h.at);
    if (root->listener < 0 || getrandom(&h.magic, sizeof h.magic, 0) != (ssize_t)sizeof h.magic)
        goto err_close;
    root->magic = h.magic;
    (void)atomic_fetch_add(&fake_nccl.n_roots, 1);
    if (pthread_create(&thread, NULL, serve_root, root) != 0)
        goto err_count;
    (void)pthread_detach(thread); /* until all ranks have come; as there, nobody ends it before */
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &h, sizeof h);
    return ncclSuccess;

err_count:
    (void)atomic_fetch_sub(&fake_nccl.n_roots, 1);
err_close:
    fake_close(&root->listener);
    free(root);
    return ncclSystemError;
}

/* @timeout_ms  -1 for none. Returns: 1 ready, 0 the time is over, -1 abort. */
static int wait_until(ncclComm_t comm, int fd, short events, int timeout_ms)
{
    struct pollfd p[] = {{.fd = comm->quit, .events = POLLIN}, {.fd = fd, .events = events}};
    int n;

    do {
        n = poll(p, 2, timeout_ms);
    } while (n < 0 && errno == EINTR);
    if (p[0].revents != 0)
        return -1;
    return n > 0;
}

int fake_wait(ncclComm_t comm, int fd, short events)
{
    return wait_until(comm, fd, events, -1) > 0 ? 0 : -1;
}

int fake_hang(ncclComm_t comm)
{
    (void)atomic_fetch_add(&fake_nccl.n_hung, 1);
    (void)wait_until(comm, -1, 0, -1);
    (void)atomic_fetch_sub(&fake_nccl.n_hung, 1);
    return -1;
}

/* The peer is no more: over sockets one is told, and goes on waiting in either case. */
static int gone(ncclComm_t comm)
{
    if (comm->faults.sockets) {
        fake_warn("NET/Socket : Connection closed by remote peer");
        fake_settle(comm, ncclRemoteError);
    }
    (void)atomic_fetch_add(&fake_nccl.n_gone, 1);
    return fake_hang(comm);
}

int fake_put(ncclComm_t comm, int fd, const void *bytes, size_t nbytes)
{
    const char *at = bytes;
    ssize_t n;

    while (nbytes > 0) {
        if (fake_wait(comm, fd, POLLOUT) != 0)
            return -1;
        n = send(fd, at, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return gone(comm);
        at += n > 0 ? n : 0;
        nbytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int fake_take(ncclComm_t comm, int fd, void *bytes, size_t nbytes)
{
    char *at = bytes;
    ssize_t n;

    while (nbytes > 0) {
        if (fake_wait(comm, fd, POLLIN) != 0)
            return -1;
        n = recv(fd, at, nbytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return gone(comm);
        at += n > 0 ? n : 0;
        nbytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Answers until one calls for `purpose`. Those for a ring that come before their time are kept: a
 * peer may be one step ahead. -1: abort. */
static int answer_for(ncclComm_t comm, enum fake_purpose purpose)
{
    uint64_t magic = handle_of(&comm->id).magic;
    struct greeting g;
    int fd;

    for (;;) {
        if (purpose < FAKE_RINGS && comm->early[purpose] >= 0) {
            fd = comm->early[purpose];
            comm->early[purpose] = -1;
            return fd;
        }
        if (fake_wait(comm, comm->listener, POLLIN) != 0)
            return -1;
        fd = answer(comm->listener, magic, &g);
        if (fd >= 0 && g.purpose == (uint32_t)purpose)
            return fd;
        if (fd >= 0 && g.purpose < FAKE_RINGS && comm->early[g.purpose] < 0)
            comm->early[g.purpose] = fd;
        else
            fake_close(&fd);
    }
}

int fake_ring_join(ncclComm_t comm, enum fake_purpose ring)
{
    struct fake_ring *r = &comm->rings[ring];
    struct sockaddr_in at = loopback(comm->peers[(comm->rank + 1) % comm->n_ranks].port);
    char token = 0;

    if (comm->n_ranks == 1 || r->prev >= 0)
        return 0;
    r->next = call_up(&at, handle_of(&comm->id).magic, ring, (uint32_t)comm->rank);
    if (r->next < 0)
        return gone(comm);
    r->prev = answer_for(comm, ring);
    if (r->prev < 0)
        return -1;
    for (int i = 1; i < comm->n_ranks; i++) {
        if (fake_put(comm, r->next, &token, 1) != 0 || fake_take(comm, r->prev, &token, 1) != 0)
            return -1;
    }
    return 0;
}

/* The root may not be there yet, or not any more: retried as the library does, for a minute. */
static ncclResult_t say_hello(ncclComm_t comm, const struct fake_peer *me)
{
    struct handle h = handle_of(&comm->id);
    int fd = -1;

    if (h.at.sin_family != AF_INET) {
        fake_warn("ncclSocketInit: connecting to address with family %d is not AF_INET(%d)",
                  (int)h.at.sin_family, AF_INET);
        return ncclInternalError;
    }
    if ((ntohl(h.at.sin_addr.s_addr) >> 24) != 127) {
        (void)fake_hang(comm); /* no fake is anywhere but here */
        return ncclInternalError;
    }
    for (int i = 1; fd < 0 && i <= CONNECT_TRIES; i++) {
        fd = call_up(&h.at, h.magic, FAKE_HELLO, (uint32_t)comm->rank);
        if (fd < 0 && wait_until(comm, -1, 0, CONNECT_STEP_MS * i) < 0)
            return ncclInternalError;
    }
    if (fd < 0) {
        fake_warn("socketPollConnect: connect to 127.0.0.1<%d> returned Connection refused, "
                  "exceeded error retry count",
                  (int)ntohs(h.at.sin_port));
        return ncclRemoteError;
    }
    if (fake_put(comm, fd, me, sizeof *me) != 0) {
        fake_close(&fd);
        return ncclInternalError;
    }
    fake_close(&fd);
    return ncclSuccess;
}

/* What all ranks find by the same table. */
static ncclResult_t judge(ncclComm_t comm)
{
    const struct fake_peer *all = comm->peers, *me = &all[comm->rank];
    bool stuck = false;

    for (int i = 0; i < comm->n_ranks; i++) {
        if (all[i].version != me->version && comm->faults.handshakes) {
            fake_warn("NCCL version mismatch with remote peer 127.0.0.1<%u> (local: %d, remote %d)",
                      (unsigned)all[i].port, me->version, all[i].version);
            return ncclInvalidUsage;
        }
        if (all[i].version != me->version) {
            fake_warn("Mismatched NCCL version detected : rank %d version %d rank %d version %d", i,
                      all[i].version, comm->rank, me->version);
            return ncclInvalidUsage;
        }
        if (i != comm->rank && all[i].pid == me->pid && all[i].device == me->device) {
            fake_warn("Duplicate GPU detected : rank %d and rank %d both on CUDA device %d",
                      comm->rank, i, me->device);
            return ncclInvalidUsage;
        }
        stuck |= all[i].cumem != me->cumem || all[i].hangs != 0;
    }
    return stuck && fake_hang(comm) != 0 ? ncclInternalError : ncclSuccess;
}

ncclResult_t fake_join(ncclComm_t comm)
{
    struct fake_peer me = {.rank = comm->rank,
                           .n_ranks = comm->n_ranks,
                           .version = comm->version,
                           .device = comm->device,
                           .pid = getpid(),
                           .cumem = comm->cumem,
                           .hangs = comm->faults.hang_init};
    struct sockaddr_in at;
    ncclResult_t result;
    int fd;

    comm->listener = fake_listen(&at);
    if (comm->listener < 0)
        return ncclSystemError;
    me.port = ntohs(at.sin_port);
    result = say_hello(comm, &me);
    if (result != ncclSuccess)
        return result;
    fd = answer_for(comm, FAKE_TABLE);
    if (fd < 0)
        return ncclInternalError;
    if (fake_take(comm, fd, comm->peers, (size_t)comm->n_ranks * sizeof comm->peers[0]) != 0)
        result = ncclInternalError;
    fake_close(&fd);
    if (result == ncclSuccess)
        result = judge(comm);
    if (result == ncclSuccess && fake_ring_join(comm, FAKE_LIFE) != 0)
        result = ncclInternalError;
    return result;
}
