/* Checks the values of a weight file as a start of the server would. */
#ifndef BATON_WEIGHTS_VALUE_CHECK_H
#define BATON_WEIGHTS_VALUE_CHECK_H

#include "base/err.h"
#include "weights/source.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

struct value_report {
    bool read;             /* false: --non-finite allow */
    uint64_t n_non_finite; /* tensors that have one; 0 unless --non-finite warn */
};

/* value_check - read all tensors of a file and look for values that are not finite.
 * @source      borrowed; fills host memory
 * @non_finite  "refuse", "warn", or "allow" (nothing is read)
 *
 * Threads: main's. Blocks: on the disk; reads every byte.
 * Errors:  ERR_NON_FINITE  a tensor has one and the policy is "refuse"; names the tensor
 *          ERR_UNREADABLE  a file was cut short or changed
 *          ERR_NO_MEMORY   no memory for the largest tensor; *out is untouched */
int value_check(struct source *source, const struct tensor_list *tensor_list,
                const char *non_finite, struct value_report *out, struct err *e);

#endif
