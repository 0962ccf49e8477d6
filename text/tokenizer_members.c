/* Reading members of tokenizer.json. */
#include "text/tokenizer_members.h"
#include "text/tokenizer_priv.h"

#include <stdio.h>
#include <string.h>

struct quoted member_quote(const char *text)
{
    struct quoted q;
    size_t n = strnlen(text, sizeof q.text - 1);

    while (n > 0 && text[n] != '\0' && (text[n] & 0xc0) == 0x80)
        n--; /* keep characters whole */
    for (size_t i = 0; i < n; i++)
        q.text[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    q.text[n] = '\0';
    return q;
}

struct pointer pointer_member(const char *base, const char *name)
{
    struct pointer p;

    (void)snprintf(p.text, sizeof p.text, "%.118s/%.40s", base, name);
    return p;
}

struct pointer pointer_index(const char *base, size_t i)
{
    struct pointer p;

    (void)snprintf(p.text, sizeof p.text, "%.118s/%zu", base, i);
    return p;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};

    return v == NULL ? "nothing" : names[json_typeof(v)];
}

int member_wrong_type(const char *field, const json_t *found, const char *wanted, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field, "%s where %s belongs", type_name(found), wanted);
}

int member_bool(bool *out, const json_t *o, const char *base, const char *name, struct err *e)
{
    const json_t *v = json_object_get(o, name);

    if (!json_is_boolean(v))
        return member_wrong_type(pointer_member(base, name).text, v, "true or false", e);
    *out = json_is_true(v);
    return 0;
}

int member_bool_or(bool *out, const json_t *o, const char *base, const char *name, bool absent,
                   struct err *e)
{
    if (json_object_get(o, name) == NULL) {
        *out = absent;
        return 0;
    }
    return member_bool(out, o, base, name, e);
}

int member_str(const char **out, const json_t *o, const char *base, const char *name, struct err *e)
{
    const json_t *v = json_object_get(o, name);

    if (!json_is_string(v))
        return member_wrong_type(pointer_member(base, name).text, v, "a string", e);
    *out = json_string_value(v);
    return 0;
}

int member_array(const json_t **out, const json_t *o, const char *base, const char *name,
                 struct err *e)
{
    const json_t *v = json_object_get(o, name);

    if (!json_is_array(v))
        return member_wrong_type(pointer_member(base, name).text, v, "an array", e);
    *out = v;
    return 0;
}

int member_id(uint32_t *out, const json_t *v, const char *field, struct err *e)
{
    if (!json_is_integer(v))
        return member_wrong_type(field, v, "an id", e);
    if (json_integer_value(v) < 0 || json_integer_value(v) > TOKENIZER_ID_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "id %" JSON_INTEGER_FORMAT "; 0 to %d are allowed", json_integer_value(v),
                       TOKENIZER_ID_MAX);
    *out = (uint32_t)json_integer_value(v);
    return 0;
}

int member_type(const char **out, const json_t *v, const char *field, struct err *e)
{
    if (!json_is_object(v))
        return member_wrong_type(field, v, "an object", e);
    return member_str(out, v, field, "type", e);
}

int member_unsupported(const char *field, const char *type, const char *allowed, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "type").text,
                   "'%s' is not supported; %s may stand here", member_quote(type).text, allowed);
}

int member_too_deep(const char *field, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field, "Sequence inside Sequence, more than %d deep",
                   TOKENIZER_NESTING_MAX);
}
