/* --check with --state-dir. The choice is that of first_weights.c, which also reads the tensors: a
 * snapshot whose head is good, but whose tensors are damaged, is only found at the start. */
#include "server/serve.h"
#include "server/serve_priv.h"
#include "weights/model_spec.h"

#include <stdio.h>

void server_describe_last(const struct state_found *f, char *out, size_t cap)
{
    if (f->journal == JOURNAL_DAMAGED)
        (void)snprintf(out, cap,
                       "which version was served last is not known, since the journal in "
                       "--state-dir is damaged: %.120s",
                       f->damage.msg);
    else if (f->other_model)
        (void)snprintf(out, cap,
                       "the version served last, '%.100s' (serial %llu in --state-dir), is of "
                       "another model",
                       f->entry.label, (unsigned long long)f->entry.serial);
    else
        (void)snprintf(out, cap,
                       "the version served last, '%.100s' (serial %llu), was lost with the process "
                       "that had it",
                       f->entry.label, (unsigned long long)f->entry.serial);
}

static bool snapshot_usable(const struct server *s, struct state_report *r, uint64_t serial,
                            bool only_last, struct err *why)
{
    char name[SNAPSHOT_NAME_MAX], path[SERVER_PATH_MAX];

    snapshot_name(name, serial);
    (void)snprintf(path, sizeof path, "%s/%s", s->config.state_dir, name);
    return state_found_check_snapshot(&r->snapshot, &r->found, path, serial, only_last,
                                      s->model_spec, why) == 0;
}

static bool last_usable(const struct server *s, struct state_report *r)
{
    const struct state_found *f = &r->found;

    for (uint32_t i = 0; i < f->snapshots.n; i++)
        if (f->snapshots.serials[i] == f->entry.serial)
            return snapshot_usable(s, r, f->entry.serial, true, &r->skipped);
    return false;
}

static enum state_choice choose_base(const struct server *s, struct state_report *r)
{
    const struct state_found *f = &r->found;

    for (uint32_t i = 0; i < f->snapshots.n; i++) {
        struct err why = {0};

        if ((f->journal != JOURNAL_READ || f->snapshots.serials[i] != f->entry.serial) &&
            snapshot_usable(s, r, f->snapshots.serials[i], false, &why))
            return STATE_CHOICE_OLDER;
    }
    return s->first != NULL ? STATE_CHOICE_BASE : STATE_CHOICE_UNSYNCED;
}

static enum state_choice choose(const struct server *s, struct state_report *r)
{
    const struct state_found *f = &r->found;
    bool known = f->journal == JOURNAL_READ && !f->other_model;

    if (f->journal == JOURNAL_NONE)
        return STATE_CHOICE_FIRST;
    if (known && last_usable(s, r))
        return STATE_CHOICE_SNAPSHOT;
    if (known && s->first != NULL && f->entry.content[0] != '\0')
        return STATE_CHOICE_EQUAL;
    return s->config.serve_base ? choose_base(s, r) : STATE_CHOICE_UNSYNCED;
}

int server_inspect_state(const struct server *s, struct state_report *out, struct err *e)
{
    const char *path = s->config.state_dir;

    if (path == NULL)
        return 0;
    if (state_dir_inspect(&out->found, &out->exists, &out->in_use, path, s->model_spec, e) != 0)
        return serve_option_error(e, "--state-dir", path);
    out->choice = choose(s, out);
    return 0;
}
