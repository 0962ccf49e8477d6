/* Reads requests by the rows of their tables. */
#include "handlers/rows/member.h"

#include "handlers/body.h"
#include "handlers/body_scan.h"

#include <inttypes.h>
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
    return err_set(e, ERR_BAD_REQUEST, field_of_member(field, at, m->name),
                   "%s '%.32s' is not one of %s", m->name, text, list);
}

/* @where  the field of the struct */
static int store_text(void *where, const struct member *m, const char *text, const char *at,
                      struct err *e)
{
    char field[ERR_FIELD_MAX];
    int index = 0;

    if (text == NULL)
        return 0;
    if (m->check != NULL && m->check(text, field_of_member(field, at, m->name), e) != 0)
        return -1;
    if (m->words != NULL && check_word(&index, m, text, at, e) != 0)
        return -1;
    if (m->store == STORE_WORD)
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
    case STORE_F64:
        *(double *)where = strtod(m->def, NULL);
        break;
    case STORE_WORD:
        for (int i = 0; m->words[i] != NULL; i++)
            if (strcmp(m->words[i], m->def) == 0)
                *(int *)where = i;
        break;
    case STORE_NOT:
    case STORE_TEXT:
    case STORE_JSON:
    case STORE_ROWS:
        break;
    }
}

static int64_t max_of(const struct member *m)
{
    return m->max != 0 ? m->max : INT64_MAX;
}

static int read_f64(double *out, const struct member *m, const json_t *o, const char *at,
                    struct err *e)
{
    bool above = (m->flags & M_ABOVE) != 0;
    char field[ERR_FIELD_MAX];
    double value = *out;

    if (body_f64(&value, o, at, m->name, e) != 0)
        return -1;
    if (body_given(o, m->name) == NULL || (m->min == 0 && m->max == 0 && !above))
        goto read;
    if (value < (double)m->min || (above && !(value > (double)m->min)) ||
        (m->max != 0 && value > (double)m->max))
        return err_set(e, ERR_BAD_REQUEST, field_of_member(field, at, m->name),
                       "%s is %g, expected %s %" PRId64 " to %" PRId64, m->name, value,
                       above ? "above" : "", m->min, m->max);
read:
    *out = value;
    return 0;
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
    case STORE_WORD:
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
    case STORE_F64:
        return read_f64(where, m, o, at, e);
    case STORE_JSON:
        return read_json(where, m, o, at, e);
    case STORE_NOT:
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
    for (const struct member *m = rows; m->name != NULL; m++) {
        void *where = (char *)out + m->at;

        if (m->store == STORE_ROWS && member_read(where, m->of, object, at, e) != 0)
            return -1;
        if ((m->type & M_ROWS) != 0)
            continue;
        if ((m->flags & M_REQUIRED) != 0 && body_required(object, at, m->name, e) != 0)
            return -1;
        note_given(out, m, body_given(object, m->name) != NULL);
        if (m->def != NULL && body_given(object, m->name) == NULL)
            store_default(where, m);
        if (read_value(where, m, object, at, e) != 0)
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
    case STORE_WORD:
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
    case STORE_F64:
    case STORE_JSON:
    case STORE_NOT:
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
