/* Which tensors the fleet's model has, and which of them an update has brought so far. */
#include "fleet/update/fleet_coverage.h"

#include "base/log.h"
#include "base/utf8.h"
#include "fleet/calls/fleet_priv.h"
#include "transport/ipc/torch_tensors.h"
#include "weights/tally.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COVER_NAMED = 3, COVER_NAME_MAX = 80 }; /* names of missing tensors in a message */

struct fleet_spec {
    unsigned n_refs; /* of the fleet and of a session; guarded by the lock of the fleet's control */
    struct model_spec *model_spec; /* owned; immutable */
    const char *from;              /* static; NULL: learned from an update */
};

struct fleet_coverage {
    struct fleet_spec *spec; /* one reference; NULL: no model spec is known, or batons have it */
    struct mtx lock;         /* MTX_LEAF: batons get several requests at once; guards what follows,
                                which the end of an update reads without it */
    struct tally *tally;     /* owned */
    uint64_t n_unseen;       /* requests whose tensor names cannot be read here */
    bool is_cut_off;         /* the tally is gone; a request that was under way is not counted */

    /* guarded by the lock of the fleet's control */
    struct tensor_list *refused; /* one reference; all names that were refused; NULL: none */
    uint64_t n_unread;           /* refused requests of unknown names */
    bool refused_unread;         /* nothing came that began after the last of them */
    struct fleet_cut_off before; /* of the push before, which was cut off */
};

/* the spec */

static int spec_new(struct fleet_spec **out, struct model_spec *m, const char *from, struct err *e)
{
    struct fleet_spec *spec = malloc(sizeof *spec);

    if (spec == NULL) {
        model_spec_free(m);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a model spec");
    }
    *spec = (struct fleet_spec){.n_refs = 1, .model_spec = m, .from = from};
    *out = spec;
    return 0;
}

void fleet_spec_unref(struct fleet_spec *spec)
{
    if (spec == NULL || --spec->n_refs > 0)
        return;
    model_spec_free(spec->model_spec);
    free(spec);
}

int fleet_spec_set(struct fleet_control *fc, struct model_spec *m, const char *from, struct err *e)
{
    return spec_new(&fc->spec, m, from, e);
}

bool fleet_spec_get(struct fleet_control *fc, const char **from, uint32_t *n_tensors)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (fc->spec == NULL)
        return false;
    *from = fc->spec->from != NULL ? fc->spec->from : "update";
    *n_tensors = fc->spec->model_spec->tensor_list->n_tensors;
    return true;
}

const char *fleet_last_coverage(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fc->coverage;
}

/* lists */

void fleet_names_fini(struct fleet_names *l)
{
    tensor_list_unref(l->tensor_list);
    *l = (struct fleet_names){0};
}

/* All names of the ranks' lists, each once. */
static int fleet_coverage_add_tensors(struct tensor_list_builder *b,
                                      const struct tensor_list *tensor_list, struct err *e)
{
    for (uint32_t i = 0; tensor_list != NULL && i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        if (tensor_list_builder_find(b, t->name) == TENSOR_LIST_NO_TENSOR &&
            tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) != 0)
            return -1;
    }
    return 0;
}

/* @n  [TENSORS_RANKS_MAX] out: tensors of each string. Returns: false: one cannot be read. */
static bool add_pickles(struct tensor_list_builder *b, const struct api_tensors *from, uint32_t *n)
{
    struct err ignored = {0};
    bool good = from->entries != NULL && from->n_entries <= TENSORS_RANKS_MAX;

    for (size_t i = 0; good && i < from->n_entries; i++) {
        const char *text = from->entries[i];
        struct torch_tensors t = {0};

        good = text != NULL &&
               torch_tensors_read(&t, text, strlen(text), (uint32_t)i, "", &ignored) == 0 &&
               fleet_coverage_add_tensors(b, t.tensor_list, &ignored) == 0;
        n[i] = t.tensor_list != NULL ? t.tensor_list->n_tensors : 0;
        torch_tensors_fini(&t);
    }
    return good;
}

/* Each rank of an engine loads its own string only: what it lacks there it keeps as it was. */
static int check_ranks(const struct tensor_list *all, const uint32_t *n, size_t n_ranks,
                       struct err *e)
{
    char field[48];

    for (size_t i = 0; i < n_ranks; i++) {
        if (n[i] == all->n_tensors)
            continue;
        (void)snprintf(field, sizeof field, "/serialized_named_tensors/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "it has %" PRIu32 " tensors, and the strings together name %" PRIu32
                       ": each rank of an engine loads its own string only, so all must name the "
                       "same tensors, unless the start of the update says placement sharded",
                       n[i], all->n_tensors);
    }
    return 0;
}

static int read_pickles(struct fleet_names *out, const struct api_tensors *from, bool sharded,
                        struct err *e)
{
    uint32_t n[TENSORS_RANKS_MAX] = {0}, n_all = 0;
    struct tensor_list_builder *b;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    out->seen = add_pickles(b, from, n);
    for (size_t i = 0; i < TENSORS_RANKS_MAX; i++)
        n_all += n[i];
    if (!out->seen || n_all == 0) {
        tensor_list_builder_free(b);
        return 0;
    }
    if (tensor_list_builder_finish(b, &out->tensor_list, e) == 0 &&
        (sharded || check_ranks(out->tensor_list, n, from->n_entries, e) == 0))
        return 0;
    fleet_names_fini(out);
    return -1;
}

int fleet_names_read(struct fleet_names *out, struct fleet_control *fc,
                     const struct fleet_session *s, const struct fleet_tensors *t, struct err *e)
{
    const struct api_tensors *tensors = t->args.tensors;

    *out = (struct fleet_names){0};
    if (s->coverage == NULL)
        return 0;
    mtx_lock(&fc->lock);
    out->n_unread = s->coverage->n_unread;
    mtx_unlock(&fc->lock);
    if (fleet_session_overwrites(s) && tensors->serialized)
        return read_pickles(out, tensors, s->sharded, e);
    /* Batons check what they get: what cannot be read here is sent to them all the same. */
    if (fleet_session_overwrites(s) ? tensors->by_path : tensors->list == NULL)
        return 0;
    if (tensors->list == NULL && t->list_error.code == ERR_NONE)
        return err_set(e, ERR_BAD_REQUEST, "/names",
                       "names is missing, it is required, with dtypes and shapes: an engine that "
                       "gets none loads nothing, and reports success");
    out->seen = true;
    if (tensors->list == NULL) {
        *e = t->list_error;
        return -1;
    }
    out->tensor_list = tensor_list_ref(tensors->list);
    return 0;
}

void fleet_names_of_refused(struct fleet_names *out, const char *const *names, size_t n)
{
    struct tensor_list_builder *b;
    struct err ignored = {0};
    int rc = 0;

    *out = (struct fleet_names){0};
    if (names == NULL || n == 0 || tensor_list_builder_new(&b, &ignored) != 0)
        return;
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (names[i] == NULL)
            rc = -1;
        else if (tensor_list_builder_find(b, names[i]) == TENSOR_LIST_NO_TENSOR)
            rc = tensor_list_builder_add(b, names[i], DTYPE_U8, NULL, 0, UINT64_MAX, &ignored);
    }
    if (rc != 0)
        tensor_list_builder_free(b);
    else
        out->seen = tensor_list_builder_finish(b, &out->tensor_list, &ignored) == 0;
}

/* a session */

static const char *coverage_name(const struct fleet_session *s, uint32_t n_missing)
{
    const struct fleet_coverage *c = s->coverage;

    if (s->partial)
        return "partial";
    if (c->spec == NULL || c->n_unseen > 0)
        return "unknown";
    if (n_missing > 0)
        return "incomplete";
    return c->spec->from != NULL ? "whole" : "as_before";
}

/* Are tensors counted here? Not where a two-phase engine counts them. */
static bool is_counted_here(const struct fleet_session *s)
{
    return s->coverage != NULL && fleet_session_overwrites(s) && !fleet_session_has_part(s, true);
}

static const char *const coverage_words[] = {"incomplete", "unknown", "partial", "as_before",
                                             "whole"}; /* the weakest first */

/* What a report says, as an index of coverage_words. A word that is not known is no good news. */
static size_t coverage_of_report(const struct api_object *report)
{
    const char *said = api_report_coverage(report);
    size_t n = sizeof coverage_words / sizeof coverage_words[0], i = 0;
    int64_t n_missing;

    if (said == NULL)
        return !api_report_missing(report, &n_missing) ? 1 : n_missing > 0 ? 0 : n - 1;
    while (i < n && strcmp(said, coverage_words[i]) != 0)
        i++;
    return i < n ? i : 1;
}

bool fleet_coverage_is_weaker(const struct api_object *report, const struct api_object *than)
{
    return coverage_of_report(report) < coverage_of_report(than);
}

/* Reads only the last report: everything else in a copy of a session may change meanwhile. */
const char *fleet_coverage_name(const struct fleet_session *s)
{
    return s->partial ? "partial" : coverage_words[coverage_of_report(s->report)];
}

/* @missing  [UPDATE_MISSING_MAX], set */
static struct api_report_counts counts_of(const struct fleet_session *s, const char **missing)
{
    const struct fleet_coverage *c = s->coverage;
    uint32_t n_missing = tally_missing(c->tally, missing, UPDATE_MISSING_MAX);
    uint32_t n = c->spec != NULL ? c->spec->model_spec->tensor_list->n_tensors : 0;

    return (struct api_report_counts){
        .coverage = coverage_name(s, n_missing),
        .n_total = n,
        .n_done = c->spec != NULL ? n - n_missing : tally_n_sent(c->tally),
        .n_missing = n_missing,
        .n_unseen = c->n_unseen,
        .missing = missing,
        .n_named = n_missing < UPDATE_MISSING_MAX ? n_missing : UPDATE_MISSING_MAX};
}

/* Without memory for a new report the last one is kept. */
static void coverage_report(struct fleet_control *fc, struct fleet_session *s)
{
    const char *missing[UPDATE_MISSING_MAX];
    struct api_object *report = NULL, *before;

    mtx_lock(&s->coverage->lock);
    if (!s->coverage->is_cut_off) {
        const struct api_report_counts counts = counts_of(s, missing);

        report = api_report_make(&counts);
    }
    mtx_unlock(&s->coverage->lock);
    if (report == NULL)
        return;
    mtx_lock(&fc->lock);
    before = s->report;
    s->report = report;
    mtx_unlock(&fc->lock);
    api_object_unref(before);
}

/* Those of `list` too. @all  NULL: none yet */
static int fleet_coverage_add_names(struct tensor_list **all, const struct tensor_list *list)
{
    struct tensor_list_builder *b;
    struct tensor_list *both;
    struct err ignored = {0};

    if (tensor_list_builder_new(&b, &ignored) != 0)
        return -1;
    if (fleet_coverage_add_tensors(b, *all, &ignored) != 0 ||
        fleet_coverage_add_tensors(b, list, &ignored) != 0) {
        tensor_list_builder_free(b);
        return -1;
    }
    if (tensor_list_builder_finish(b, &both, &ignored) != 0)
        return -1;
    tensor_list_unref(*all);
    *all = both;
    return 0;
}

/* What follows may be the rest of that push only. A request of it that is still under way is not
 * counted any more, so that its names are not known. The caller holds the lock. */
static void take_cut_off_locked(struct fleet_control *fc, struct fleet_cut_off *out)
{
    struct fleet_session *s = fc->cut_off;
    struct fleet_coverage *c = s->coverage;
    struct model_spec *sent = NULL;
    struct err ignored = {0};

    out->unread = s->n_running > 0 || c->before.unread;
    mtx_lock(&c->lock);
    out->unread = out->unread || c->n_unseen > 0;
    if (!c->is_cut_off && tally_n_sent(c->tally) > 0)
        out->unread = tally_model_spec(&sent, c->tally, &ignored) != 0 || out->unread;
    c->is_cut_off = true;
    mtx_unlock(&c->lock);
    if (sent != NULL && fleet_coverage_add_names(&c->refused, sent->tensor_list) != 0)
        out->unread = true;
    model_spec_free(sent);
    if (c->before.names != NULL && fleet_coverage_add_names(&c->refused, c->before.names) != 0)
        out->unread = true;
    if (c->refused != NULL)
        out->names = tensor_list_ref(c->refused);
    out->why = c->before.why;
    if (out->why.code == ERR_NONE)
        (void)err_set(&out->why, ERR_INCOMPLETE, "",
                      "this may be the rest of update %s, which was aborted: %.220s", s->id,
                      s->error.msg);
}

int fleet_coverage_start(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct fleet_coverage *c = calloc(1, sizeof *c);

    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an update");
    mtx_init(&c->lock, MTX_LEAF);
    mtx_lock(&fc->lock);
    c->spec = fleet_session_overwrites(s) ? fc->spec : NULL;
    if (c->spec != NULL)
        c->spec->n_refs++;
    mtx_unlock(&fc->lock);
    s->coverage = c; /* freed with the session */
    if (tally_new(&c->tally, c->spec != NULL ? c->spec->model_spec : NULL, e) != 0)
        return -1;
    mtx_lock(&fc->lock);
    if (s->auto_commit && fc->cut_off != NULL)
        take_cut_off_locked(fc, &c->before);
    mtx_unlock(&fc->lock);
    if (is_counted_here(s))
        coverage_report(fc, s);
    return 0;
}

void fleet_coverage_free(struct fleet_coverage *c)
{
    if (c == NULL)
        return;
    tally_free(c->tally);
    mtx_fini(&c->lock);
    tensor_list_unref(c->refused);
    tensor_list_unref(c->before.names);
    fleet_spec_unref(c->spec);
    free(c);
}

/* A vLLM counts the elements that arrive for a layer, and builds the layer when the count is full.
 * A tensor that is sent twice fills the count instead of another one, which is then lost. */
static bool rejects_repeats(const struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++)
        if (part_needs_start(&s->parts[i]) && !s->parts[i].no_process_id && !s->parts[i].out)
            return true;
    return false;
}

static bool is_configured(const struct fleet_coverage *c)
{
    return c->spec != NULL && c->spec->from != NULL;
}

static int refuse_unseen(const struct fleet_coverage *c, struct err *e)
{
    return err_set(e, ERR_INCOMPLETE, "",
                   "which tensors this update brings cannot be read here (they are in a directory, "
                   "or in a pickle of another form than SGLang's), so they cannot be compared with "
                   "%s: send their names, remove %s, or start the server with "
                   "--allow-unseen-tensors, which trusts the trainer",
                   c->spec->from, c->spec->from);
}

int fleet_coverage_check(const struct fleet_control *fc, const struct fleet_session *s,
                         const struct fleet_names *l, struct err *e)
{
    const struct fleet_coverage *c = s->coverage;

    if (c == NULL || !fleet_session_overwrites(s))
        return 0;
    if (!l->seen && is_configured(c) && !fc->cfg.allow_unseen)
        return refuse_unseen(c, e);
    if (l->tensor_list == NULL)
        return 0;
    return tally_check(c->tally, l->tensor_list, is_configured(c), rejects_repeats(s), e);
}

/* Parallel requests may add to the tally meanwhile. The caller holds the lock of the control. */
static const char *lacking(struct fleet_coverage *c, const struct tensor_list *list)
{
    mtx_auto held = mtx_hold(&c->lock);

    return list == NULL || c->is_cut_off ? NULL : tally_lacks(c->tally, list);
}

static void fleet_coverage_count(struct fleet_coverage *c, const struct fleet_names *l)
{
    struct err ignored = {0};

    mtx_lock(&c->lock);
    if (!c->is_cut_off && (!l->seen || (l->tensor_list != NULL &&
                                        tally_add(c->tally, l->tensor_list, &ignored) != 0)))
        c->n_unseen++;
    mtx_unlock(&c->lock);
}

void fleet_coverage_add(struct fleet_control *fc, struct fleet_session *s,
                        const struct fleet_names *l)
{
    struct fleet_coverage *c = s->coverage;

    if (c == NULL)
        return;
    fleet_coverage_count(c, l);
    mtx_lock(&fc->lock);
    if (l->n_unread == c->n_unread)
        c->refused_unread = false;
    if (lacking(c, c->refused) == NULL && !c->refused_unread)
        err_clear(&s->refused);
    mtx_unlock(&fc->lock);
    if (is_counted_here(s))
        coverage_report(fc, s);
}

void fleet_coverage_refuse(struct fleet_control *fc, struct fleet_session *s,
                           const struct fleet_names *l, const struct err *why)
{
    struct fleet_coverage *c = s->coverage;

    mtx_lock(&fc->lock);
    s->refused = *why;
    if (c != NULL &&
        (l->tensor_list == NULL || fleet_coverage_add_names(&c->refused, l->tensor_list) != 0)) {
        c->refused_unread = true;
        c->n_unread++;
    }
    mtx_unlock(&fc->lock);
}

void fleet_coverage_begin_push(struct fleet_session *s)
{
    if (s->coverage == NULL)
        return;
    tensor_list_unref(s->coverage->before.names);
    s->coverage->before = (struct fleet_cut_off){0};
}

/* the end */

/* "'a', 'b' and 21 more" */
static void name_missing(const struct tally *t, uint32_t n_missing, char *out, size_t cap)
{
    const char *names[COVER_NAMED];
    size_t len = 0;
    uint32_t i;

    (void)tally_missing(t, names, COVER_NAMED);
    for (i = 0; i < n_missing && i < COVER_NAMED; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s'%.*s'", i > 0 ? ", " : "",
                                utf8_cut(names[i], COVER_NAME_MAX), names[i]);
    if (n_missing > i)
        (void)snprintf(out + len, cap - len, " and %" PRIu32 " more", n_missing - i);
}

static int refuse_missing(const struct fleet_coverage *c, uint32_t n_missing, struct err *e)
{
    uint32_t n = c->spec->model_spec->tensor_list->n_tensors, n_unknown;
    char names[COVER_NAMED * (COVER_NAME_MAX + 4) + 24], others[COVER_NAME_MAX + 80] = "";
    bool configured = c->spec->from != NULL;
    const char *unknown;

    name_missing(c->tally, n_missing, names, sizeof names);
    n_unknown = tally_unknown(c->tally, &unknown);
    if (n_unknown > 0)
        (void)snprintf(others, sizeof others, " (of what came, %" PRIu32 " %s none of them: '%s')",
                       n_unknown, n_unknown == 1 ? "is" : "are", unknown);
    return err_set(e, ERR_INCOMPLETE, "",
                   "%" PRIu32 " of the %" PRIu32
                   " tensors of %s are missing: %s%s; send all of them in one update: the "
                   "upstreams that received some are fenced (they get no requests) until a whole "
                   "update succeeds%s",
                   n_missing, n, configured ? c->spec->from : "the last whole update", names,
                   others,
                   configured ? "" : "; if the model has other tensors now, restart the server");
}

/* What was refused may come again, in other requests too.
 * @counted  nothing of a model spec is missing: tensors of unknown names came, or are none of it */
static int check_refused(struct fleet_control *fc, const struct fleet_session *s, bool counted,
                         struct err *e)
{
    struct fleet_coverage *c = s->coverage;
    char what[COVER_NAME_MAX + 32] = "";
    const char *name;
    struct err why;
    bool unread, rest;

    mtx_lock(&fc->lock);
    name = lacking(c, c->before.names);
    unread = c->before.unread && !counted;
    why = c->before.why;
    rest = name != NULL || unread;
    if (!rest) {
        name = lacking(c, c->refused);
        unread = c->refused_unread && !counted;
        why = s->refused;
    }
    mtx_unlock(&fc->lock);
    if (name == NULL && !unread)
        return 0;
    if (name != NULL)
        (void)snprintf(what, sizeof what, "'%.*s'%s", utf8_cut(name, COVER_NAME_MAX), name,
                       rest ? "" : "; the last error: ");
    if (rest)
        return err_set(
            e, ERR_INCOMPLETE, "",
            "%.300s; what that one had did not come again (%s): send all tensors in one update",
            why.msg, name != NULL ? what : "tensors of unknown names");
    return err_set(e, ERR_INCOMPLETE, "",
                   "tensors of this update were refused and did not come again (%s%.250s): send "
                   "the update again",
                   what, why.msg);
}

/* Do the batons that have verified the update know all names of their model? One in front of
 * engines may not, and never hears of what is refused here. */
static bool is_whole_at_batons(const struct fleet_session *s)
{
    return !s->partial && strcmp(fleet_coverage_name(s), "whole") == 0;
}

int fleet_coverage_verify(struct fleet_control *fc, const struct fleet_session *s, struct err *e)
{
    const struct fleet_coverage *c = s->coverage;
    uint32_t n_missing;

    if (c == NULL)
        return 0;
    if (!is_counted_here(s))
        return is_whole_at_batons(s) ? 0 : check_refused(fc, s, false, e);
    if (c->n_unseen > 0) /* also without memory to count them */
        return is_configured(c) && !fc->cfg.allow_unseen ? refuse_unseen(c, e)
                                                         : check_refused(fc, s, false, e);
    if (tally_n_sent(c->tally) == 0)
        return err_set(e, ERR_INCOMPLETE, "", "no tensor of the model arrived in this update");
    n_missing = tally_missing(c->tally, NULL, 0);
    if (!s->partial && n_missing > 0)
        return refuse_missing(c, n_missing, e);
    return check_refused(fc, s, !s->partial && c->spec != NULL, e);
}

static void log_unknown(const struct fleet_session *s)
{
    const struct fleet_coverage *c = is_counted_here(s) ? s->coverage : NULL;
    const char *why = "no model spec is known yet: the next updates have to bring the tensors of "
                      "this one; --model or --manifest gives a spec";
    struct log_rec r;

    if (c == NULL)
        why = "the upstreams do not report how many tensors are missing (n_missing)";
    else if (c->n_unseen > 0)
        why = "the names of some tensors cannot be read here";
    log_begin(&r, LOG_WARN, "fleet.coverage_unknown");
    log_str(&r, "update_id", s->id);
    log_u64(&r, "n_tensors", c != NULL ? tally_n_sent(c->tally) : 0);
    log_u64(&r, "n_unseen", c != NULL ? c->n_unseen : 0);
    log_str(&r, "why", why);
    log_end(&r);
}

static bool defines_spec(const struct fleet_session *s)
{
    const struct fleet_coverage *c = s->coverage;

    return c != NULL && fleet_session_overwrites(s) && !s->partial && c->n_unseen == 0 &&
           tally_n_sent(c->tally) > 0 && (c->spec == NULL || c->spec->from == NULL);
}

void fleet_coverage_commit(struct fleet_control *fc, struct fleet_session *s)
{
    const char *word = is_counted_here(s)
                           ? coverage_name(s, tally_missing(s->coverage->tally, NULL, 0))
                           : fleet_coverage_name(s);
    struct fleet_spec *spec = NULL, *before = NULL;
    struct model_spec *m;
    struct err ignored = {0};

    if (strcmp(word, "unknown") == 0)
        log_unknown(s);
    if (defines_spec(s) && tally_model_spec(&m, s->coverage->tally, &ignored) == 0)
        (void)spec_new(&spec, m, NULL, &ignored);
    mtx_lock(&fc->lock);
    fc->coverage = word;
    if (spec != NULL) {
        before = fc->spec;
        fc->spec = spec;
    }
    fleet_spec_unref(before);
    mtx_unlock(&fc->lock);
}
