#include "cli/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_LEN_MAX = 4096, FILE_MODE = 0666, SEND_NBYTES_MAX = 1 << 30 };

static int out_file_failed(const struct out_file *f, struct err *e)
{
    return err_set_errno(e, ERR_UNREADABLE, "", errno, "%.300s cannot be written", f->path);
}

int out_file_open(struct out_file *out, const char *path, bool named, struct err *e)
{
    struct out_file f = {.path = path, .fd = -1};
    char name[PATH_LEN_MAX];

    if (snprintf(name, sizeof name, "%s.XXXXXX", path) >= (int)sizeof name)
        return err_set(e, ERR_BAD_REQUEST, "", "the path of %.200s is too long", path);
    f.unfinished = calloc(1, PATH_LEN_MAX);
    if (f.unfinished == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the name of a file");
    (void)snprintf(f.unfinished, PATH_LEN_MAX, "%s", name);
    f.fd = mkostemp(f.unfinished, O_CLOEXEC);
    if (f.fd < 0) {
        free(f.unfinished);
        return out_file_failed(&f, e);
    }
    if (!named) {
        (void)unlink(f.unfinished);
        free(f.unfinished);
        f.unfinished = NULL;
    }
    *out = f;
    return 0;
}

int out_file_memory(struct out_file *out, struct err *e)
{
    int fd = memfd_create("baton", MFD_CLOEXEC);

    if (fd < 0)
        return err_set_errno(e, ERR_NO_MEMORY, "", errno, "no memory for a file");
    *out = (struct out_file){.path = "memory", .fd = fd};
    return 0;
}

int out_file_write(struct out_file *f, const void *data, uint64_t nbytes, uint64_t offset,
                   struct err *e)
{
    const char *at = data;

    while (nbytes > 0) {
        ssize_t n = pwrite(f->fd, at, (size_t)nbytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return out_file_failed(f, e);
        at += n;
        nbytes -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

int out_file_copy(struct out_file *f, int from, uint64_t offset, uint64_t nbytes, struct err *e)
{
    off_t at = (off_t)offset;

    while (nbytes > 0) {
        ssize_t n = sendfile(f->fd, from, &at,
                             nbytes < SEND_NBYTES_MAX ? (size_t)nbytes : SEND_NBYTES_MAX);

        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = EIO;
        if (n <= 0)
            return out_file_failed(f, e);
        nbytes -= (uint64_t)n;
    }
    return 0;
}

int out_file_finish(struct out_file *f, struct err *e)
{
    mode_t mask = umask(0);

    (void)umask(mask);
    if (fchmod(f->fd, FILE_MODE & ~mask) != 0 || fsync(f->fd) != 0 ||
        rename(f->unfinished, f->path) != 0)
        return out_file_failed(f, e);
    free(f->unfinished);
    f->unfinished = NULL;
    return 0;
}

void out_file_close(struct out_file *f)
{
    if (f->path == NULL)
        return;
    if (f->unfinished != NULL)
        (void)unlink(f->unfinished);
    free(f->unfinished);
    (void)close(f->fd);
    *f = (struct out_file){0};
}
