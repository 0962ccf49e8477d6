/* Which tensors of a manifest a plan would bring. A tied name counts for its target only when the
 * target itself is not in the plan. */
#include "weights/coverage.h"

#include <stdio.h>
#include <stdlib.h>

enum { SEEN_NOT, SEEN_TIED, SEEN_OWN };

static int mark(const struct manifest *m, const struct plan *plan, uint32_t i, bool convert,
                unsigned char *seen, struct err *e)
{
    struct manifest_match match;
    const char *name = plan->tensors[i].name;
    char field[48];

    if (manifest_match(m, &plan->tensors[i], convert, i, &match, e) != 0)
        return -1;
    if (match.alias != NULL && match.alias->kind == ALIAS_IGNORED)
        return 0;
    if (match.alias != NULL && match.alias->kind == ALIAS_TIED) {
        if (seen[match.alias->targets[0]] == SEEN_NOT)
            seen[match.alias->targets[0]] = SEEN_TIED;
        return 0;
    }
    for (uint32_t k = 0; k < (match.alias != NULL ? match.alias->n_targets : 1); k++) {
        uint32_t index = match.alias != NULL ? match.alias->targets[k] : match.index;

        if (seen[index] == SEEN_OWN) {
            (void)snprintf(field, sizeof field, "/names/%u", i);
            return err_set(e, ERR_BAD_REQUEST, field, "'%.160s' brings '%.160s' a second time",
                           name, m->plan->tensors[index].name);
        }
        seen[index] = SEEN_OWN;
    }
    return 0;
}

int plan_coverage(const struct manifest *m, const struct plan *plan, bool convert,
                  const char **missing, uint32_t cap, uint32_t *n_missing, struct err *e)
{
    unsigned char *seen = calloc(m->plan->n_tensors, 1);
    uint32_t n = 0;
    int rc = 0;

    if (seen == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to check the plan");
    for (uint32_t i = 0; i < plan->n_tensors && rc == 0; i++)
        rc = mark(m, plan, i, convert, seen, e);
    for (uint32_t i = 0; i < m->plan->n_tensors && rc == 0; i++) {
        if (seen[i] != SEEN_NOT)
            continue;
        if (n < cap)
            missing[n] = m->plan->tensors[i].name;
        n++;
    }
    free(seen);
    if (rc == 0)
        *n_missing = n;
    return rc;
}
