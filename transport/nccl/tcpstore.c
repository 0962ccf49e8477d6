/* The client side of torch's TCPStore.
 *
 * A request is assembled in memory and sent by one call: a server of the older kind reads each
 * request to its end before it serves another rank, and one of the newer kind drops a client whose
 * VALIDATE arrives in two pieces. */
#include "transport/nccl/tcpstore.h"

#include "base/clock.h"
#include "base/net/poll_wait.h"
#include "base/utf8.h"
#include "weights/tensor_list.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { OP_VALIDATE, OP_GET = 3, OP_ADD, OP_WAIT = 6, OP_CANCEL_WAIT = 12, OP_PING };
enum { WAIT_DONE = 0, WAIT_CANCELED = 1 };

enum {
    WHAT_CAP = 128,
    NAME_CAP = 128,    /* a request's name, for errors */
    KEY_CUT = 80,      /* a key in that name */
    SHOWN_NBYTES = 16, /* bytes of an invalid reply, for errors */
    REQUEST_NBYTES_MAX = 1 + 8 + 8 + 1 + TCPSTORE_KEY_LEN_MAX + 8
};
#define VALIDATE_MAGIC 0x3C85F7CEU

struct tcpstore {
    int fd; /* owned; immutable, so that any thread may poll it */

    bool broken; /* the user's: requests and replies no longer match */
    bool joined;
    char what[WHAT_CAP]; /* "the trainer's store at 10.0.0.17:29500" */
};

struct request {
    char name[NAME_CAP]; /* "GET '/k'" */
    size_t n;
    uint8_t bytes[REQUEST_NBYTES_MAX];
};

static void request_put(struct request *r, uint64_t value, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        r->bytes[r->n++] = (uint8_t)(value >> (8 * i));
}

/* @prefix  "/", or "" for the one key that has none */
static void put_key(struct request *r, const char *prefix, const char *key)
{
    size_t n_prefix = strlen(prefix), n_key = strlen(key);

    request_put(r, n_prefix + n_key, 8);
    memcpy(r->bytes + r->n, prefix, n_prefix);
    memcpy(r->bytes + r->n + n_prefix, key, n_key);
    r->n += n_prefix + n_key;
}

static uint64_t u64_of(const uint8_t bytes[8])
{
    uint64_t value = 0;

    for (size_t i = 0; i < 8; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static int key_check(const char *key, struct err *e)
{
    size_t len = strnlen(key, TCPSTORE_KEY_LEN_MAX + 1);

    if (len == 0 || len > TCPSTORE_KEY_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "a store's key has 1 to %d bytes",
                       (int)TCPSTORE_KEY_LEN_MAX);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)key[i] < ' ' || key[i] == 0x7f)
            return err_set(e, ERR_BAD_REQUEST, "",
                           "a store's key has the control character 0x%02x at %zu",
                           (unsigned char)key[i], i);
    return 0;
}

/* Begins a request with a key: the operation, the count if it has a list of keys, the key. */
static int call_begin(struct request *r, uint8_t op, const char *op_name, const char *key,
                      struct err *e)
{
    if (key_check(key, e) != 0)
        return -1;
    r->n = 0;
    request_put(r, op, 1);
    if (op == OP_WAIT)
        request_put(r, 1, 8);
    put_key(r, "/", key);
    (void)snprintf(r->name, sizeof r->name, "%s '/%.*s'", op_name, utf8_cut(key, KEY_CUT), key);
    return 0;
}

/* How a transfer ended; `errnum` is set for IO_ERROR. */
enum io_end { IO_DONE, IO_LATE, IO_STOPPED, IO_CLOSED, IO_ERROR };

struct io {
    enum io_end end;
    size_t n; /* bytes transferred */
    int errnum;
};

/* Waits after EAGAIN; ends the transfer after any other error. */
static bool io_goes_on(struct io *io, int fd, short events, const struct progress *p)
{
    enum poll_end end;

    if (errno == EINTR)
        return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
        io->errnum = errno;
        io->end = errno == ECONNRESET || errno == EPIPE ? IO_CLOSED : IO_ERROR;
        return false;
    }
    end = poll_wait(fd, events, CLOCK_NEVER, p);
    if (end == POLL_READY)
        return true;
    io->end = end == POLL_LATE ? IO_LATE : IO_STOPPED;
    return false;
}

static struct io io_send(const struct tcpstore *s, const struct request *r,
                         const struct progress *p)
{
    struct io io = {.end = IO_DONE};

    while (io.n < r->n) {
        ssize_t n = send(s->fd, r->bytes + io.n, r->n - io.n, MSG_NOSIGNAL);
        if (n >= 0)
            io.n += (size_t)n;
        else if (!io_goes_on(&io, s->fd, POLLOUT, p))
            break;
    }
    return io;
}

static struct io io_recv(const struct tcpstore *s, uint8_t *out, size_t nbytes,
                         const struct progress *p)
{
    struct io io = {.end = IO_DONE};

    while (io.n < nbytes) {
        ssize_t n = recv(s->fd, out + io.n, nbytes - io.n, 0);
        if (n > 0) {
            io.n += (size_t)n;
        } else if (n == 0) {
            io.end = IO_CLOSED;
            break;
        } else if (!io_goes_on(&io, s->fd, POLLIN, p)) {
            break;
        }
    }
    return io;
}

/* After the whole of an ADD was sent it is unknown whether it was counted. */
static const char *request_after(const struct request *r)
{
    return r->bytes[0] == OP_ADD ? "; whether it was counted is not known, and it is not sent again"
                                 : "";
}

/* The error of a failed transfer: of the request, or of its reply (`sent`). */
static int io_refuse(struct tcpstore *s, const struct request *r, const struct io *io, bool sent,
                     size_t nbytes, struct err *e)
{
    const char *did = sent ? "answering" : "taking", *more = sent ? request_after(r) : "";

    s->broken = true;
    switch (io->end) {
    case IO_LATE:
    case IO_STOPPED:
        return poll_refuse(io->end == IO_LATE ? POLL_LATE : POLL_STOPPED, "", e,
                           "%s was %s %s (%zu of %zu bytes)%s", s->what, did, r->name, io->n,
                           nbytes, more);
    case IO_CLOSED:
        return err_set(e, ERR_UNREADABLE, "",
                       "%s closed the connection while it was %s %s (%zu of %zu bytes)%s", s->what,
                       did, r->name, io->n, nbytes, more);
    default:
        return err_set_errno(e, ERR_UNREADABLE, "", io->errnum, "%s was lost while it was %s %s%s",
                             s->what, did, r->name, more);
    }
}

/* The error of an invalid reply. */
static int refuse_reply(struct tcpstore *s, const struct request *r, const uint8_t *bytes, size_t n,
                        const char *wanted, struct err *e)
{
    char hex[3 * SHOWN_NBYTES + 1] = "";

    for (size_t i = 0; i < n && i < SHOWN_NBYTES; i++)
        (void)snprintf(hex + 3 * i, 4, " %02x", bytes[i]);
    s->broken = true;
    return err_set(e, ERR_UNREADABLE, "", "%s answered %s with%s; expected %s", s->what, r->name,
                   hex, wanted);
}

/* Before a request no bytes may be readable: they would be taken for its reply. */
static int tcpstore_send_request(struct tcpstore *s, const struct request *r,
                                 const struct progress *p, struct err *e)
{
    uint8_t byte;
    ssize_t n;
    struct io io;

    if (s->broken)
        return err_set(e, ERR_UNREADABLE, "", "the connection to %s failed before %s", s->what,
                       r->name);
    n = recv(s->fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) {
        s->broken = true;
        return err_set(e, ERR_UNREADABLE, "",
                       "%s sent unexpected bytes, the first is 0x%02x, before %s", s->what, byte,
                       r->name);
    }
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        s->broken = true;
        return err_set(e, ERR_UNREADABLE, "", "%s closed the connection before %s", s->what,
                       r->name);
    }
    io = io_send(s, r, p);
    return io.end == IO_DONE ? 0 : io_refuse(s, r, &io, false, r->n, e);
}

static int recv_answer(struct tcpstore *s, const struct request *r, uint8_t *out, size_t nbytes,
                       const struct progress *p, struct err *e)
{
    struct io io = io_recv(s, out, nbytes, p);

    return io.end == IO_DONE ? 0 : io_refuse(s, r, &io, true, nbytes, e);
}

/* VALIDATE has no reply: its failure shows in the reply to PING. */
static int handshake(struct tcpstore *s, const struct progress *p, struct err *e)
{
    struct request r = {.name = "VALIDATE"};
    uint32_t nonce = (uint32_t)getpid(); /* as in torch's client */
    uint8_t answer[4];

    request_put(&r, OP_VALIDATE, 1);
    request_put(&r, VALIDATE_MAGIC, 4);
    if (tcpstore_send_request(s, &r, p, e) != 0)
        return -1;
    r = (struct request){.name = "PING"};
    request_put(&r, OP_PING, 1);
    request_put(&r, nonce, 4);
    if (tcpstore_send_request(s, &r, p, e) != 0 ||
        recv_answer(s, &r, answer, sizeof answer, p, e) != 0)
        return -1;
    if (memcmp(answer, r.bytes + 1, sizeof answer) != 0)
        return refuse_reply(s, &r, answer, sizeof answer,
                            "what was sent: it is not torch's TCPStore", e);
    return 0;
}

int tcpstore_open(struct tcpstore **out, const struct tcp_dial_cfg *cfg, const struct progress *p,
                  struct err *e)
{
    char peer[CIDR_ADDR_TEXT_CAP];
    struct tcpstore *s;
    int fd;

    if (tcp_dial(&fd, peer, cfg, p, e) != 0)
        return -1;
    s = calloc(1, sizeof *s);
    if (s == NULL) {
        (void)close(fd);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a connection to a store");
    }
    s->fd = fd;
    (void)snprintf(s->what, sizeof s->what, "%s at %s", cfg->what, peer);
    if (handshake(s, p, e) != 0) {
        tcpstore_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void tcpstore_close(struct tcpstore *s)
{
    if (s == NULL)
        return;
    (void)close(s->fd);
    free(s);
}

int tcpstore_join(struct tcpstore *s, uint32_t n_ranks, uint64_t *n_joined,
                  const struct progress *p, struct err *e)
{
    struct request r = {.name = "ADD 'init/'"};
    uint8_t answer[8];
    uint64_t bits;
    int64_t sum;

    assert(n_ranks >= 1 && !s->joined);
    request_put(&r, OP_ADD, 1);
    put_key(&r, "", "init/");
    request_put(&r, n_ranks, 8);
    if (tcpstore_send_request(s, &r, p, e) != 0 ||
        recv_answer(s, &r, answer, sizeof answer, p, e) != 0)
        return -1;
    bits = u64_of(answer);
    memcpy(&sum, &bits, sizeof sum);
    if (sum < (int64_t)n_ranks) {
        s->broken = true;
        return err_set(e, ERR_UNREADABLE, "", "%s answered %s of %u ranks with the sum %lld",
                       s->what, r.name, (unsigned)n_ranks, (long long)sum);
    }
    s->joined = true;
    *n_joined = (uint64_t)sum;
    return 0;
}

/* Cancels a WAIT. The key may be set first: then the server sends both replies, in that order.
 * Returns whether requests and replies match again; *came when the key was set. */
static bool cancel_wait(struct tcpstore *s, bool *came)
{
    const struct progress p = {.deadline_us = clock_after_us(TCPSTORE_CANCEL_US)};
    struct request r = {.name = "CANCEL_WAIT"};
    uint8_t answer = WAIT_DONE;

    request_put(&r, OP_CANCEL_WAIT, 1);
    if (io_send(s, &r, &p).end != IO_DONE || io_recv(s, &answer, 1, &p).end != IO_DONE)
        return false;
    if (answer == WAIT_DONE) {
        *came = true;
        if (io_recv(s, &answer, 1, &p).end != IO_DONE)
            return false;
    }
    return answer == WAIT_CANCELED;
}

int tcpstore_wait(struct tcpstore *s, const char *key, const struct progress *p, struct err *e)
{
    struct request r;
    uint8_t answer;
    bool came = false;
    struct io io;

    if (call_begin(&r, OP_WAIT, "WAIT", key, e) != 0 || tcpstore_send_request(s, &r, p, e) != 0)
        return -1;
    io = io_recv(s, &answer, 1, p);
    if (io.end == IO_DONE && answer == WAIT_DONE)
        return 0;
    if (io.end == IO_DONE)
        return refuse_reply(s, &r, &answer, 1, "00", e);
    if (io.end != IO_LATE && io.end != IO_STOPPED)
        return io_refuse(s, &r, &io, true, 1, e);
    if (!cancel_wait(s, &came))
        return io_refuse(s, &r, &io, true, 1, e);
    if (came && io.end == IO_LATE)
        return 0;
    return poll_refuse(io.end == IO_LATE ? POLL_LATE : POLL_STOPPED, "", e, "%s had no key '/%.*s'",
                       s->what, utf8_cut(key, KEY_CUT), key);
}

int tcpstore_get(struct tcpstore *s, const char *key, uint8_t value[TCPSTORE_VALUE_NBYTES_MAX],
                 size_t *nbytes, const struct progress *p, struct err *e)
{
    uint8_t length[8], bytes[TCPSTORE_VALUE_NBYTES_MAX];
    struct request r;
    uint64_t n;

    if (call_begin(&r, OP_GET, "GET", key, e) != 0 || tcpstore_send_request(s, &r, p, e) != 0 ||
        recv_answer(s, &r, length, sizeof length, p, e) != 0)
        return -1;
    n = u64_of(length);
    if (n > TCPSTORE_VALUE_NBYTES_MAX) {
        s->broken = true;
        return err_set(e, ERR_UNREADABLE, "", "%s answered %s with %llu bytes; at most %d are read",
                       s->what, r.name, (unsigned long long)n, (int)TCPSTORE_VALUE_NBYTES_MAX);
    }
    if (recv_answer(s, &r, bytes, (size_t)n, p, e) != 0)
        return -1;
    memcpy(value, bytes, (size_t)n);
    *nbytes = (size_t)n;
    return 0;
}

bool tcpstore_closed(const struct tcpstore *s)
{
    struct pollfd pfd = {.fd = s->fd, .events = POLLRDHUP};

    return poll(&pfd, 1, 0) > 0 && (pfd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}
