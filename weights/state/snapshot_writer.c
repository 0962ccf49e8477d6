/* The thread that writes snapshots. It pins the served version, writes it, and looks again:
 * versions that were committed meanwhile are skipped, but for the last. Its pin never delays an
 * update or a sleep for longer than one piece: it then gives up, and begins again with the newest
 * version. */
#include "weights/state/state_dir_priv.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

enum { SLEEP_POLL_US = 100000 };

struct writing {
    struct state_dir *d;
    const struct version *version;
    char commit_id[ID_LEN + 1]; /* of it */
};

static bool stopping(struct state_dir *d)
{
    bool stop;

    mtx_lock(&d->lock);
    stop = d->stopping;
    mtx_unlock(&d->lock);
    return stop;
}

static bool give_up(void *arg)
{
    const struct writing *w = arg;

    return stopping(w->d) || store_reader_awaited(w->d->store, w->version);
}

/* Returns 0 with a version to write, or -1: none, its file is there already, or the journal names
 * the next one already, whose publication will call for another snapshot. */
static int next_version(struct writing *w)
{
    struct state_dir *d = w->d;
    struct err none = {0};
    bool written, last;

    while (store_pin(d->store, &w->version, &none) != 0) {
        err_clear(&none);
        if (stopping(d))
            return -1;
        (void)store_wait_pinnable(d->store, clock_after_us(SLEEP_POLL_US));
    }
    mtx_lock(&d->lock);
    written = d->info.snapshot_serial == w->version->serial &&
              strcmp(d->info.snapshot_label, w->version->label) == 0;
    last = d->entry.serial == w->version->serial;
    memcpy(w->commit_id, d->entry.commit_id, sizeof w->commit_id);
    mtx_unlock(&d->lock);
    if (last && !written)
        return 0;
    store_unpin(d->store, w->version);
    return -1;
}

static void log_result(const struct version *v, uint64_t began_us, int rc, const struct err *e)
{
    struct log_rec r;

    log_begin(&r, e->code != ERR_NONE ? LOG_WARN : LOG_INFO,
              rc < 0    ? "snapshot.failed"
              : rc == 0 ? "snapshot.written"
                        : "snapshot.given_up");
    log_str(&r, "weight_version", v->label);
    log_u64(&r, "serial", v->serial);
    log_ms(&r, "duration_ms", clock_now_us() - began_us);
    if (e->code != ERR_NONE)
        log_err(&r, e);
    log_event(&r);
}

static void note_result(struct state_dir *d, const struct version *v, int rc, const struct err *e)
{
    struct state_info *i = &d->info;

    mtx_lock(&d->lock);
    if (rc == 0) {
        i->n_written++;
        i->snapshot_serial = v->serial;
        (void)snprintf(i->snapshot_label, sizeof i->snapshot_label, "%s", v->label);
        i->n_failed += e->code != ERR_NONE; /* of the removal of older ones */
        i->snapshot_error = *e;
    } else if (rc == 1) {
        i->n_given_up++;
        d->pending = true;
    } else {
        i->n_failed++;
        i->snapshot_error = *e;
    }
    mtx_unlock(&d->lock);
}

/* After an error the next attempt is that of the next version. */
static void write_newest(struct state_dir *d)
{
    struct writing w = {.d = d};
    struct snapshot_write cfg = {.dirfd = d->dirfd,
                                 .commit_id = w.commit_id,
                                 .store = d->store,
                                 .give_up = give_up,
                                 .arg = &w};
    uint64_t began_us = clock_now_us();
    struct err e = {0};
    int rc;

    if (next_version(&w) != 0)
        return;
    cfg.version = w.version;
    rc = snapshot_write(&cfg, &e);
    if (rc == 0)
        (void)snapshot_prune(d->dirfd, d->n_snapshots, &e); /* the snapshot itself is good */
    note_result(d, w.version, rc, &e);
    log_result(w.version, began_us, rc, &e);
    store_unpin(d->store, w.version);
}

void *snapshot_writer_main(void *arg)
{
    struct state_dir *d = arg;

    (void)pthread_setname_np(pthread_self(), "snapshot");
    mtx_lock(&d->lock);
    while (!d->stopping) {
        if (!d->pending) {
            (void)cnd_wait(&d->changed, &d->lock, CLOCK_NEVER);
            continue;
        }
        d->pending = false;
        d->writing = true;
        mtx_unlock(&d->lock);
        write_newest(d);
        mtx_lock(&d->lock);
        d->writing = false;
    }
    mtx_unlock(&d->lock);
    return NULL;
}
