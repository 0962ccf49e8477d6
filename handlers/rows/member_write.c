/* Writes replies by the rows of their tables. */
#include "handlers/rows/member.h"

#include "handlers/reply.h"

static json_t *text_json(const struct member *m, const char *text)
{
    bool none = text == NULL || ((m->type & M_NULL) != 0 && text[0] == '\0');

    return none ? json_null() : json_string(text);
}

static json_t *unsigned_json(const struct member *m, uint64_t v)
{
    uint32_t per = m->per > 0 ? m->per : 1;

    if (v == 0 && (m->type & M_NULL) != 0)
        return json_null();
    if (m->word != NULL)
        return text_json(m, m->word((unsigned)v));
    return (m->type & M_NUMBER) != 0 ? json_real((double)v / per)
                                     : json_integer((json_int_t)(v / per));
}

static json_t *value_json(const struct member *m, const void *from)
{
    const void *at = (const char *)from + m->at;

    if (m->given != 0 && !*(const bool *)((const char *)from + m->given - 1))
        return json_null();
    if (m->make != NULL)
        return m->make(at);
    switch (m->store) {
    case STORE_STR:
        return text_json(m, *(const char *const *)at);
    case STORE_CHARS:
        return text_json(m, at);
    case STORE_BOOL:
        return m->words != NULL ? json_string(m->words[*(const bool *)at])
                                : json_boolean(*(const bool *)at);
    case STORE_U32:
        return unsigned_json(m, *(const uint32_t *)at);
    case STORE_U64:
        return unsigned_json(m, *(const uint64_t *)at);
    case STORE_INT:
        return *(const int *)at < 0 ? json_integer(*(const int *)at)
                                    : unsigned_json(m, (uint64_t) * (const int *)at);
    case STORE_I64:
        return json_integer(*(const int64_t *)at);
    case STORE_F64:
        return (m->type & M_INT) != 0 ? json_integer((json_int_t) * (const double *)at)
                                      : json_real(*(const double *)at);
    case STORE_ROWS:
        return member_write(at, m->of);
    case STORE_TEXT:
    case STORE_F32:
    case STORE_JSON:
    case STORE_NOT:
        break;
    }
    return (m->type & M_STRING) != 0 ? json_string(m->def)
                                     : json_loads(m->def, JSON_DECODE_ANY, NULL);
}

static bool is_told(const struct member *m, const json_t *value)
{
    bool left_out = (m->flags & M_IF_ANY) != 0 || (m->given != 0 && (m->type & M_NULL) == 0);

    return !left_out ||
           !(json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0));
}

/* Returns: was there memory? */
static bool put_rows(json_t *object, const struct member *rows, const void *from)
{
    for (const struct member *m = rows; m->name != NULL; m++) {
        json_t *value;

        if (m->store == STORE_NOT && m->make == NULL && m->def == NULL)
            continue;
        if ((m->type & M_ROWS) != 0) {
            if (!put_rows(object, m->of, (const char *)from + m->at))
                return false;
            continue;
        }
        value = value_json(m, from);
        if (value != NULL && !is_told(m, value))
            json_decref(value);
        else if (json_object_set_new(object, m->name, value) != 0)
            return false;
    }
    return true;
}

json_t *member_write(const void *from, const struct member *rows)
{
    json_t *object = json_object();

    if (object != NULL && put_rows(object, rows, from))
        return object;
    json_decref(object);
    return NULL;
}

json_t *member_write_list(const void *items, size_t n, size_t nbytes, const struct member *rows)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        list = json_list_append(list, member_write((const char *)items + i * nbytes, rows));
    return list;
}
