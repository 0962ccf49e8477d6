/* The body as a JSON object. Its depth is checked first, because jansson recurses. */
#include "handlers/body.h"

#include "base/json_parse.h"
#include "handlers/body_scan.h"
#include "handlers/dialect.h"
#include "handlers/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* "application/json", with or without parameters. */
static bool is_json(const char *type)
{
    static const char name[] = "application/json";
    size_t len = sizeof name - 1;

    return strncasecmp(type, name, len) == 0 && strchr("; \t", type[len]) != NULL;
}

/* A web page can send a body without a Content-Type, or with a form's, to another server without
 * a preflight request of the browser: on control routes a body needs a type. */
static int check_type(const struct http_request *x, const struct route *route, struct err *e)
{
    const char *other = route->body == BODY_TENSORS ? " or " BODY_TENSORS_TYPE : "";

    if (is_json(x->content_type))
        return 0;
    if (x->content_type[0] != '\0')
        return err_set(e, ERR_MEDIA_TYPE, "", "content type '%.100s' is not application/json%s",
                       x->content_type, other);
    if (route->role < ROLE_CONTROL || x->body_len == 0)
        return 0;
    return err_set(e, ERR_MEDIA_TYPE, "",
                   "the body has no Content-Type, which this route requires: send Content-Type: "
                   "application/json%s",
                   other);
}

static int check_depth(const char *text, size_t len, struct err *e)
{
    size_t at = scan_depth(text, len, BODY_DEPTH_MAX), line, column;
    char field[ERR_FIELD_MAX];

    if (at == len)
        return 0;
    scan_line(text, at, &line, &column);
    scan_pointer(text, at, field, sizeof field);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "nested deeper than %d levels at byte %zu (line %zu, column %zu)",
                   BODY_DEPTH_MAX, at, line, column);
}

/* jansson's offset is after the token at which it stopped. */
static int refuse_syntax(const char *text, size_t len, const json_error_t *why, struct err *e)
{
    size_t at = why->position > 0 ? (size_t)why->position : 0, line, column;
    char field[ERR_FIELD_MAX];

    if (at > len)
        at = len;
    scan_line(text, at, &line, &column);
    scan_pointer(text, at, field, sizeof field);
    if (json_error_code(why) == json_error_duplicate_key)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "member %.160s is given twice in one object, the second time at byte %zu "
                       "(line %zu, column %zu)",
                       strstr(why->text, "near ") != NULL ? strstr(why->text, "near ") + 5 : field,
                       at, line, column);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "the body is not JSON: %.160s, at byte %zu (line %zu, column %zu)", why->text,
                   at, line, column);
}

/* A dialect's prompts may contain NULs, as in other servers. On strict routes, and on all that
 * control the server, strings are names, addresses and paths, which would end there: NULs are
 * refused. */
static int parse_json(json_t **out, const char *text, size_t len, const struct route *route,
                      struct err *e)
{
    bool prompts = !route->strict && route->role == ROLE_GENERATE;
    size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | (prompts ? JSON_ALLOW_NUL : 0);
    json_error_t why;
    bool no_memory;
    json_t *root = json_parse(text, len, flags, &why, &no_memory);

    if (no_memory)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to parse a body of %zu bytes", len);
    if (root == NULL)
        return refuse_syntax(text, len, &why, e);
    *out = root;
    return 0;
}

static int check_object(const json_t *root, const struct route *route, struct err *e)
{
    if (!json_is_object(root))
        return err_set(e, ERR_BAD_REQUEST, "", "the body is %s, expected a JSON object",
                       body_type_name(root));
    return route->strict ? body_only_of(root, route, e) : 0;
}

/* Notes what is ignored, and translates the body if the row belongs to a dialect. Steals root. */
static int translate_body(json_t **out, json_t *root, const struct http_request *x,
                          const struct route *route, struct err *e)
{
    if (!route->strict)
        dialect_note_unknown(root, "", route->members, 0, x, route);
    if (route->dialect != DIALECT_NATIVE && dialect_request(&root, x, route, e) != 0) {
        json_decref(root);
        return -1;
    }
    *out = root;
    return 0;
}

int body_parse(json_t **out, const struct http_request *x, const struct route *route, struct err *e)
{
    json_t *root;

    if (route->body == BODY_NONE || (x->body_len == 0 && route->json_optional)) {
        root = json_object();
        if (root == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
        return translate_body(out, root, x, route, e);
    }
    if (x->body_len > 0)
        return body_parse_text(out, x, x->body, x->body_len, route, e);
    if (check_type(x, route, e) != 0)
        return -1;
    return err_set(e, ERR_BAD_REQUEST, "", "the body is empty, expected a JSON object");
}

int body_parse_text(json_t **out, const struct http_request *x, const char *text, size_t len,
                    const struct route *route, struct err *e)
{
    json_t *root = NULL;

    if (check_type(x, route, e) != 0 || check_depth(text, len, e) != 0 ||
        parse_json(&root, text, len, route, e) != 0)
        return -1;
    if (check_object(root, route, e) != 0) {
        json_decref(root);
        return -1;
    }
    return translate_body(out, root, x, route, e);
}

bool body_is_tensors(const struct http_request *x)
{
    static const char name[] = BODY_TENSORS_TYPE;
    const struct route *route = x->route;
    size_t len = sizeof name - 1;

    return route->body == BODY_TENSORS && strncasecmp(x->content_type, name, len) == 0 &&
           (x->content_type[len] == '\0' || x->content_type[len] == ';' ||
            x->content_type[len] == ' ');
}
