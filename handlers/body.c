/* Readers of JSON members. A member of the wrong type is refused, never converted: true is not
 * an integer, because a trainer's mistake should be reported, not guessed at. */
#include "handlers/body.h"

#include "base/json_parse.h"
#include "handlers/body_scan.h"
#include "handlers/route.h"
#include "handlers/rows/member.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LIST_TEXT_MAX = 320 };

const char *body_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static void make_field(char field[ERR_FIELD_MAX], const char *at, const char *member)
{
    (void)snprintf(field, ERR_FIELD_MAX, "%s", at);
    scan_escape(field, ERR_FIELD_MAX, member, strlen(member));
}

const json_t *body_given(const json_t *o, const char *member)
{
    const json_t *v = json_object_get(o, member);

    return v == NULL || json_is_null(v) ? NULL : v;
}

static int refuse_type(const char *at, const char *member, const json_t *v, const char *wanted,
                       struct err *e)
{
    char field[ERR_FIELD_MAX];

    make_field(field, at, member);
    return err_set(e, ERR_BAD_REQUEST, field, "%s is %s, expected %s", member, body_type_name(v),
                   wanted);
}

/* The text after "unknown member 'x'": the closest known name, or all known names. */
static void suggest(char out[LIST_TEXT_MAX], const char *name, const struct member *rows,
                    unsigned flags)
{
    const char *list[MEMBER_NAMES_MAX], *const *names = list, *near;
    size_t len;

    member_names(list, rows, flags);
    near = closest_match(name, names);

    if (near != NULL) {
        (void)snprintf(out, LIST_TEXT_MAX, ", did you mean '%s'?", near);
        return;
    }
    if (*names == NULL) {
        (void)snprintf(out, LIST_TEXT_MAX, ", none is accepted here");
        return;
    }
    len = (size_t)snprintf(out, LIST_TEXT_MAX, ", expected one of");
    for (; *names != NULL && len + strlen(*names) + 8 < LIST_TEXT_MAX; names++)
        len += (size_t)snprintf(out + len, LIST_TEXT_MAX - len, " %s%s", *names,
                                names[1] != NULL ? "," : "");
    if (*names != NULL)
        (void)snprintf(out + len, LIST_TEXT_MAX - len, " ...");
}

static int refuse_unknown(const char *what, const char *at, const char *name,
                          const struct member *rows, unsigned flags, struct err *e)
{
    char field[ERR_FIELD_MAX], list[LIST_TEXT_MAX];

    make_field(field, at, name);
    suggest(list, name, rows, flags);
    return err_set(e, ERR_BAD_REQUEST, field, "unknown %s '%.100s'%s", what, name, list);
}

int body_only(const json_t *object, const char *at, const struct member *members, struct err *e)
{
    const char *name;
    json_t *value;

    json_object_foreach(json_mutable(object), name, value)
    {
        (void)value;
        if (member_find(members, name, 0) == NULL)
            return refuse_unknown("member", at, name, members, 0, e);
    }
    return 0;
}

int body_only_of(const json_t *body, const struct route *route, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *name, *hint;
    json_t *value;

    json_object_foreach(json_mutable(body), name, value)
    {
        (void)value;
        hint = route->hint == NULL || member_find(route->members, name, 0) != NULL
                   ? NULL
                   : route->hint(name);
        if (hint == NULL)
            continue;
        make_field(field, "", name);
        return err_set(e, ERR_BAD_REQUEST, field, "unknown member '%.100s': %s", name, hint);
    }
    return body_only(body, "", route->members, e);
}

int body_query_only(const struct http_request *x, const struct route *route, struct err *e)
{
    char field[ERR_FIELD_MAX];

    /* Quadratic in the number of members that the route lists, not in what was sent: after that
     * many, one must be repeated. */
    for (size_t i = 0; i < x->n_query; i++) {
        const char *name = x->query[i].name;

        if (member_find(route->query, name, M_QUERY) == NULL)
            return refuse_unknown("query member", "", name, route->query, M_QUERY, e);
        for (size_t j = 0; j < i; j++) {
            if (strcmp(x->query[j].name, name) != 0)
                continue;
            make_field(field, "", name);
            return err_set(e, ERR_BAD_REQUEST, field, "query member '%.100s' is given twice", name);
        }
    }
    return 0;
}

int body_required(const json_t *o, const char *at, const char *member, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const json_t *v = json_object_get(o, member);

    if (v != NULL && !json_is_null(v))
        return 0;
    make_field(field, at, member);
    return err_set(e, ERR_BAD_REQUEST, field, "%s is %s, it is required", member,
                   v == NULL ? "missing" : "null");
}

/* A C string would end at the NUL. */
static int refuse_nul(const char *at, const char *member, struct err *e)
{
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "%s/%s", at, member);
    return err_set(e, ERR_BAD_REQUEST, field, "'%s' has a NUL character in it", member);
}

int body_text(const char **out, size_t *len, const json_t *o, const char *at, const char *member,
              struct err *e)
{
    const json_t *v = body_given(o, member);

    if (v == NULL)
        return 0;
    if (!json_is_string(v))
        return refuse_type(at, member, v, "a string", e);
    *out = json_string_value(v);
    *len = json_string_length(v);
    return 0;
}

int body_str(const char **out, const json_t *o, const char *at, const char *member, struct err *e)
{
    const json_t *v = body_given(o, member);

    if (v == NULL)
        return 0;
    if (!json_is_string(v))
        return refuse_type(at, member, v, "a string", e);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return refuse_nul(at, member, e);
    *out = json_string_value(v);
    return 0;
}

int body_bool(bool *out, const json_t *o, const char *at, const char *member, struct err *e)
{
    const json_t *v = body_given(o, member);

    if (v == NULL)
        return 0;
    if (!json_is_boolean(v))
        return refuse_type(at, member, v, "a boolean", e);
    *out = json_is_true(v);
    return 0;
}

/* A whole real is an integer, as in JSON Schema: some clients write 5.0. @v  any value */
static bool whole(int64_t *out, const json_t *v)
{
    const double exact_max = 0x1p53; /* beyond it a double is not exact */
    double real = json_is_real(v) ? json_real_value(v) : 0;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v) || !(fabs(real) <= exact_max) || floor(real) < real)
        return false;
    *out = (int64_t)real;
    return true;
}

int body_i64(int64_t *out, const json_t *o, const char *at, const char *member, int64_t min,
             int64_t max, struct err *e)
{
    const json_t *v = body_given(o, member);
    char field[ERR_FIELD_MAX];
    int64_t value;

    if (v == NULL)
        return 0;
    if (!whole(&value, v))
        return refuse_type(at, member, v, "an integer", e);
    if (value < min || value > max) {
        make_field(field, at, member);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s is %" PRId64 ", expected %" PRId64 " to %" PRId64, member, value, min,
                       max);
    }
    *out = value;
    return 0;
}

int body_u64(uint64_t *out, const json_t *o, const char *at, const char *member, uint64_t min,
             uint64_t max, struct err *e)
{
    const json_t *v = body_given(o, member);
    char field[ERR_FIELD_MAX];
    int64_t value;

    if (v == NULL)
        return 0;
    if (!whole(&value, v))
        return refuse_type(at, member, v, "an integer", e);
    if (value < 0 || (uint64_t)value < min || (uint64_t)value > max) {
        make_field(field, at, member);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s is %" PRId64 ", expected %" PRIu64 " to %" PRIu64, member, value, min,
                       max);
    }
    *out = (uint64_t)value;
    return 0;
}

int body_u32(uint32_t *out, const json_t *o, const char *at, const char *member, uint32_t min,
             uint32_t max, struct err *e)
{
    uint64_t value = *out;

    if (body_u64(&value, o, at, member, min, max, e) != 0)
        return -1;
    *out = (uint32_t)value;
    return 0;
}

int body_f64(double *out, const json_t *o, const char *at, const char *member, struct err *e)
{
    const json_t *v = body_given(o, member);

    if (v == NULL)
        return 0;
    if (!json_is_number(v))
        return refuse_type(at, member, v, "a number", e);
    *out = json_number_value(v);
    return 0;
}

int body_array(const json_t **out, const json_t *o, const char *at, const char *member,
               struct err *e)
{
    const json_t *v = body_given(o, member);

    if (v == NULL)
        return 0;
    if (!json_is_array(v))
        return refuse_type(at, member, v, "an array", e);
    *out = v;
    return 0;
}

int body_object(const json_t **out, const json_t *o, const char *at, const char *member,
                struct err *e)
{
    const json_t *v = body_given(o, member);

    if (v == NULL)
        return 0;
    if (!json_is_object(v))
        return refuse_type(at, member, v, "an object", e);
    *out = v;
    return 0;
}

int query_bool(bool *out, const struct http_request *x, const char *member, struct err *e)
{
    const char *text = http_request_query(x, member);
    char field[ERR_FIELD_MAX];

    if (text == NULL)
        return 0;
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
        make_field(field, "", member);
        return err_set(e, ERR_BAD_REQUEST, field, "%s is '%.60s', expected true or false", member,
                       text);
    }
    *out = text[0] == 't';
    return 0;
}

/* Returns false if the text is not digits only, or has more than 64 bits. */
static bool all_digits(uint64_t *out, const char *text)
{
    uint64_t v = 0;

    for (const char *p = text; *p != '\0'; p++) {
        unsigned digit = (unsigned)(unsigned char)*p - '0';

        if (digit > 9 || v > (UINT64_MAX - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *out = v;
    return text[0] != '\0';
}

int query_u64(uint64_t *out, const struct http_request *x, const char *member, uint64_t min,
              uint64_t max, struct err *e)
{
    const char *text = http_request_query(x, member);
    char field[ERR_FIELD_MAX];
    uint64_t value = 0;

    if (text == NULL)
        return 0;
    if (!all_digits(&value, text) || value < min || value > max) {
        make_field(field, "", member);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s is '%.60s', expected a whole number from %" PRIu64 " to %" PRIu64,
                       member, text, min, max);
    }
    *out = value;
    return 0;
}
