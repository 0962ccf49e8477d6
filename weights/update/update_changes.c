/* The digests of the versions, from the checksums that are made while bytes arrive, and the report
 * of what a commit changed.
 *
 * The digests of the last version are kept here and not in the store: they outlive a sleep that
 * drops the weights. A tensor whose checksum nobody made (one that a GPU copied without a given
 * checksum, or split there) has none, and is not compared. */
#include "base/log.h"
#include "base/utf8.h"
#include "weights/update/update_chunk_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int digests_take(struct session *s, const struct model_spec *m, struct err *e)
{
    if (s->digests == NULL)
        s->digests = calloc(m->tensor_list->n_tensors, sizeof *s->digests);
    return s->digests != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums");
}

void digest_set(struct session *s, uint32_t index, const struct checksum *sum)
{
    s->digests[index].sum = *sum;
    s->digests[index].known = true;
}

void digests_set_filled(struct fill *f, uint32_t i, const char *bytes)
{
    const struct part *part = &f->common->parts[i];
    struct checksum sum;
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    if (part->how != PART_DIRECT)
        return;
    for (uint32_t k = 0; k < n; k++) {
        sum = n == 1 ? pieces_sum(f, i) : checksum_of(bytes, target_spec(f, targets[k])->nbytes);
        digest_set(f->session, targets[k], &sum);
        bytes += target_spec(f, targets[k])->nbytes;
    }
}

void digests_set_copied(const struct fill *f, uint32_t rank)
{
    const struct rank_fill *r = &f->ranks[rank];

    for (uint32_t i = 0; r->made != NULL && i < r->tensor_list->n_tensors; i++) {
        const struct part *part = &r->layout->parts[i];
        uint32_t n;
        const uint32_t *targets = match_targets(&part->match, &n);

        if (part->how == PART_DIRECT && n == 1 && !f->session->digests[targets[0]].known)
            digest_set(f->session, targets[0], &r->made[i].sum);
    }
}

void digests_forget(const struct fill *f)
{
    for (size_t i = 0; f->source->ops->fill != NULL && i < f->common->n_dst_slots; i++)
        f->session->digests[f->common->dst_slots[i].index].known = false;
}

/* Tensors that this update did not send keep the digests that they had. */
static void complete_digests(const struct updates *u, struct session *s)
{
    const struct spread *spread = s->staging->spread;

    for (uint32_t i = 0; i < u->model_spec->tensor_list->n_tensors; i++) {
        struct digest *d = &s->digests[i];

        if (spread[i].n_places == 0)
            *d = u->served.digests != NULL ? u->served.digests[i] : (struct digest){0};
        d->sent = spread[i].n_places > 0;
    }
}

void changes_prepare(const struct updates *u, struct session *s, const char *label,
                     struct change_report **out)
{
    char before_label[VERSION_LABEL_MAX + 1] = "";
    const struct change_before before = {u->served.digests, u->served.serial, before_label};
    struct err e = {0};

    *out = NULL;
    (void)store_label_of(u->cfg.store, u->served.serial, before_label); /* it may have a new one */
    complete_digests(u, s);
    if (u->served.digests != NULL &&
        change_report_make(out, u->model_spec->tensor_list, &before, s->digests, label, &e) != 0)
        log_line(LOG_WARN, "weights.not_compared", "%s", e.msg);
}

/* The first tensor for which a warning is given. */
static uint32_t first_of(const struct change_report *r, enum change_warning warning)
{
    for (uint32_t i = 0; i < r->n_tensors; i++)
        if (warning == CHANGE_WARN_FEW ? r->tensors[i].newly_unchanged
                                       : r->tensors[i].other != TENSOR_LIST_NO_TENSOR)
            return i;
    return TENSOR_LIST_NO_TENSOR;
}

static void log_warning(const struct updates *u, const struct session *s,
                        const struct change_report *r, enum change_warning warning)
{
    static const char *const events[CHANGE_WARNING_COUNT] = {
        [CHANGE_WARN_NOTHING] = "weights.nothing_changed",
        [CHANGE_WARN_FEW] = "weights.few_unchanged",
        [CHANGE_WARN_EQUAL] = "weights.equal_to_another"};
    const struct tensor_spec *t = u->model_spec->tensor_list->tensors;
    uint32_t first = warning == CHANGE_WARN_NOTHING ? TENSOR_LIST_NO_TENSOR : first_of(r, warning);
    struct log_rec line;

    log_begin(&line, LOG_WARN, events[warning]);
    log_str(&line, "update_id", s->id);
    log_str(&line, "weight_version", r->label);
    log_u64(&line, "serial", r->serial);
    log_str(&line, "before", r->counts.before_label);
    log_u64(&line, "n_changed", r->counts.n[CHANGE_CHANGED]);
    log_u64(&line, "n_unchanged", r->counts.n[CHANGE_UNCHANGED]);
    if (warning == CHANGE_WARN_EQUAL)
        log_u64(&line, "n_equal_to_another", r->counts.n_equal_to_another);
    if (warning == CHANGE_WARN_FEW)
        log_u64(&line, "n_newly_unchanged", r->counts.n_newly_unchanged);
    if (first != TENSOR_LIST_NO_TENSOR)
        log_str(&line, "tensor", t[first].name);
    if (warning == CHANGE_WARN_EQUAL && first != TENSOR_LIST_NO_TENSOR)
        log_str(&line, "equal_to", t[r->tensors[first].other].name);
    log_event(&line);
}

struct change_report *changes_commit_locked(struct updates *u, struct session *s,
                                            struct change_report *report,
                                            const struct store_stats *stats)
{
    struct change_report *old = u->report;

    mtx_assert_held(&u->lock);
    free(u->served.digests);
    u->served.digests = s->digests;
    s->digests = NULL;
    u->served.serial = stats->serial;
    u->report = report;
    if (report != NULL) {
        report->serial = stats->serial;
        memcpy(report->label, stats->label, sizeof report->label);
        report->refs++; /* the worker's, until it has logged it */
        s->changes = report->counts;
        u->stats.changes = report->counts;
        for (int i = 0; i < CHANGE_WARNING_COUNT; i++)
            u->stats.n_change_warnings[i] += report->counts.warnings[i];
    } else {
        u->stats.changes = (struct change_counts){0};
    }
    return old != NULL && --old->refs == 0 ? old : NULL;
}

void changes_log(struct updates *u, const struct session *s, struct change_report *report)
{
    for (int i = 0; report != NULL && i < CHANGE_WARNING_COUNT; i++)
        if (report->counts.warnings[i])
            log_warning(u, s, report, (enum change_warning)i);
    updates_changes_unref(u, report);
}

const struct change_report *updates_changes(struct updates *u)
{
    struct change_report *r;

    mtx_lock(&u->lock);
    r = u->report;
    if (r != NULL)
        r->refs++;
    mtx_unlock(&u->lock);
    return r;
}

void updates_changes_unref(struct updates *u, const struct change_report *report)
{
    struct change_report *r = (struct change_report *)(uintptr_t)report;
    bool last;

    if (r == NULL)
        return;
    mtx_lock(&u->lock);
    last = --r->refs == 0;
    mtx_unlock(&u->lock);
    if (last)
        free(r);
}
