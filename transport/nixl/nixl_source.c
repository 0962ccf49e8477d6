/* The stream of the plan in windows: while the child reads the next one, this thread copies the one
 * before it. Nothing that the update proves, or that is served, is in a window. */
#include "transport/nixl/nixl_source.h"

#include "base/utf8.h"
#include "transport/nixl/nixl_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nixl_source {
    struct source source; /* first */
    struct nixl *nixl;    /* borrowed */
    struct nixl_plan *plan;
    struct nixl_agent *agents;
    uint32_t n_agents;
    bool begun, well;          /* it has the reader; all bytes have come and are right */
    uint64_t n_landed;         /* windows that have come */
    struct nixl_slice *slices; /* of the window that is being read */
    uint32_t n_slices;
};

void nixl_agents_free(struct nixl_agent *agents, uint32_t count)
{
    for (uint32_t i = 0; agents != NULL && i < count; i++) {
        free(agents[i].name);
        free(agents[i].metadata);
    }
    free(agents);
}

/* Has window k of the stream read, if there is one. */
static int request_window(struct nixl_source *s, uint64_t k, struct progress *p, struct err *e)
{
    uint64_t from = k * NIXL_WINDOW_NBYTES, to = from + NIXL_WINDOW_NBYTES;
    uint64_t nbytes = nixl_plan_nbytes(s->plan);

    free(s->slices);
    s->slices = NULL;
    if (from >= nbytes)
        return 0;
    if (nixl_plan_slices(s->plan, from, to < nbytes ? to : nbytes, &s->slices, &s->n_slices, e) !=
        0)
        return -1;
    return nixl_read(s->nixl, (uint32_t)(k % NIXL_WINDOWS), s->slices, s->n_slices, p, e);
}

/* Names the tensor that the read was about. */
static int name_slice(const struct nixl_source *s, const struct tensor_list *list, uint32_t slice,
                      const struct err *cause, struct err *e)
{
    const char *name = slice < s->n_slices ? list->tensors[s->slices[slice].tensor].name : "";

    return err_set(e, cause->code, "", "tensor '%.*s': %s", utf8_cut_name(name), name, cause->msg);
}

/* Waits for window k, the next one, and has the one after it read. */
static int land_window(struct nixl_source *s, const struct tensor_list *list, uint64_t k,
                       struct progress *p, struct err *e)
{
    struct err cause = {0};
    uint32_t slice;

    if (!s->begun && nixl_begin(s->nixl, s->agents, s->n_agents, p, e) != 0)
        return -1;
    if (!s->begun) {
        s->begun = true;
        if (request_window(s, 0, p, e) != 0)
            return -1;
    }
    if (nixl_wait(s->nixl, p, &slice, &cause) != 0)
        return name_slice(s, list, slice, &cause, e);
    s->n_landed = k + 1;
    return request_window(s, k + 1, p, e);
}

static int nixl_fill(struct source *source, const struct tensor_list *list, uint32_t first,
                     uint32_t n, void *dst, struct progress *p, struct err *e)
{
    struct nixl_source *s = (struct nixl_source *)source;
    const struct tensor_spec *last = &list->tensors[first + n - 1];
    uint64_t begin = list->tensors[first].offset, end = last->offset + last->nbytes;

    for (uint64_t at = begin, to; at < end; at = to) {
        uint64_t k = at / NIXL_WINDOW_NBYTES, in = at % NIXL_WINDOW_NBYTES;

        to = (k + 1) * NIXL_WINDOW_NBYTES < end ? (k + 1) * NIXL_WINDOW_NBYTES : end;
        while (k >= s->n_landed)
            if (land_window(s, list, s->n_landed, p, e) != 0)
                return -1;
        if (progress_check(p, e) != 0)
            return -1;
        nixl_plan_copy(s->plan, at, to, nixl_window(s->nixl, (uint32_t)(k % NIXL_WINDOWS)) + in,
                       dst, begin, p);
    }
    return 0;
}

/* Called when every tensor has been compared with its checksum. */
static int nixl_finish(struct source *source, struct progress *p, struct err *e)
{
    (void)p;
    (void)e;
    ((struct nixl_source *)source)->well = true;
    return 0;
}

static void nixl_source_close(struct source *source)
{
    struct nixl_source *s = (struct nixl_source *)source;

    if (s == NULL)
        return;
    if (s->begun)
        nixl_end(s->nixl, s->well);
    nixl_plan_free(s->plan);
    nixl_agents_free(s->agents, s->n_agents);
    free(s->slices);
    free(s);
}

static const struct source_ops nixl_ops = {
    .name = "nixl",
    .fill = nixl_fill,
    .finish = nixl_finish,
    .close = nixl_source_close,
};

int nixl_source_new(struct source **out, struct nixl *n, struct nixl_plan *plan,
                    struct nixl_agent *agents, uint32_t count, struct err *e)
{
    struct nixl_source *s = calloc(1, sizeof *s);

    if (s == NULL) {
        nixl_plan_free(plan);
        nixl_agents_free(agents, count);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a source");
    }
    *s = (struct nixl_source){
        .source = {&nixl_ops}, .nixl = n, .plan = plan, .agents = agents, .n_agents = count};
    *out = &s->source;
    return 0;
}
