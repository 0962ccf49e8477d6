/* Checks a chunk's tensors for values that are not finite.
 *
 * Bytes written to host memory are checked by the thread that writes them, piece by piece, while
 * the piece is in a cache. A piece may end inside an element whose other half another thread
 * writes: then the tensor is checked again when it is complete. Bytes copied between GPUs without
 * conversion are checked there, in the pass that computes the checksum; a tensor with such values
 * is then copied to the host to count them. Names that are no weights (PART_IGNORED) are not
 * checked, nor are bytes that a GPU copies without a checksum. */
#include "base/log.h"
#include "weights/update/update_chunk_priv.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { FOUND = 1, CUT = 2 };

/* One fill of tensors [first, end), adjacent from dst on. Several threads report pieces. */
struct scan {
    const struct rank_fill *r;
    uint32_t first, end;
    const uint8_t *dst;
    atomic_uchar *marks;
    atomic_uint_fast64_t nbytes; /* bytes reported so far; relaxed: the end of the fill orders it */
};

static const struct tensor_spec *part_spec(const struct rank_fill *r, uint32_t i)
{
    return &r->tensor_list->tensors[i];
}

static bool is_scanned(const struct rank_fill *r, uint32_t i)
{
    return r->layout->parts[i].how != PART_IGNORED &&
           non_finite_bits(part_spec(r, i)->dtype).top != 0;
}

/* The tensor that contains byte `at` of the packed bucket, or a later one that is not empty. */
static uint32_t tensor_from(const struct scan *l, uint64_t at)
{
    uint32_t first = l->first, end = l->end;

    while (first + 1 < end) {
        uint32_t middle = first + (end - first) / 2;

        if (part_spec(l->r, middle)->offset <= at)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* Bytes [from, to) of the packed bucket, all of tensor i. */
static void scan_range(struct scan *l, uint32_t i, uint64_t from, uint64_t to)
{
    const struct tensor_spec *t = part_spec(l->r, i);
    uint64_t size = dtype_nbytes(t->dtype), begin = part_spec(l->r, l->first)->offset;
    uint64_t whole = t->offset + (from - t->offset + size - 1) / size * size;
    unsigned mark = whole != from || (to - t->offset) % size != 0 ? CUT : 0;

    if (whole < to && non_finite_in(l->dst + (whole - begin), to - whole, t->dtype))
        mark |= FOUND;
    if (mark != 0)
        (void)atomic_fetch_or_explicit(&l->marks[i], (unsigned char)mark, memory_order_relaxed);
}

static void scan_piece(void *arg, const void *at, uint64_t nbytes)
{
    struct scan *l = arg;
    uint64_t from = part_spec(l->r, l->first)->offset + (uint64_t)((const uint8_t *)at - l->dst);
    uint64_t to = from + nbytes;

    for (uint32_t i = tensor_from(l, from); i < l->end && from < to; i++) {
        uint64_t end = part_spec(l->r, i)->offset + part_spec(l->r, i)->nbytes;

        end = end < to ? end : to;
        if (end <= from)
            continue;
        if (is_scanned(l->r, i))
            scan_range(l, i, from, end);
        from = end;
    }
    (void)atomic_fetch_add_explicit(&l->nbytes, nbytes, memory_order_relaxed);
}

static int marks_take(struct fill *f, struct err *e)
{
    if (f->marks == NULL)
        f->marks = calloc(f->ranks[0].tensor_list->n_tensors, sizeof *f->marks);
    return f->marks != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
}

/* Bytes that the source did not report are checked at the end. */
static void scan_rest(struct scan *l, uint64_t nbytes)
{
    if (atomic_load_explicit(&l->nbytes, memory_order_relaxed) == nbytes)
        return;
    for (uint32_t i = l->first; i < l->end; i++)
        (void)atomic_fetch_or_explicit(&l->marks[i], CUT, memory_order_relaxed);
}

int finite_fill(struct fill *f, uint32_t first, uint32_t n, void *dst, struct err *e)
{
    const struct rank_fill *r = &f->ranks[0];
    const struct tensor_spec *last = part_spec(r, first + n - 1);
    struct progress *p = &f->job->progress;
    struct scan l = {.r = r, .first = first, .end = first + n, .dst = dst};
    int rc;

    if (f->non_finite == NON_FINITE_ALLOW)
        return f->source->ops->fill(f->source, r->tensor_list, first, n, dst, p, e);
    if (marks_take(f, e) != 0)
        return -1;
    l.marks = f->marks;
    p->came = scan_piece;
    p->came_arg = &l;
    rc = f->source->ops->fill(f->source, r->tensor_list, first, n, dst, p, e);
    p->came = NULL;
    if (rc == 0)
        scan_rest(&l, last->offset + last->nbytes - part_spec(r, first)->offset);
    return rc;
}

/* Records a name, borrowed from the model spec. Returns false if it is recorded already. */
static bool non_finite_note(struct non_finite_names *names, const char *name)
{
    for (uint32_t i = 0; i < names->n && i < UPDATE_NON_FINITE_MAX; i++)
        if (names->names[i] == name)
            return false;
    if (names->n < UPDATE_NON_FINITE_MAX)
        names->names[names->n] = name;
    names->n++;
    return true;
}

/* The model spec's name of tensor i, which outlives the chunk. */
static const char *name_of(const struct fill *f, const struct part *part)
{
    return part->match.alias != NULL ? part->match.alias->name
                                     : target_spec(f, part->match.index)->name;
}

static void finite_warn(const struct fill *f, const char *name, const struct non_finite *found)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "weights.non_finite");
    log_str(&r, "tensor", name);
    log_str(&r, "weight_version", f->job->label);
    log_str(&r, "update_id", f->session->id);
    log_u64(&r, "n", found->n);
    log_str(&r, "first", non_finite_what(found));
    log_u64(&r, "index", found->first);
    log_end(&r);
}

/* Applies the policy to values that are not finite. @as the dtype of the bytes that were checked */
static int finite_found(const struct fill *f, uint32_t rank, uint32_t i,
                        const struct non_finite *found, enum dtype as, struct err *e)
{
    const struct rank_fill *r = &f->ranks[rank];
    const struct tensor_spec *t = part_spec(r, i);
    const char *label = f->job->label;
    char field[48], of[VERSION_LABEL_MAX + 48];

    if (f->non_finite == NON_FINITE_WARN) {
        if (non_finite_note(&f->job->non_finite, name_of(f, &r->layout->parts[i])))
            finite_warn(f, t->name, found);
        return 0;
    }
    (void)snprintf(field, sizeof field, "/names/%u", i);
    (void)snprintf(of, sizeof of, "%s%s%s%.100s%s", as != t->dtype ? " as " : "",
                   as != t->dtype ? dtype_name(as) : "", label[0] != '\0' ? " of '" : "", label,
                   label[0] != '\0' ? "'" : "");
    (void)non_finite_refuse(found, t->name, t->numel, of, field, e);
    chunk_refield(f->job->chunk, rank, e);
    return -1;
}

int finite_check_host(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                      struct err *e)
{
    const struct tensor_spec *t = part_spec(&f->ranks[rank], i);
    struct non_finite found = {0};

    if (f->non_finite == NON_FINITE_ALLOW || !is_scanned(&f->ranks[rank], i) ||
        !non_finite_in(bytes, t->nbytes, t->dtype))
        return 0;
    non_finite_count(&found, bytes, t->nbytes, t->dtype, 0);
    return finite_found(f, rank, i, &found, t->dtype, e);
}

int finite_check_filled(const struct fill *f, uint32_t i, const void *bytes, struct err *e)
{
    if (f->marks == NULL || atomic_load_explicit(&f->marks[i], memory_order_relaxed) == 0)
        return 0;
    return finite_check_host(f, 0, i, bytes, e);
}

int finite_check_converted(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                           const struct tensor_spec *to, struct err *e)
{
    struct non_finite found = {0};

    if (f->non_finite == NON_FINITE_ALLOW || !non_finite_in(bytes, to->nbytes, to->dtype))
        return 0;
    non_finite_count(&found, bytes, to->nbytes, to->dtype, 0);
    return finite_found(f, rank, i, &found, to->dtype, e);
}

/* A tensor that is converted or tied is checked when it is on the host. */
enum dtype finite_copied(const struct fill *f, uint32_t rank, uint32_t i)
{
    return f->non_finite != NON_FINITE_ALLOW && f->ranks[rank].layout->parts[i].how == PART_DIRECT
               ? part_spec(&f->ranks[rank], i)->dtype
               : DTYPE_NONE;
}

int finite_check_copied(struct fill *f, uint32_t rank, uint32_t i, struct err *e)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint64_t at = 0;
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    void *bytes;

    if (fill_scratch(f, &bytes, e) != 0)
        return -1;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t nbytes = target_spec(f, targets[k])->nbytes;

        if (place_read(f->store, rank, (char *)bytes + at,
                       dst_region_target(f, dst_region_of_rank(f, rank), part, k), nbytes, e) != 0)
            return -1;
        at += nbytes;
    }
    return finite_check_host(f, rank, i, bytes, e);
}

void non_finite_join(struct non_finite_names *to, const struct non_finite_names *from)
{
    for (uint32_t i = 0; i < from->n && i < UPDATE_NON_FINITE_MAX; i++)
        (void)non_finite_note(to, from->names[i]);
    if (from->n > UPDATE_NON_FINITE_MAX)
        to->n += from->n - UPDATE_NON_FINITE_MAX;
}
