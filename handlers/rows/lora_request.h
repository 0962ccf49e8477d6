/* What requests about adapters ask for, the same of one server and of a fleet. Their rows are in
 * lora_rows.c. */
#ifndef BATON_HANDLERS_ROWS_LORA_REQUEST_H
#define BATON_HANDLERS_ROWS_LORA_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

/* A load, without the source of its tensors; strings are borrowed from the body or the query. */
struct lora_load_request {
    const char *name, *path; /* path NULL: the tensors come with the request */
    const char *if_digest;   /* NULL: not given */
    bool delta, in_place, pinned, allow_partial, three_d, if_revision_given, timeout_given;
    uint64_t if_revision, timeout_s;
};

/* Other servers also number adapters; here the name is enough, and the number is ignored. */
struct lora_unload_request {
    const char *name;
    int64_t number;
};

struct lora_file_request {
    uint64_t revision; /* 0: any */
};

#endif
