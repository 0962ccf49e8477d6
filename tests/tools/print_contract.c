/* Prints the routes with the schemas of their requests, the schemas of replies, and the error
 * codes, as JSON: for check_contract.py, and for openapi/requests.json and openapi/replies.json, of
 * which tests/tools/openapi_json.py makes the document. */
#include "base/err.h"
#include "handlers/history_json.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/rows/reply_rows.h"
#include "handlers/update_json.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Parts of replies that have a name in the document. */
static const struct {
    const char *name;
    const struct member *rows;
    const char *doc; /* or NULL */
} reply_objects[] = {
    {"Update", update_reply, NULL},
    {"Sender", sender_reply, "What one rank has brought to an update"},
    {"Changes", changes_reply,
     "What a commit changed; the tensors are in /v1/weights/diff. null before the commit, and if "
     "no version was before it since the server started. Absent in front of a fleet without "
     "--stage"},
    {"UpdateRecord", update_record_reply,
     "The end of an update, or a request of an update that was refused and left it as it was"},
    {"ErrorRecord", error_record_reply, NULL},
    {"Status", status_reply,
     "In front of upstream engines there are no nbytes … age_s of weights, no model, cuda, nccl or "
     "adapters; engine has name, running and waiting only, and admission counts for all upstreams "
     "together. update, pause and sleep are the fleet's. With --stage state, cuda, nccl and update "
     "are those of the server itself."},
    {"Upstreams", upstreams_reply, NULL},
    {"Upstream", upstream_reply, NULL},
    {"UpstreamReady", upstream_ready_reply, NULL},
    {"Group", group_reply, NULL},
    {"Pause", pause_reply, NULL},
    {"Sleep", sleep_reply, NULL},
    {"Admission", admission_reply, NULL},
    {"AdapterTotals", adapter_totals_reply, NULL},
    {"RecordedVersion", recorded_version_reply, NULL},
    {"Slept", slept_reply, NULL},
    {"Woken", woken_reply, NULL},
    {"Resumed", resumed_reply, NULL},
    {"UpstreamsProven", upstreams_proven_reply, NULL},
    {"Preflight", preflight_reply, NULL},
    {"Plan", plan_reply, NULL},
    {"WeightsChecked", weights_checked_reply, NULL},
    {"ChatRendered", chat_rendered_reply, NULL},
    {"UnloadedAdapter", unloaded_adapter_reply, NULL},
    {"CacheReset", cache_reset_reply, NULL},
    {"Ready", ready_reply, NULL},
    {"Weights", weights_reply, NULL},
    {"WeightsDiff", weights_diff_reply, NULL},
    {"Handles", handles_reply, NULL},
    {"Lease", lease_reply, NULL},
    {"FileLease", file_lease_reply, NULL},
    {"Seed", seed_reply, NULL},
    {"Adapter", adapter_reply, NULL},
    {"LoadedAdapter", loaded_adapter_reply, NULL},
    {"AdapterUsed", adapter_used_reply,
     "The adapter that made the whole answer; null for the base model"},
    {"Span", span_reply, "Output tokens [start, end) that one version of the weights made"},
    {"RelayedSpan", relayed_span_reply,
     "Of a reply that an engine has made. Exact: `version` made the output tokens [start, end), of "
     "each sequence if there are several; `end` null: to the last one. Not exact: the list has the "
     "first and the last version that may have made tokens, with `start` and `end` null; `version` "
     "and `serial` of the last are null if an update had not ended yet. `version` is null for "
     "weights without a name, `serial` 0 for those that the engines were started with"},
    {"Generated", generated_reply, NULL},
    {"Completion", completion_reply, NULL},
    {"ChatCompletion", chat_reply, NULL},
    {"SglangGenerated", sglang_generated_reply,
     "In a stream of several sequences each event also has `index`, the number of its sequence"},
    {"SglangLoad", sglang_load_reply, NULL},
    {"Error", native_error_reply, NULL},
    {"Cause", cause_reply, "Why something failed"},
    {"Result", result_reply,
     "In front of upstream engines, in each reply of a control route and in the details of its "
     "errors: the result on one engine"},
};
enum { N_REPLY_OBJECTS = sizeof reply_objects / sizeof reply_objects[0] };

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

/* What the rows are of. A reply has neither defaults nor what clients would have to obey. */
enum form { OF_BODY, OF_QUERY, OF_REPLY };

static json_t *object_schema(const struct member *rows, enum form form, bool strict);

static json_t *reference(const char *name)
{
    return json_pack("{s:o}", "$ref", json_sprintf("#/components/schemas/%s", name));
}

/* NULL: the rows have no name. */
static json_t *rows_reference(const struct member *rows)
{
    for (size_t i = 0; i < N_REPLY_OBJECTS; i++)
        if (reply_objects[i].rows == rows)
            return reference(reply_objects[i].name);
    return NULL;
}

static json_t *nested_schema(const struct member *m, enum form form)
{
    json_t *schema = form == OF_REPLY ? rows_reference(m->of) : NULL;

    return schema != NULL
               ? schema
               : object_schema(m->of, form, form != OF_REPLY && (m->flags & M_OPEN) == 0);
}

static void set_limits(json_t *schema, const struct member *m, enum form form)
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
    if (m->min != 0 || (m->flags & M_ABOVE) != 0 ||
        (form != OF_REPLY && (m->store == STORE_U32 || m->store == STORE_U64)) ||
        ((m->type & (M_INT | M_NUMBER)) != 0 && m->max != 0))
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

static json_t *items_schema(const struct member *m, enum form form)
{
    json_t *items = m->of != NULL && (m->items & M_OBJECT) != 0 ? nested_schema(m, form)
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

static json_t *member_schema(const struct member *m, bool optional, enum form form)
{
    unsigned type = m->type | ((m->flags & M_EACH) != 0 ? M_ARRAY : 0);
    bool listed = (type & M_ARRAY) != 0 || (type & M_MAP) != 0;
    json_t *schema = type == M_OBJECT && m->of != NULL ? nested_schema(m, form) : json_object();

    optional = optional || (type & M_NULL) != 0;
    if (type == M_NULL)
        set_type(schema, type, false);
    else
        set_type(schema, type & ~(unsigned)M_NULL, optional);
    if ((type & M_OBJECT) != 0 && type != M_OBJECT && m->of != NULL)
        (void)json_object_update_missing_new(schema, nested_schema(m, form));
    set_limits(schema, m, form);
    if (listed && m->items != M_ANY)
        set(schema, (m->type & M_MAP) != 0 ? "additionalProperties" : "items",
            items_schema(m, form));
    if (m->words != NULL && !listed)
        set(schema, "enum", words_json(m, optional));
    if ((m->flags & M_BASE64) != 0 && !listed)
        set(schema, "contentEncoding", json_string("base64"));
    if (m->def != NULL)
        set(schema, form == OF_REPLY ? "const" : "default", default_json(m));
    if (m->doc != NULL || m->neutral != NULL)
        set(schema, "description", description(m));
    return schema;
}

/* Of an object with a name, and of an error's code: the reference, or null if it may be that. */
static json_t *named_schema(const struct member *m)
{
    json_t *named = NULL;

    if (m->word == err_wire_name)
        named = reference("ErrorCode");
    else if ((m->type & M_OBJECT) != 0 && m->of != NULL)
        named = rows_reference(m->of);
    if (named == NULL || (m->type & M_NULL) == 0)
        return named;
    return json_pack("{s:[{s:s}, o]}", "oneOf", "type", "null", named);
}

static json_t *reply_schema(const struct member *m)
{
    json_t *schema = named_schema(m);

    if (schema == NULL)
        schema = member_schema(m, false, OF_REPLY);
    else if (m->doc != NULL)
        set(schema, "description", description(m));
    if ((m->flags & M_FLEET) != 0)
        set(schema, "x-upstreams", json_true());
    return schema;
}

static void add_properties(json_t *properties, json_t *required, const struct member *rows,
                           enum form form)
{
    unsigned flags = form == OF_QUERY ? M_QUERY : 0;

    for (const struct member *m = rows; m != NULL && m->name != NULL; m++) {
        bool needed = (m->flags & M_REQUIRED) != 0;

        if ((m->type & M_ROWS) != 0) {
            add_properties(properties, required, m->of, form);
            continue;
        }
        if ((m->flags & flags) != flags || json_object_get(properties, m->name) != NULL)
            continue;
        set(properties, m->name,
            form == OF_REPLY ? reply_schema(m)
                             : member_schema(m, !needed && form == OF_BODY, form));
        if (needed)
            (void)json_array_append_new(required, json_string(m->name));
    }
}

static json_t *object_schema(const struct member *rows, enum form form, bool strict)
{
    json_t *properties = json_object(), *required = json_array();
    json_t *schema = json_pack("{s:s}", "type", "object");

    add_properties(properties, required, rows, form);
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
        [ROLE_GENERATE] = "generate", [ROLE_CONTROL] = "control", [ROLE_WEIGHTS] = "weights",
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
        set(row, "body_schema", object_schema(r->members, OF_BODY, r->strict));
    if (r->query != NULL)
        set(row, "query_schema", object_schema(r->query, OF_QUERY, true));
    return row;
}

static json_t *replies_json(void)
{
    json_t *replies = json_object();

    for (size_t i = 0; i < N_REPLY_OBJECTS; i++) {
        json_t *schema = object_schema(reply_objects[i].rows, OF_REPLY, false);

        if (reply_objects[i].doc != NULL)
            set(schema, "description", json_string(reply_objects[i].doc));
        set(replies, reply_objects[i].name, schema);
    }
    return replies;
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
    all = json_pack("{s:o, s:o, s:o}", "routes", rows, "replies", replies_json(), "codes", codes);
    if (all == NULL || json_dumpf(all, stdout, JSON_INDENT(1)) != 0)
        return 1;
    json_decref(all);
    return 0;
}
