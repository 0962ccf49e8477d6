/* Unbuffered, into one block of the longest length: so no copy of a secret is left in a buffer that
 * was reallocated, and pages without data cost nothing. */
#include "base/file.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TRIES_MAX = 16 }; /* to open a path beneath a directory */

static const char *file_field(const struct file_cfg *f)
{
    return f->field != NULL ? f->field : "";
}

/* -1 with errno. */
static int file_open(const struct file_cfg *f)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s%s", f->dir != NULL ? f->dir : "",
                     f->dir != NULL ? "/" : "", f->path);

    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

/* Waits until there is something to read, or the end. A pipe that nobody writes to yet has neither.
 * Returns: -1 with errno; ETIMEDOUT at the deadline. */
static int await_readable(int fd, uint64_t deadline_us)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n;

    do {
        uint64_t now_us = clock_now_us();

        n = now_us < deadline_us ? poll(&p, 1, (int)((deadline_us - now_us) / 1000) + 1) : 0;
    } while (n < 0 && errno == EINTR);
    if (n == 0)
        errno = ETIMEDOUT;
    return n > 0 ? 0 : -1;
}

/* Until the end of the file or `cap` bytes. @len  how many, also on failure, which sets errno */
static int read_until(int fd, char *out, size_t cap, size_t *len)
{
    uint64_t deadline_us = clock_after_us(FILE_PIPE_WAIT_US);
    ssize_t n = 1;

    for (*len = 0; *len < cap && n != 0; *len += n > 0 ? (size_t)n : 0) {
        if (await_readable(fd, deadline_us) != 0)
            return -1;
        n = read(fd, out + *len, cap - *len);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return -1;
    }
    return 0;
}

static int refuse_read(struct err *e, const struct file_cfg *f)
{
    if (errno == ETIMEDOUT)
        return err_set(e, ERR_UNREADABLE, file_field(f),
                       "'%.200s' is a pipe whose writer did not end within %d s; use a file",
                       f->path, FILE_PIPE_WAIT_US / 1000000);
    return err_set_errno(e, ERR_UNREADABLE, file_field(f), errno, "'%.200s' cannot be read",
                         f->path);
}

static int read_open(char **out, size_t *len, int fd, const struct file_cfg *f, struct err *e)
{
    const char *field = file_field(f);
    char *text = malloc(f->nbytes_max + 2); /* one byte too many, and a NUL */
    size_t n;

    if (text == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory to read '%.200s'", f->path);
    if (read_until(fd, text, f->nbytes_max + 1, &n) != 0) {
        (void)refuse_read(e, f);
    } else if (n > f->nbytes_max) {
        (void)err_set(e, ERR_BAD_REQUEST, field, "'%.200s' is longer than %zu bytes", f->path,
                      f->nbytes_max);
    } else {
        text[n] = '\0';
        *out = text;
        *len = n;
        return 0;
    }
    explicit_bzero(text, n);
    free(text);
    return -1;
}

int file_read(char **out, size_t *len, const struct file_cfg *f, struct err *e)
{
    int fd = file_open(f), rc;
    bool absent = fd < 0 && (errno == ENOENT || errno == ENOTDIR);
    struct stat st;

    if (absent && f->optional) {
        *out = NULL;
        *len = 0;
        return 0;
    }
    if (fd < 0)
        return err_set_errno(e, absent ? ERR_NOT_FOUND : ERR_UNREADABLE, file_field(f), errno,
                             "'%.200s' cannot be opened", f->path);
    if (!f->pipes && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)))
        rc = err_set(e, ERR_UNREADABLE, file_field(f),
                     "'%.200s' is not a regular file, and nothing else is read", f->path);
    else
        rc = read_open(out, len, fd, f, e);
    (void)close(fd);
    return rc;
}

static int open_resolved(int rootfd, const char *path, int flags, uint64_t resolve)
{
    struct open_how how = {.flags = (uint64_t)flags,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | resolve};
    long fd = -1;

    errno = EAGAIN; /* a rename elsewhere makes the kernel unsure of "..": try again */
    for (int i = 0; i < TRIES_MAX && fd < 0 && errno == EAGAIN; i++)
        fd = syscall(SYS_openat2, rootfd, path, &how, sizeof how);
    return (int)fd;
}

int file_open_beneath(int rootfd, const char *path, int flags)
{
    return rootfd == AT_FDCWD ? openat(rootfd, path, flags) : open_resolved(rootfd, path, flags, 0);
}

/* readlinkat with a NUL; false with errno. */
static bool read_link(int dirfd, const char *name, char out[PATH_MAX])
{
    ssize_t n = readlinkat(dirfd, name, out, PATH_MAX);

    if (n == PATH_MAX)
        errno = ENAMETOOLONG;
    if (n < 0 || n == PATH_MAX)
        return false;
    out[n] = '\0';
    return true;
}

static bool file_path_of(int fd, char out[PATH_MAX])
{
    char link[64];

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return read_link(AT_FDCWD, link, out);
}

/* A file of an opened directory is opened by that descriptor. Only a link that leads out of the
 * directory needs its path; the link is read by the descriptor too, so the files of a directory
 * that is replaced meanwhile are not mixed with those of the new one. */
int file_open_in(int rootfd, int dirfd, const char *name, int flags)
{
    char root[PATH_MAX], dir[PATH_MAX], target[PATH_MAX], path[2 * PATH_MAX];
    size_t len;
    int fd;

    if (rootfd == AT_FDCWD)
        return openat(dirfd, name, flags);
    fd = open_resolved(dirfd, name, flags, RESOLVE_NO_SYMLINKS);
    if (fd >= 0 || errno != ELOOP)
        return fd;
    if (!file_path_of(rootfd, root) || !file_path_of(dirfd, dir) || !read_link(dirfd, name, target))
        return -1;
    len = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(dir, root, len) != 0 || (dir[len] != '/' && dir[len] != '\0') || target[0] == '/') {
        errno = EXDEV;
        return -1;
    }
    (void)snprintf(path, sizeof path, ".%s/%s", dir + len, target);
    return open_resolved(rootfd, path, flags, 0);
}
