/* The deltas that other servers' trainers publish: a directory with one directory for each version,
 * which holds what changed since the one before it, or a whole checkpoint.
 *
 *   PULL_SLIME   slime and Miles: weight_v000003/model.safetensors.index.json and its files
 *   PULL_SKYRL   SkyRL: delta-00000003/manifest.json and its files
 *
 * A pull is the way from one version to a later one. All that can be refused without the bytes is
 * refused when it is opened; its source then makes the new tensors from those of the served
 * version, and checks the hash of each. What a version is called, and which is served, is in
 * weights/delta/pull_chain.h. */
#ifndef BATON_WEIGHTS_DELTA_PULL_H
#define BATON_WEIGHTS_DELTA_PULL_H

#include "base/err.h"
#include "base/progress.h"
#include "weights/model_spec.h"
#include "weights/source.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stdint.h>

enum pull_form { PULL_SLIME, PULL_SKYRL, PULL_FORM_COUNT };

enum {
    PULL_VERSIONS_MAX = 64, /* of one pull: their lists are in memory at once. ModelExpress's
                               receiver has the same limit */
    PULL_FILES_MAX = 1024,  /* of one pull: all are open until its end */
    PULL_INDEX_NBYTES_MAX = 64 << 20, /* of an index or a manifest: some 100,000 tensors */
    PULL_FETCH_FACTOR = 6, /* of the tensors in a version's fetched files together, in sizes of the
                              model: slime's overwrite may have 5 bytes for each byte */
    PULL_FETCH_ALL_FACTOR = 12,        /* ... of all versions of a pull */
    PULL_HEADS_NBYTES_MAX = 100000000, /* of the heads of these files together, and no less than one
                                          may have */
    PULL_OVERWRITE_NBYTES_MAX = UINT32_MAX /* of a tensor: its positions have 32 bits */
};
#define PULL_NO_VERSION UINT64_MAX

/* pull_directory - the directory of a version: "weight_v000003", "delta-00000003". */
void pull_directory(char out[32], enum pull_form form, uint64_t version);

struct pull;

struct pull_cfg {
    enum pull_form form;
    const struct model_spec *spec; /* borrowed until pull_close */
    int rootfd;                    /* borrowed: nothing leads out of it; AT_FDCWD: no limit */
    const char *source;            /* the directory with the versions, below rootfd */
    /* Instead of both: gets a file of a version, as "delta-00000003/manifest.json", of at most so
     * many bytes. The descriptor is the caller's. What is not listed is not seen then. NULL: none.
     * Errors: ERR_NOT_FOUND (there is no such file), and others. */
    int (*fetch)(void *arg, int *fd, const char *name, uint64_t nbytes_max, struct err *e);
    void *fetch_arg;
    const struct progress *progress; /* borrowed until pull_open returns: when it has to end; NULL:
                                        never */
    uint64_t served;                 /* the version that is served; PULL_NO_VERSION: not known */
    uint64_t target;                 /* above `served`, or the same */
};

/* pull_open - read the indexes of the versions up to the target: from the newest whole checkpoint
 * among them on, else from the served version on. With `served` the target's own index is read,
 * for pull_prove.
 * Threads: any, no lock held. Blocks: on the disk.
 * Errors, which name the version and the tensor or file:
 *   ERR_NOT_FOUND    a version's directory, index or file is not there (yet)
 *   ERR_CONFLICT     no version is served that the deltas build on, or it is beyond the target
 *   ERR_PRECONDITION a version builds on another than the one before it
 *   ERR_BAD_REQUEST  an index, a manifest or a file that is not as its form says: a version unlike
 *                    its directory's, an encoding or a hash that is not known, a file outside the
 *                    directory, one that is not listed, a tensor without a checksum, in no file, or
 *                    in two with different bytes, a frame that is no delta of its tensor
 *   ERR_MISMATCH     the model has no such tensor, or another shape or dtype
 *   ERR_INCOMPLETE   a whole checkpoint without all tensors
 *   ERR_TOO_LARGE    more than a limit above
 *   ERR_TIMEOUT, ERR_GONE  `progress` ended it
 *   ERR_UNREADABLE, ERR_FORBIDDEN (a link leads out of rootfd), ERR_NO_MEMORY */
int pull_open(struct pull **out, const struct pull_cfg *cfg, struct err *e);
void pull_close(struct pull *p); /* accepts NULL */

/* pull_tensors - what it changes, in the order of the model spec; NULL: nothing. Borrowed. */
struct tensor_list *pull_tensors(const struct pull *p);

/* pull_is_whole - does it begin with a whole checkpoint, so that it needs no version before it? */
bool pull_is_whole(const struct pull *p);

/* pull_n_versions - how many versions it goes through. */
uint32_t pull_n_versions(const struct pull *p);

/* pull_source - a source of the first kind for pull_tensors. Its `fill` may be called once an
 * update is staged, which keeps the served version as it is.
 * @p       moved into the source, also on failure
 * @serial  of the served version that it builds on; another one is served: ERR_CONFLICT at the fill
 * Errors: ERR_NO_MEMORY.
 * Errors of the fill: ERR_CHECKSUM (a tensor's hash is another: a damaged file, or another base),
 *         ERR_BAD_REQUEST (a damaged frame), ERR_UNREADABLE (a file changed), ERR_UNSYNCED,
 *         ERR_ASLEEP, ERR_CONFLICT, ERR_CUDA, ERR_NO_MEMORY, ERR_NO_STAGING (no room for frames
 *         and their content, of several tensors at a time, which are in the store's memory), and
 *         those of any fill. They name the version and the tensor. */
int pull_source(struct source **out, struct pull *p, struct store *store, uint64_t serial,
                struct err *e);

/* pull_prove - are the bytes that are served those of the target? Compares the hash of every tensor
 * that the target's delta changed; of a whole checkpoint, which has none, the bytes.
 * @v  pinned
 * Blocks: as long as it takes to read them. Errors: ERR_PRECONDITION (which tensor differs), and
 * those of the fill. */
int pull_prove(struct pull *p, struct store *store, const struct version *v,
               const struct progress *progress, struct err *e);

/* pull_base_check - are all tensors of a source exactly those that are served?
 * @source  of the first kind; borrowed
 * @list    its tensors
 * @v       pinned
 * Blocks: while it reads them all. Errors: ERR_PRECONDITION (which tensor differs or is missing),
 *         ERR_MISMATCH as model_spec_match, the source's, ERR_CUDA, ERR_NO_MEMORY. */
int pull_base_check(struct source *source, const struct tensor_list *list, struct store *store,
                    const struct version *v, struct progress *progress, struct err *e);

#endif
