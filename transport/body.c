/* Weights from the request body.
 *
 * A range of tensors is read as one run of bytes, in pieces, so that a stop is noticed soon: the
 * cost depends on bytes, not on the number of tensors. */
#include "transport/body.h"

#include "base/clock.h"

#include <stdlib.h>

enum { END_POLL_US = 50000 };

struct body_source {
    struct source base;     /* first: freed through it */
    struct http_request *x; /* borrowed */
    uint64_t stall_us;
    uint64_t taken_before; /* bytes of the body that were read before */
    uint64_t nbytes_told;  /* already added to the progress */
};

/* One fill of the tensors before `end`, and its position. */
struct body_run {
    struct body_source *b;
    const struct tensor_list *tensor_list;
    struct progress *p;
    uint32_t tensor, end; /* the tensor of the next byte */
    uint64_t tensor_end;  /* in bytes of the body's tensors */
};

/* Reports progress, also within a piece, so that a slow sender is not taken for a dead one. */
static void run_report(struct body_run *run)
{
    struct body_source *b = run->b;
    uint64_t taken = http_request_body_taken(b->x) - b->taken_before;

    while (run->tensor + 1 < run->end && taken >= run->tensor_end)
        run->tensor_end += run->tensor_list->tensors[++run->tensor].nbytes;
    atomic_store_explicit(&run->p->tensor, run->tensor, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&run->p->nbytes_done, taken - b->nbytes_told,
                                    memory_order_relaxed);
    b->nbytes_told = taken;
}

/* Called by the waiting read at least every 100 ms. */
static bool stop_asked(void *arg)
{
    struct body_run *run = arg;

    run_report(run);
    return atomic_load_explicit(&run->p->stop, memory_order_relaxed);
}

/* Repeats the error with the name of the tensor at which the bytes ended. */
static int name_tensor(const struct body_run *run, const struct err *cause, struct err *e)
{
    return err_set(e, cause->code, cause->field, "tensor '%s': %s",
                   run->tensor_list->tensors[run->tensor].name, cause->msg);
}

static int body_fill(struct source *s, const struct tensor_list *tensor_list, uint32_t first,
                     uint32_t n, void *dst, struct progress *p, struct err *e)
{
    struct body_source *b = (struct body_source *)(void *)s;
    uint64_t first_end = b->nbytes_told + tensor_list->tensors[first].nbytes;
    struct body_run run = {b, tensor_list, p, first, first + n, first_end};
    struct err cause = {0};
    uint64_t nbytes = 0;

    for (uint32_t i = first; i < first + n; i++)
        nbytes += tensor_list->tensors[i].nbytes;
    for (uint64_t done = 0, piece; done < nbytes; done += piece) {
        if (progress_check(p, e) != 0)
            return -1;
        piece = nbytes - done < SOURCE_PIECE_NBYTES ? nbytes - done : SOURCE_PIECE_NBYTES;
        run_report(&run);
        if (http_request_body_read(b->x, (char *)dst + done, piece, b->stall_us, p->deadline_us,
                                   stop_asked, &run, &cause) != 0) {
            run_report(&run);
            if (progress_check(p, e) != 0) /* stopped or late: that is the reason to report */
                return -1;
            return name_tensor(&run, &cause, e);
        }
        progress_came(p, (char *)dst + done, piece);
    }
    run_report(&run);
    return 0;
}

/* Waits in short steps, because the request does not check for a stop while it waits for the
 * body's end. */
static int body_finish(struct source *s, struct progress *p, struct err *e)
{
    struct body_source *b = (struct body_source *)(void *)s;
    uint64_t stalled = clock_after_us(b->stall_us);
    int rc;

    for (;;) {
        if (progress_check(p, e) != 0)
            return -1;
        rc = http_request_body_end(b->x, END_POLL_US, p->deadline_us, e);
        if (rc == 0 || e->code != ERR_TIMEOUT)
            return rc;
        err_clear(e);
        if (clock_passed(stalled))
            return err_set(e, ERR_TIMEOUT, "",
                           "the body did not end within %llu ms of its last byte",
                           (unsigned long long)(b->stall_us / 1000));
    }
}

static void body_close(struct source *s)
{
    free(s);
}

static const struct source_ops body_ops = {
    .name = "body",
    .fill = body_fill,
    .finish = body_finish,
    .close = body_close,
};

int body_source_new(struct source **out, struct http_request *x, uint64_t stall_us, struct err *e)
{
    struct body_source *b = calloc(1, sizeof *b);

    if (b == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a body source");
    b->base.ops = &body_ops;
    b->x = x;
    b->stall_us = stall_us;
    b->taken_before = http_request_body_taken(x);
    *out = &b->base;
    return 0;
}
