/* The trainer's name for a version, with a reference count of its own: a result that reports its
 * version later keeps the name alive, not the weights. */
#ifndef BATON_WEIGHTS_VERSION_LABEL_H
#define BATON_WEIGHTS_VERSION_LABEL_H

#include <stdatomic.h>

enum { VERSION_LABEL_MAX = 256 };

struct version_label {
    atomic_uint refs;                 /* acq_rel: the last holder frees */
    char text[VERSION_LABEL_MAX + 1]; /* immutable once shared */
};

/* version_label_new - an empty one with one reference, the caller's; NULL: no memory. */
struct version_label *version_label_new(void);
struct version_label *version_label_ref(struct version_label *l); /* any thread; no allocation */
void version_label_unref(struct version_label *l);                /* any thread; accepts NULL */

#endif
