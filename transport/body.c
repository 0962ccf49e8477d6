/* Weights from the request body.
 *
 * A range of tensors is read as the one run of bytes that it is, in pieces that bound how long a
 * stop goes unnoticed: the cost is by byte, not by tensor. */
#include "transport/body.h"

#include "base/clock.h"

#include <stdlib.h>

enum { END_POLL_US = 50000 };

struct body_source {
    struct source base; /* first: freed through it */
    struct exchange *x; /* borrowed */
    uint64_t stall_us;
    uint64_t taken_before; /* bytes of the body that readers had before us */
    uint64_t nbytes_read;  /* by finished reads */
};

static bool stop_asked(void *arg)
{
    const struct progress *p = arg;

    return atomic_load_explicit(&p->stop, memory_order_relaxed);
}

/* The tensor that holds byte `at` of the range that starts with tensor `first`. */
static uint32_t tensor_at(const struct plan *plan, uint32_t first, uint32_t n, uint64_t at)
{
    uint32_t i = first;

    while (i + 1 < first + n && at >= plan->tensors[i].nbytes) {
        at -= plan->tensors[i].nbytes;
        i++;
    }
    return i;
}

/* Says again what went wrong, with the tensor that the bytes ran out in. */
static int name_tensor(const struct plan *plan, uint32_t i, const struct err *cause, struct err *e)
{
    return err_set(e, cause->code, cause->field, "tensor '%s': %s", plan->tensors[i].name,
                   cause->msg);
}

static int body_fill(struct source *s, const struct plan *plan, uint32_t first, uint32_t n,
                     void *dst, struct progress *p, struct err *e)
{
    struct body_source *b = (struct body_source *)(void *)s;
    uint64_t nbytes = 0, tensor_end = plan->tensors[first].nbytes;
    uint32_t tensor = first;
    struct err cause = {0};

    for (uint32_t i = first; i < first + n; i++)
        nbytes += plan->tensors[i].nbytes;
    for (uint64_t done = 0, piece; done < nbytes; done += piece) {
        for (; tensor + 1 < first + n && done >= tensor_end;)
            tensor_end += plan->tensors[++tensor].nbytes;
        atomic_store_explicit(&p->tensor, tensor, memory_order_relaxed);
        if (progress_check(p, e) != 0)
            return -1;
        piece = nbytes - done < SOURCE_PIECE_NBYTES ? nbytes - done : SOURCE_PIECE_NBYTES;
        if (exchange_body_read(b->x, (char *)dst + done, piece, b->stall_us, p->deadline_us,
                               stop_asked, p, &cause) != 0) {
            if (progress_check(p, e) != 0) /* stopped or late: that is the reason to tell */
                return -1;
            done = exchange_body_taken(b->x) - b->taken_before - (b->nbytes_read - done);
            return name_tensor(plan, tensor_at(plan, first, n, done), &cause, e);
        }
        b->nbytes_read += piece;
        (void)atomic_fetch_add_explicit(&p->nbytes_done, piece, memory_order_relaxed);
    }
    return 0;
}

/* In short waits, because the exchange polls no stop while it waits for the end. */
static int body_finish(struct source *s, struct progress *p, struct err *e)
{
    struct body_source *b = (struct body_source *)(void *)s;
    uint64_t stalled = clock_after_us(b->stall_us);
    int rc;

    for (;;) {
        if (progress_check(p, e) != 0)
            return -1;
        rc = exchange_body_end(b->x, END_POLL_US, p->deadline_us, e);
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

int body_source_new(struct source **out, struct exchange *x, uint64_t stall_us, struct err *e)
{
    struct body_source *b = calloc(1, sizeof *b);

    if (b == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a body source");
    b->base.ops = &body_ops;
    b->x = x;
    b->stall_us = stall_us;
    b->taken_before = exchange_body_taken(x);
    *out = &b->base;
    return 0;
}
