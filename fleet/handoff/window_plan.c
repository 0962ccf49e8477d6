#include "fleet/handoff/window_plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENT_NBYTES_MAX = 8 }; /* of any dtype; sizes are powers of two */

int window_nbytes_choose(uint64_t *out, const struct tensor_list *list, uint64_t wanted,
                         struct err *e)
{
    const struct tensor_spec *largest = &list->tensors[0];
    uint64_t nbytes = wanted != 0 ? wanted : WINDOW_NBYTES_DEFAULT;

    for (uint32_t i = 0; i < list->n_tensors; i++) {
        const struct tensor_spec *t = &list->tensors[i];

        if (t->ndim == 0)
            return err_set(e, ERR_BAD_REQUEST, "--stage",
                           "tensor '%.200s' has no dimension, and host sends tensors packed, which "
                           "vLLM cannot take of such a one; give a GPU, as in cuda:0",
                           t->name);
        if (t->nbytes > largest->nbytes)
            largest = t;
    }
    if (wanted != 0 && wanted < largest->nbytes)
        return err_set(e, ERR_BAD_REQUEST, "--stage-window",
                       "%llu bytes are less than tensor '%.200s' has, %llu; give at least so many, "
                       "or leave it out",
                       (unsigned long long)wanted, largest->name,
                       (unsigned long long)largest->nbytes);
    nbytes = nbytes > largest->nbytes ? nbytes : largest->nbytes;
    *out = nbytes < list->nbytes ? nbytes : list->nbytes;
    return 0;
}

void window_plan_fini(struct window_plan *p)
{
    free(p->first);
    free(p->tensors);
}

/* Places tensors [first, end) of the list one behind another, those with larger elements first. */
static void place(struct window_tensor *out, const struct tensor_list *list, uint32_t first,
                  uint32_t end)
{
    uint64_t offset = 0;

    for (uint64_t size = ELEMENT_NBYTES_MAX; size > 0; size /= 2)
        for (uint32_t i = first; i < end; i++) {
            if (dtype_nbytes(list->tensors[i].dtype) != size)
                continue;
            *out++ = (struct window_tensor){i, offset};
            offset += list->tensors[i].nbytes;
        }
}

int window_plan_init(struct window_plan *out, const struct tensor_list *list, uint64_t nbytes,
                     struct err *e)
{
    struct window_plan p = {.first = calloc((size_t)list->n_tensors + 1, sizeof *p.first),
                            .tensors = calloc(list->n_tensors, sizeof *p.tensors)};
    uint32_t i = 0;

    if (p.first == NULL || p.tensors == NULL) {
        window_plan_fini(&p);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to plan the windows");
    }
    while (i < list->n_tensors) {
        uint64_t used = 0;

        for (; i < list->n_tensors && list->tensors[i].nbytes <= nbytes - used; i++)
            used += list->tensors[i].nbytes;
        assert(i > p.first[p.n]);
        place(&p.tensors[p.first[p.n]], list, p.first[p.n], i);
        p.first[++p.n] = i;
    }
    *out = p;
    return 0;
}
