/* The route table: which requests there are, who may send them, where their handlers run. */
#ifndef BATON_HANDLERS_ROUTE_H
#define BATON_HANDLERS_ROUTE_H

#include "base/err.h"
#include "handlers/operation.h"
#include "handlers/rows/member.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum route_form {
    FORM_NATIVE,
    FORM_OPENAI, /* the form of vLLM, and of trainers that use its API */
    FORM_SGLANG,
    FORM_SGLANG_LORA /* with baton's statuses: SGLang's clients for adapters retry by status */
};                   /* the form of error bodies */

/* The API that a row belongs to. */
enum route_dialect {
    DIALECT_NATIVE,
    DIALECT_VLLM,
    DIALECT_SKYRL,
    DIALECT_SGLANG,
    DIALECT_PRIME_RL,
    DIALECT_AREAL,
    DIALECT_COUNT
};

/* The update session that a request belongs to. */
enum route_session {
    SESSION_NAMED, /* the one of its update_id; without update_id the request is an update of its
                      own */
    SESSION_OPEN,  /* the open one, which a dialect's start opened; without one the request is a
                      conflict */
    SESSION_AUTO_COMMIT /* the open one, which the first request opens. A request that initializes a
                           group aborts the open anonymous session: a new trainer sends everything
                           again */
};

/* A condition on the body: it has this member, with this value; or it is an object that has the
 * member `inner`. A row with `inner` goes before one without. */
struct route_body_match {
    const char *member, *value; /* value NULL: any value; member NULL: no condition */
    const char *inner;          /* NULL: no condition */
};

/* Where the handler runs. A handler on a loop must not block; a handler on EXECUTOR_TEXT needs a
 * permit of detokenization first. */
enum route_executor {
    EXECUTOR_LOOP,
    EXECUTOR_CONTROL,
    EXECUTOR_GENERATE,
    EXECUTOR_TEXT,
    EXECUTOR_FLEET, /* in front of a fleet: most of what runs there waits, and holds no thread; what
                       blocks on a disk or a GPU is not for it */
    EXECUTOR_URGENT /* the same threads, before all others: it ends what they wait for, or a lease
                       ends without it */
};

/* The role that a key needs for the route; a role includes those before it, but for WEIGHTS
 * (control/auth.h). HEALTH needs no key and its replies contain nothing else; PAGE needs none
 * either, its replies are the same at every server, and it is answered where CONTROL is, as WEIGHTS
 * is. HEALTH, PAGE and VIEWER routes answer in every state of the server. */
enum route_role { ROLE_HEALTH, ROLE_PAGE, ROLE_VIEWER, ROLE_GENERATE, ROLE_CONTROL, ROLE_WEIGHTS };

enum route_body {
    BODY_NONE,   /* any body is read and dropped */
    BODY_JSON,   /* an object, or nothing when json_optional */
    BODY_TENSORS /* JSON, or application/vnd.safetensors streamed */
};

struct route {
    unsigned methods;    /* of enum http_request_method, or-ed */
    const char *pattern; /* "/v1/weights/{name}"; only the last segment may be a variable, and it
                            takes the rest of the path */
    const char *operation_id; /* in openapi/baton.yaml; the metrics label */
    enum route_executor executor;
    enum route_role role;
    enum route_body body;
    bool json_optional; /* an empty body is {} */
    bool strict;        /* unknown members are refused */
    enum route_form form;
    uint64_t body_max;            /* bytes; ROUTE_BODY_CONFIG = --json-body-max */
    const struct member *members; /* of the JSON body; NULL: none */
    const struct member *query;   /* its rows with M_QUERY; NULL: none */
    const char *(*hint)(
        const char *member); /* the place where an unknown member belongs; or NULL */
    bool get_has_effects;    /* its GET changes the state of the server */

    /* For rows of dialects (handlers/dialect.h); zero in native rows. */
    enum route_dialect dialect;
    enum route_session session;
    struct route_body_match body_match;
    bool broadcasts; /* the request of a trainer that may broadcast its tensors before the answer */
    bool routed_array; /* the experts of tokens come as {data, shape, dtype} */
    bool of_pull;      /* a start or finish that goes around a pull, if one waits for its commit */
    bool whole; /* the body is always parsed as a whole: `translate_request` makes or reads columns
                 */
    const struct member *translated_members; /* members that `translate_request` may make: those of
                                              the native row; NULL: none */
    const struct member *error_members;      /* rows of the object at error_at; NULL: `members` */
    const char
        *error_at; /* "/init_info": the object in which the client sends them; NULL: the body */
    int (*translate_request)(json_t **body, const struct http_request *x, struct err *e);
    int (*translate_response)(json_t **reply, const struct http_request *x);

    enum operation operation; /* selects the handler: server/operations.c */
};
#define ROUTE_BODY_CONFIG UINT64_MAX

/* routes - the table of all routes. */
extern const struct route routes[];
extern const size_t n_routes;

/* route_find - find the first row for a path and method.
 * @dialects  those that are enabled: bits 1 << enum route_dialect
 * @arg       offset in `path` where the variable begins, or of the NUL
 * Errors: ERR_NOT_FOUND; ERR_BAD_METHOD (the message lists the allowed methods). */
const struct route *route_find(const char *path, enum http_request_method method, unsigned dialects,
                               size_t *arg, struct err *e);

/* route_converts - are float tensors of another dtype than the model's converted unasked? The
 * servers that dialects belong to do so, and their clients cannot ask for it. */
static inline bool route_converts(const struct route *r)
{
    return r->dialect != DIALECT_NATIVE;
}

/* route_add_allow - add the Allow header to a reply, if `e` is route_find's ERR_BAD_METHOD.
 * Other errors add nothing. */
void route_add_allow(struct http_reply *out, const struct http_request *x, unsigned dialects,
                     const struct err *e);

/* route_match_body - choose among the rows with the path and method of `first`: the one whose
 * body_match the body fulfils; else the one without a condition; else `first`.
 * @first  found by route_find; all rows of its path have the same executor
 * @body   its text; need not be JSON */
const struct route *route_match_body(const struct route *first, enum http_request_method method,
                                     unsigned dialects, const char *body, size_t len);

#endif
