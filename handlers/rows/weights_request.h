/* What requests about the served weights ask for. Their rows are in weights_rows.c. */
#ifndef BATON_HANDLERS_ROWS_WEIGHTS_REQUEST_H
#define BATON_HANDLERS_ROWS_WEIGHTS_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Strings and JSON are borrowed from the body or the query. */

struct weights_list_request {
    bool checksums;
};

struct weights_diff_request {
    const char *change;
    uint64_t limit, offset;
};

enum weights_check_action { CHECK_SUMS, CHECK_COMPARE, CHECK_SNAPSHOT };

enum { CHECK_SKIP_MAX = 1024 };

struct weights_check_request {
    int action;             /* of enum weights_check_action */
    const json_t *baseline; /* NULL: that of the snapshot */
    bool must_match;
};

struct handles_request { /* and of leases of files */
    uint32_t lease_s;
};

struct weights_file_request {
    const char *lease_id;
};

struct handles_renew_request {
    const char *lease_id;
    uint32_t lease_s; /* 0: as many as before */
};

struct weights_seed_request {
    const json_t *peers; /* NULL: those of --seed */
    uint64_t if_serial;
    bool if_serial_given;
};

struct weight_values_request {
    const char *name;
    uint64_t n_rows;
};

#endif
