/* Prints the route table and the error codes as JSON, for check_contract.py. */
#include "base/err.h"
#include "handlers/route.h"

#include <jansson.h>
#include <stdio.h>

static json_t *names(const char *const *list)
{
    json_t *out = json_array();

    for (size_t i = 0; list != NULL && list[i] != NULL; i++)
        (void)json_array_append_new(out, json_string(list[i]));
    return out;
}

static json_t *methods(unsigned set)
{
    json_t *out = json_array();

    for (unsigned m = METHOD_GET; m < METHOD_OTHER; m <<= 1) {
        if ((set & m) != 0)
            (void)json_array_append_new(
                out, json_string(http_request_method_name((enum http_request_method)m)));
    }
    return out;
}

static const char *role_name(enum route_role role)
{
    static const char *const names[] = {
        [ROLE_HEALTH] = "health",
        [ROLE_PAGE] = "page",
        [ROLE_VIEWER] = "viewer",
        [ROLE_GENERATE] = "generate",
        [ROLE_CONTROL] = "control",
    };

    return names[role];
}

int main(void)
{
    json_t *rows = json_array(), *codes = json_array(), *all;

    for (size_t i = 0; i < n_routes; i++)
        (void)json_array_append_new(
            rows, json_pack("{s:o, s:s, s:s, s:o, s:o, s:i, s:b, s:s}", "methods",
                            methods(routes[i].methods), "path", routes[i].pattern, "operation",
                            routes[i].operation_id, "members", names(routes[i].members), "query",
                            names(routes[i].query), "form", (int)routes[i].form, "strict",
                            (int)routes[i].strict, "role", role_name(routes[i].role)));
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
