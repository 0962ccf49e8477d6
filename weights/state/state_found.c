/* What is in a state directory, and whether its snapshots fit to its journal. */
#include "weights/state/state_dir_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LOCK_NAME "lock"

enum { LOCK_MODE = 0600 };

static int state_found_refuse_call(struct err *e, const char *what)
{
    return err_set_errno(e, ERR_UNREADABLE, "", errno, "%s", what);
}

int state_lock(int *fd, int dirfd, int flags, struct err *e)
{
    char text[LOCK_TEXT_MAX] = "";
    ssize_t n;

    *fd = openat(dirfd, LOCK_NAME, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, LOCK_MODE);
    if (*fd < 0)
        return state_found_refuse_call(e, "the file 'lock' in it cannot be opened for writing");
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return state_found_refuse_call(e, "flock of the file 'lock' in it failed");
    n = pread(*fd, text, sizeof text - 1, 0);
    return err_set(e, ERR_CONFLICT, "",
                   "another server uses this directory (process %.*s); each server needs its own",
                   n > 0 ? (int)strcspn(text, "\n") : 1, n > 0 ? text : "?");
}

/* Every version is in the journal before it has a snapshot, and the journal's serial only grows. If
 * it does not fit to the snapshots, it was lost, or an older one was put back: it does not say what
 * was served last, and a version that continued it would get the serial of another snapshot. */
static void compare_journal(struct state_found *f)
{
    uint64_t newest = f->snapshots.n > 0 ? f->snapshots.serials[0] : 0;

    if (f->journal == JOURNAL_NONE && newest > 0)
        (void)err_set(&f->damage, ERR_NOT_FOUND, "", "it is missing, and there are snapshots");
    else if (f->journal == JOURNAL_READ && newest > f->entry.serial)
        (void)err_set(
            &f->damage, ERR_MISMATCH, "",
            "it names serial %llu, and there is a snapshot of serial %llu: it is an older "
            "one that was put back",
            (unsigned long long)f->entry.serial, (unsigned long long)newest);
    else
        return;
    f->journal = JOURNAL_DAMAGED;
}

int state_found_read(struct state_found *out, int dirfd, const char *path, const char *model_spec,
                     struct err *e)
{
    if (snapshot_list_read(&out->snapshots, dirfd, e) != 0)
        return -1;
    out->journal = journal_read(&out->entry, path, &out->damage);
    compare_journal(out);
    out->other_model = out->journal == JOURNAL_READ &&
                       strcmp(out->entry.model_spec, model_spec) != 0;
    return 0;
}

bool state_found_is_last(const struct state_found *f, const struct snapshot_head *h)
{
    return f->journal == JOURNAL_READ && h->serial == f->entry.serial &&
           strcmp(h->commit_id, f->entry.commit_id) == 0;
}

int state_found_check_snapshot(struct snapshot_head *out, const struct state_found *f,
                               const char *path, uint64_t serial, bool only_last,
                               const struct model_spec *m, struct err *e)
{
    if (snapshot_read_head(out, path, m, e) != 0)
        return -1;
    if (out->serial != serial)
        return err_set(e, ERR_MISMATCH, "", "its head names serial %llu",
                       (unsigned long long)out->serial);
    if (only_last && !state_found_is_last(f, out))
        return err_set(e, ERR_MISMATCH, "",
                       "it is not the commit of serial %llu that the journal names, but one of a "
                       "copy of this directory",
                       (unsigned long long)serial);
    return 0;
}

/* A directory that is not there: can a start make it? */
static int check_parent(const char *path, struct err *e)
{
    char copy[PATH_MAX];

    if ((size_t)snprintf(copy, sizeof copy, "%s", path) >= sizeof copy)
        return err_set(e, ERR_UNREADABLE, "", "its path is too long");
    if (faccessat(AT_FDCWD, dirname(copy), W_OK | X_OK, AT_EACCESS) != 0)
        return state_found_refuse_call(e, "this directory cannot be made");
    return 0;
}

static int inspect_open(struct state_found *out, struct err *in_use, int dirfd, const char *path,
                        const struct model_spec *m, struct err *e)
{
    int lock_fd = -1, rc = 0;

    if (faccessat(dirfd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        return state_found_refuse_call(e, "this directory cannot be written");
    if (faccessat(dirfd, LOCK_NAME, F_OK, 0) == 0)
        rc = state_lock(&lock_fd, dirfd, 0, e);
    if (rc != 0 && e->code == ERR_CONFLICT) {
        *in_use = *e;
        err_clear(e);
        rc = 0;
    }
    if (lock_fd >= 0)
        (void)close(lock_fd);
    return rc == 0 ? state_found_read(out, dirfd, path, m->tensor_list->digest, e) : -1;
}

int state_dir_inspect(struct state_found *out, bool *exists, struct err *in_use, const char *path,
                      const struct model_spec *model_spec, struct err *e)
{
    int dirfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

    *exists = dirfd >= 0;
    if (dirfd < 0)
        return errno == ENOENT ? check_parent(path, e)
                               : state_found_refuse_call(e, "this directory cannot be opened");
    rc = inspect_open(out, in_use, dirfd, path, model_spec, e);
    (void)close(dirfd);
    return rc;
}
