/* Readers that move JSON members into a struct, and say which member was wrong.
 *
 * Every reader returns 0, or -1 with ERR_BAD_REQUEST and the member's JSON pointer in e->field.
 * A reader of an absent member leaves *out as it was and returns 0, unless it is `_required`.
 * JSON null counts as absent. Values are borrowed from the body. */
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

struct route;

/* body_parse - the request's body as a JSON object (new), checked against its route, and through
 * its way in where that speaks a dialect: strict or not, optional or not; duplicate members,
 * trailing bytes, depth over BODY_DEPTH_MAX are refused, and on strict routes unknown members,
 * naming the one that was probably meant.
 * Errors: ERR_BAD_REQUEST (position, or member), ERR_MEDIA_TYPE (a content type that is not JSON;
 *         absent is taken as JSON), ERR_NO_MEMORY. */
int body_parse(json_t **out, const struct http_request *x, const struct route *route,
               struct err *e);

/* body_parse_text - the same for a text that is not empty and stands for the body's. */
int body_parse_text(json_t **out, const struct http_request *x, const char *text, size_t len,
                    const struct route *route, struct err *e);

/* body_only - refuse members of `object` (at pointer `at`) that are not in `members`. */
int body_only(const json_t *object, const char *at, const char *const *members, struct err *e);

/* body_only_of - the same for a whole body; what the route has a hint for is refused with it. */
int body_only_of(const json_t *body, const struct route *route, struct err *e);

/* body_query_only - refuse query members that the route does not list, or that come twice. */
int body_query_only(const struct http_request *x, const struct route *route, struct err *e);

/* body_is_tensors - is the body a safetensors stream, by its content type, and its route takes
 * such? */
bool body_is_tensors(const struct http_request *x);

/* body_given - the value, or NULL when it is absent or null. */
const json_t *body_given(const json_t *o, const char *member);

/* `at` is the pointer of the object that holds the member: "" or "/sampling_params". */
int body_str(const char **out, const json_t *o, const char *at, const char *member, struct err *e);
/* body_text - a string that may hold NULs (a prompt). body_str refuses those. */
int body_text(const char **out, size_t *len, const json_t *o, const char *at, const char *member,
              struct err *e);
int body_bool(bool *out, const json_t *o, const char *at, const char *member, struct err *e);
int body_u64(uint64_t *out, const json_t *o, const char *at, const char *member, uint64_t min,
             uint64_t max, struct err *e);
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
