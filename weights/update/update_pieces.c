/* Looks at the bytes that a source writes into host memory, piece by piece, on the thread that
 * writes them, while they are in a cache: each tensor's checksum, and whether it has values that
 * are not finite.
 *
 * A piece may end anywhere. A checksum is joined from those of the pieces. If a piece ends inside
 * an element whose other half another thread writes, the tensor is checked for values that are not
 * finite again when it is complete. */
#include "weights/update/update_chunk_priv.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { FOUND = 1, CUT = 2 };

/* Several threads add to the two halves of a checksum; relaxed: the end of the fill orders them. */
struct piece_sum {
    atomic_uint_fast64_t a, b;
};

/* One fill of tensors [first, end), adjacent from dst on. Several threads report pieces. */
struct scan {
    const struct fill *f;
    const struct rank_fill *r;
    uint32_t first, end;
    const uint8_t *dst;
    atomic_uint_fast64_t nbytes; /* bytes reported so far; relaxed: the end of the fill orders it */
};

static const struct tensor_spec *update_pieces_part_spec(const struct rank_fill *r, uint32_t i)
{
    return &r->tensor_list->tensors[i];
}

/* The tensor that contains byte `at` of the packed bucket, or a later one that is not empty. */
static uint32_t tensor_from(const struct scan *l, uint64_t at)
{
    uint32_t first = l->first, end = l->end;

    while (first + 1 < end) {
        uint32_t middle = first + (end - first) / 2;

        if (update_pieces_part_spec(l->r, middle)->offset <= at)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* A tensor that a piece contains whole has one writer. */
static void sum_set(struct piece_sum *s, const struct checksum *sum)
{
    atomic_store_explicit(&s->a, sum->a, memory_order_relaxed);
    atomic_store_explicit(&s->b, sum->b, memory_order_relaxed);
}

/* Bytes [from, to) of the packed bucket, all of tensor i; they are at `bytes`. */
static void sum_range(const struct scan *l, uint32_t i, const uint8_t *bytes, uint64_t from,
                      uint64_t to)
{
    const struct tensor_spec *t = update_pieces_part_spec(l->r, i);
    struct piece_sum *s = &l->f->sums[i];
    struct checksum sum = {0, 0};

    checksum_add(&sum, bytes, to - from, from - t->offset);
    if (to - from == t->nbytes) {
        sum_set(s, &sum);
        return;
    }
    (void)atomic_fetch_add_explicit(&s->a, sum.a, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&s->b, sum.b, memory_order_relaxed);
}

/* The same bytes. */
static void finite_range(const struct scan *l, uint32_t i, const uint8_t *bytes, uint64_t from,
                         uint64_t to)
{
    const struct tensor_spec *t = update_pieces_part_spec(l->r, i);
    uint64_t size = dtype_nbytes(t->dtype);
    uint64_t whole = t->offset + (from - t->offset + size - 1) / size * size;
    unsigned mark = whole != from || (to - t->offset) % size != 0 ? CUT : 0;

    if (whole < to && non_finite_in(bytes + (whole - from), to - whole, t->dtype))
        mark |= FOUND;
    if (mark != 0)
        (void)atomic_fetch_or_explicit(&l->f->marks[i], (unsigned char)mark, memory_order_relaxed);
}

static void scan_part(const struct scan *l, const uint8_t *at, uint64_t nbytes)
{
    uint64_t begin = update_pieces_part_spec(l->r, l->first)->offset;
    uint64_t from = begin + (uint64_t)(at - l->dst), to = from + nbytes;

    for (uint32_t i = tensor_from(l, from); i < l->end && from < to; i++) {
        const uint8_t *bytes = l->dst + (from - begin);
        uint64_t end = update_pieces_part_spec(l->r, i)->offset +
                       update_pieces_part_spec(l->r, i)->nbytes;

        end = end < to ? end : to;
        if (end <= from)
            continue;
        sum_range(l, i, bytes, from, end);
        if (l->f->marks != NULL && finite_is_checked(l->r, i))
            finite_range(l, i, bytes, from, end);
        from = end;
    }
}

/* In parts, so that the second look at the bytes finds them in a cache. */
static void scan_piece(void *arg, const void *at, uint64_t nbytes)
{
    struct scan *l = arg;
    const uint8_t *bytes = at;

    for (uint64_t done = 0, n; done < nbytes; done += n) {
        n = nbytes - done < SOURCE_REPORT_NBYTES ? nbytes - done : SOURCE_REPORT_NBYTES;
        scan_part(l, bytes + done, n);
    }
    (void)atomic_fetch_add_explicit(&l->nbytes, nbytes, memory_order_relaxed);
}

static int results_take(struct fill *f, struct err *e)
{
    uint32_t n = f->ranks[0].tensor_list->n_tensors;

    if (f->sums == NULL)
        f->sums = calloc(n, sizeof *f->sums);
    if (f->marks == NULL && f->non_finite != NON_FINITE_ALLOW)
        f->marks = calloc(n, sizeof *f->marks);
    if (f->sums != NULL && (f->marks != NULL || f->non_finite == NON_FINITE_ALLOW))
        return 0;
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
}

/* If the source did not report all bytes, the tensors are looked at again at the end. */
static void scan_rest(struct scan *l, uint64_t nbytes)
{
    const uint8_t *at = l->dst;

    if (atomic_load_explicit(&l->nbytes, memory_order_relaxed) == nbytes)
        return;
    for (uint32_t i = l->first; i < l->end; at += update_pieces_part_spec(l->r, i)->nbytes, i++) {
        struct checksum sum = checksum_of(at, update_pieces_part_spec(l->r, i)->nbytes);

        sum_set(&l->f->sums[i], &sum);
        if (l->f->marks != NULL)
            (void)atomic_fetch_or_explicit(&l->f->marks[i], CUT, memory_order_relaxed);
    }
}

int pieces_fill(struct fill *f, uint32_t first, uint32_t n, void *dst, struct err *e)
{
    const struct rank_fill *r = &f->ranks[0];
    const struct tensor_spec *last = update_pieces_part_spec(r, first + n - 1);
    struct progress *p = &f->job->progress;
    struct scan l = {.f = f, .r = r, .first = first, .end = first + n, .dst = dst};
    int rc;

    if (results_take(f, e) != 0)
        return -1;
    p->came = scan_piece;
    p->came_arg = &l;
    rc = f->source->ops->fill(f->source, r->tensor_list, first, n, dst, p, e);
    p->came = NULL;
    if (rc == 0)
        scan_rest(&l, last->offset + last->nbytes - update_pieces_part_spec(r, first)->offset);
    return rc;
}

struct checksum pieces_sum(const struct fill *f, uint32_t i)
{
    return (struct checksum){atomic_load_explicit(&f->sums[i].a, memory_order_relaxed),
                             atomic_load_explicit(&f->sums[i].b, memory_order_relaxed)};
}

bool pieces_suspect(const struct fill *f, uint32_t i)
{
    return f->marks != NULL && atomic_load_explicit(&f->marks[i], memory_order_relaxed) != 0;
}
