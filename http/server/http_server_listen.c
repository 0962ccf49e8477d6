/* Listening sockets, one for each shard, and the file descriptors that they need.
 *
 * A unix socket is a file that outlives its server: one without a listener is replaced at start,
 * and ours is removed when we stop accepting, unless another process has replaced it. */
#include "base/clock.h"
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Descriptors for everything but connections. Of these 180 are for four updates over sockets on
 * eight GPUs: libzmq aborts the process if it gets none (transport/zmq/zmq_ports.h). */
enum { NOFILE_RESERVE = 256 };

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

/* @shared  others listen there already. After a failure errno is EADDRINUSE where that is why. */
static int bind_one(const char *address, uint16_t port, bool shared, int *out, struct err *e)
{
    static const int on = 1;
    union address addr;
    socklen_t len;
    int fd;

    *out = -1;
    if (parse_address(address, port, &addr, &len, e) != 0)
        return -1;
    fd = socket(addr.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot make a socket");
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (addr.any.sa_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
        (shared && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ||
        bind(fd, &addr.any, len) != 0) {
        int errnum = errno;

        (void)err_set_errno(e, ERR_INTERNAL, "", errnum, "cannot listen on %s:%u", address,
                            (unsigned)port);
        (void)close(fd);
        errno = errnum;
        return -1;
    }
    *out = fd;
    return 0;
}

/* The sockets of one port share it by SO_REUSEPORT, which would also let another server's socket
 * share it and take half of the connections. So the first socket listens without it, which fails if
 * another process listens, and sets it only then. */
static int listen_one(const struct http_server *f, uint16_t port, bool first, int *out,
                      struct err *e)
{
    static const int on = 1;
    int fd;

    if (bind_one(f->cfg.address, port, !first, &fd, e) != 0)
        return -1;
    if (listen(fd, HTTP_SERVER_BACKLOG) != 0 ||
        (first && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0)) {
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

/* Is there a socket at the path without a listener? */
static bool is_stale(const struct sockaddr_un *addr)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat st;
    bool stale;

    if (fd < 0)
        return false;
    stale = lstat(addr->sun_path, &st) == 0 && S_ISSOCK(st.st_mode) &&
            connect(fd, (const struct sockaddr *)addr, sizeof *addr) != 0 && errno == ECONNREFUSED;
    (void)close(fd);
    return stale;
}

/* @replace  a stale one */
static int bind_unix(int fd, const struct sockaddr_un *addr, bool replace)
{
    /* The mode is that of the descriptor, cut by the umask; others are never let in, and there is
     * no moment at which they are. */
    if (fchmod(fd, S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP) != 0)
        return -1;
    if (bind(fd, (const struct sockaddr *)addr, sizeof *addr) == 0)
        return 0;
    if (errno != EADDRINUSE)
        return -1;
    if (!replace || !is_stale(addr) || unlink(addr->sun_path) != 0) {
        errno = EADDRINUSE;
        return -1;
    }
    return bind(fd, (const struct sockaddr *)addr, sizeof *addr);
}

/* Two servers that start at the same time could each take the other's socket, bound but not
 * listening yet, for a dead one. So they check, bind and listen one at a time. The lock is on the
 * directory, so that no lock file remains. If it cannot be taken in time (the directory cannot be
 * read, or is locked by another program), the server continues without it. Returns the descriptor
 * that holds it, or -1. */
static int lock_directory(const char *path)
{
    enum { WAIT_US = 1000 * 1000, AGAIN_MS = 5 };
    uint64_t until_us = clock_after_us(WAIT_US);
    char dir[sizeof((struct sockaddr_un *)NULL)->sun_path + 1] = ".";
    const char *slash = strrchr(path, '/');
    int fd;

    if (slash != NULL)
        (void)snprintf(dir, sizeof dir, "%.*s/", (int)(slash - path), path);
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || clock_passed(until_us)) {
            (void)close(fd);
            return -1;
        }
        (void)poll(NULL, 0, AGAIN_MS);
    }
    return fd;
}

static int unix_address(const char *path, struct sockaddr_un *out, struct err *e)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof out->sun_path)
        return err_set(e, ERR_INTERNAL, "", "the path of a unix socket has at most %zu bytes",
                       sizeof out->sun_path - 1);
    memcpy(out->sun_path, path, strlen(path));
    return 0;
}

/* @replace  a stale one. After a failure errno is EADDRINUSE where that is why. */
static int bind_path(struct http_server *f, bool replace, int *out, struct err *e)
{
    struct sockaddr_un addr;
    const char *path = f->cfg.unix_path;
    struct stat st;
    int fd;

    errno = 0;
    if (unix_address(path, &addr, e) != 0)
        return -1;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot make a socket");
    if (bind_unix(fd, &addr, replace) != 0) {
        int errnum = errno;

        (void)err_set_errno(e, ERR_INTERNAL, "", errnum, "cannot listen on unix:%s", path);
        (void)close(fd);
        errno = errnum;
        return -1;
    }
    if (stat(path, &st) == 0) {
        f->has_path = true;
        f->path_dev = st.st_dev;
        f->path_ino = st.st_ino;
    }
    *out = fd;
    return 0;
}

static int listen_unix(struct http_server *f, int *out, struct err *e)
{
    int fd;

    if (bind_path(f, true, &fd, e) != 0)
        return -1;
    if (listen(fd, HTTP_SERVER_BACKLOG) != 0) {
        (void)err_set_errno(e, ERR_INTERNAL, "", errno, "cannot listen on unix:%s",
                            f->cfg.unix_path);
        (void)close(fd);
        return -1;
    }
    *out = fd;
    return 0;
}

void http_server_unlink(struct http_server *f)
{
    const char *path = f->cfg.unix_path;
    struct stat st;

    if (f->has_path && stat(path, &st) == 0 && st.st_dev == f->path_dev &&
        st.st_ino == f->path_ino && unlink(path) != 0)
        log_line(LOG_WARN, "http.unlink", "unix:%s could not be removed: %s", path,
                 strerror(errno));
    f->has_path = false;
}

/* One socket for all shards. */
static int listen_path(struct http_server *f, struct err *e)
{
    int lock_fd = lock_directory(f->cfg.unix_path);
    int rc = listen_unix(f, &f->shards[0].listen_fd, e);

    if (lock_fd >= 0)
        (void)close(lock_fd);
    if (rc != 0)
        return -1;
    for (size_t i = 1; i < f->n_shards; i++) {
        f->shards[i].listen_fd = fcntl(f->shards[0].listen_fd, F_DUPFD_CLOEXEC, 0);
        if (f->shards[i].listen_fd < 0)
            return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot copy a socket");
    }
    return 0;
}

/* An existing file is not changed. */
static int try_path(const char *path, struct err *e)
{
    struct http_server f = {.cfg = {.unix_path = path}};
    int lock_fd = lock_directory(path);
    int fd = -1;
    int rc = bind_path(&f, false, &fd, e);
    int errnum = errno;

    if (rc == 0) {
        http_server_unlink(&f);
        (void)close(fd);
    }
    if (lock_fd >= 0)
        (void)close(lock_fd);
    errno = errnum;
    return rc;
}

static int try_port(const char *address, uint16_t port, struct err *e)
{
    int fd;

    if (bind_one(address, port, false, &fd, e) != 0)
        return -1;
    (void)close(fd);
    return 0;
}

static bool is_left_over(const char *path)
{
    struct sockaddr_un addr;
    struct err e = {0};

    return path != NULL && unix_address(path, &addr, &e) == 0 && is_stale(&addr);
}

int http_server_try(const char *address, uint16_t port, const char *unix_path,
                    enum http_server_place *out, struct err *e)
{
    int rc;

    errno = 0;
    *out = HTTP_SERVER_FREE;
    rc = unix_path != NULL ? try_path(unix_path, e) : try_port(address, port, e);
    if (rc != 0 && errno == EADDRINUSE) {
        err_clear(e);
        *out = is_left_over(unix_path) ? HTTP_SERVER_LEFT_OVER : HTTP_SERVER_IN_USE;
        return 0;
    }
    return rc;
}

int http_server_listen(struct http_server *f, struct err *e)
{
    if (f->cfg.unix_path != NULL)
        return listen_path(f, e);
    f->port = f->cfg.port;
    for (size_t i = 0; i < f->n_shards; i++) {
        if (listen_one(f, f->port, i == 0, &f->shards[i].listen_fd, e) != 0)
            return -1;
        if (i == 0 && bound_port(f->shards[i].listen_fd, &f->port, e) != 0)
            return -1;
    }
    return 0;
}

void http_server_fit_nofile(struct http_server *f)
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
    need = (rlim_t)f->cfg.n_connections_max +
           (rlim_t)f->n_shards * (HTTP_SERVER_LINGER_MAX + daemons_wanted(&f->cfg)) +
           NOFILE_RESERVE;
    if (lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= need)
        return;
    need -= (rlim_t)f->cfg.n_connections_max;
    f->cfg.n_connections_max = lim.rlim_cur > need + 16 ? (size_t)(lim.rlim_cur - need) : 16;
    log_line(LOG_WARN, "http.few_descriptors",
             "RLIMIT_NOFILE is %llu: at most %zu connections are served",
             (unsigned long long)lim.rlim_cur, f->cfg.n_connections_max);
}
