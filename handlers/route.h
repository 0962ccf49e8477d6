/* One row of the route table. */
#ifndef BATON_HANDLERS_ROUTE_H
#define BATON_HANDLERS_ROUTE_H

#include "base/err.h"
#include "handlers/operation.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum route_form {
    FORM_NATIVE,
    FORM_OPENAI, /* as vLLM, and trainers that speak to it */
    FORM_SGLANG,
    FORM_SGLANG_LORA /* with our statuses: its other clients retry by them */
};                   /* of error bodies */

/* Whose form of our operations a row speaks. */
enum route_dialect {
    DIALECT_NATIVE,
    DIALECT_VLLM,
    DIALECT_SKYRL,
    DIALECT_SGLANG,
    DIALECT_PRIME_RL,
    DIALECT_AREAL,
    DIALECT_COUNT
};

/* Which update session a request is part of. */
enum route_session {
    SESSION_NAMED,      /* the one that its update_id names; without one it is its own */
    SESSION_OPEN,       /* the one that a dialect's start opened; none is a conflict */
    SESSION_AUTO_COMMIT /* the one that is open; the first request opens it. Of an init: a new
                        trainer, who will send everything anew, gives up what is open and nobody
                        names */
};

/* A row is taken only if the body has this member, and if this is its value. */
struct route_body_match {
    const char *member, *value; /* value NULL: whatever it is; member NULL: no condition */
};

/* Where the handler runs. A loop handler must be instant; a text handler is admitted by the
 * detokenize semaphore first. */
enum route_executor {
    EXECUTOR_LOOP,
    EXECUTOR_CONTROL,
    EXECUTOR_GENERATE,
    EXECUTOR_TEXT,
    /* In front of upstream engines: who waits for a lock waits on threads of nobody else's. */
    EXECUTOR_OPERATION, /* the operation lock */
    EXECUTOR_PAUSE,     /* the pause lock */
    EXECUTOR_RESUME,    /* the end of our own steps */
    EXECUTOR_ABORT      /* the abort lock */
};

/* Whose key a route takes; a role may do what the ones before it may. HEALTH is open to anyone and
 * tells only that much; it and WATCH answer in every state. */
enum route_role { ROLE_HEALTH, ROLE_VIEWER, ROLE_GENERATE, ROLE_CONTROL };

enum route_body {
    BODY_NONE,   /* whatever comes is read and dropped */
    BODY_JSON,   /* an object, or nothing when json_optional */
    BODY_TENSORS /* JSON, or application/vnd.safetensors streamed */
};

struct route {
    unsigned methods;         /* of enum http_request_method, or-ed */
    const char *pattern;      /* "/v1/weights/{name}"; the last segment only may be a variable, and
                                 it takes the rest of the path */
    const char *operation_id; /* in openapi/baton.yaml; the metrics label */
    enum route_executor executor;
    enum route_role role;
    enum route_body body;
    bool json_optional; /* an empty body is {} */
    bool strict;        /* unknown members are refused */
    enum route_form form;
    uint64_t body_max;                       /* bytes; ROUTE_BODY_CONFIG = --json-body-max */
    const char *const *members;              /* JSON members, NULL-terminated; NULL: none */
    const char *const *query;                /* query members, NULL-terminated; NULL: none */
    const char *(*hint)(const char *member); /* of an unknown one: where it belongs; or NULL */
    bool get_has_effects;                    /* its GET changes something; else it is a view */

    /* All zero on native rows; handlers/dialect.h. */
    enum route_dialect dialect;
    enum route_session session;
    struct route_body_match body_match;
    bool whole; /* the body's columns are never left in its text: `translate_request` makes or reads
                   some */
    const char *const *translated_members; /* members that `translate_request` may make: those of
                                              the native row; NULL: none */
    /* Pairs {client's name, native place such as "names/0"}: the first one that fits the field of a
     * native error. NULL: names are the same. */
    const struct dialect_member *error_members;
    const char
        *error_at; /* "/init_info": the object in which the client sends them; NULL: the body */
    int (*translate_request)(json_t **body, const struct http_request *x, struct err *e);
    int (*translate_response)(json_t **reply, const struct http_request *x);

    enum operation operation; /* which handler does it: server/operations.c */
};
#define ROUTE_BODY_CONFIG UINT64_MAX

/* routes - the one table. */
extern const struct route routes[];
extern const size_t n_routes;

/* route_find - the first row for a path and method.
 * @dialects  which there are: bits 1 << enum route_dialect
 * @arg       offset in `path` where the variable begins, or of the NUL
 * Errors: ERR_NOT_FOUND; ERR_BAD_METHOD (the message lists what is allowed). */
const struct route *route_find(const char *path, enum http_request_method method, unsigned dialects,
                               size_t *arg, struct err *e);

/* route_add_allow - to the answer to ERR_BAD_METHOD, of route_find: the header that says which
 * methods the path takes. Other errors: nothing. */
void route_add_allow(struct http_reply *out, const struct http_request *x, unsigned dialects,
                     const struct err *e);

/* route_match_body - of the rows for the path and method of `first`, the one whose claim the body
 * fulfils; else the one that claims nothing; else `first`.
 * @first  found by route_find; it and all of its path run on the same lane
 * @body   its text; need not be JSON */
const struct route *route_match_body(const struct route *first, enum http_request_method method,
                                     unsigned dialects, const char *body, size_t len);

#endif
