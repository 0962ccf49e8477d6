/* Safetensors files on this machine, as push, verify and diff read them. */
#ifndef BATON_CLI_WEIGHT_FILES_H
#define BATON_CLI_WEIGHT_FILES_H

#include "base/err.h"
#include "memory/checksum.h"
#include "weights/safetensors.h"

#include <stddef.h>
#include <stdint.h>

struct weight_file {
    char *path; /* owned */
    struct safetensors head;
    const unsigned char *bytes; /* the whole file, mapped read-only */
    uint64_t nbytes;
};

struct weight_files {
    struct weight_file *files; /* owned; [n] */
    size_t n;
    uint64_t nbytes; /* of all files */
    uint32_t n_tensors;
};

/* weight_files_open - one file, or the files of a directory: those that
 * model.safetensors.index.json names, else model.safetensors, else every *.safetensors by name.
 * Errors: ERR_NOT_FOUND, ERR_UNREADABLE, ERR_BAD_REQUEST (no safetensors file, a wrong header or
 *         index, an index beside a model.safetensors that it does not name, a tensor in two files),
 *         ERR_NO_MEMORY; *out is empty. Threads: any. Blocks: on the disk. */
int weight_files_open(struct weight_files *out, const char *path, struct err *e);
void weight_files_close(struct weight_files *w); /* accepts a zeroed one */

/* weight_file_bytes - of tensor `index` of the file; mapped. */
const unsigned char *weight_file_bytes(const struct weight_file *f, uint32_t index);

/* weight_file_checksum - of tensor `index` of the file. Blocks: on the disk. A file that another
 * process cuts meanwhile ends this one (SIGBUS). */
struct checksum weight_file_checksum(const struct weight_file *f, uint32_t index);

#endif
