/* Listening sockets, one for each shard, and the room that they need in the descriptor table. */
#include "base/log.h"
#include "server/front_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NOFILE_RESERVE = 256 /* descriptors for everything but connections */ };

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int parse_address(const char *text, uint16_t port, union address *out, socklen_t *len,
                         struct err *e)
{
    char host[INET6_ADDRSTRLEN + 1];
    size_t n = strlen(text);

    memset(out, 0, sizeof *out);
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (n < sizeof host) {
        memcpy(host, text, n);
        host[n] = '\0';
        if (inet_pton(AF_INET, host, &out->v4.sin_addr) == 1) {
            out->v4.sin_family = AF_INET;
            out->v4.sin_port = htons(port);
            *len = sizeof out->v4;
            return 0;
        }
        if (inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1) {
            out->v6.sin6_family = AF_INET6;
            out->v6.sin6_port = htons(port);
            *len = sizeof out->v6;
            return 0;
        }
    }
    return err_set(e, ERR_INTERNAL, "",
                   "listen address '%.64s' is not a numeric IPv4 or [IPv6] one", text);
}

static int listen_one(const struct front *f, uint16_t port, int *out, struct err *e)
{
    static const int on = 1;
    union address addr;
    socklen_t len;
    int fd;

    if (parse_address(f->cfg.address, port, &addr, &len, e) != 0)
        return -1;
    fd = socket(addr.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot make a socket");
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (f->n_shards > 1 && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ||
        (addr.any.sa_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
        bind(fd, &addr.any, len) != 0 || listen(fd, FRONT_BACKLOG) != 0) {
        (void)err_set_errno(e, ERR_INTERNAL, "", errno, "cannot listen on %s:%u", f->cfg.address,
                            (unsigned)port);
        (void)close(fd);
        return -1;
    }
    *out = fd;
    return 0;
}

static int bound_port(int fd, uint16_t *out, struct err *e)
{
    union address addr;
    socklen_t len = sizeof addr;

    if (getsockname(fd, &addr.any, &len) != 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot read the bound port");
    *out = ntohs(addr.any.sa_family == AF_INET6 ? addr.v6.sin6_port : addr.v4.sin_port);
    return 0;
}

int front_listen(struct front *f, struct err *e)
{
    f->port = f->cfg.port;
    for (size_t i = 0; i < f->n_shards; i++) {
        if (listen_one(f, f->port, &f->shards[i].listen_fd, e) != 0)
            return -1;
        if (i == 0 && bound_port(f->shards[i].listen_fd, &f->port, e) != 0)
            return -1;
    }
    return 0;
}

void front_fit_nofile(struct front *f)
{
    struct rlimit lim;
    rlim_t need;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return;
    if (lim.rlim_cur < lim.rlim_max) {
        struct rlimit most = {.rlim_cur = lim.rlim_max, .rlim_max = lim.rlim_max};

        if (setrlimit(RLIMIT_NOFILE, &most) == 0)
            lim = most;
    }
    need = (rlim_t)f->cfg.n_connections_max + (rlim_t)f->n_shards * FRONT_LINGER_MAX +
           NOFILE_RESERVE;
    if (lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= need)
        return;
    need -= (rlim_t)f->cfg.n_connections_max;
    f->cfg.n_connections_max = lim.rlim_cur > need + 16 ? (size_t)(lim.rlim_cur - need) : 16;
    log_line(LOG_WARN, "http.few_descriptors",
             "RLIMIT_NOFILE is %llu: at most %zu connections are served",
             (unsigned long long)lim.rlim_cur, f->cfg.n_connections_max);
}
