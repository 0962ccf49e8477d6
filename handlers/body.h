/* Readers of JSON members and query members of requests.
 *
 * Every reader returns 0, or -1 with ERR_BAD_REQUEST and the member's JSON pointer in e->field.
 * If the member is absent, a reader leaves *out unchanged and returns 0, unless its name ends in
 * `_required`. JSON null counts as absent. Values are borrowed from the body. */
#ifndef BATON_HANDLERS_BODY_H
#define BATON_HANDLERS_BODY_H

#include "base/closest_match.h"
#include "base/err.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BODY_DEPTH_MAX = 32 };

struct member;
struct route;

/* body_parse - parse the request's body as a JSON object (new), and translate it if the route
 * belongs to a dialect. Refused are: duplicate members, trailing bytes, a depth over
 * BODY_DEPTH_MAX, and on strict routes unknown members (the message suggests the closest known
 * one).
 * Errors: ERR_BAD_REQUEST (with position or member), ERR_MEDIA_TYPE (the content type is not
 *         JSON; without one JSON is assumed, except for a body on a control route),
 *         ERR_NO_MEMORY. */
int body_parse(json_t **out, const struct http_request *x, const struct route *route,
               struct err *e);

/* body_parse_text - parse a non-empty text instead of the body. */
int body_parse_text(json_t **out, const struct http_request *x, const char *text, size_t len,
                    const struct route *route, struct err *e);

/* body_only - refuse members of `object` (at pointer `at`) that have no row in `members`. */
int body_only(const json_t *object, const char *at, const struct member *members, struct err *e);

/* body_only_of - body_only for a whole body and its route's members; if the route has a hint for
 * an unknown member, the message contains it. */
int body_only_of(const json_t *body, const struct route *route, struct err *e);

/* body_query_only - refuse query members that the route does not list, or that are repeated. */
int body_query_only(const struct http_request *x, const struct route *route, struct err *e);

/* The type of a body of tensors: of a request, and of a batch of rollouts. */
#define BODY_TENSORS_TYPE "application/vnd.safetensors"

/* body_is_tensors - is the body a safetensors stream, by its content type, on a route that
 * accepts one? */
bool body_is_tensors(const struct http_request *x);

/* body_given - the value; NULL if it is absent or null. */
const json_t *body_given(const json_t *o, const char *member);

/* `at` is the pointer of the object that holds the member: "" or "/sampling_params". */
int body_str(const char **out, const json_t *o, const char *at, const char *member, struct err *e);
/* body_text - a string that may hold NULs (a prompt). body_str refuses those. */
int body_text(const char **out, size_t *len, const json_t *o, const char *at, const char *member,
              struct err *e);
int body_bool(bool *out, const json_t *o, const char *at, const char *member, struct err *e);
int body_u64(uint64_t *out, const json_t *o, const char *at, const char *member, uint64_t min,
             uint64_t max, struct err *e);
int body_u32(uint32_t *out, const json_t *o, const char *at, const char *member, uint32_t min,
             uint32_t max, struct err *e);
int body_i64(int64_t *out, const json_t *o, const char *at, const char *member, int64_t min,
             int64_t max, struct err *e);
int body_f64(double *out, const json_t *o, const char *at, const char *member, struct err *e);
int body_array(const json_t **out, const json_t *o, const char *at, const char *member,
               struct err *e);
int body_object(const json_t **out, const json_t *o, const char *at, const char *member,
                struct err *e);
/* body_required - ERR_BAD_REQUEST when the member is absent or null. */
int body_required(const json_t *o, const char *at, const char *member, struct err *e);

/* body_type_name - "an object", "a real number", "null", for messages. */
const char *body_type_name(const json_t *value);

/* query_bool, query_u64 - the same for query members ("true", "false", digits). */
int query_bool(bool *out, const struct http_request *x, const char *member, struct err *e);
int query_u64(uint64_t *out, const struct http_request *x, const char *member, uint64_t min,
              uint64_t max, struct err *e);

#endif
