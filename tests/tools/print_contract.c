/* Prints the routes with the schemas of their requests, and the error codes, as JSON: for
 * check_contract.py, and for openapi/requests.json, of which tests/tools/openapi_json.py makes the
 * document. */
#include "base/err.h"
#include "handlers/route.h"
#include "handlers/rows/member.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *names(const struct member *rows, unsigned flags)
{
    const char *list[MEMBER_NAMES_MAX];
    json_t *out = json_array();

    member_names(list, rows, flags);
    for (const char **name = list; *name != NULL; name++)
        (void)json_array_append_new(out, json_string(*name));
    return out;
}

static void set(json_t *object, const char *key, json_t *value)
{
    (void)json_object_set_new(object, key, value);
}

static const struct {
    enum member_type type;
    const char *name;
} types[] = {{M_STRING, "string"}, {M_BOOL, "boolean"}, {M_INT, "integer"},
             {M_NUMBER, "number"}, {M_ARRAY, "array"},  {M_OBJECT, "object"},
             {M_MAP, "object"},    {M_INTS, "array"},   {M_NULL, "null"}};

/* "string", or ["string", "null"]; nothing for any type. */
static void set_type(json_t *schema, unsigned of, bool optional)
{
    json_t *list = json_array();

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if ((of & types[i].type) != 0)
            (void)json_array_append_new(list, json_string(types[i].name));
    if (optional)
        (void)json_array_append_new(list, json_string("null"));
    if (of != M_ANY)
        set(schema, "type",
            json_array_size(list) == 1 ? json_incref(json_array_get(list, 0)) : json_incref(list));
    json_decref(list);
}

static json_t *object_schema(const struct member *rows, unsigned flags, bool strict);

static void set_limits(json_t *schema, const struct member *m)
{
    const char *low = "minLength", *high = "maxLength";

    if ((m->type & (M_INT | M_NUMBER)) != 0) {
        low = (m->flags & M_ABOVE) != 0 ? "exclusiveMinimum" : "minimum";
        high = "maximum";
    } else if ((m->type & M_ARRAY) != 0) {
        low = "minItems";
        high = "maxItems";
    } else if ((m->type & M_MAP) != 0) {
        low = "minProperties";
        high = "maxProperties";
    }
    if (m->min != 0 || (m->flags & M_ABOVE) != 0 || m->store == STORE_U32 ||
        m->store == STORE_U64 || ((m->type & (M_INT | M_NUMBER)) != 0 && m->max != 0))
        set(schema, low, json_integer(m->min));
    if (m->max != 0)
        set(schema, high, json_integer(m->max));
}

static json_t *words_json(const struct member *m, bool optional)
{
    json_t *list = json_array();

    for (const char *const *w = m->words; *w != NULL; w++)
        (void)json_array_append_new(list, json_string(*w));
    if (optional)
        (void)json_array_append_new(list, json_null());
    return list;
}

static json_t *default_json(const struct member *m)
{
    json_t *value = (m->type & M_STRING) != 0 ? NULL : json_loads(m->def, JSON_DECODE_ANY, NULL);

    return value != NULL ? value : json_string(m->def);
}

static json_t *items_schema(const struct member *m)
{
    bool strict = (m->flags & M_OPEN) == 0;
    json_t *items = m->of != NULL && (m->items & M_OBJECT) != 0 ? object_schema(m->of, 0, strict)
                                                                : json_object();

    if (m->of == NULL)
        set_type(items, m->items, false);
    if ((m->items & M_INT) != 0)
        set(items, "minimum", json_integer(0));
    if ((m->items & M_INTS) != 0)
        set(items, "items", json_pack("{s:s, s:i}", "type", "integer", "minimum", 0));
    if (m->words != NULL)
        set(items, "enum", words_json(m, false));
    if ((m->flags & M_BASE64) != 0)
        set(items, "contentEncoding", json_string("base64"));
    return items;
}

static json_t *description(const struct member *m)
{
    if (m->doc != NULL || m->neutral == NULL)
        return m->doc != NULL ? json_string(m->doc) : NULL;
    if (strcmp(m->neutral, "null") == 0)
        return json_string("Accepted if null; any other value is a 400 that names it");
    return json_sprintf("Accepted if null or %s; any other value is a 400 that names it",
                        m->neutral);
}

static json_t *member_schema(const struct member *m, bool optional)
{
    unsigned type = m->type | ((m->flags & M_EACH) != 0 ? M_ARRAY : 0);
    bool listed = (type & M_ARRAY) != 0 || (type & M_MAP) != 0;
    json_t *schema = type == M_OBJECT && m->of != NULL
                         ? object_schema(m->of, 0, (m->flags & M_OPEN) == 0)
                         : json_object();

    set_type(schema, type, optional);
    if ((type & M_OBJECT) != 0 && type != M_OBJECT && m->of != NULL)
        (void)json_object_update_missing_new(schema,
                                             object_schema(m->of, 0, (m->flags & M_OPEN) == 0));
    set_limits(schema, m);
    if (listed && m->items != M_ANY)
        set(schema, (m->type & M_MAP) != 0 ? "additionalProperties" : "items", items_schema(m));
    if (m->words != NULL && !listed)
        set(schema, "enum", words_json(m, optional));
    if ((m->flags & M_BASE64) != 0 && !listed)
        set(schema, "contentEncoding", json_string("base64"));
    if (m->def != NULL)
        set(schema, "default", default_json(m));
    if (m->doc != NULL || m->neutral != NULL)
        set(schema, "description", description(m));
    return schema;
}

static void add_properties(json_t *properties, json_t *required, const struct member *rows,
                           unsigned flags)
{
    for (const struct member *m = rows; m != NULL && m->name != NULL; m++) {
        bool needed = (m->flags & M_REQUIRED) != 0;

        if ((m->type & M_ROWS) != 0) {
            add_properties(properties, required, m->of, flags);
            continue;
        }
        if ((m->flags & flags) != flags || json_object_get(properties, m->name) != NULL)
            continue;
        set(properties, m->name, member_schema(m, !needed && flags == 0));
        if (needed)
            (void)json_array_append_new(required, json_string(m->name));
    }
}

static json_t *object_schema(const struct member *rows, unsigned flags, bool strict)
{
    json_t *properties = json_object(), *required = json_array();
    json_t *schema = json_pack("{s:s}", "type", "object");

    add_properties(properties, required, rows, flags);
    if (strict)
        set(schema, "additionalProperties", json_false());
    if (json_array_size(required) > 0)
        set(schema, "required", json_incref(required));
    set(schema, "properties", properties);
    json_decref(required);
    return schema;
}

static json_t *methods(unsigned of)
{
    json_t *out = json_array();

    for (unsigned m = METHOD_GET; m < METHOD_OTHER; m <<= 1) {
        if ((of & m) != 0)
            (void)json_array_append_new(
                out, json_string(http_request_method_name((enum http_request_method)m)));
    }
    return out;
}

static const char *role_name(enum route_role role)
{
    static const char *const of[] = {
        [ROLE_HEALTH] = "health",     [ROLE_PAGE] = "page",       [ROLE_VIEWER] = "viewer",
        [ROLE_GENERATE] = "generate", [ROLE_CONTROL] = "control",
    };

    return of[role];
}

static json_t *route_json(const struct route *r)
{
    json_t *row = json_pack("{s:o, s:s, s:s, s:o, s:o, s:i, s:b, s:s}", "methods",
                            methods(r->methods), "path", r->pattern, "operation", r->operation_id,
                            "members", names(r->members, 0), "query", names(r->query, M_QUERY),
                            "form", (int)r->form, "strict", (int)r->strict, "role",
                            role_name(r->role));

    if (r->members != NULL)
        set(row, "body_schema", object_schema(r->members, 0, r->strict));
    if (r->query != NULL)
        set(row, "query_schema", object_schema(r->query, M_QUERY, true));
    return row;
}

int main(void)
{
    json_t *rows = json_array(), *codes = json_array(), *all;

    for (size_t i = 0; i < n_routes; i++)
        (void)json_array_append_new(rows, route_json(&routes[i]));
    for (enum err_code code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++)
        (void)json_array_append_new(codes, json_pack("{s:s, s:i, s:b}", "code", err_wire_name(code),
                                                     "status", err_http_status(code), "retryable",
                                                     (int)err_retryable(code)));
    all = json_pack("{s:o, s:o}", "routes", rows, "codes", codes);
    if (all == NULL || json_dumpf(all, stdout, JSON_INDENT(1)) != 0)
        return 1;
    json_decref(all);
    return 0;
}
