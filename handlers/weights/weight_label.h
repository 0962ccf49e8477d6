/* What a request for another name says. */
#ifndef BATON_HANDLERS_WEIGHTS_WEIGHT_LABEL_H
#define BATON_HANDLERS_WEIGHTS_WEIGHT_LABEL_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct label_req {
    const char *label;  /* borrowed from the body */
    uint64_t if_serial; /* 0: whatever is served */
    bool abort_requests;
};

/* label_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member. */
int label_parse(struct label_req *req, const json_t *body, struct err *e);

#endif
