/* The first weights. They take the same path as every later update, so that they are checked as
 * those are.
 *
 * With --state-dir they are served only if they are the version that was committed last: its
 * snapshot, or the same content as its journal names. Other weights would make the server look
 * as if it still had that version, and only --serve-base allows them. */
#include "base/log.h"
#include "fleet/members/upstreams.h"
#include "server/first_push.h"
#include "server/serve_priv.h"
#include "server/signals.h"
#include "transport/file.h"
#include "weights/state/state_dir.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How an attempt to serve some weights ended; besides -1, an error that ends the start. */
enum { SERVED = 0, NOT_SERVED = 1 };

/* Commits the tensors of a source, which is moved out, as its list and checksums are.
 * @restored  the journal's entry of the version that these tensors are; NULL: a new version */
static int first_weights_push(struct server *s, struct source **source, struct file_weights *w,
                              bool convert, const char *label, const struct journal_entry *restored,
                              struct err *e)
{
    struct update_chunk *chunk = calloc(1, sizeof *chunk);

    if (chunk == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the first weights");
    chunk->convert = convert;
    chunk->tensor_list = tensor_list_ref(w->tensor_list);
    chunk->source = *source;
    chunk->checksums = w->checksums;
    chunk->has_checksum = w->has_checksum;
    (void)snprintf(chunk->label, sizeof chunk->label, "%s", label);
    if (restored != NULL)
        memcpy(chunk->commit_id, restored->commit_id, sizeof chunk->commit_id);
    *source = NULL;
    w->checksums = NULL;
    w->has_checksum = NULL;
    return first_push(s->weights.updates, chunk, signals_end_within, e);
}

/* The same, as the version after `serial` of an earlier process. */
static int push_next(struct server *s, struct source **source, struct file_weights *w, bool convert,
                     const char *label, enum state_next next, uint64_t serial, struct err *e)
{
    const struct state_found *f = state_dir_found(s->weights.state);
    bool restores = next == STATE_NEXT_RESTORED || next == STATE_NEXT_EQUAL;
    int rc;

    store_continue(s->weights.store, serial, "");
    state_dir_expect(s->weights.state, next);
    rc = first_weights_push(s, source, w, convert, label, restores ? &f->entry : NULL, e);
    state_dir_expect(s->weights.state, STATE_NEXT_UPDATE);
    return rc;
}

/* A tensor of the first weights has the dtype that the model's own file gives it. */
static int push_first(struct server *s, const char *label, enum state_next next, uint64_t serial,
                      struct err *e)
{
    if (s->weights.state == NULL)
        return first_weights_push(s, &s->first, &s->first_weights, true, label, NULL, e);
    return push_next(s, &s->first, &s->first_weights, true, label, next, serial, e);
}

static void log_skipped(const char *name, const struct err *why)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "snapshot.skipped");
    log_str(&r, "file", name);
    log_err(&r, why);
    log_end(&r);
}

static int push_snapshot(struct server *s, const char *path, const struct snapshot_head *h,
                         struct err *e)
{
    const struct state_found *f = state_dir_found(s->weights.state);
    struct file_weights w = {0};
    struct source *source = NULL;
    int rc;

    if (file_source_open_local(&source, &w, path, e) != 0)
        return -1;
    if (state_found_is_last(f, h))
        rc = push_next(s, &source, &w, false, f->entry.label, STATE_NEXT_RESTORED, h->serial - 1,
                       e);
    else
        rc = push_next(s, &source, &w, false, h->label, STATE_NEXT_FIRST,
                       state_dir_last_serial(s->weights.state), e);
    source_close(source);
    file_weights_fini(&w);
    return rc;
}

/* Serves the snapshot of a serial if all of it is good. */
static int serve_snapshot(struct server *s, uint64_t serial, bool only_last,
                          struct snapshot_head *h, struct err *e)
{
    const struct state_dir *state = s->weights.state;
    char name[SNAPSHOT_NAME_MAX], path[SERVER_PATH_MAX];
    struct err why = {0};

    snapshot_name(name, serial);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", state_dir_path(state), name) >= sizeof path)
        return err_set(e, ERR_BAD_REQUEST, "--state-dir", "its path is too long");
    if (state_found_check_snapshot(h, state_dir_found(state), path, serial, only_last,
                                   store_model_spec(s->weights.store), &why) == 0 &&
        push_snapshot(s, path, h, &why) == 0)
        return SERVED;
    if (why.code == ERR_DRAINING) { /* a signal */
        *e = why;
        return -1;
    }
    log_skipped(name, &why);
    return NOT_SERVED;
}

/* The version that the journal names, from its snapshot. */
static int serve_last_snapshot(struct server *s, struct snapshot_head *h, struct err *e)
{
    const struct state_found *f = state_dir_found(s->weights.state);

    for (uint32_t i = 0; i < f->snapshots.n; i++)
        if (f->snapshots.serials[i] == f->entry.serial)
            return serve_snapshot(s, f->entry.serial, true, h, e);
    return NOT_SERVED;
}

/* The first weights, if their content is what the journal names. */
static int serve_equal(struct server *s, struct err *e)
{
    const struct state_found *f = state_dir_found(s->weights.state);

    if (s->first == NULL || f->entry.content[0] == '\0')
        return NOT_SERVED;
    if (push_first(s, f->entry.label, STATE_NEXT_EQUAL, f->entry.serial - 1, e) == 0)
        return SERVED;
    if (e->code != ERR_CHECKSUM)
        return -1;
    err_clear(e);
    return NOT_SERVED;
}

/* --serve-base: the newest good snapshot, else the first weights, under a new serial. */
static int serve_base(struct server *s, struct snapshot_head *h, const char **how, struct err *e)
{
    const struct state_found *f = state_dir_found(s->weights.state);
    int rc = NOT_SERVED;

    for (uint32_t i = 0; i < f->snapshots.n && rc == NOT_SERVED; i++)
        if (f->journal != JOURNAL_READ || f->snapshots.serials[i] != f->entry.serial)
            rc = serve_snapshot(s, f->snapshots.serials[i], false, h, e);
    *how = "older_snapshot";
    if (rc != NOT_SERVED)
        return rc;
    *how = "first_weights";
    if (s->first == NULL && server_open_first(s, e) != 0)
        return -1;
    if (s->first == NULL)
        return NOT_SERVED;
    return push_first(s, server_first_label(s), STATE_NEXT_FIRST,
                      state_dir_last_serial(s->weights.state), e);
}

/* Nothing is served until a whole update is committed. */
static void stay_unsynced(struct server *s)
{
    const struct state_found *f = state_dir_found(s->weights.state);
    char last[ERR_MSG_MAX], why[ERR_MSG_MAX];

    server_describe_last(f, last, sizeof last);
    (void)snprintf(why, sizeof why,
                   "%.300s; send a whole update, or restart with --serve-base to serve %s instead",
                   last, f->snapshots.n > 0 ? "an older snapshot or --weights" : "--weights");
    store_continue(s->weights.store, state_dir_last_serial(s->weights.state), why);
    if (s->fleet.upstreams != NULL)
        fleet_await_commit(upstreams_fleet(s->fleet.upstreams), why);
    log_event_line(LOG_WARN, "weights.unsynced", "%s", why);
}

static void log_base(struct server *s, const char *how)
{
    char last[ERR_MSG_MAX];
    struct store_info info;

    store_info(s->weights.store, &info);
    server_describe_last(state_dir_found(s->weights.state), last, sizeof last);
    log_event_line(LOG_WARN, "weights.base", "%.300s; --serve-base: serving '%.100s' instead (%s)",
                   last, info.label, how);
}

/* The version served last is served again. */
static void log_restored(struct server *s, const char *how)
{
    struct store_info info;
    struct log_rec r;

    store_info(s->weights.store, &info);
    log_begin(&r, LOG_INFO, "weights.restored");
    log_str(&r, "from", how);
    log_str(&r, "weight_version", info.label);
    log_u64(&r, "serial", info.serial);
    log_event(&r);
}

/* After a process that had weights. */
static int restore(struct server *s, struct snapshot_head *h, const char **how, struct err *e)
{
    const struct state_found *f = state_dir_found(s->weights.state);
    int rc = NOT_SERVED;

    if (f->journal == JOURNAL_READ && !f->other_model) {
        *how = "snapshot";
        rc = serve_last_snapshot(s, h, e);
        if (rc == NOT_SERVED) {
            *how = "journal";
            rc = serve_equal(s, e);
        }
    }
    if (rc == SERVED)
        log_restored(s, *how);
    if (rc != NOT_SERVED)
        return rc;
    if (s->config.serve_base)
        rc = serve_base(s, h, how, e);
    if (rc == SERVED)
        log_base(s, *how);
    return rc;
}

static int start_state(struct server *s, struct err *e)
{
    struct snapshot_head head = {0};
    const char *how = "first_weights";
    int rc = NOT_SERVED;

    if (state_dir_found(s->weights.state)->journal != JOURNAL_NONE)
        rc = restore(s, &head, &how, e);
    else if (s->first != NULL)
        rc = push_first(s, server_first_label(s), STATE_NEXT_FIRST, 0, e);
    if (rc == NOT_SERVED && state_dir_found(s->weights.state)->journal != JOURNAL_NONE)
        stay_unsynced(s);
    if (rc == -1)
        return -1;
    source_close(s->first);
    s->first = NULL;
    return state_dir_served(s->weights.state, s->weights.store, rc == SERVED ? how : "none",
                            rc == SERVED && strcmp(how, "snapshot") == 0 ? &head : NULL, e);
}

int server_push_first(struct server *s, struct err *e)
{
    bool has = s->first != NULL;

    if (!has &&
        (s->weights.state == NULL || state_dir_found(s->weights.state)->journal == JOURNAL_NONE))
        log_event_line(LOG_WARN, "weights.unsynced",
                       "no weights to start with; waiting for an update");
    if (s->weights.state != NULL)
        return start_state(s, e);
    return has ? push_first(s, server_first_label(s), STATE_NEXT_UPDATE, 0, e) : 0;
}
