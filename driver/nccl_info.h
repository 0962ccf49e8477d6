/* The NCCL library of this machine, probed once and without creating a communicator. */
#ifndef BATON_DRIVER_NCCL_INFO_H
#define BATON_DRIVER_NCCL_INFO_H

#include "base/err.h"
#include "driver/nccl.h"

#include <limits.h>
#include <stdbool.h>

enum {
    NCCL_VERSION_TEXT_MAX = 32,    /* "2.28.9" */
    NCCL_VERSION_CODE_MIN = 21400, /* the first with non-blocking communicators */
    NCCL_VERSION_CODE_MAX = 29999, /* our copies of the types are those of NCCL 2 */
    NCCL_LIBRARY_PATH_MAX = PATH_MAX
};

struct nccl_info {
    struct nccl_api api; /* zeroed unless available */
    bool available;      /* the library is loaded and of a version that we can use */
    int version_code;    /* 22809; 0 when unknown */
    char version[NCCL_VERSION_TEXT_MAX]; /* "2.28.9"; "" when unknown */
    char path[NCCL_LIBRARY_PATH_MAX];    /* the file that was loaded; "" when unknown */
    char reason[ERR_MSG_MAX];            /* why not available, "" when it is */
};

/* nccl_version_text - decode an NCCL_VERSION_CODE: 22809 is "2.28.9". Versions before 2.9, which
 * used other factors, are decoded too. "" for an invalid code. */
void nccl_version_text(char out[NCCL_VERSION_TEXT_MAX], int code);

/* nccl_probe - load libnccl and get its version. Cannot fail: if NCCL cannot be used, out->reason
 * has the cause. Version and path are filled also for a library that loads but cannot be used.
 * @path  as nccl_load
 *
 * Threads: one, no lock held; after nccl_environment. Blocks: as nccl_load. */
void nccl_probe(struct nccl_info *out, const char *path);

#endif
