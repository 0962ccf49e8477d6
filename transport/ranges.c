/* Reads in pieces, so that a stop, a deadline or a truncated file is noticed between them. */
#include "transport/ranges.h"

#include "base/jobs/parallel.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
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

enum err_code ranges_open_code(int errnum)
{
    switch (errnum) {
    case ENOENT:
        return ERR_NOT_FOUND;
    case EMFILE:
    case ENFILE:
        return ERR_OVERLOADED;
    default:
        return ERR_UNREADABLE;
    }
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

/* Reads one piece, or as much of it as exists; *done receives the number of bytes. */
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

/* The tensor of [first, end) that holds byte `at` of the packed bucket; those before it end at or
 * before that byte. */
static uint32_t tensor_at(const struct tensor_list *tensor_list, uint32_t first, uint32_t end,
                          uint64_t at)
{
    while (first + 1 < end) {
        uint32_t middle = first + (end - first) / 2;

        if (tensor_list->tensors[middle - 1].offset + tensor_list->tensors[middle - 1].nbytes <= at)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* A run that is being read, piece by piece. */
struct run {
    const struct ranges *r;
    const struct tensor_list *tensor_list;
    uint32_t first, end;    /* tensors */
    uint64_t begin, nbytes; /* of the packed bucket */
    uint8_t *dst;
    struct progress *p;
};

/* Makes the error for a read that ended `done` bytes into the piece at `at`. */
static void run_explain(const struct run *run, uint64_t at, uint64_t done, int errnum,
                        struct err *e)
{
    const struct ranges *r = run->r;
    uint32_t file = r->at[run->first].file;
    const struct tensor_spec *t = &run->tensor_list->tensors[tensor_at(
        run->tensor_list, run->first, run->end, run->begin + at + done)];
    const char *name = r->files.items[file];

    if (errnum != 0)
        (void)err_set_errno(e, ERR_UNREADABLE, "", errnum,
                            "tensor '%.*s': %s '%.*s' cannot be read", utf8_cut_name(t->name),
                            t->name, r->kind, utf8_cut(name, 160), name);
    else
        (void)err_set(e, ERR_UNREADABLE, "",
                      "tensor '%.*s': %s '%.*s' shrank to %llu bytes while it was read",
                      utf8_cut_name(t->name), t->name, r->kind, utf8_cut(name, 160), name,
                      (unsigned long long)(r->at[run->first].offset + at + done));
}

/* As read_piece, and reports the bytes as they are read. */
static int read_reporting(const struct run *run, uint64_t at, uint64_t nbytes, uint64_t *done)
{
    const struct range *from = &run->r->at[run->first];
    uint64_t most = run->p->came != NULL ? SOURCE_REPORT_NBYTES : nbytes, want, n;
    int rc = 0;

    *done = 0;
    do {
        want = nbytes - *done < most ? nbytes - *done : most;
        rc = read_piece(run->r->fds[from->file], from->offset + at + *done, run->dst + at + *done,
                        want, &n);
        progress_came(run->p, run->dst + at + *done, n);
        *done += n;
    } while (rc == 0 && n == want && *done < nbytes);
    return rc;
}

static int run_piece(void *arg, unsigned thread, uint64_t i, struct err *e)
{
    const struct run *run = arg;
    uint64_t at = i * SOURCE_PIECE_NBYTES, left = run->nbytes - at, done;
    uint64_t want = left < SOURCE_PIECE_NBYTES ? left : SOURCE_PIECE_NBYTES;
    int rc;

    (void)thread;
    if (progress_check(run->p, e) != 0)
        return -1;
    atomic_store_explicit(&run->p->tensor,
                          tensor_at(run->tensor_list, run->first, run->end, run->begin + at),
                          memory_order_relaxed);
    rc = read_reporting(run, at, want, &done);
    atomic_fetch_add_explicit(&run->p->nbytes_done, done, memory_order_relaxed);
    if (rc == 0 && done == want)
        return 0;
    run_explain(run, at, done, rc != 0 ? errno : 0, e);
    return -1;
}

/* Reads tensors [first, end), which are adjacent in one file. */
static int ranges_fill_run(const struct ranges *r, const struct tensor_list *tensor_list,
                           uint32_t first, uint32_t end, uint8_t *dst, struct progress *p,
                           struct err *e)
{
    const struct tensor_spec *last = &tensor_list->tensors[end - 1];
    struct run run = {
        .r = r, .tensor_list = tensor_list, .first = first, .end = end, .dst = dst, .p = p};

    run.begin = tensor_list->tensors[first].offset;
    run.nbytes = last->offset + last->nbytes - run.begin;
    return parallel_run(run_piece, &run,
                        (run.nbytes + SOURCE_PIECE_NBYTES - 1) / SOURCE_PIECE_NBYTES, run.nbytes,
                        "reader", e);
}

/* The end of the run that begins with `first`. Tensors without bytes belong to any run. */
static uint32_t run_end(const struct ranges *r, const struct tensor_list *tensor_list,
                        uint32_t first, uint32_t end)
{
    const struct tensor_spec *t = tensor_list->tensors;
    uint64_t next = r->at[first].offset + t[first].nbytes;
    uint32_t i = first + 1;

    while (i < end &&
           (t[i].nbytes == 0 || (r->at[i].file == r->at[first].file && r->at[i].offset == next))) {
        next += t[i].nbytes;
        i++;
    }
    return i;
}

int ranges_fill(const struct ranges *r, const struct tensor_list *tensor_list, uint32_t first,
                uint32_t n, void *dst, struct progress *p, struct err *e)
{
    uint8_t *out = dst;
    uint32_t last = first + n;

    assert(tensor_list->n_tensors == r->n && n <= r->n && first <= r->n - n);
    while (first < last) {
        uint32_t end = first + 1;
        uint64_t begin = tensor_list->tensors[first].offset;
        if (tensor_list->tensors[first].nbytes > 0) {
            end = run_end(r, tensor_list, first, last);
            if (ranges_fill_run(r, tensor_list, first, end, out, p, e) != 0)
                return -1;
        }
        if (end < last)
            out += tensor_list->tensors[end].offset - begin;
        first = end;
    }
    return 0;
}
