/* What delta_source.c and delta_device.c share: the source, and how its changes come. */
#ifndef BATON_WEIGHTS_DELTA_DELTA_SOURCE_PRIV_H
#define BATON_WEIGHTS_DELTA_DELTA_SOURCE_PRIV_H

#include "base/jobs/parallel.h"
#include "weights/delta/delta_source.h"
#include "weights/delta/pull_priv.h"

struct delta_device;

struct delta_source {
    struct source source;  /* first: a struct source * is a struct delta_source * */
    struct source_ops ops; /* with the name of what brings the changes */
    struct store *store;
    uint64_t base_serial;
    struct source_scope **scope; /* of the update, borrowed; NULL: none */
    const struct version *base;  /* pinned; NULL until the first fill, and for a whole checkpoint */
    struct maker {
        struct delta_merge *merge;  /* owned; NULL until its first tensor */
        struct pull_rooms rooms;    /* of one change of a pull */
    } makers[PARALLEL_THREADS_MAX]; /* each of one thread at a time */

    struct delta_link link;
    struct slab *parts; /* one reference; NULL until they are read, and for a pull */
    uint32_t
        *places; /* owned; [n_tensors]: of the values in what was sent; of a patch of its name */
    struct device *const *devices;
    uint32_t n_devices;
    struct delta_device *device; /* owned; NULL: the tensors are made in host memory */
};

/* delta_source_begin - read the parts of a transfer, and pin the base. Once that was done, nothing.
 * Errors: of the first fill (delta_source.h). */
int delta_source_begin(struct delta_source *d, struct progress *p, struct err *e);

/* delta_part_bytes - a part in d->parts, as it was sent.
 * delta_part_verify - compare a checksum with the one that was sent with part i, if one was.
 * Errors: ERR_CHECKSUM at /checksums/<i>. */
struct delta_bytes delta_part_bytes(const struct delta_source *d, const struct delta_part *part);
int delta_part_verify(const struct delta_source *d, uint32_t i, const struct checksum *sum,
                      struct err *e);

/* delta_device.c: the tensors of a transfer are made on the GPUs that keep them.
 *
 * delta_device_fits - can they be? Else in host memory.
 * delta_device_new - make d, which has its parts' list, a source of the third kind.
 * Errors: ERR_NO_MEMORY.
 * delta_device_keeps - do the parts stay on GPUs, where they arrive? Else they are read into
 * d->parts.
 * delta_device_copy - take them there. Errors: as device_copy_run; ERR_NO_STAGING, ERR_CHECKSUM.
 * delta_device_upload - bring there what is in d->parts, which ends. Errors: those of
 * delta_merge_begin and delta_merge_expand; ERR_NO_STAGING, ERR_CUDA, and of progress. */
bool delta_device_fits(const struct store *s);
int delta_device_new(struct delta_source *d, struct err *e);
void delta_device_free(struct delta_source *d); /* accepts one without */
bool delta_device_keeps(const struct delta_source *d);
int delta_device_copy(struct delta_source *d, struct progress *p, struct err *e);
int delta_device_upload(struct delta_source *d, struct progress *p, struct err *e);

#endif
