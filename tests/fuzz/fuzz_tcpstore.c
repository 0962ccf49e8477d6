/* A store that answers as the input says: no call hangs, believes a length, or goes on after a lie.
 *
 * The input is a list of pieces, each a length byte and so many bytes. The client is connected to a
 * socket pair, and a piece arrives when it waits (the linker wraps tcp_dial and poll), so nothing
 * takes time; 0xff is a deadline that has
 * come, 0xfe a stop, and after the last piece the store hangs up. */
#include "transport/nccl/tcpstore.h"

#include "base/clock.h"

#include <assert.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE_LATE = 0xff, PIECE_STOP = 0xfe };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_tcp_dial(int *fd, char peer[CIDR_ADDR_TEXT_CAP], const struct tcp_dial_cfg *cfg,
                    const struct progress *p, struct err *e);

static struct {
    const uint8_t *at, *end;
    int fd; /* the store's end; -1: it has hung up */
    struct progress p;
} peer = {.fd = -1};

static void feed(void)
{
    uint8_t n, bytes[4096];
    size_t left;
    ssize_t n_sent;

    while (recv(peer.fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue; /* the requests; the client's end of the pair never fills */
    if (peer.at == peer.end) {
        (void)close(peer.fd);
        peer.fd = -1;
        return;
    }
    n = *peer.at++;
    left = (size_t)(peer.end - peer.at);
    if (n == PIECE_LATE) {
        peer.p.deadline_us = 0;
    } else if (n == PIECE_STOP) {
        atomic_store(&peer.p.stop, true);
    } else {
        if (n > left)
            n = (uint8_t)left;
        n_sent = send(peer.fd, peer.at, n, MSG_NOSIGNAL);
        assert(n_sent == (ssize_t)n);
        peer.at += n;
    }
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    if (timeout_ms != 0 && peer.fd >= 0)
        feed();
    return __real_poll(fds, n, 0);
}

int __wrap_tcp_dial(int *fd, char addr[CIDR_ADDR_TEXT_CAP], const struct tcp_dial_cfg *cfg,
                    const struct progress *p, struct err *e)
{
    int fds[2], rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds);

    (void)cfg;
    (void)p;
    (void)e;
    assert(rc == 0);
    *fd = fds[0];
    peer.fd = fds[1];
    memcpy(addr, "a pair", sizeof "a pair");
    return 0;
}

static void check(int rc, const struct err *e)
{
    if (rc == 0)
        assert(e->code == ERR_NONE);
    else
        assert((e->code == ERR_UNREADABLE || e->code == ERR_TIMEOUT || e->code == ERR_CONFLICT) &&
               strstr(e->msg, "the store of a test") != NULL && strlen(e->msg) < ERR_MSG_MAX - 1);
}

/* The calls of a rank, whatever became of the one before. */
static void make_calls(struct tcpstore *s)
{
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX];
    uint64_t n_joined = UINT64_MAX;
    size_t nbytes = SIZE_MAX;
    int rc;

    for (int call = 0; call < 3; call++) {
        struct err e = {0};
        if (call == 0)
            rc = tcpstore_join(s, 2, &n_joined, &peer.p, &e);
        else if (call == 1)
            rc = tcpstore_wait(s, "id", &peer.p, &e);
        else
            rc = tcpstore_get(s, "id", value, &nbytes, &peer.p, &e);
        check(rc, &e);
        if (call == 0)
            assert(rc == 0 ? n_joined >= 2 && n_joined <= INT64_MAX : n_joined == UINT64_MAX);
        if (call == 2)
            assert(rc == 0 ? nbytes <= sizeof value : nbytes == SIZE_MAX);
    }
    (void)tcpstore_closed(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint32_t nonce = (uint32_t)getpid();
    const struct tcp_dial_cfg cfg = {.what = "the store of a test"};
    struct tcpstore *s = NULL;
    struct err e = {0};
    uint8_t echo[64];
    int rc;

    peer.p.deadline_us = CLOCK_NEVER;
    atomic_store(&peer.p.stop, false);
    /* Unless the input begins with 0, its first piece is the right echo, which no fuzzer guesses.
     */
    if (len > 0 && data[0] != 0) {
        echo[0] = 4;
        memcpy(echo + 1, &nonce, 4);
        peer.at = echo;
        peer.end = echo + 5;
        rc = tcpstore_open(&s, &cfg, &peer.p, &e);
        peer.at = data;
        peer.end = data + len;
    } else {
        peer.at = data + (len > 0);
        peer.end = data + len;
        rc = tcpstore_open(&s, &cfg, &peer.p, &e);
    }
    check(rc, &e);
    assert((rc == 0) == (s != NULL));
    if (s != NULL)
        make_calls(s);
    tcpstore_close(s);
    if (peer.fd >= 0)
        (void)close(peer.fd);
    peer.fd = -1;
    return 0;
}
