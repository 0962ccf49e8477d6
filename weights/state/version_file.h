/* A version as one safetensors file that is nowhere: its head is made, its tensors are read from
 * where they are. Its tensors are in the order of the model spec, and its head has their checksums
 * and the label, and nothing of this server: servers with the same model spec have the same bytes
 * for the same version. */
#ifndef BATON_WEIGHTS_STATE_VERSION_FILE_H
#define BATON_WEIGHTS_STATE_VERSION_FILE_H

#include "base/err.h"
#include "base/progress.h"
#include "weights/state/journal.h"
#include "weights/store/store.h"

#include <stdint.h>

struct version_file {
    char *head;                    /* owned */
    uint64_t nbytes_head, nbytes;  /* of the head, of all */
    char content[CONTENT_LEN + 1]; /* content_of_version */
    char digest[CONTENT_LEN + 1];  /* SHA-256 of the head, which has a checksum of all the rest */
};

/* version_file_new - Reads every byte whose checksum is not known yet.
 * @progress  its deadline and `gone` are looked at before each tensor
 * Threads: any that has the version pinned.
 * Errors: ERR_LEASE_ENDED (an update or a sleep waits for the version, store_reader_awaited), those
 *         of progress_check, ERR_CUDA, ERR_NO_MEMORY; *out untouched. */
int version_file_new(struct version_file **out, struct store *s, const struct version *v,
                     const struct progress *progress, struct err *e);

/* version_file_of - the same of known checksums, in the order of `spec`.
 * Errors: ERR_NO_MEMORY; *out untouched. */
int version_file_of(struct version_file **out, const struct tensor_list *spec, const char *label,
                    const struct checksum *sums, struct err *e);
void version_file_free(void *file); /* accepts NULL */

/* version_file_read - bytes [at, at + n) of the file, which must be in it.
 * @v  the version that it was made of, pinned
 * Threads: any, no lock held. Blocks: on GPUs. Errors: ERR_CUDA; `out` is then undefined. */
int version_file_read(const struct version_file *f, struct store *s, const struct version *v,
                      uint64_t at, uint64_t n, void *out, struct err *e);

#endif
