/* Which NCCL there is on this machine: looked at once, without making anything in it. */
#ifndef BATON_DRIVER_NCCL_INFO_H
#define BATON_DRIVER_NCCL_INFO_H

#include "base/err.h"
#include "driver/nccl.h"

#include <limits.h>
#include <stdbool.h>

enum {
    NCCL_VERSION_TEXT_MAX = 32,    /* "2.28.9" */
    NCCL_VERSION_CODE_MIN = 21400, /* the first with non-blocking communicators */
    NCCL_VERSION_CODE_MAX = 29999, /* what we have of the types is NCCL 2's */
    NCCL_LIBRARY_PATH_MAX = PATH_MAX
};

struct nccl_info {
    struct nccl_api api; /* zeroed unless available */
    bool available;      /* the library is loaded and of a version that we can use */
    int version_code;    /* 22809; 0 when unknown */
    char version[NCCL_VERSION_TEXT_MAX]; /* "2.28.9"; "" when unknown */
    char path[NCCL_LIBRARY_PATH_MAX];    /* the file that the loader took; "" when unknown */
    char reason[ERR_MSG_MAX];            /* why not available, "" when it is */
};

/* nccl_version_text - 22809 as "2.28.9": what NCCL_VERSION_CODE encodes, also before 2.9, where
 * the factors were others. "" for a code that is not one. */
void nccl_version_text(char out[NCCL_VERSION_TEXT_MAX], int code);

/* nccl_probe - load libnccl and ask for its version. Cannot fail: what is in the way is in
 * out->reason. Of a library that loads but does not serve, version and path are told all the same.
 * @path  as nccl_load
 *
 * Threads: one, no lock held; after nccl_environment. Blocks: as nccl_load. */
void nccl_probe(struct nccl_info *out, const char *path);

#endif
