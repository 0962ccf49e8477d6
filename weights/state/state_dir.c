/* The state directory: its lock, and its journal as the store's updates write it. */
#include "weights/state/state_dir_priv.h"

#include "base/log.h"
#include "weights/state/version_content.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DIR_MODE = 0700 };

static int state_dir_refuse_call(struct err *e, const char *what)
{
    return err_set_errno(e, ERR_UNREADABLE, "", errno, "%s", what);
}

/* Held until the descriptor is closed, so also until the process ends in any way. The content of
 * the file only says which process to look for. */
static int lock_dir(struct state_dir *d, struct err *e)
{
    char text[LOCK_TEXT_MAX];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());

    if (state_lock(&d->lock_fd, d->dirfd, O_CREAT, e) != 0)
        return -1;
    if (ftruncate(d->lock_fd, 0) != 0 || pwrite(d->lock_fd, text, (size_t)n, 0) != n)
        log_line(LOG_WARN, "state.lock", "the process id could not be written into 'lock'");
    return 0;
}

/* Without it a loss of power could take a new directory away. The next start makes it again. */
static int sync_parent(const struct state_dir *d, struct err *e)
{
    int fd = openat(d->dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd >= 0 && fsync(fd) == 0
                 ? 0
                 : state_dir_refuse_call(e, "the directory above it cannot be synchronized");

    if (fd >= 0)
        (void)close(fd);
    if (rc != 0)
        (void)rmdir(d->path);
    return rc;
}

static int open_dir(struct state_dir *d, struct err *e)
{
    bool made = mkdir(d->path, DIR_MODE) == 0;

    if (!made && errno != EEXIST)
        return state_dir_refuse_call(e, "this directory cannot be made");
    d->dirfd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->dirfd < 0)
        return state_dir_refuse_call(e, "this directory cannot be opened");
    if (made && sync_parent(d, e) != 0)
        return -1;
    return lock_dir(d, e);
}

static int look_around(struct state_dir *d, struct err *e)
{
    struct state_found *f = &d->found;

    (void)unlinkat(d->dirfd, SNAPSHOT_NEW,
                   0); /* a crash left it; if it stays, the next write fails */
    if (state_found_read(f, d->dirfd, d->path, d->model_spec, e) != 0)
        return -1;
    if (f->journal != JOURNAL_READ)
        return 0;
    d->entry = f->entry;
    d->has_entry = true;
    return 0;
}

int state_dir_open(struct state_dir **out, const char *path, uint32_t n_snapshots,
                   const struct model_spec *model_spec, struct err *e)
{
    struct state_dir *d = calloc(1, sizeof *d);

    if (d == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the state directory");
    assert(n_snapshots <= STATE_DIR_SNAPSHOTS_MAX);
    mtx_init(&d->lock, MTX_LEAF);
    cnd_init(&d->changed);
    d->path = path;
    d->dirfd = d->lock_fd = -1;
    d->n_snapshots = n_snapshots;
    d->info.how = "none";
    d->stopping = true;
    memcpy(d->model_spec, model_spec->tensor_list->digest, sizeof d->model_spec);
    if (open_dir(d, e) != 0 || look_around(d, e) != 0) {
        state_dir_free(d);
        return -1;
    }
    *out = d;
    return 0;
}

const struct state_found *state_dir_found(const struct state_dir *d)
{
    return &d->found;
}

const char *state_dir_path(const struct state_dir *d)
{
    return d->path;
}

uint64_t state_dir_last_serial(const struct state_dir *d)
{
    uint64_t last = d->has_entry ? d->entry.serial : 0;

    if (d->found.snapshots.n > 0 && d->found.snapshots.serials[0] > last)
        last = d->found.snapshots.serials[0];
    return last;
}

void state_dir_expect(struct state_dir *d, enum state_next next)
{
    mtx_lock(&d->lock);
    d->next = next;
    mtx_unlock(&d->lock);
}

static void entry_of(const struct state_dir *d, const struct version *v, struct journal_entry *out)
{
    *out = (struct journal_entry){.serial = v->serial, .time_s = (int64_t)time(NULL)};
    memcpy(out->model_spec, d->model_spec, sizeof out->model_spec);
    memcpy(out->commit_id, v->commit_id, sizeof out->commit_id);
    (void)snprintf(out->label, sizeof out->label, "%s", v->label);
}

static int check_content(const char *found, const struct journal_entry *old, struct err *e)
{
    if (strcmp(found, old->content) == 0)
        return 0;
    return err_set(e, ERR_CHECKSUM, "",
                   "the first weights are not those of the last version, '%.200s' (serial %llu)",
                   old->label, (unsigned long long)old->serial);
}

/* A failure of the last step leaves the new entry in place, although its version is not served. If
 * the disk takes no other entry either, the next start is not ready, or takes that label. */
static void undo_record(struct state_dir *d, const struct journal_entry *old)
{
    struct err ignored = {0};

    if (d->has_entry)
        (void)journal_write(d->dirfd, old, &ignored);
    else if (d->found.journal == JOURNAL_NONE)
        (void)unlinkat(d->dirfd, JOURNAL_NAME, 0);
}

static int record(struct state_dir *d, const struct journal_entry *old,
                  const struct journal_entry *entry, struct err *e)
{
    int rc = journal_write(d->dirfd, entry, e);

    if (rc != 0)
        undo_record(d, old);
    mtx_lock(&d->lock);
    if (rc == 0) {
        d->entry = *entry;
        d->has_entry = true;
    } else {
        d->info.n_journal_failures++;
    }
    mtx_unlock(&d->lock);
    if (rc != 0)
        log_event_line(LOG_ERROR, "weights.not_recorded", "version '%.200s' is not served: %s",
                       entry->label, e->msg);
    return rc;
}

/* store_journal.before: on the update worker, or on the thread of a request that sets a label. */
static int before_publication(void *arg, struct store *s, const struct version *v, struct err *e)
{
    struct state_dir *d = arg;
    struct journal_entry entry, old;
    enum state_next next;

    mtx_lock(&d->lock);
    next = d->next;
    old = d->entry;
    mtx_unlock(&d->lock);
    if (next == STATE_NEXT_RESTORED)
        return 0;
    entry_of(d, v, &entry);
    if (next != STATE_NEXT_UPDATE && content_of_version(s, v, entry.content, e) != 0)
        return -1;
    if (next == STATE_NEXT_EQUAL)
        return check_content(entry.content, &old, e);
    if (next == STATE_NEXT_UPDATE && v->serial == old.serial) /* a label: the same bytes */
        memcpy(entry.content, old.content, sizeof entry.content);
    return record(d, &old, &entry, e);
}

static void after_publication(void *arg)
{
    struct state_dir *d = arg;

    mtx_lock(&d->lock);
    d->pending = true;
    cnd_signal(&d->changed);
    mtx_unlock(&d->lock);
}

struct store_journal state_dir_journal(struct state_dir *d)
{
    return (struct store_journal){before_publication, after_publication, d};
}

int state_dir_served(struct state_dir *d, struct store *s, const char *how,
                     const struct snapshot_head *written, struct err *e)
{
    mtx_lock(&d->lock);
    d->info.how = how;
    if (written != NULL) {
        d->info.snapshot_serial = written->serial;
        (void)snprintf(d->info.snapshot_label, sizeof d->info.snapshot_label, "%s", written->label);
    }
    d->stopping = d->n_snapshots == 0;
    mtx_unlock(&d->lock);
    d->store = s;
    if (d->n_snapshots == 0)
        return 0;
    if (pthread_create(&d->writer, NULL, snapshot_writer_main, d) != 0)
        return err_set(e, ERR_INTERNAL, "", "no thread for snapshots");
    d->has_writer = true;
    return 0;
}

bool state_dir_busy(struct state_dir *d)
{
    bool busy;

    mtx_lock(&d->lock);
    busy = !d->stopping && (d->pending || d->writing);
    mtx_unlock(&d->lock);
    return busy;
}

void state_dir_stop(struct state_dir *d)
{
    mtx_lock(&d->lock);
    d->stopping = true;
    cnd_signal(&d->changed);
    mtx_unlock(&d->lock);
    if (d->has_writer)
        (void)pthread_join(d->writer, NULL);
    d->has_writer = false;
}

void state_dir_free(struct state_dir *d)
{
    if (d == NULL)
        return;
    state_dir_stop(d);
    if (d->lock_fd >= 0)
        (void)close(d->lock_fd);
    if (d->dirfd >= 0)
        (void)close(d->dirfd);
    cnd_fini(&d->changed);
    mtx_fini(&d->lock);
    free(d);
}

void state_dir_info(struct state_dir *d, struct state_info *out)
{
    mtx_lock(&d->lock);
    *out = d->info;
    out->path = d->path;
    out->n_snapshots = d->n_snapshots;
    out->writing = d->writing;
    if (d->has_entry) {
        out->serial = d->entry.serial;
        memcpy(out->label, d->entry.label, sizeof out->label);
    }
    mtx_unlock(&d->lock);
}
