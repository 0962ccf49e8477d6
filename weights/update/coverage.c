/* Which tensors of a model spec a tensor list would bring. A tied name counts for its target only
 * if the target itself is not in the tensor list. */
#include "weights/update/coverage.h"

#include "weights/update/update_priv.h"

#include <stdio.h>
#include <stdlib.h>

enum { SEEN_NOT, SEEN_TIED, SEEN_OWN };

static int coverage_mark(const struct model_spec *m, const struct tensor_list *tensor_list,
                         uint32_t i, const struct part *part, unsigned char *seen, struct err *e)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    char field[48];

    if (part->how == PART_TIED && seen[targets[0]] == SEEN_NOT)
        seen[targets[0]] = SEEN_TIED;
    for (uint32_t k = 0; k < n; k++) {
        if (seen[targets[k]] == SEEN_OWN) {
            (void)snprintf(field, sizeof field, "/names/%u", i);
            return err_set(e, ERR_BAD_REQUEST, field, "'%.160s' brings '%.160s' a second time",
                           tensor_list->tensors[i].name, m->tensor_list->tensors[targets[k]].name);
        }
        seen[targets[k]] = SEEN_OWN;
    }
    return 0;
}

int layout_coverage(const struct layout *l, const struct model_spec *m,
                    const struct tensor_list *tensor_list, const char **missing, uint32_t cap,
                    uint32_t *n_missing, struct err *e)
{
    unsigned char *seen = calloc(m->tensor_list->n_tensors, 1);
    uint32_t n = 0;
    int rc = 0;

    if (seen == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to check the tensor list");
    for (uint32_t i = 0; i < tensor_list->n_tensors && rc == 0; i++)
        rc = coverage_mark(m, tensor_list, i, &l->parts[i], seen, e);
    for (uint32_t i = 0; i < m->tensor_list->n_tensors && rc == 0; i++) {
        if (seen[i] != SEEN_NOT)
            continue;
        if (n < cap)
            missing[n] = m->tensor_list->tensors[i].name;
        n++;
    }
    free(seen);
    if (rc == 0)
        *n_missing = n;
    return rc;
}

int tensor_list_coverage(const struct model_spec *m, const struct tensor_list *tensor_list,
                         bool convert, const char **missing, uint32_t cap, uint32_t *n_missing,
                         struct err *e)
{
    struct layout *l;
    int rc;

    if (layout_make(&l, m, tensor_list, convert, e) != 0)
        return -1;
    rc = layout_coverage(l, m, tensor_list, missing, cap, n_missing, e);
    layout_unref(l);
    return rc;
}
