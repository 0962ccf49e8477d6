/* Tensors are read one at a time into the same memory, so that the model need not fit. */
#include "weights/value_check.h"

#include "base/clock.h"
#include "memory/non_finite.h"
#include "weights/update/host_copy.h"

#include <stdlib.h>

struct values {
    const struct tensor_list *tensor_list;
    enum non_finite_policy policy;
    uint64_t n_bad;
    void *room; /* owned; as large as the largest tensor */
};

static void *values_place(void *arg, uint32_t i)
{
    (void)i;
    return ((const struct values *)arg)->room;
}

static int values_arrived(void *arg, uint32_t i, const void *bytes, struct err *e)
{
    struct values *v = arg;
    const struct tensor_spec *t = &v->tensor_list->tensors[i];
    struct non_finite found = {0};

    if (!non_finite_in(bytes, t->nbytes, t->dtype))
        return 0;
    v->n_bad++;
    if (v->policy == NON_FINITE_WARN)
        return 0;
    non_finite_count(&found, bytes, t->nbytes, t->dtype, 0);
    return non_finite_refuse(&found, t->name, t->numel, "", "", e);
}

static uint64_t tensor_nbytes_largest(const struct tensor_list *tensor_list)
{
    uint64_t nbytes = 1;

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        if (tensor_list->tensors[i].nbytes > nbytes)
            nbytes = tensor_list->tensors[i].nbytes;
    return nbytes;
}

static int check_all(struct values *v, struct source *source, struct err *e)
{
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct host_copy copy = {.source = source,
                             .tensor_list = v->tensor_list,
                             .progress = &p,
                             .place = values_place,
                             .arrived = values_arrived,
                             .arg = v};
    int rc;

    v->room = malloc(tensor_nbytes_largest(v->tensor_list));
    if (v->room == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the largest tensor, to look at it");
    atomic_init(&p.tensor, PROGRESS_NO_TENSOR);
    rc = host_copy_run(&copy, e);
    free(v->room);
    return rc;
}

int value_check(struct source *source, const struct tensor_list *tensor_list,
                const char *non_finite, struct value_report *out, struct err *e)
{
    struct values v = {.tensor_list = tensor_list, .policy = NON_FINITE_REFUSE};

    (void)non_finite_policy_parse(&v.policy, non_finite); /* the option was validated */
    if (v.policy != NON_FINITE_ALLOW && check_all(&v, source, e) != 0)
        return -1;
    *out = (struct value_report){.read = v.policy != NON_FINITE_ALLOW, .n_non_finite = v.n_bad};
    return 0;
}
