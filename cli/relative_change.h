/* How much the values of a tensor changed between two checkpoints. */
#ifndef BATON_CLI_RELATIVE_CHANGE_H
#define BATON_CLI_RELATIVE_CHANGE_H

#include "memory/dtype.h"

#include <stdint.h>

/* relative_change - the norm of the difference divided by the norm of the old values (root of the
 * sum of squares); infinity if only the old ones are all 0, NaN if a value is not finite.
 * @from, @to      [numel] of their dtypes, unaligned; both convertible to F32 (dtype_convertible)
 * Threads: any. Blocks: no. */
double relative_change(const void *from, enum dtype from_dtype, const void *to, enum dtype to_dtype,
                       uint64_t numel);

#endif
