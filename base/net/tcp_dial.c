/* Connecting, with retries where they can help.
 *
 * A trainer often posts the request before it has created its store, so "refused" means "not yet";
 * any other failure is returned at once. */
#include "base/net/tcp_dial.h"

#include "base/clock.h"
#include "base/net/poll_wait.h"
#include "base/net/resolve.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum {
    PAUSE_MIN_US = 10 * 1000,
    PAUSE_MAX_US = 1000 * 1000,
    ATTEMPT_MIN_US = 1000 * 1000, /* of one address among several */
    KEEPALIVE_IDLE_S = 10,
    KEEPALIVE_STEP_S = 5,
    KEEPALIVE_N = 3
};

struct dial {
    const struct tcp_dial_cfg *cfg;
    const struct progress *p;
    struct resolve_addrs addrs; /* those that are allowed */
    bool again;                 /* one of them refused or was too slow in this round */
    int errnum;                 /* why the last of the others failed */
    uint32_t n_rounds;
};

static int keep_allowed(struct dial *d, struct err *e)
{
    char text[CIDR_ADDR_TEXT_CAP] = "";
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->addrs.n; i++) {
        const struct sockaddr *addr = (const struct sockaddr *)&d->addrs.items[i].addr;
        if (d->cfg->allows == NULL || d->cfg->allows(d->cfg->allows_arg, addr))
            d->addrs.items[n++] = d->addrs.items[i];
        else
            (void)cidr_addr_text(addr, text);
    }
    d->addrs.n = n;
    if (n == 0)
        return err_set(e, ERR_FORBIDDEN, d->cfg->field,
                       "%s is said to be at %s, which is not among the addresses where a trainer "
                       "may be",
                       d->cfg->what, text);
    return 0;
}

static void dial_set_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_STEP_S},
        {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_N},
    };

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
}

/* On one host, the kernel may give a port without a listener to the very socket that connects to
 * it: the socket is then connected to itself. */
static bool is_own_echo(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t n_here = sizeof here, n_there = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &n_here) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &n_there) == 0 && n_here == n_there &&
           memcmp(&here, &there, n_here) == 0;
}

/* Waits for a connection under way. Returns 0, or the errno that ended it, or -1 with `e` set. */
static int dial_await(struct dial *d, int fd, uint64_t until_us, struct err *e)
{
    enum poll_end end = poll_wait(fd, POLLOUT, until_us, d->p);
    socklen_t len = sizeof(int);
    int errnum = 0;

    if (end == POLL_UNTIL)
        return ETIMEDOUT;
    if (end != POLL_READY)
        return poll_refuse(end, d->cfg->field, e, "connecting to %s at '%s', port %u", d->cfg->what,
                           d->cfg->host, d->cfg->port);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &len) != 0)
        return errno;
    return errnum;
}

/* One address, once. Returns 0 with *out set or with why not in `d`; -1 with `e` set. */
static int dial_attempt(struct dial *d, const struct resolve_addr *to, int *out, struct err *e)
{
    uint64_t now = clock_now_us(), slice, until_us = CLOCK_NEVER;
    static const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    int fd, rc;

    if (d->addrs.n > 1 && d->p->deadline_us > now) {
        slice = (d->p->deadline_us - now) / d->addrs.n;
        until_us = now + (slice > ATTEMPT_MIN_US ? slice : ATTEMPT_MIN_US);
    }
    fd = socket(to->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 && errno == EAFNOSUPPORT) {
        d->errnum = errno;
        return 0;
    }
    if (fd < 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot open a socket");
    dial_set_options(fd);
    rc = connect(fd, (const struct sockaddr *)&to->addr, to->len) == 0 ? 0 : errno;
    if (rc == EINPROGRESS || rc == EINTR)
        rc = dial_await(d, fd, until_us, e);
    if (rc == 0 && is_own_echo(fd)) {
        /* Reset, or the port would stay taken for a minute and its owner could not listen. */
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        rc = ECONNREFUSED;
    }
    if (rc == 0) {
        *out = fd;
        return 0;
    }
    (void)close(fd);
    if (rc < 0)
        return -1;
    if (rc == ECONNREFUSED || rc == ETIMEDOUT)
        d->again = true;
    else
        d->errnum = rc;
    return 0;
}

/* Every address once: 0 with *out set or not. */
static int do_round(struct dial *d, int *out, char peer[CIDR_ADDR_TEXT_CAP], struct err *e)
{
    d->again = false;
    for (uint32_t i = 0; i < d->addrs.n; i++) {
        const struct resolve_addr *to = &d->addrs.items[i];
        if (dial_attempt(d, to, out, e) != 0)
            return -1;
        if (*out >= 0) {
            (void)cidr_addr_text((const struct sockaddr *)&to->addr, peer);
            return 0;
        }
    }
    d->n_rounds++;
    if (!d->again)
        return err_set_errno(e, ERR_UNREADABLE, d->cfg->field, d->errnum,
                             "%s at '%s', port %u, cannot be reached", d->cfg->what, d->cfg->host,
                             d->cfg->port);
    return 0;
}

static int pause_a_while(const struct dial *d, uint64_t *pause_us, struct err *e)
{
    enum poll_end end = poll_wait(-1, 0, clock_after_us(*pause_us), d->p);

    *pause_us = *pause_us * 2 < PAUSE_MAX_US ? *pause_us * 2 : PAUSE_MAX_US;
    if (end == POLL_UNTIL)
        return 0;
    return poll_refuse(end, d->cfg->field, e, "nobody listened as %s at '%s', port %u (%u tries)",
                       d->cfg->what, d->cfg->host, d->cfg->port, (unsigned)d->n_rounds);
}

int tcp_dial(int *out, char peer[CIDR_ADDR_TEXT_CAP], const struct tcp_dial_cfg *cfg,
             const struct progress *p, struct err *e)
{
    struct dial d = {.cfg = cfg, .p = p};
    uint64_t pause_us = PAUSE_MIN_US;
    int fd = -1;

    if (cfg->port == 0)
        return err_set(e, ERR_BAD_REQUEST, cfg->field, "port 0 is nobody's");
    if (resolve_host(&d.addrs, cfg->host, cfg->port, cfg->field, p, e) != 0 ||
        keep_allowed(&d, e) != 0 || do_round(&d, &fd, peer, e) != 0)
        return -1;
    while (fd < 0)
        if (pause_a_while(&d, &pause_us, e) != 0 || do_round(&d, &fd, peer, e) != 0)
            return -1;
    *out = fd;
    return 0;
}
