/* What a commit changed: each tensor compared with the version before, by its checksum, and with
 * the other tensors of both versions. Pure: it reads no weights.
 *
 * Converters of trainers cache what they made of a tensor. A fault there sends right shapes under
 * right names with wrong bytes: those of the last step, or those of another tensor. */
#ifndef BATON_WEIGHTS_UPDATE_CHANGES_H
#define BATON_WEIGHTS_UPDATE_CHANGES_H

#include "base/err.h"
#include "memory/checksum.h"
#include "weights/tensor_list.h"
#include "weights/version_label.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    /* Smaller tensors (scales, counters) are equal to others by chance: they are never reported as
       equal to another. */
    CHANGES_TINY_NBYTES = 64,
    /* A step of training changes some element of a larger tensor, unless it is frozen. A smaller
       one, as a norm in bfloat16, stays as it is for thousands of steps at a learning rate of 1e-6:
       a warning of it would be wrong far more often than right. */
    CHANGES_LARGE_NUMEL = 65536,
    /* Large tensors that stay are a few if they are fewer than this share of those that might have
       changed: them and those that did. */
    CHANGES_FEW_PERCENT = 50
};

/* The bytes of a tensor of a version. */
struct digest {
    struct checksum sum;
    bool known;
    bool sent;      /* by the update that made the version */
    bool unchanged; /* in the last update that changed some of the tensors which it sent */
};

enum change {
    CHANGE_NOT_SENT,     /* by a partial update: it kept its bytes */
    CHANGE_NOT_COMPARED, /* there is no checksum of the bytes now or before */
    CHANGE_UNCHANGED,
    CHANGE_CHANGED,
    CHANGE_COUNT
};
const char *change_name(enum change change); /* "not_sent", … */

enum change_warning {
    /* No tensor of an update changed, and its version has another label than the one before. */
    CHANGE_WARN_NOTHING,
    /* A few large tensors did not change while others did, and they did change in the update before
       (or are compared for the first time). */
    CHANGE_WARN_FEW,
    /* A tensor has the bytes that another one has, or had in the version before, and it did not
       have them then. */
    CHANGE_WARN_EQUAL,
    CHANGE_WARNING_COUNT
};
const char *change_warning_name(enum change_warning warning); /* "nothing_changed", … */

struct change_counts {
    bool known; /* there was a version before; if not, nothing below is set */
    uint64_t before_serial;
    char before_label[VERSION_LABEL_MAX + 1];
    uint32_t n[CHANGE_COUNT];    /* tensors, by change */
    uint32_t n_newly_unchanged;  /* large ones of CHANGE_UNCHANGED that were not so before */
    uint32_t n_equal_to_another; /* of CHANGE_CHANGED */
    bool repeated;               /* nothing changed, and the label is that of the version before */
    bool warnings[CHANGE_WARNING_COUNT];
};

struct tensor_change {
    uint8_t change; /* enum change */
    bool newly_unchanged;
    bool other_before; /* `other` had the bytes in the version before; false: it has them now */
    uint32_t other;    /* whose bytes it has; TENSOR_LIST_NO_TENSOR: of no other tensor */
};

/* Immutable once made, but for `refs`. */
struct change_report {
    uint64_t serial;
    char label[VERSION_LABEL_MAX + 1];
    struct change_counts counts;
    uint32_t refs; /* guarded by the updates' lock */
    uint32_t n_tensors;
    struct tensor_change tensors[]; /* of the model spec */
};

/* change_report_make - compare two versions.
 * @before  [n_tensors], and its serial and label
 * @now     [n_tensors]; `unchanged` is set here. Of a tensor that was not sent the rest is that of
 *          `before`
 * @label   of the version now; "": it gets one of its own
 * @out     one reference; its serial and label are the caller's to set. Free it with free()
 * Threads: any. Errors: ERR_NO_MEMORY: `now` is as it was. */
struct change_before {
    const struct digest *digests;
    uint64_t serial;
    const char *label;
};
int change_report_make(struct change_report **out, const struct tensor_list *tensor_list,
                       const struct change_before *before, struct digest *now, const char *label,
                       struct err *e);

/* checksum_is_constant - do all 32-bit words of `nbytes` bytes with this checksum have one value?
 * So it is for zeros and ones of every dtype of up to four bytes. */
bool checksum_is_constant(const struct checksum *sum, uint64_t nbytes);

#endif
