/* One row of the route table. */
#ifndef BATON_HANDLERS_ROUTE_H
#define BATON_HANDLERS_ROUTE_H

#include "base/err.h"
#include "base/exchange.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct app;

enum route_form { FORM_NATIVE, FORM_OPENAI }; /* of error bodies */

/* Where the handler runs. A loop handler must be instant; a text handler is admitted by the
 * detokenize semaphore first. */
enum route_lane { LANE_LOOP, LANE_CONTROL, LANE_GENERATE, LANE_TEXT };

enum route_role { ROLE_HEALTH, ROLE_GENERATE, ROLE_CONTROL };

enum route_body {
    BODY_NONE,   /* whatever comes is read and dropped */
    BODY_JSON,   /* an object, or nothing when json_optional */
    BODY_TENSORS /* JSON, or application/vnd.safetensors streamed */
};

struct route {
    unsigned methods;       /* of enum exchange_method, or-ed */
    const char *pattern;    /* "/v1/weights/{name}"; the last segment only may be a variable, and
                               it takes the rest of the path */
    const char *operation;  /* operationId in openapi/baton.yaml; the metrics label */
    enum route_lane lane;
    enum route_role role;
    enum route_body body;
    bool json_optional;     /* an empty body is {} */
    bool strict;            /* unknown members are refused */
    enum route_form form;
    uint64_t body_max;      /* bytes; ROUTE_BODY_CONFIG = --json-body-max */
    const char *const *members; /* JSON members, NULL-terminated; NULL: none */
    const char *const *query;   /* query members, NULL-terminated; NULL: none */

    /* Owns one reference of x when called. 0: it answered, or somebody will. -1: nobody was
     * answered; dispatch answers with e. */
    int (*handle)(struct app *app, struct exchange *x, struct err *e);
};
#define ROUTE_BODY_CONFIG UINT64_MAX

/* routes - the one table. */
extern const struct route routes[];
extern const size_t n_routes;

/* route_find - the row for a path and method.
 * @arg  offset in `path` where the variable begins, or of the NUL
 * Errors: ERR_NOT_FOUND; ERR_BAD_METHOD (the message lists what is allowed). */
const struct route *route_find(const char *path, enum exchange_method method, size_t *arg,
                               struct err *e);

#endif
