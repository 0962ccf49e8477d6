/* The checksums that an engine's checker gave of its parameters, in a form that is compared fast.
 * A pure value, but for its count of references. */
#ifndef BATON_FLEET_PROOF_PROOF_SUMS_H
#define BATON_FLEET_PROOF_PROOF_SUMS_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct proof_sum {
    const char *key;  /* the engine's name of the parameter, with its rank if it has several */
    const char *name; /* of the parameter alone: the end of `key` */
    const char *sum;  /* hex digits; "" if it is no text */
    /* By proof_committed_compare; until then false: */
    bool equal; /* the committed tensor of this name has this checksum */
    bool known; /* so it was now or with an earlier version in the same process of the engine */
};

struct proof_sums {
    unsigned n_refs; /* guarded by the control's lock once it is shared */
    size_t n;
    uint64_t hash;          /* of all keys and checksums */
    struct proof_sum *list; /* [n], ascending by key */
    char *text;             /* of all */
};

/* proof_sums_new - of what an engine reported. One reference. NULL: no memory.
 * @from  of api_read_checksums; its text is moved out */
struct proof_sums *proof_sums_new(enum upstream_kind kind, struct buf *from);

/* proof_sums_ref - one more; returns `s`. Both accept NULL. */
struct proof_sums *proof_sums_ref(struct proof_sums *s);
void proof_sums_unref(struct proof_sums *s);

/* proof_sums_find - NULL: it has no such parameter. @s  may be NULL */
const struct proof_sum *proof_sums_find(const struct proof_sums *s, const char *key);

/* proof_sums_distance - how many differ; -1: they are of other parameters. */
double proof_sums_distance(const struct proof_sums *a, const struct proof_sums *b);

#endif
