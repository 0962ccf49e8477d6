/* Finding numbers that are not finite (NaN, infinity) in the bytes of a tensor, and the policy for
 * them.
 *
 * The check runs where bytes are written to host memory, while they are in a cache. */
#ifndef BATON_MEMORY_NON_FINITE_H
#define BATON_MEMORY_NON_FINITE_H

#include "base/err.h"
#include "memory/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* --non-finite: refuse the tensor and name it; accept it and log a warning; do not check. */
enum non_finite_policy { NON_FINITE_REFUSE, NON_FINITE_WARN, NON_FINITE_ALLOW };

/* non_finite_policy_parse - "refuse", "warn", "allow". Returns false for anything else. */
bool non_finite_policy_parse(enum non_finite_policy *out, const char *text);

/* The test for elements of a dtype that are not finite, on 8 bytes at once: adding `step` to the
 * bits of `mask` carries into the top bit of such an element, and that bit is set in `keep` or in
 * the element itself. All 0 for dtypes that are always finite: integers and bool. */
struct non_finite_bits {
    uint64_t mask, step, top, keep;
};
struct non_finite_bits non_finite_bits(enum dtype d);

/* non_finite_in - is any element not finite? Runs at the speed of a cache.
 * @data  may be unaligned; begins with an element. An element that is cut off at the end is
 *        ignored (of a complex one, a part that is complete is checked). */
bool non_finite_in(const void *data, uint64_t nbytes, enum dtype d);

/* The elements found, for a message. */
struct non_finite {
    uint64_t n, first;              /* how many elements; the index of the first */
    bool first_nan, first_negative; /* NaN, or an infinity of that sign */
};

/* non_finite_count - add the elements of a piece to `out`. Slow: element by element.
 * @out    zeroed before the first piece
 * @index  of the piece's first element; data and nbytes as above */
void non_finite_count(struct non_finite *out, const void *data, uint64_t nbytes, enum dtype d,
                      uint64_t index);

/* non_finite_what - "NaN", "infinity" or "-infinity", for the first element found. */
const char *non_finite_what(const struct non_finite *found);

/* non_finite_refuse - fill `e` (ERR_NON_FINITE): the tensor, what was found in it, what to do next.
 * @numel  of the tensor
 * @of     "" or the set it belongs to, as " of 'step-100'"
 * Returns: -1. */
int non_finite_refuse(const struct non_finite *found, const char *name, uint64_t numel,
                      const char *of, const char *field, struct err *e);

#endif
