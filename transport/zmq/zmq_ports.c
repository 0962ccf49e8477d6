/* libzmq reports the events of a connection as messages of a second socket, its monitor. The
 * connection's descriptor is in an event; the kernel names its peer. Events and messages have
 * the order of libzmq's one I/O thread, so a connection is checked before its messages are read. */
#include "transport/zmq/zmq_ports.h"

#include "base/mtx.h"
#include "driver/zmq.h"
#include "transport/roots.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    EVENT_NBYTES = 6,
    ENDPOINT_MAX = 128,
    CTX_FDS = 5,  /* a context's own, its reaper's and its I/O thread's mailboxes and epolls */
    PORT_FDS = 5, /* mailboxes of a socket and of both ends of its monitor; file; connection */
    FDS_MAX = CTX_FDS + ZMQ_PORTS_MAX * PORT_FDS
};

static const char scheme[] = "ipc://";
static const char disconnect_text[] =
    "the trainer closed its socket, died, or sent a message that is too long";

/* Makes finding and using descriptors one step among updates. Guards no data. */
static struct mtx opening = {.m = PTHREAD_MUTEX_INITIALIZER, .rank = MTX_LEAF};

struct port {
    void *socket, *monitor; /* owned; NULL: not opened */
    int dirfd;              /* owned; of a file's socket, or -1 */
    bool connected;         /* to a trusted process */
    bool lost;
    struct err why; /* with `lost` */
    bool has_message;
    zmq_msg_t message; /* with has_message */
};

struct zmq_ports {
    struct zmq_api zmq;
    void *ctx; /* owned */
    uint32_t n;
    struct port ports[];
};

int zmq_address_check(const char *address, const char *field, struct err *e)
{
    const char *name = address + sizeof scheme - 1;
    size_t len = strlen(address);

    if (strncmp(address, scheme, sizeof scheme - 1) != 0 || (name[0] != '@' && name[0] != '/') ||
        name[1] == '\0')
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.80s' is not the address of a socket on this machine, expected "
                       "ipc://@NAME, or ipc:///PATH below --allow-path",
                       address);
    if (len - (sizeof scheme - 1) > ZMQ_ADDRESS_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "the address has %zu bytes; %d is the limit", len,
                       (int)(ZMQ_ADDRESS_MAX + sizeof scheme - 1));
    for (size_t i = 0; i < len; i++)
        if (address[i] <= 0x20 || address[i] > 0x7e)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "the address holds byte 0x%02x; it is printable ASCII without blanks",
                           (unsigned char)address[i]);
    return 0;
}

static int zmq_failed(const struct zmq_ports *p, const char *call, struct err *e)
{
    int errnum = p->zmq.last_error();

    return err_set(e, ERR_INTERNAL, "", "%s: %.200s (%d)", call, p->zmq.error_text(errnum), errnum);
}

static int set_int(const struct zmq_ports *p, void *socket, int option, int value, struct err *e)
{
    if (p->zmq.setsockopt(socket, option, &value, sizeof value) == 0)
        return 0;
    return zmq_failed(p, "zmq_setsockopt", e);
}

/* One message at a time: what a peer sends beyond it stays in its own queue. */
static int zmq_port_set_options(const struct zmq_ports *p, void *socket, struct err *e)
{
    int64_t nbytes_max = ZMQ_MESSAGE_NBYTES_MAX;

    if (set_int(p, socket, ZMQ_LINGER, ZMQ_LINGER_MS, e) != 0 ||
        set_int(p, socket, ZMQ_RCVHWM, 1, e) != 0 || set_int(p, socket, ZMQ_SNDHWM, 1, e) != 0)
        return -1;
    if (p->zmq.setsockopt(socket, ZMQ_MAXMSGSIZE, &nbytes_max, sizeof nbytes_max) != 0)
        return zmq_failed(p, "zmq_setsockopt(ZMQ_MAXMSGSIZE)", e);
    return 0;
}

static int port_watch(struct zmq_ports *p, uint32_t i, struct err *e)
{
    struct port *port = &p->ports[i];
    char endpoint[ENDPOINT_MAX];

    (void)snprintf(endpoint, sizeof endpoint, "inproc://monitor-%u", (unsigned)i);
    if (p->zmq.socket_monitor(port->socket, endpoint,
                              ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED) != 0)
        return zmq_failed(p, "zmq_socket_monitor", e);
    port->monitor = p->zmq.socket(p->ctx, ZMQ_PAIR);
    if (port->monitor == NULL)
        return zmq_failed(p, "zmq_socket(ZMQ_PAIR)", e);
    if (set_int(p, port->monitor, ZMQ_LINGER, 0, e) != 0)
        return -1;
    return p->zmq.connect(port->monitor, endpoint) == 0 ? 0 : zmq_failed(p, "zmq_connect", e);
}

/* A file is opened below its root, and connected to through the open descriptor: a concurrent
 * rename has no effect. */
static int endpoint_of_file(struct port *port, char endpoint[ENDPOINT_MAX], const char *path,
                            const char *const *roots, size_t n_roots, struct err *e)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | O_NOFOLLOW,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    const char *rest;
    int root, errnum;

    if (roots_open(&root, &rest, roots, n_roots, path, "/zmq_handles", e) != 0)
        return -1;
    port->dirfd = (int)syscall(SYS_openat2, root, rest, &how, sizeof how);
    errnum = errno;
    (void)close(root);
    if (port->dirfd < 0)
        return err_set_errno(e, ERR_UNREADABLE, "/zmq_handles", errnum,
                             "the socket '%.80s' cannot be opened", path);
    (void)snprintf(endpoint, ENDPOINT_MAX, "ipc:///proc/self/fd/%d", port->dirfd);
    return 0;
}

static int open_port(struct zmq_ports *p, uint32_t i, const char *address, const char *const *roots,
                     size_t n_roots, struct err *e)
{
    const char *name = address + sizeof scheme - 1;
    struct port *port = &p->ports[i];
    char endpoint[ENDPOINT_MAX];

    (void)snprintf(endpoint, sizeof endpoint, "%s", address);
    if (name[0] == '/' && endpoint_of_file(port, endpoint, name, roots, n_roots, e) != 0)
        return -1;
    port->socket = p->zmq.socket(p->ctx, ZMQ_REP);
    if (port->socket == NULL)
        return zmq_failed(p, "zmq_socket(ZMQ_REP)", e);
    if (zmq_port_set_options(p, port->socket, e) != 0 || port_watch(p, i, e) != 0)
        return -1;
    return p->zmq.connect(port->socket, endpoint) == 0 ? 0 : zmq_failed(p, "zmq_connect", e);
}

/* libzmq ends the process if it gets no descriptor for a mailbox, so this checks in advance that
 * enough are free. */
static int find_descriptors(uint32_t n, struct err *e)
{
    uint32_t n_wanted = CTX_FDS + n * PORT_FDS, n_open = 0;
    int fds[FDS_MAX], errnum = 0;

    while (n_open < n_wanted && errnum == 0) {
        fds[n_open] = eventfd(0, EFD_CLOEXEC);
        if (fds[n_open] >= 0)
            n_open++;
        else
            errnum = errno;
    }
    for (uint32_t i = 0; i < n_open; i++)
        (void)close(fds[i]);
    if (errnum == 0)
        return 0;
    return err_set_errno(e, ERR_NO_MEMORY, "", errnum,
                         "too few file descriptors: the update's sockets need %u, and %u are left; "
                         "retry when fewer connections are open, or raise the limit (ulimit -n)",
                         (unsigned)n_wanted, (unsigned)n_open);
}

static int zmq_ports_open_all(struct zmq_ports *p, const char *const *addresses,
                              const char *const *roots, size_t n_roots, struct err *e)
{
    if (find_descriptors(p->n, e) != 0 || zmq_load(&p->zmq, e) != 0)
        return -1;
    p->ctx = p->zmq.ctx_new();
    if (p->ctx == NULL)
        return zmq_failed(p, "zmq_ctx_new", e);
    for (uint32_t i = 0; i < p->n; i++)
        if (open_port(p, i, addresses[i], roots, n_roots, e) != 0)
            return -1;
    return 0;
}

int zmq_ports_open(struct zmq_ports **out, const char *const *addresses, uint32_t n,
                   const char *const *roots, size_t n_roots, struct err *e)
{
    struct zmq_ports *p = calloc(1, sizeof *p + n * sizeof p->ports[0]);
    int rc;

    assert(n > 0 && n <= ZMQ_PORTS_MAX);
    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u sockets", (unsigned)n);
    p->n = n;
    for (uint32_t i = 0; i < n; i++)
        p->ports[i].dirfd = -1;
    mtx_lock(&opening);
    rc = zmq_ports_open_all(p, addresses, roots, n_roots, e);
    mtx_unlock(&opening);
    if (rc != 0) {
        zmq_ports_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

static void drop_message(struct zmq_ports *p, struct port *port)
{
    if (port->has_message)
        (void)p->zmq.msg_close(&port->message);
    port->has_message = false;
}

void zmq_ports_close(struct zmq_ports *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->n; i++) {
        struct port *port = &p->ports[i];

        drop_message(p, port);
        if (port->monitor != NULL) /* otherwise libzmq leaks the events of its end */
            (void)p->zmq.socket_monitor(port->socket, NULL, 0);
        if (port->socket != NULL)
            (void)p->zmq.close(port->socket);
        if (port->monitor != NULL)
            (void)p->zmq.close(port->monitor);
        if (port->dirfd >= 0)
            (void)close(port->dirfd);
    }
    if (p->ctx != NULL)
        (void)p->zmq.ctx_term(
            p->ctx); /* EINTR would leak its memory, but this thread receives no signals */
    free(p);
}

static void port_set_lost(struct port *port, enum err_code code, const char *why)
{
    if (port->lost)
        return;
    port->lost = true;
    (void)err_set(&port->why, code, "", "%s", why);
}

/* The process behind the connection, as the kernel knows it. */
static void check_peer(struct port *port, int fd)
{
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    char why[ERR_MSG_MAX];

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
        port_set_lost(port, ERR_GONE, "the trainer closed its socket at once");
        return;
    }
    if (peer.uid == geteuid() || peer.uid == 0 || geteuid() == 0) {
        port->connected = true;
        return;
    }
    (void)snprintf(why, sizeof why,
                   "the socket belongs to user %u; this server runs as user %u, and accepts only "
                   "its own user's and root's",
                   (unsigned)peer.uid, (unsigned)geteuid());
    port_set_lost(port, ERR_FORBIDDEN, why);
}

/* The next event of a monitor: {uint16 event, uint32 value}, then the address. */
static bool next_event(const struct zmq_ports *p, const struct port *port, uint16_t *event,
                       int32_t *value)
{
    zmq_msg_t head, address;
    bool is_event;

    (void)p->zmq.msg_init(&head);
    if (p->zmq.msg_recv(&head, port->monitor, ZMQ_DONTWAIT) < 0) {
        (void)p->zmq.msg_close(&head);
        return false;
    }
    is_event = p->zmq.msg_size(&head) == EVENT_NBYTES;
    *event = 0;
    if (is_event) {
        memcpy(event, p->zmq.msg_data(&head), sizeof *event);
        memcpy(value, (const char *)p->zmq.msg_data(&head) + sizeof *event, sizeof *value);
    }
    (void)p->zmq.msg_close(&head);
    (void)p->zmq.msg_init(&address);
    (void)p->zmq.msg_recv(&address, port->monitor, ZMQ_DONTWAIT);
    (void)p->zmq.msg_close(&address);
    return true;
}

static void port_receive(struct zmq_ports *p, struct port *port)
{
    size_t nbytes = sizeof(int);
    int more = 0;

    (void)p->zmq.msg_init(&port->message);
    if (p->zmq.msg_recv(&port->message, port->socket, ZMQ_DONTWAIT) < 0) {
        (void)p->zmq.msg_close(&port->message);
        return;
    }
    port->has_message = true;
    (void)p->zmq.getsockopt(port->socket, ZMQ_RCVMORE, &more, &nbytes);
    if (more == 0)
        return;
    drop_message(p, port);
    port_set_lost(port, ERR_BAD_REQUEST,
                  "the trainer sent a message of several parts; a message must be one pickle");
}

/* Handles all pending events. Only the first connection is trusted: libzmq does not report over
 * which of several a message was received. Returns true if a connection has ended. */
static bool take_events(const struct zmq_ports *p, struct port *port)
{
    bool gone = false;
    uint16_t event;
    int32_t value = -1;

    while (next_event(p, port, &event, &value)) {
        if (event == ZMQ_EVENT_CONNECTED && port->connected)
            port_set_lost(port, ERR_GONE, disconnect_text);
        else if (event == ZMQ_EVENT_CONNECTED)
            check_peer(port, value);
        gone = gone || event == ZMQ_EVENT_DISCONNECTED;
    }
    return gone;
}

/* Updates the state of a port. Messages from before a loss are still read, unless there was
 * another connection meanwhile: the event of a connection precedes its messages, so that is
 * detected below. */
static void port_poll(struct zmq_ports *p, struct port *port)
{
    bool gone = take_events(p, port);

    if (port->connected && !port->lost && !port->has_message) {
        port_receive(p, port);
        gone = take_events(p, port) || gone;
        if (port->lost)
            drop_message(p, port);
    }
    if (gone)
        port_set_lost(port, ERR_GONE, disconnect_text);
}

void zmq_ports_wait(struct zmq_ports *p, uint32_t ms)
{
    zmq_pollitem_t items[2 * ZMQ_PORTS_MAX];
    int n = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        const struct port *port = &p->ports[i];

        items[n++] = (zmq_pollitem_t){.socket = port->monitor, .events = ZMQ_POLLIN};
        if (!port->has_message && !port->lost)
            items[n++] = (zmq_pollitem_t){.socket = port->socket, .events = ZMQ_POLLIN};
    }
    (void)p->zmq.poll(items, n, (long)ms);
    for (uint32_t i = 0; i < p->n; i++)
        port_poll(p, &p->ports[i]);
}

bool zmq_ports_connected(const struct zmq_ports *p, uint32_t i)
{
    assert(i < p->n);
    return p->ports[i].connected;
}

const void *zmq_ports_message(struct zmq_ports *p, uint32_t i, size_t *nbytes)
{
    struct port *port = &p->ports[i];

    assert(i < p->n);
    if (!port->has_message)
        return NULL;
    *nbytes = p->zmq.msg_size(&port->message);
    return p->zmq.msg_data(&port->message);
}

void zmq_ports_reply(struct zmq_ports *p, uint32_t i, const char *text, size_t len)
{
    struct port *port = &p->ports[i];

    assert(i < p->n && port->has_message);
    drop_message(p, port);
    if (!port->lost)
        (void)p->zmq.send(port->socket, text, len, ZMQ_DONTWAIT);
}

bool zmq_ports_lost(const struct zmq_ports *p, uint32_t i, struct err *why)
{
    const struct port *port = &p->ports[i];

    assert(i < p->n);
    if (!port->lost || port->has_message)
        return false;
    if (why != NULL && why->code == ERR_NONE)
        *why = port->why;
    return true;
}
