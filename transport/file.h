/* Weights from safetensors files below an allowed root, which neither `..` nor a symbolic link
 * leads out of (base/file.h). */
#ifndef BATON_TRANSPORT_FILE_H
#define BATON_TRANSPORT_FILE_H

#include "base/err.h"
#include "memory/checksum.h"
#include "weights/safetensors.h"
#include "weights/source.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The contents of the files' headers. */
struct file_weights {
    struct tensor_list *tensor_list; /* one reference, the caller's; bytes in file order */
    struct checksum *checksums;      /* the caller's; [n_tensors] */
    bool *has_checksum;              /* the caller's; [n_tensors] */
    char *weight_version;            /* the caller's; from the metadata, or NULL */
    char *delta_base;                /* the caller's; as of struct safetensors */
    struct made_sums made;           /* the caller's; of a delta, of all its files */
};
void file_weights_fini(struct file_weights *w); /* accepts a zeroed one */

/* file_source_open - a safetensors file, or a directory with model.safetensors or
 * model.safetensors.index.json. Both are refused, unless the index names that one file:
 * transformers would read the file, vLLM and SGLang those of the index.
 * @roots        [n_roots] absolute directories (--allow-path); one of them must contain the path
 * @path         absolute, or relative to the first root
 * @tensor_list  NULL: all tensors of the files; else the tensors to read, in this order (name,
 *               dtype and shape are checked against the files)
 * Errors: ERR_FORBIDDEN at /path (no roots, outside all of them, also by a symbolic link),
 *         ERR_NOT_FOUND, ERR_BAD_REQUEST and ERR_UNREADABLE as safetensors_open (also: a tensor in
 *         two files, a wrong index, files with different weight versions), ERR_TOO_LARGE (the
 *         index), ERR_MISMATCH (differs from the tensor list), ERR_NO_MEMORY. Outputs are
 *         untouched. The source's finish fails with ERR_UNREADABLE if a file has changed since it
 *         was opened. */
int file_source_open(struct source **out, struct file_weights *w, const char *const *roots,
                     size_t n_roots, const char *path, struct tensor_list *tensor_list,
                     struct err *e);

/* file_source_open_local - the same for a path from the command line: any file, following links. */
int file_source_open_local(struct source **out, struct file_weights *w, const char *path,
                           struct err *e);

#endif
