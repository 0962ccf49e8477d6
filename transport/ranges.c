/* Reading in pieces, so that a stop, a deadline and a shrunk file are noticed between them. */
#include "transport/ranges.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ranges_init(struct ranges *r, const char *kind)
{
    memset(r, 0, sizeof *r);
    r->kind = kind;
    names_init(&r->files);
}

int ranges_alloc(struct ranges *r, uint32_t n, struct err *e)
{
    r->at = calloc((size_t)n + 1, sizeof *r->at);
    if (r->at == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the places of %u tensors", (unsigned)n);
    r->n = n;
    return 0;
}

void ranges_fini(struct ranges *r)
{
    for (uint32_t i = 0; i < r->files.n; i++)
        if (r->fds[i] >= 0)
            (void)close(r->fds[i]);
    names_fini(&r->files);
    free(r->at);
    memset(r, 0, sizeof *r);
}

int ranges_add(struct ranges *r, const char *name, int fd, struct err *e)
{
    if (r->files.n >= RANGES_FILES_MAX) {
        (void)close(fd);
        return err_set(e, ERR_BAD_REQUEST, "", "more than the %d %ss allowed in one request",
                       (int)RANGES_FILES_MAX, r->kind);
    }
    if (names_add(&r->files, name, e) != 0) {
        (void)close(fd);
        return -1;
    }
    r->fds[r->files.n - 1] = fd;
    return 0;
}

/* One piece, or as much of it as there is: *done says how much. */
static int read_piece(int fd, uint64_t offset, uint8_t *dst, uint64_t nbytes, uint64_t *done)
{
    ssize_t n;

    *done = 0;
    while (*done < nbytes) {
        n = pread(fd, dst + *done, nbytes - *done, (off_t)(offset + *done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            return 0;
        *done += (uint64_t)n;
    }
    return 0;
}

/* The first tensor from `i` on that holds byte `at` of the packed bucket. */
static uint32_t tensor_at(const struct plan *plan, uint32_t i, uint64_t at)
{
    while (i + 1 < plan->n_tensors && plan->tensors[i].offset + plan->tensors[i].nbytes <= at)
        i++;
    return i;
}

/* Tensors [first, end), which lie one after the other in one file. */
static int fill_run(const struct ranges *r, const struct plan *plan, uint32_t first, uint32_t end,
                    uint8_t *dst, struct progress *p, struct err *e)
{
    uint64_t begin = plan->tensors[first].offset;
    uint64_t nbytes = plan->tensors[end - 1].offset + plan->tensors[end - 1].nbytes - begin;
    uint32_t file = r->at[first].file, i = first;
    uint64_t done, want;
    int rc;

    for (uint64_t at = 0; at < nbytes; at += done) {
        if (progress_check(p, e) != 0)
            return -1;
        i = tensor_at(plan, i, begin + at);
        atomic_store_explicit(&p->tensor, i, memory_order_relaxed);
        want = nbytes - at < SOURCE_PIECE_NBYTES ? nbytes - at : SOURCE_PIECE_NBYTES;
        rc = read_piece(r->fds[file], r->at[first].offset + at, dst + at, want, &done);
        atomic_fetch_add_explicit(&p->nbytes_done, done, memory_order_relaxed);
        if (rc == 0 && done == want)
            continue;
        i = tensor_at(plan, i, begin + at + done);
        if (rc != 0)
            return err_set_errno(
                e, ERR_UNREADABLE, "", errno, "tensor '%.*s': %s '%.*s' cannot be read",
                plan_name_cut(plan->tensors[i].name), plan->tensors[i].name, r->kind,
                plan_text_cut(r->files.items[file], 160), r->files.items[file]);
        return err_set(e, ERR_UNREADABLE, "",
                       "tensor '%.*s': %s '%.*s' shrank to %llu bytes while it was read",
                       plan_name_cut(plan->tensors[i].name), plan->tensors[i].name, r->kind,
                       plan_text_cut(r->files.items[file], 160), r->files.items[file],
                       (unsigned long long)(r->at[first].offset + at + done));
    }
    return 0;
}

/* The end of the run that begins with `first`. Tensors without bytes belong to any run. */
static uint32_t run_end(const struct ranges *r, const struct plan *plan, uint32_t first,
                        uint32_t end)
{
    const struct tensor_spec *t = plan->tensors;
    uint64_t next = r->at[first].offset + t[first].nbytes;
    uint32_t i = first + 1;

    while (i < end &&
           (t[i].nbytes == 0 || (r->at[i].file == r->at[first].file && r->at[i].offset == next))) {
        next += t[i].nbytes;
        i++;
    }
    return i;
}

int ranges_fill(const struct ranges *r, const struct plan *plan, uint32_t first, uint32_t n,
                void *dst, struct progress *p, struct err *e)
{
    uint8_t *out = dst;
    uint32_t last = first + n;

    assert(plan->n_tensors == r->n && n <= r->n && first <= r->n - n);
    while (first < last) {
        uint32_t end = first + 1;
        uint64_t begin = plan->tensors[first].offset;
        if (plan->tensors[first].nbytes > 0) {
            end = run_end(r, plan, first, last);
            if (fill_run(r, plan, first, end, out, p, e) != 0)
                return -1;
        }
        if (end < last)
            out += plan->tensors[end].offset - begin;
        first = end;
    }
    return 0;
}
