/* Reading tensor bytes from known places of open files with pread; shm.c and file.c share it.
 *
 * Files are never mapped: if a writer truncates a mapped file, the next access is a SIGBUS that
 * ends the server. With pread it is an error that names the tensor. */
#ifndef BATON_TRANSPORT_RANGES_H
#define BATON_TRANSPORT_RANGES_H

#include "base/err.h"
#include "base/names.h"
#include "weights/source.h"
#include "weights/tensor_list.h"

#include <stdint.h>

enum { RANGES_FILES_MAX = 4096 };

/* The place of one tensor of the tensor list. */
struct range {
    uint32_t file;
    uint64_t offset; /* bytes from the start of that file */
};

struct ranges {
    const char *kind;          /* static; the word for a file in messages */
    struct names files;        /* a name's number is its file number */
    int fds[RANGES_FILES_MAX]; /* owned; [files.n], -1 for none */
    struct range *at;          /* owned; [n] of the tensor list; NULL until ranges_alloc */
    uint32_t n;
};

/* ranges_init - no files and no places yet. @kind static. */
void ranges_init(struct ranges *r, const char *kind);

/* ranges_alloc - allocate the places of n tensors. Errors: ERR_NO_MEMORY. */
int ranges_alloc(struct ranges *r, uint32_t n, struct err *e);
void ranges_fini(struct ranges *r); /* closes the files; accepts a zeroed one */

/* ranges_add - take over `fd` (also on failure) as file number r->files.n. @name is not in `files`.
 * Errors: ERR_BAD_REQUEST (more than RANGES_FILES_MAX), ERR_NO_MEMORY. */
int ranges_add(struct ranges *r, const char *name, int fd, struct err *e);

/* ranges_open_code - the code for an open(2) that failed with `errnum`: ERR_NOT_FOUND,
 * ERR_OVERLOADED (no free descriptor; the client may retry later), else ERR_UNREADABLE. */
enum err_code ranges_open_code(int errnum);

/* ranges_fill - as source_ops.fill. Tensors that are adjacent in a file are read together, so the
 * cost depends on the bytes and not on the number of tensors. Several threads read a large run;
 * they have ended when this returns. */
int ranges_fill(const struct ranges *r, const struct tensor_list *tensor_list, uint32_t first,
                uint32_t n, void *dst, struct progress *p, struct err *e);

#endif
