/* Only directories and files with names of our own are touched, whatever else is in the directory:
 * the operator may have given one that is in use. */
#include "fleet/ask/adapter_dir.h"

#include "base/id.h"
#include "base/jobs/workers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DIR_MODE = 0755, /* the upstreams may run as other users; the operator's directory decides */
    FILE_MODE = 0644,
    LOAD_NAME_LEN = sizeof "baton-" - 1 + ID_LEN
};

static const char config_name[] = "adapter_config.json",
                  tensors_name[] = "adapter_model.safetensors";

struct adapter_dir {
    char *path; /* owned; absolute */
    uint64_t nbytes_max;
    struct workers *disk; /* borrowed; NULL: none */
};

static int open_dir_at(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Sets errno. */
static bool is_writable_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return false;
    (void)close(fd);
    return access(path, W_OK | X_OK) == 0;
}

/* Could `path`, which does not exist, be made? Sets errno. */
static bool can_be_made(const char *path)
{
    char *copy = strdup(path);
    bool can = copy != NULL && is_writable_dir(dirname(copy));
    int why = errno;

    free(copy);
    errno = why;
    return can;
}

int adapter_dir_check(const char *path, struct err *e)
{
    if (is_writable_dir(path))
        return 0;
    if (errno == ENOENT)
        return can_be_made(path)
                   ? 0
                   : err_set_errno(e, ERR_UNREADABLE, "", errno,
                                   "this directory cannot be made in the one above it");
    return err_set_errno(e, ERR_UNREADABLE, "", errno, "this directory cannot be written into");
}

int adapter_dir_new(struct adapter_dir **out, const char *path, uint64_t nbytes_max,
                    struct workers *disk, struct err *e)
{
    struct adapter_dir *d = calloc(1, sizeof *d);

    if (d == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the directory of adapters");
    d->nbytes_max = nbytes_max;
    d->disk = disk;
    if (mkdir(path, DIR_MODE) != 0 && errno != EEXIST)
        (void)err_set_errno(e, ERR_UNREADABLE, "", errno,
                            "this directory cannot be made in the one above it");
    else if (adapter_dir_check(path, e) == 0 && (d->path = realpath(path, NULL)) == NULL)
        (void)err_set_errno(e, ERR_UNREADABLE, "", errno, "this directory cannot be found");
    if (e->code != ERR_NONE) {
        adapter_dir_free(d);
        return -1;
    }
    *out = d;
    return 0;
}

void adapter_dir_free(struct adapter_dir *d)
{
    if (d == NULL)
        return;
    free(d->path);
    free(d);
}

uint64_t adapter_dir_nbytes_max(const struct adapter_dir *d)
{
    return d->nbytes_max;
}

/* names */

/* All but letters, digits, '-' and '_' becomes %XX. Returns false: it is too long. */
static bool adapter_dir_encode(char out[NAME_MAX + 1], const char *name)
{
    static const char hex[] = "0123456789ABCDEF",
                      plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t len = 0;

    for (; *name != '\0'; name++) {
        bool keeps = strchr(plain, *name) != NULL;

        if (len + (keeps ? 1 : 3) > NAME_MAX)
            return false;
        if (keeps) {
            out[len++] = *name;
            continue;
        }
        out[len++] = '%';
        out[len++] = hex[(unsigned char)*name >> 4];
        out[len++] = hex[(unsigned char)*name & 15];
    }
    out[len] = '\0';
    return len > 0;
}

static bool is_load(const char *name)
{
    return strlen(name) == LOAD_NAME_LEN && strncmp(name, "baton-", 6) == 0 &&
           strspn(name + 6, "0123456789abcdef") == ID_LEN;
}

/* visit_loads - call `visit` for each load in the directory of one adapter. Takes `fd`, which may
 * be -1. */
typedef void visit_fn(void *arg, int adapter_fd, const char *load);
static void visit_loads(int fd, visit_fn *visit, void *arg)
{
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (dir == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    while ((entry = readdir(dir)) != NULL)
        if (is_load(entry->d_name))
            visit(arg, dirfd(dir), entry->d_name);
    (void)closedir(dir);
}

/* sizes */

static uint64_t file_nbytes(int at, const char *name)
{
    struct stat st;

    return fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)
               ? (uint64_t)st.st_size
               : 0;
}

static void add_nbytes(void *arg, int adapter_fd, const char *load)
{
    uint64_t *sum = arg;
    int fd = open_dir_at(adapter_fd, load);

    if (fd < 0)
        return;
    *sum += file_nbytes(fd, config_name) + file_nbytes(fd, tensors_name);
    (void)close(fd);
}

uint64_t adapter_dir_nbytes(const struct adapter_dir *d)
{
    DIR *dir = opendir(d->path);
    const struct dirent *entry;
    uint64_t sum = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            visit_loads(open_dir_at(dirfd(dir), entry->d_name), add_nbytes, &sum);
    if (dir != NULL)
        (void)closedir(dir);
    return sum;
}

/* writing */

static int write_file(int at, const char *name, const void *bytes, size_t nbytes, struct err *e)
{
    int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, FILE_MODE);
    const char *from = bytes;
    int rc = fd >= 0 ? 0 : -1;

    while (rc == 0 && nbytes > 0) {
        ssize_t n = write(fd, from, nbytes);

        if (n < 0 && errno != EINTR)
            rc = -1;
        else if (n > 0) {
            from += n;
            nbytes -= (size_t)n;
        }
    }
    if (rc != 0)
        (void)err_set_errno(e, ERR_NO_STAGING, "", errno, "%s of the adapter cannot be written",
                            name);
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = err_set_errno(e, ERR_NO_STAGING, "", errno, "%s of the adapter cannot be written",
                           name);
    return rc;
}

static int check_room(const struct adapter_dir *d, uint64_t nbytes, struct err *e)
{
    uint64_t used = adapter_dir_nbytes(d), left = d->nbytes_max > used ? d->nbytes_max - used : 0;

    if (nbytes <= left)
        return 0;
    return err_set(e, nbytes > d->nbytes_max ? ERR_TOO_LARGE : ERR_NO_STAGING, "",
                   "the adapter has %" PRIu64 " bytes, and %" PRIu64 " of the %" PRIu64
                   " of --max-lora-bytes are free in --adapter-dir: unload "
                   "adapters, or raise the limit",
                   nbytes, left, d->nbytes_max);
}

/* The directory of one adapter; -1: it cannot be opened. */
static int open_adapter(const struct adapter_dir *d, const char *encoded, bool make)
{
    int top = open_dir_at(AT_FDCWD, d->path), fd = -1;

    if (top < 0)
        return -1;
    if (!make || mkdirat(top, encoded, DIR_MODE) == 0 || errno == EEXIST)
        fd = open_dir_at(top, encoded);
    (void)close(top);
    return fd;
}

static int write_load(int adapter_fd, const char *load, const struct adapter_content *from,
                      struct err *e)
{
    int fd, rc;

    if (adapter_fd < 0 || mkdirat(adapter_fd, load, DIR_MODE) != 0 ||
        (fd = open_dir_at(adapter_fd, load)) < 0)
        return err_set_errno(e, ERR_NO_STAGING, "", errno,
                             "no directory can be made in --adapter-dir");
    rc = write_file(fd, config_name, from->config, strlen(from->config), e) == 0
             ? write_file(fd, tensors_name, from->tensors, from->nbytes, e)
             : -1;
    (void)close(fd);
    return rc;
}

static void remove_load(int adapter_fd, const char *load)
{
    int fd = open_dir_at(adapter_fd, load);

    if (fd < 0)
        return;
    (void)unlinkat(fd, config_name, 0);
    (void)unlinkat(fd, tensors_name, 0);
    (void)close(fd);
    (void)unlinkat(adapter_fd, load, AT_REMOVEDIR);
}

/* A call, on a thread of the pool. */
struct access {
    const struct adapter_dir *d;
    const char *name, *path;            /* of what is removed, or kept */
    const struct adapter_content *from; /* what is written, and the next two are of that */
    char **to;
    struct err *e;
    int rc;
};

static int adapter_dir_write_all(const struct adapter_dir *d, const struct adapter_content *from,
                                 char **path, struct err *e)
{
    char name[NAME_MAX + 1], id[ID_LEN + 1], load[LOAD_NAME_LEN + 1];
    int fd, rc;

    *path = NULL;
    if (!adapter_dir_encode(name, from->name))
        return err_set(e, ERR_BAD_REQUEST, "/lora_name",
                       "the name is too long for a directory of --adapter-dir: at most %d bytes, "
                       "of which each but letters, digits, '-' and '_' counts three times",
                       NAME_MAX);
    if (check_room(d, from->nbytes + strlen(from->config), e) != 0)
        return -1;
    id_make(id);
    (void)snprintf(load, sizeof load, "baton-%s", id);
    if (asprintf(path, "%s/%s/%s", d->path, name, load) < 0) {
        *path = NULL;
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the path of an adapter");
    }
    fd = open_adapter(d, name, true);
    rc = write_load(fd, load, from, e);
    if (rc != 0) {
        remove_load(fd, load);
        free(*path);
        *path = NULL;
    }
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

static void adapter_dir_run_write(void *arg)
{
    struct access *a = arg;

    a->rc = adapter_dir_write_all(a->d, a->from, a->to, a->e);
}

static void remove_unless_kept(void *arg, int adapter_fd, const char *load)
{
    const char *kept = arg;

    if (kept == NULL || strcmp(kept, load) != 0)
        remove_load(adapter_fd, load);
}

/* The last part of a path of this adapter's; NULL: it is another path. */
static char *load_of(const struct adapter_dir *d, const char *encoded, const char *path)
{
    char parent[PATH_MAX];
    int n = snprintf(parent, sizeof parent, "%s/%s/", d->path, encoded);

    if (path == NULL || n < 0 || (size_t)n >= sizeof parent ||
        strncmp(path, parent, (size_t)n) != 0 || !is_load(path + n))
        return NULL;
    return (char *)(uintptr_t)(path + n);
}

/* Fails while something is in it. */
static void remove_adapter(const struct adapter_dir *d, const char *encoded)
{
    int top = open_dir_at(AT_FDCWD, d->path);

    if (top < 0)
        return;
    (void)unlinkat(top, encoded, AT_REMOVEDIR);
    (void)close(top);
}

static void keep_only(void *arg)
{
    const struct access *a = arg;
    char encoded[NAME_MAX + 1];

    if (!adapter_dir_encode(encoded, a->name))
        return;
    visit_loads(open_adapter(a->d, encoded, false), remove_unless_kept,
                load_of(a->d, encoded, a->path));
    remove_adapter(a->d, encoded);
}

static void remove_one(void *arg)
{
    const struct access *a = arg;
    char encoded[NAME_MAX + 1];
    const char *load = adapter_dir_encode(encoded, a->name) ? load_of(a->d, encoded, a->path)
                                                            : NULL;
    int fd = load != NULL ? open_adapter(a->d, encoded, false) : -1;

    if (fd < 0)
        return;
    remove_load(fd, load);
    (void)close(fd);
    remove_adapter(a->d, encoded);
}

static int adapter_dir_run(struct access *a, void (*access)(void *arg))
{
    if (a->d->disk != NULL)
        workers_call(a->d->disk, access, a);
    else
        access(a);
    return a->rc;
}

int adapter_dir_write(const struct adapter_dir *d, const struct adapter_content *from, char **path,
                      struct err *e)
{
    return adapter_dir_run(&(struct access){.d = d, .from = from, .to = path, .e = e},
                           adapter_dir_run_write);
}

void adapter_dir_keep_only(const struct adapter_dir *d, const char *name, const char *path)
{
    (void)adapter_dir_run(&(struct access){.d = d, .name = name, .path = path}, keep_only);
}

void adapter_dir_remove(const struct adapter_dir *d, const char *name, const char *path)
{
    (void)adapter_dir_run(&(struct access){.d = d, .name = name, .path = path}, remove_one);
}
