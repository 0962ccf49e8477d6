/* Reads requests by the rows of their tables. */
#include "handlers/rows/member.h"

#include "handlers/body.h"
#include "handlers/body_scan.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_TEXT_MAX = 200 };

const struct member *member_find(const struct member *rows, const char *name, unsigned flags)
{
    for (const struct member *m = rows; m != NULL && m->name != NULL; m++) {
        const struct member *found = m;

        if ((m->type & M_ROWS) != 0)
            found = member_find(m->of, name, flags);
        else if ((m->flags & flags) != flags || strcmp(m->name, name) != 0)
            continue;
        if (found != NULL)
            return found;
    }
    return NULL;
}

static size_t add_names(const char *names[MEMBER_NAMES_MAX], size_t n, const struct member *rows,
                        unsigned flags)
{
    for (const struct member *m = rows; m != NULL && m->name != NULL; m++) {
        if ((m->type & M_ROWS) != 0)
            n = add_names(names, n, m->of, flags);
        else if ((m->flags & flags) == flags && n + 1 < MEMBER_NAMES_MAX)
            names[n++] = m->name;
    }
    return n;
}

void member_names(const char *names[MEMBER_NAMES_MAX], const struct member *rows, unsigned flags)
{
    names[add_names(names, 0, rows, flags)] = NULL;
}

static const char *field_of_member(char field[ERR_FIELD_MAX], const char *at, const char *name)
{
    (void)snprintf(field, ERR_FIELD_MAX, "%s", at);
    scan_escape(field, ERR_FIELD_MAX, name, strlen(name));
    return field;
}

const char *member_given(char field[ERR_FIELD_MAX], const struct member *rows, unsigned flags,
                         const json_t *object, const char *at)
{
    const char *names[MEMBER_NAMES_MAX], **name = names;

    member_names(names, rows, flags);
    while (*name != NULL && body_given(object, *name) == NULL)
        name++;
    if (*name != NULL)
        (void)field_of_member(field, at, *name);
    return *name;
}

const char *member_only_given(char field[ERR_FIELD_MAX], const struct member *rows, unsigned flags,
                              const json_t *object, const char *at)
{
    const char *names[MEMBER_NAMES_MAX], *found = NULL;

    field[0] = '\0';
    member_names(names, rows, flags);
    for (const char **name = names; *name != NULL; name++) {
        if (body_given(object, *name) == NULL)
            continue;
        if (found != NULL)
            (void)field_of_member(field, at, *name);
        found = *name;
    }
    return field[0] == '\0' ? found : NULL;
}

static int64_t max_of(const struct member *m)
{
    return m->max != 0 ? m->max : INT64_MAX;
}

/* @index  out: of the text in the words */
static int check_word(int *index, const struct member *m, const char *text, const char *at,
                      struct err *e)
{
    char list[WORDS_TEXT_MAX] = "", field[ERR_FIELD_MAX];
    size_t len = 0;

    for (int i = 0; m->words[i] != NULL; i++) {
        if (strcmp(m->words[i], text) == 0) {
            *index = i;
            return 0;
        }
        if (len < sizeof list)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i > 0 ? ", " : "",
                                    m->words[i]);
    }
    (void)field_of_member(field, at, m->name);
    if (m->words[1] == NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "%s '%.32s' is not supported; only '%s' is",
                       m->name, text, list);
    return err_set(e, ERR_BAD_REQUEST, field, "%s '%.32s' is not one of %s", m->name, text, list);
}

static int check_string_length(const struct member *m, const char *text, const char *at,
                               struct err *e)
{
    int64_t len = (int64_t)strlen(text);
    char field[ERR_FIELD_MAX];

    if (len >= m->min && len <= max_of(m))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field_of_member(field, at, m->name),
                   "a string of %" PRId64 " bytes; expected %" PRId64 " to %" PRId64, len, m->min,
                   max_of(m));
}

/* @where  the field of the struct */
static int store_text(void *where, const struct member *m, const char *text, const char *at,
                      struct err *e)
{
    char field[ERR_FIELD_MAX];
    int index = 0;

    if (text == NULL)
        return 0;
    if (m->check != NULL ? m->check(text, field_of_member(field, at, m->name), e) != 0
                         : check_string_length(m, text, at, e) != 0)
        return -1;
    if (m->words != NULL && check_word(&index, m, text, at, e) != 0)
        return -1;
    if (m->store == STORE_INT)
        *(int *)where = index;
    else
        *(const char **)where = m->words != NULL ? m->words[index] : text;
    return 0;
}

static void store_default(void *where, const struct member *m)
{
    switch (m->store) {
    case STORE_STR:
        *(const char **)where = m->def;
        break;
    case STORE_BOOL:
        *(bool *)where = strcmp(m->def, "true") == 0;
        break;
    case STORE_U32:
        *(uint32_t *)where = (uint32_t)strtoul(m->def, NULL, 10);
        break;
    case STORE_U64:
        *(uint64_t *)where = strtoull(m->def, NULL, 10);
        break;
    case STORE_I64:
        *(int64_t *)where = strtoll(m->def, NULL, 10);
        break;
    case STORE_F32:
        *(float *)where = strtof(m->def, NULL);
        break;
    case STORE_F64:
        *(double *)where = strtod(m->def, NULL);
        break;
    case STORE_INT:
        if (m->words == NULL)
            *(int *)where = (int)strtol(m->def, NULL, 10);
        for (int i = 0; m->words != NULL && m->words[i] != NULL; i++)
            if (strcmp(m->words[i], m->def) == 0)
                *(int *)where = i;
        break;
    case STORE_NOT:
    case STORE_CHARS:
    case STORE_TEXT:
    case STORE_JSON:
    case STORE_ROWS:
        break;
    }
}

static int check_real(double v, const struct member *m, const char *at, struct err *e)
{
    bool above = (m->flags & M_ABOVE) != 0, limited = above || m->min != 0 || m->max != 0;
    double min = (double)m->min, max = m->max != 0 ? (double)m->max : HUGE_VAL;
    char field[ERR_FIELD_MAX];

    if (!limited || ((above ? v > min : v >= min) && v <= max))
        return 0;
    (void)field_of_member(field, at, m->name);
    if (!above)
        return err_set(e, ERR_BAD_REQUEST, field, "%s is %.9g; expected %g to %g", m->name, v, min,
                       max);
    if (m->max == 0)
        return err_set(e, ERR_BAD_REQUEST, field, "%s is %.9g; it must be a finite number above %g",
                       m->name, v, min);
    return err_set(e, ERR_BAD_REQUEST, field, "%s is %.9g; it must be above %g and at most %g",
                   m->name, v, min, max);
}

static int read_f64(double *out, const struct member *m, const json_t *o, const char *at,
                    struct err *e)
{
    double value = 0;

    if (body_f64(&value, o, at, m->name, e) != 0 || check_real(value, m, at, e) != 0)
        return -1;
    *out = value;
    return 0;
}

static int read_f32(float *out, const struct member *m, const json_t *o, const char *at,
                    struct err *e)
{
    char field[ERR_FIELD_MAX];
    double value = 0;

    if (body_f64(&value, o, at, m->name, e) != 0)
        return -1;
    if (!(fabs(value) <= (double)FLT_MAX))
        return err_set(e, ERR_BAD_REQUEST, field_of_member(field, at, m->name),
                       "%g is out of range of a 32-bit float", value);
    if (check_real(value, m, at, e) != 0)
        return -1;
    *out = (float)value;
    return 0;
}

static int read_int(int *out, const struct member *m, const json_t *o, const char *at,
                    struct err *e)
{
    int64_t value = 0, max = max_of(m);

    if (body_i64(&value, o, at, m->name, m->min, max < INT32_MAX ? max : INT32_MAX, e) != 0)
        return -1;
    *out = (int)value;
    return 0;
}

static bool is_empty_value(const json_t *v)
{
    return json_is_string(v) ? json_string_length(v) == 0
                             : !json_is_number(v) && !json_is_boolean(v) &&
                                   json_object_size(v) + json_array_size(v) == 0;
}

/* @wanted  the neutral value */
static bool is_neutral(const json_t *v, json_t *wanted)
{
    bool is = json_is_object(wanted) || json_equal(wanted, v);
    const char *name;
    json_t *each;

    if (json_is_number(wanted) && json_is_number(v))
        return !(json_number_value(v) < json_number_value(wanted)) &&
               !(json_number_value(v) > json_number_value(wanted));
    json_object_foreach(wanted, name, each)
    {
        is = is && json_equal(each, json_object_get(v, name));
    }
    return is;
}

static int check_neutral(const json_t *v, const struct member *m, const char *at, struct err *e)
{
    bool empty = strcmp(m->neutral, "empty") == 0, none = strcmp(m->neutral, "null") == 0;
    json_auto_t *wanted = empty ? NULL : json_loads(m->neutral, JSON_DECODE_ANY, NULL);
    char field[ERR_FIELD_MAX], found[32];

    if (!empty && wanted == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    if (empty ? is_empty_value(v) : is_neutral(v, wanted))
        return 0;
    (void)snprintf(found, sizeof found, "%s", body_type_name(v));
    if (json_is_number(v))
        (void)snprintf(found, sizeof found, "%.9g", json_number_value(v));
    return err_set(e, ERR_BAD_REQUEST, field_of_member(field, at, m->name),
                   "'%s' is not supported by this server: found %s, only null%s%s is accepted",
                   m->name, found, none ? "" : " or ",
                   none    ? ""
                   : empty ? "an empty value"
                           : m->neutral);
}

static int read_json(const json_t **out, const struct member *m, const json_t *o, const char *at,
                     struct err *e)
{
    if (m->type == M_ARRAY)
        return body_array(out, o, at, m->name, e);
    if (m->type == M_OBJECT || m->type == M_MAP)
        return body_object(out, o, at, m->name, e);
    *out = body_given(o, m->name) != NULL ? body_given(o, m->name) : *out;
    return 0;
}

static int read_value(void *where, const struct member *m, const json_t *o, const char *at,
                      struct err *e)
{
    const char *text = NULL;
    struct member_text *t = where;
    uint64_t min = m->min > 0 ? (uint64_t)m->min : 0, max = (uint64_t)max_of(m);

    switch (m->store) {
    case STORE_STR:
        return body_str(&text, o, at, m->name, e) != 0 ? -1 : store_text(where, m, text, at, e);
    case STORE_INT:
        if (m->words == NULL)
            return read_int(where, m, o, at, e);
        return body_str(&text, o, at, m->name, e) != 0 ? -1 : store_text(where, m, text, at, e);
    case STORE_TEXT:
        return body_text(&t->s, &t->len, o, at, m->name, e);
    case STORE_BOOL:
        return body_bool(where, o, at, m->name, e);
    case STORE_U32:
        return body_u32(where, o, at, m->name, (uint32_t)min,
                        max < UINT32_MAX ? (uint32_t)max : UINT32_MAX, e);
    case STORE_U64:
        return body_u64(where, o, at, m->name, min, max, e);
    case STORE_I64:
        return body_i64(where, o, at, m->name, m->min == 0 && m->max == 0 ? INT64_MIN : m->min,
                        max_of(m), e);
    case STORE_F32:
        return read_f32(where, m, o, at, e);
    case STORE_F64:
        return read_f64(where, m, o, at, e);
    case STORE_JSON:
        return read_json(where, m, o, at, e);
    case STORE_NOT:
    case STORE_CHARS:
    case STORE_ROWS:
        break;
    }
    return 0;
}

static void note_given(void *out, const struct member *m, bool given)
{
    if (m->given != 0)
        *(bool *)((char *)out + m->given - 1) = given;
}

int member_read(void *out, const struct member *rows, const json_t *object, const char *at,
                struct err *e)
{
    size_t n_left = json_object_size(object); /* that no row has had; then none is looked up */

    for (const struct member *m = rows; m->name != NULL; m++) {
        void *where = (char *)out + m->at;
        const json_t *v;

        if (m->store == STORE_ROWS && member_read(where, m->of, object, at, e) != 0)
            return -1;
        if ((m->type & M_ROWS) != 0)
            continue;
        v = n_left > 0 ? json_object_get(object, m->name) : NULL;
        n_left -= v != NULL;
        v = json_is_null(v) ? NULL : v;
        if (v == NULL && (m->flags & M_REQUIRED) != 0)
            return body_required(object, at, m->name, e);
        note_given(out, m, v != NULL);
        if (v == NULL && m->def != NULL)
            store_default(where, m);
        if (v != NULL && m->neutral != NULL && check_neutral(v, m, at, e) != 0)
            return -1;
        if (v != NULL && read_value(where, m, object, at, e) != 0)
            return -1;
    }
    return 0;
}

int member_read_only(void *out, const struct member *rows, const json_t *object, const char *at,
                     struct err *e)
{
    return body_only(object, at, rows, e) != 0 ? -1 : member_read(out, rows, object, at, e);
}

static int read_query(void *where, const struct member *m, const struct http_request *x,
                      struct err *e)
{
    uint64_t min = m->min > 0 ? (uint64_t)m->min : 0, max = (uint64_t)max_of(m), value = 0;

    switch (m->store) {
    case STORE_STR:
    case STORE_INT: /* with words */
        return store_text(where, m, http_request_query(x, m->name), "", e);
    case STORE_BOOL:
        return query_bool(where, x, m->name, e);
    case STORE_U32:
        value = *(uint32_t *)where;
        if (query_u64(&value, x, m->name, min, max < UINT32_MAX ? max : UINT32_MAX, e) != 0)
            return -1;
        *(uint32_t *)where = (uint32_t)value;
        return 0;
    case STORE_U64:
        return query_u64(where, x, m->name, min, max, e);
    case STORE_TEXT:
    case STORE_I64:
    case STORE_F32:
    case STORE_F64:
    case STORE_JSON:
    case STORE_NOT:
    case STORE_CHARS:
    case STORE_ROWS:
        break;
    }
    return 0;
}

int member_read_query(void *out, const struct member *rows, const struct http_request *x,
                      struct err *e)
{
    char field[ERR_FIELD_MAX];

    for (const struct member *m = rows; m->name != NULL; m++) {
        void *where = (char *)out + m->at;
        bool given;

        if (m->store == STORE_ROWS && member_read_query(where, m->of, x, e) != 0)
            return -1;
        if ((m->type & M_ROWS) != 0 || (m->flags & M_QUERY) == 0)
            continue;
        given = http_request_query(x, m->name) != NULL;
        if (!given && (m->flags & M_REQUIRED) != 0)
            return err_set(e, ERR_BAD_REQUEST, field_of_member(field, "", m->name),
                           "%s is missing in the query, it is required", m->name);
        note_given(out, m, given);
        if (m->def != NULL && !given)
            store_default(where, m);
        if (read_query(where, m, x, e) != 0)
            return -1;
    }
    return 0;
}
