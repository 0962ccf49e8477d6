#include "fleet/handoff/window_plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENT_NBYTES_MAX = 8 }; /* of any dtype; sizes are powers of two */

/* groups */

struct group {
    const char *name; /* borrowed; of its first tensor, of which the first `len` bytes are common */
    size_t len;
    uint32_t first; /* of its tensors, in the list */
    uint32_t index; /* of this tensor */
};

/* The length of a name without its last two components. */
static size_t group_len(const char *name)
{
    size_t len = strlen(name);

    for (unsigned n_dots = 0; n_dots < 2 && len > 0;)
        n_dots += name[--len] == '.';
    return len;
}

static int by_name(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    size_t len = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->name, y->name, len);

    if (order == 0)
        order = (x->len > y->len) - (x->len < y->len);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

static int by_first(const void *a, const void *b)
{
    const struct group *x = a, *y = b;

    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->index > y->index) - (x->index < y->index);
}

/* Each tensor with its group: groups in the order of their first tensors, and in each its tensors
 * in list order. New, free(); NULL: no memory. */
static struct group *sort_groups(const struct tensor_list *list, struct err *e)
{
    uint32_t n = list->n_tensors;
    struct group *all = calloc(n, sizeof *all);

    if (all == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to plan the windows");
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *name = list->tensors[i].name;

        all[i] = (struct group){name, group_len(name), i, i};
    }
    qsort(all, n, sizeof *all, by_name);
    for (uint32_t i = 1; i < n; i++)
        if (all[i].len == all[i - 1].len && memcmp(all[i].name, all[i - 1].name, all[i].len) == 0)
            all[i].first = all[i - 1].first;
    qsort(all, n, sizeof *all, by_first);
    return all;
}

/* The end of the group that begins at `i`. @nbytes  set to what its tensors have */
static uint32_t group_end(const struct group *all, const struct tensor_list *list, uint32_t i,
                          uint64_t *nbytes)
{
    uint32_t first = all[i].first;

    *nbytes = 0;
    for (; i < list->n_tensors && all[i].first == first; i++)
        *nbytes += list->tensors[all[i].index].nbytes;
    return i;
}

int window_nbytes_choose(uint64_t *out, const struct tensor_list *list, uint64_t wanted,
                         struct err *e)
{
    uint64_t nbytes = wanted != 0 ? wanted : WINDOW_NBYTES_DEFAULT, largest = 0, n = 0;
    const struct tensor_spec *first = &list->tensors[0]; /* of the largest group */
    struct group *all;

    for (uint32_t i = 0; i < list->n_tensors; i++)
        if (list->tensors[i].ndim == 0)
            return err_set(e, ERR_BAD_REQUEST, "--stage",
                           "tensor '%.200s' has no dimension, and host sends tensors packed, which "
                           "vLLM cannot take of such a one; give a GPU, as in cuda:0",
                           list->tensors[i].name);
    all = sort_groups(list, e);
    if (all == NULL)
        return -1;
    for (uint32_t i = 0, end; i < list->n_tensors; i = end) {
        end = group_end(all, list, i, &n);
        if (n > largest)
            first = &list->tensors[all[i].index];
        largest = n > largest ? n : largest;
    }
    free(all);
    if (wanted != 0 && wanted < largest)
        return err_set(e, ERR_BAD_REQUEST, "--stage-window",
                       "%llu bytes are less than tensors that are sent together have, %llu from "
                       "'%.200s' on; give at least so many, or leave it out",
                       (unsigned long long)wanted, (unsigned long long)largest, first->name);
    nbytes = nbytes > largest ? nbytes : largest;
    *out = nbytes < list->nbytes ? nbytes : list->nbytes;
    return 0;
}

/* the plan */

void window_plan_fini(struct window_plan *p)
{
    free(p->first);
    free(p->tensors);
}

/* Places n tensors one behind another, those with larger elements first. */
static void place(struct torch_place *out, const struct tensor_list *list,
                  const struct group *tensors, uint32_t n)
{
    uint64_t offset = 0;

    for (uint64_t size = ELEMENT_NBYTES_MAX; size > 0; size /= 2)
        for (uint32_t i = 0; i < n; i++) {
            const struct tensor_spec *t = &list->tensors[tensors[i].index];

            if (dtype_nbytes(t->dtype) != size)
                continue;
            *out++ = (struct torch_place){t, 0, offset};
            offset += t->nbytes;
        }
}

static void fill_windows(struct window_plan *p, const struct tensor_list *list,
                         const struct group *all, uint64_t nbytes)
{
    for (uint32_t i = 0, end; i < list->n_tensors;) {
        uint64_t used = 0, n = 0;

        while (i < list->n_tensors) {
            end = group_end(all, list, i, &n);
            if (n > nbytes - used)
                break;
            used += n;
            i = end;
        }
        assert(i > p->first[p->n]);
        place(&p->tensors[p->first[p->n]], list, &all[p->first[p->n]], i - p->first[p->n]);
        p->first[++p->n] = i;
    }
}

int window_plan_init(struct window_plan *out, const struct tensor_list *list, uint64_t nbytes,
                     struct err *e)
{
    struct window_plan p = {.first = calloc((size_t)list->n_tensors + 1, sizeof *p.first),
                            .tensors = calloc(list->n_tensors, sizeof *p.tensors)};
    struct group *all = sort_groups(list, e);

    if (p.first == NULL || p.tensors == NULL || all == NULL) {
        window_plan_fini(&p);
        free(all);
        err_clear(e);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to plan the windows");
    }
    fill_windows(&p, list, all, nbytes);
    free(all);
    *out = p;
    return 0;
}
