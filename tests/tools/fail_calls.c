/* LD_PRELOAD: system calls of a running program fail on demand.
 *
 * As fail_malloc.c, with the same page of control in the file named by FAIL_CALLS: which call is to
 * fail, counted from then on over all threads, and how many do. What a call fails with is what it
 * can fail with on a healthy kernel that is short of something, or has lost a peer. Calls that
 * cannot fail so are left alone: a write to an eventfd, taking a socket out of an epoll. Calls that
 * libc makes for itself are not seen.
 *
 * Of the calls that change files one may also end the process, as kill -9 at that moment would. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct control {
    _Atomic int64_t first; /* the number of the first to fail, from 1; 0: nothing is counted */
    _Atomic int64_t n_to_fail;
    _Atomic int64_t n_asked;
    _Atomic int64_t n_failed;
    char last[32];             /* the name of one that failed */
    _Atomic int64_t disk_only; /* count only the calls that change files */
    _Atomic int64_t kill;  /* of these: end the process instead. 1: before the call, 2: after it */
    _Atomic int64_t error; /* of these: fail with it; 0: EIO */
    _Atomic int64_t slow_us; /* each pwrite takes so long */
};

static struct control *control; /* NULL without FAIL_CALLS; set before main */

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("FAIL_CALLS");
    long fd = path != NULL ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    long at;

    if (fd < 0)
        return;
    at = syscall(SYS_mmap, NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)syscall(SYS_close, fd);
    if (at != -1)
        control = (struct control *)at;
}

static int count(const char *name, int error)
{
    int64_t first, number;

    if (control == NULL)
        return 0;
    first = atomic_load(&control->first);
    if (first == 0)
        return 0;
    number = atomic_fetch_add(&control->n_asked, 1) + 1;
    if (number < first || number - first >= atomic_load(&control->n_to_fail))
        return 0;
    (void)atomic_fetch_add(&control->n_failed, 1);
    (void)strncpy(control->last, name, sizeof control->last - 1);
    errno = error;
    return 1;
}

static int failing(const char *name, int error)
{
    return control != NULL && atomic_load(&control->disk_only) == 0 && count(name, error);
}

/* The same for calls that change files. Returns 2 if the process is to end after the call. */
static int disk_failing(const char *name)
{
    int64_t error = control != NULL ? atomic_load(&control->error) : 0;

    if (!count(name, error != 0 ? (int)error : EIO))
        return 0;
    if (atomic_load(&control->kill) == 1)
        (void)kill(getpid(), SIGKILL);
    return atomic_load(&control->kill) == 0 ? 1 : 2;
}

/* libc's own function of that name. */
static void *next(const char *name)
{
    void *p = dlsym(RTLD_NEXT, name);

    if (p == NULL)
        abort();
    return p;
}

/* Row: what it returns, name, error, parameters, arguments, condition under which it may fail. */
#define CALLS(X)                                                                                   \
    X(int, fstat, EIO, (int fd, struct stat *out), (fd, out), 1)                                   \
    X(int, fstatat, EIO, (int fd, const char *path, struct stat *out, int flags),                  \
      (fd, path, out, flags), 1)                                                                   \
    X(int, stat, EIO, (const char *path, struct stat *out), (path, out), 1)                        \
    X(int, lstat, EIO, (const char *path, struct stat *out), (path, out), 1)                       \
    X(int, socket, EMFILE, (int family, int type, int protocol), (family, type, protocol), 1)      \
    X(int, listen, EADDRINUSE, (int fd, int n), (fd, n), 1)                                        \
    X(int, shutdown, ENOTCONN, (int fd, int how), (fd, how), 1)                                    \
    X(int, setsockopt, ENOBUFS, (int fd, int level, int name, const void *v, socklen_t len),       \
      (fd, level, name, v, len), 1)                                                                \
    X(int, getsockopt, ENOBUFS, (int fd, int level, int name, void *v, socklen_t *len),            \
      (fd, level, name, v, len), 1)                                                                \
    X(ssize_t, recv, ECONNRESET, (int fd, void *p, size_t n, int flags), (fd, p, n, flags), 1)     \
    X(ssize_t, send, EPIPE, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags), 1)    \
    X(ssize_t, sendmsg, EPIPE, (int fd, const struct msghdr *m, int flags), (fd, m, flags), 1)     \
    X(ssize_t, sendfile64, EIO, (int to, int from, off64_t *at, size_t n), (to, from, at, n), 1)   \
    X(ssize_t, pread, EIO, (int fd, void *p, size_t n, off_t at), (fd, p, n, at), 1)               \
    X(ssize_t, read, n == 8 ? EINTR : EIO, (int fd, void *p, size_t n), (fd, p, n), 1)             \
    X(ssize_t, write, EIO, (int fd, const void *p, size_t n), (fd, p, n), fd == STDERR_FILENO)     \
    X(int, epoll_create1, EMFILE, (int flags), (flags), 1)                                         \
    X(int, epoll_ctl, ENOMEM, (int at, int op, int fd, struct epoll_event *ev), (at, op, fd, ev),  \
      op == EPOLL_CTL_ADD)                                                                         \
    X(int, epoll_wait, EINTR, (int at, struct epoll_event *evs, int n, int ms), (at, evs, n, ms),  \
      1)                                                                                           \
    X(int, eventfd, EMFILE, (unsigned first, int flags), (first, flags), 1)                        \
    X(int, poll, EINTR, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms), 1)                  \
    X(int, shm_open, EMFILE, (const char *name, int flags, mode_t mode), (name, flags, mode), 1)   \
    X(int, mprotect, ENOMEM, (void *p, size_t n, int prot), (p, n, prot), 1)                       \
    X(ssize_t, getrandom, EINTR, (void *p, size_t n, unsigned flags), (p, n, flags), 1)            \
    X(int, setrlimit, EPERM, (__rlimit_resource_t what, const struct rlimit *lim), (what, lim), 1) \
    X(int, getrlimit, EPERM, (__rlimit_resource_t what, struct rlimit * lim), (what, lim), 1)

#define X(type, name, error, parameters, arguments, when)                                          \
    type name parameters;                                                                          \
    type name parameters                                                                           \
    {                                                                                              \
        static _Atomic(void *) real;                                                               \
        type(*call) parameters;                                                                    \
                                                                                                   \
        if ((when) && failing(#name, error))                                                       \
            return -1;                                                                             \
        if (real == NULL)                                                                          \
            real = next(#name);                                                                    \
        *(void **)&call = real;                                                                    \
        return call arguments;                                                                     \
    }
CALLS(X)
#undef X

/* Row: what it returns, name, parameters, arguments. */
#define DISK_CALLS(X)                                                                              \
    X(int, fsync, (int fd), (fd))                                                                  \
    X(int, fdatasync, (int fd), (fd))                                                              \
    X(int, renameat, (int at, const char *from, int to_at, const char *to), (at, from, to_at, to)) \
    X(int, unlinkat, (int at, const char *path, int flags), (at, path, flags))                     \
    X(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))                    \
    X(int, ftruncate, (int fd, off_t n), (fd, n))                                                  \
    X(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at))

#define X(type, name, parameters, arguments)                                                       \
    type name parameters;                                                                          \
    type name parameters                                                                           \
    {                                                                                              \
        static _Atomic(void *) real;                                                               \
        type(*call) parameters;                                                                    \
        int rc = disk_failing(#name);                                                              \
        type result;                                                                               \
                                                                                                   \
        if (rc == 1)                                                                               \
            return -1;                                                                             \
        if (control != NULL && strcmp(#name, "pwrite") == 0)                                       \
            (void)usleep((useconds_t)atomic_load(&control->slow_us));                              \
        if (real == NULL)                                                                          \
            real = next(#name);                                                                    \
        *(void **)&call = real;                                                                    \
        result = call arguments;                                                                   \
        if (rc == 2)                                                                               \
            (void)kill(getpid(), SIGKILL);                                                         \
        return result;                                                                             \
    }
DISK_CALLS(X)
#undef X

/* The others return something else, take a union, or take more than they declare. */

int accept4(int fd, struct sockaddr *restrict peer, socklen_t *restrict len, int flags)
{
    return failing("accept4", EMFILE) ? -1 : (int)syscall(SYS_accept4, fd, peer, len, flags);
}

int bind(int fd, const struct sockaddr *at, socklen_t len)
{
    return failing("bind", EADDRINUSE) ? -1 : (int)syscall(SYS_bind, fd, at, len);
}

int getsockname(int fd, struct sockaddr *restrict out, socklen_t *restrict len)
{
    return failing("getsockname", ENOBUFS) ? -1 : (int)syscall(SYS_getsockname, fd, out, len);
}

static int do_open(int at, const char *path, int flags, va_list ap)
{
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(ap, mode_t) : 0;
    int rc, fd;

    if (failing("open", EMFILE))
        return -1;
    rc = (flags & O_CREAT) != 0 ? disk_failing("open") : 0;
    fd = rc == 1 ? -1 : (int)syscall(SYS_openat, at, path, flags, mode);
    if (rc == 2)
        (void)kill(getpid(), SIGKILL);
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    int fd;

    va_start(ap, flags);
    fd = do_open(AT_FDCWD, path, flags, ap);
    va_end(ap);
    return fd;
}

int openat(int at, const char *path, int flags, ...)
{
    va_list ap;
    int fd;

    va_start(ap, flags);
    fd = do_open(at, path, flags, ap);
    va_end(ap);
    return fd;
}

/* Only making a descriptor can run out of something. */
int fcntl(int fd, int op, ...)
{
    va_list ap;
    long arg;

    va_start(ap, op);
    arg = va_arg(ap, long);
    va_end(ap);
    if ((op == F_DUPFD || op == F_DUPFD_CLOEXEC) && failing("fcntl", EMFILE))
        return -1;
    return (int)syscall(SYS_fcntl, fd, op, arg);
}

/* Memory without a file is fail_malloc's. */
void *mmap(void *at, size_t nbytes, int prot, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) == 0 && failing("mmap", ENOMEM))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, nbytes, prot, flags, fd, offset);
}

DIR *opendir(const char *path)
{
    DIR *(*call)(const char *path);

    if (failing("opendir", EMFILE))
        return NULL;
    *(void **)&call = next("opendir");
    return call(path);
}

char *realpath(const char *restrict path, char *restrict out)
{
    char *(*call)(const char *path, char *out);

    if (failing("realpath", EIO))
        return NULL;
    *(void **)&call = next("realpath");
    return call(path, out);
}

int pthread_create(pthread_t *restrict out, const pthread_attr_t *restrict attr,
                   void *(*run)(void *), void *restrict arg)
{
    int (*call)(pthread_t * out, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

    if (failing("pthread_create", EAGAIN))
        return EAGAIN;
    *(void **)&call = next("pthread_create");
    return call(out, attr, run, arg);
}
