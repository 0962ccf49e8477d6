/* Publishing: a commit, or a new label, makes the next version the served one. */
#include "weights/store/store_priv.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

static int staging_check_complete(const struct store *s, const struct staging *g, struct err *e)
{
    const struct tensor_list *tensor_list = s->model_spec->tensor_list;
    uint32_t first = 0, n_missing = staging_missing(g, &first, 1);
    uint32_t uneven = staging_uneven(g);

    if (g->partial && g->n_arrived == 0)
        return err_set(e, ERR_INCOMPLETE, "", "no tensor of the model arrived in this update");
    if (g->partial && uneven != TENSOR_LIST_NO_TENSOR)
        return err_set(e, ERR_INCOMPLETE, "",
                       "'%.256s' arrived on some GPUs of this server and not on others; send "
                       "\"placement\": \"sharded\" if that is intended",
                       tensor_list->tensors[uneven].name);
    if (g->partial || n_missing == 0)
        return 0;
    return err_set(e, ERR_INCOMPLETE, "", "%u of %u tensors are missing, '%.256s' first", n_missing,
                   tensor_list->n_tensors, tensor_list->tensors[first].name);
}

/* Completes the next version's views in a place: tensors that arrived there, and the served
 * ones, copied or shared, except those that only other places received anew. */
static void staging_fill_views(const struct staging *g, uint32_t place, uint64_t serial)
{
    struct view *views = version_view(g->next, place, 0);
    const bool *arrived = staging_arrivals(g, place);

    for (uint32_t i = 0; i < g->next->n_tensors; i++) {
        if (g->base != NULL && g->spread[i].n_places == 0 && views[i].slab == NULL)
            version_share_view(g->next, g->base, place, i);
        if (arrived[i])
            views[i].serial = serial;
    }
}

static void staging_complete_views(const struct staging *g, uint64_t serial)
{
    for (uint32_t p = 0; p < g->next->n_places; p++)
        staging_fill_views(g, p, serial);
    for (uint32_t i = 0; g->base != NULL && i < g->next->n_tensors; i++)
        if (g->spread[i].n_places == 0)
            version_share_sum(g->next, g->base, i);
}

static void keep_label_locked(struct store *s, uint64_t serial, const char *label)
{
    struct label_kept *kept = &s->labels[serial % STORE_LABELS_KEPT];

    kept->serial = serial;
    (void)snprintf(kept->label, sizeof kept->label, "%s", label);
}

/* Publishes a version by one pointer store. */
static struct version_owned *publish_locked(struct store *s, struct version_owned *next)
{
    struct version_owned *old = s->current;

    keep_label_locked(s, next->version.serial, next->version.label);
    s->current = next;
    s->n_live++;
    s->state = STORE_READY;
    cnd_broadcast(&s->changed);
    return old;
}

/* One commit or label at a time: the journal's last entry is then what is served. */
static int publish_begin_locked(struct store *s, struct err *e)
{
    uint64_t deadline_us = clock_after_us(STORE_PUBLISH_WAIT_US);

    while (s->publishing)
        if (!cnd_wait(&s->changed, &s->lock, deadline_us) && s->publishing)
            return err_set(e, ERR_NOT_RECORDED, "",
                           "the journal in --state-dir is still being written for the label before "
                           "this one: its disk does not answer");
    s->publishing = true;
    return 0;
}

static void publish_end_locked(struct store *s)
{
    s->publishing = false;
    cnd_broadcast(&s->changed);
}

/* Writes down what is about to be published. No lock held. */
static int journal_before(struct store *s, const struct version *next, struct err *e)
{
    const struct store_journal *j = &s->journal;

    mtx_assert_none();
    return j->before != NULL ? j->before(j->arg, s, next, e) : 0;
}

static void journal_after(struct store *s)
{
    if (s->journal.after != NULL)
        s->journal.after(s->journal.arg);
}

/* `label`, or the one that a version without a label gets. */
static void store_publish_set_name(struct version_owned *v, const char *label)
{
    struct version_label *name = v->version.name;

    if (label[0] != '\0')
        (void)snprintf(name->text, sizeof name->text, "%s", label);
    else
        (void)snprintf(name->text, sizeof name->text, "serial-%llu",
                       (unsigned long long)v->version.serial);
}

static int commit_begin(struct store *s, struct staging *g, const char *label, struct err *e)
{
    struct version_owned *next = g->next;
    int rc;

    if (staging_check_complete(s, g, e) != 0 || staging_carry(g, e) != 0)
        return -1;
    mtx_lock(&s->lock);
    rc = publish_begin_locked(s, e);
    mtx_unlock(&s->lock);
    if (rc != 0)
        return -1;
    next->version.nbytes = s->model_spec->tensor_list->nbytes;
    next->version.serial = s->serial + 1; /* only commits write it, one at a time */
    staging_complete_views(g, next->version.serial);
    store_publish_set_name(next, label);
    if (journal_before(s, &next->version, e) == 0)
        return 0;
    mtx_lock(&s->lock);
    publish_end_locked(s);
    mtx_unlock(&s->lock);
    return -1;
}

int store_commit(struct store *s, struct staging *g, const char *label, struct store_stats *stats,
                 struct err *e)
{
    struct version_owned *next = g->next, *base = g->base, *old;

    if (commit_begin(s, g, label, e) != 0)
        return -1;
    mtx_lock(&s->lock);
    old = publish_locked(s, next);
    s->serial = next->version.serial;
    s->n_commits++;
    s->committed_at_us = clock_now_us();
    s->staging_open = false;
    publish_end_locked(s);
    stats->serial = s->serial;
    stats->nbytes = next->version.nbytes;
    (void)snprintf(stats->label, sizeof stats->label, "%s", next->version.label);
    mtx_unlock(&s->lock);
    stats->n_updated = g->n_arrived;
    g->next = NULL;
    staging_free(g);
    store_version_drop(s, base);
    store_version_drop(s, old);
    mtx_lock(&s->lock);
    stats->n_live = s->n_live;
    mtx_unlock(&s->lock);
    journal_after(s);
    return 0;
}

/* Makes a second table of the same bytes, with the same serial. */
static void share_all(struct version_owned *next, struct version_owned *from)
{
    for (uint32_t i = 0; i < next->n_tensors; i++) {
        for (uint32_t p = 0; p < next->n_places; p++)
            slab_unref(version_view(next, p, i)->slab);
        version_share(next, from, i);
    }
    next->version.serial = from->version.serial;
    memcpy(next->version.commit_id, from->version.commit_id, sizeof next->version.commit_id);
    next->version.nbytes = from->version.nbytes;
}

static int store_publish_check_serial(const struct version *v, uint64_t if_serial, struct err *e)
{
    if (if_serial == 0 || v->serial == if_serial)
        return 0;
    return err_set(e, ERR_PRECONDITION, "/if_serial",
                   "serial %llu is served ('%.100s'), not %llu: nothing was renamed",
                   (unsigned long long)v->serial, v->label, (unsigned long long)if_serial);
}

/* The version to rename, with one more reference. A sleep waits until this has ended, so the
 * version stays the served one. */
static int label_begin(struct store *s, uint64_t if_serial, struct version_owned **from,
                       struct err *e)
{
    int rc;

    mtx_lock(&s->lock);
    rc = publish_begin_locked(s, e);
    if (rc == 0) {
        if (s->state != STORE_READY)
            rc = store_refuse_state_locked(s, e);
        else
            rc = store_publish_check_serial(&s->current->version, if_serial, e);
        if (rc != 0) {
            publish_end_locked(s);
        } else {
            *from = s->current;
            s->current->refs++;
        }
    }
    mtx_unlock(&s->lock);
    return rc;
}

/* Readers that pinned a version read its label without a lock, so a renamed version is a new
 * table over the same slabs. */
int store_set_label(struct store *s, const char *label, uint64_t if_serial, uint64_t *serial,
                    struct err *e)
{
    struct version_owned *next = store_version_new(s), *from, *old = NULL;
    int rc;

    if (next == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to rename the weights");
    if (label_begin(s, if_serial, &from, e) != 0) {
        version_free(next);
        return -1;
    }
    share_all(next, from);
    store_publish_set_name(next, label);
    rc = journal_before(s, &next->version, e);
    mtx_lock(&s->lock);
    if (rc == 0) {
        *serial = next->version.serial;
        old = publish_locked(s, next);
    }
    publish_end_locked(s);
    mtx_unlock(&s->lock);
    if (rc != 0)
        version_free(next);
    store_version_drop(s, from);
    store_version_drop(s, old);
    if (rc == 0)
        journal_after(s);
    return rc;
}
