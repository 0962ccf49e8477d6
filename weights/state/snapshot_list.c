/* Which snapshots there are. */
#include "weights/state/snapshot_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void snapshot_name(char out[SNAPSHOT_NAME_MAX], uint64_t serial)
{
    (void)snprintf(out, SNAPSHOT_NAME_MAX, "snapshot-%020" PRIu64 ".safetensors", serial);
}

/* Exactly a name that snapshot_name writes. */
static bool snapshot_list_parse_name(const char *name, uint64_t *serial)
{
    char again[SNAPSHOT_NAME_MAX];
    static const char start[] = "snapshot-";

    if (strncmp(name, start, sizeof start - 1) != 0)
        return false;
    errno = 0;
    *serial = strtoull(name + sizeof start - 1, NULL, 10);
    snapshot_name(again, *serial);
    return errno == 0 && strcmp(name, again) == 0;
}

static int newest_first(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return a < b ? 1 : a > b ? -1 : 0;
}

int snapshot_list_read(struct snapshot_list *out, int dirfd, struct err *e)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *d;
    uint64_t serial;

    out->n = 0;
    if (dir == NULL) {
        (void)err_set_errno(e, ERR_UNREADABLE, "", errno, "--state-dir cannot be listed");
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    while ((d = readdir(dir)) != NULL)
        if (snapshot_list_parse_name(d->d_name, &serial) && out->n < SNAPSHOTS_LISTED_MAX)
            out->serials[out->n++] = serial;
    (void)closedir(dir);
    qsort(out->serials, out->n, sizeof out->serials[0], newest_first);
    return 0;
}

static int remove_file(int dirfd, const char *name, struct err *e)
{
    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return 0;
    return err_set_errno(e, ERR_NOT_RECORDED, "", errno, "removing '%s' from --state-dir failed",
                         name);
}

int snapshot_prune(int dirfd, uint32_t n_keep, struct err *e)
{
    struct snapshot_list list;
    char name[SNAPSHOT_NAME_MAX];

    if (remove_file(dirfd, SNAPSHOT_NEW, e) != 0 || snapshot_list_read(&list, dirfd, e) != 0)
        return -1;
    for (uint32_t i = n_keep; i < list.n; i++) {
        snapshot_name(name, list.serials[i]);
        if (remove_file(dirfd, name, e) != 0)
            return -1;
    }
    return 0;
}
