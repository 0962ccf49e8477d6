/* Numbers that are not finite (NaN, infinity) in the bytes of a tensor, and what is done about
 * them.
 *
 * They are looked for where bytes come to host memory, while these are in a cache. */
#ifndef BATON_MEMORY_NON_FINITE_H
#define BATON_MEMORY_NON_FINITE_H

#include "base/err.h"
#include "memory/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* --non-finite: refuse the tensor by its name; take it and say so; do not look. */
enum non_finite_policy { NON_FINITE_REFUSE, NON_FINITE_WARN, NON_FINITE_ALLOW };

/* non_finite_policy_parse - "refuse", "warn", "allow". Returns false for anything else. */
bool non_finite_policy_parse(enum non_finite_policy *out, const char *text);

/* The elements of a dtype that are not finite, in 8 bytes of them at once: where adding `step` to
 * the bits of `mask` carries into the top bit of an element, and that bit is set in `keep` or in
 * the element itself. All 0 for what is always finite: integers and bool. */
struct non_finite_bits {
    uint64_t mask, step, top, keep;
};
struct non_finite_bits non_finite_bits(enum dtype d);

/* non_finite_in - is there one? At the speed of a cache.
 * @data  unaligned; begins with an element. One that is cut off at the end does not count (of a
 *        complex one a part that is there does). */
bool non_finite_in(const void *data, uint64_t nbytes, enum dtype d);

/* What there is, for a message. */
struct non_finite {
    uint64_t n, first;              /* how many elements; the index of the first */
    bool first_nan, first_negative; /* NaN, or an infinity of that sign */
};

/* non_finite_count - adds what the elements of a piece are. Slow: element by element.
 * @out    zeroed before the first piece
 * @index  of the piece's first element; data and nbytes as above */
void non_finite_count(struct non_finite *out, const void *data, uint64_t nbytes, enum dtype d,
                      uint64_t index);

/* non_finite_what - "NaN", "infinity", "-infinity": the first. */
const char *non_finite_what(const struct non_finite *found);

/* non_finite_refuse - fill `e` (ERR_NON_FINITE): which tensor, what there is of it, what can be
 * done.
 * @numel  of the tensor
 * @of     "" or what it is part of, as " of 'step-100'"
 * Returns: -1. */
int non_finite_refuse(const struct non_finite *found, const char *name, uint64_t numel,
                      const char *of, const char *field, struct err *e);

#endif
