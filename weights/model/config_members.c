/* Reading members of config.json. */
#include "weights/model/config_members.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

json_t *config_member(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);

    return json_is_null(v) ? NULL : v;
}

int config_refuse(struct err *e, const char *dict, const char *key, const char *found,
                  const char *allowed)
{
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "%s/%s", dict, key);
    return err_set(e, ERR_BAD_REQUEST, field, "%s %s is not supported; supported: %s", key, found,
                   allowed);
}

int config_missing(struct err *e, const char *dict, const char *key, const char *expected)
{
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "%s/%s", dict, key);
    return err_set(e, ERR_BAD_REQUEST, field, "%s is missing, expected %s", key, expected);
}

const char *config_quoted(const json_t *v, char *out, size_t cap)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);

    (void)snprintf(out, cap, "%.60s", text != NULL ? text : "value");
    free(text);
    return out;
}

static bool values_agree(const json_t *a, const json_t *b)
{
    double x = json_number_value(a), y = json_number_value(b);

    if (a == NULL || b == NULL)
        return true;
    return json_is_number(a) && json_is_number(b) ? !(x < y || x > y) : json_equal(a, b) != 0;
}

int config_agree(struct config_key a, struct config_key b, struct err *e)
{
    const json_t *x = config_member(a.in, a.key), *y = config_member(b.in, b.key);
    char field[ERR_FIELD_MAX], found[64], other[64];

    if (values_agree(x, y))
        return 0;
    (void)snprintf(field, sizeof field, "%s/%s", b.where, b.key);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "%s/%s is %s and %s is %s: they mean one thing; correct one or remove it",
                   a.where, a.key, config_quoted(x, other, sizeof other), field,
                   config_quoted(y, found, sizeof found));
}

int config_u32(uint32_t *out, const json_t *o, const char *key, bool required, uint32_t least,
               uint32_t most, struct err *e)
{
    const json_t *v = config_member(o, key);
    char allowed[64], found[64];

    if (v == NULL && !required)
        return 0;
    (void)snprintf(allowed, sizeof allowed, "an integer within %u..%u", least, most);
    if (v == NULL)
        return config_missing(e, "", key, allowed);
    if (!json_is_integer(v) || json_integer_value(v) < (json_int_t)least ||
        json_integer_value(v) > (json_int_t)most)
        return config_refuse(e, "", key, config_quoted(v, found, sizeof found), allowed);
    *out = (uint32_t)json_integer_value(v);
    return 0;
}

int config_positive(double *out, const json_t *o, const char *dict, const char *key, struct err *e)
{
    const json_t *v = config_member(o, key);
    char found[64];

    if (v == NULL)
        return 0;
    if (!json_is_number(v) || !isfinite(json_number_value(v)) || json_number_value(v) <= 0.0)
        return config_refuse(e, dict, key, config_quoted(v, found, sizeof found),
                             "a number above 0");
    *out = json_number_value(v);
    return 0;
}

int config_bool(bool *out, const json_t *o, const char *key, struct err *e)
{
    const json_t *v = config_member(o, key);
    char found[64];

    if (v == NULL)
        return 0;
    if (!json_is_boolean(v))
        return config_refuse(e, "", key, config_quoted(v, found, sizeof found), "true and false");
    *out = json_is_true(v);
    return 0;
}

int config_bool_or_true(bool *out, const json_t *o, const char *key, struct err *e)
{
    if (json_is_null(json_object_get(o, key)))
        return config_refuse(e, "", key, "null", "true and false");
    *out = true;
    return config_bool(out, o, key, e);
}
