/* Any bytes as the body of a strict and of a lenient route, then every reader on what came out.
 * A refusal explains itself: a code of the request's own, a message, a field that is a pointer, and
 * an answer that can be built from it. An acceptance respects the limits. */
#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/body_scan.h"
#include "handlers/reply.h"
#include "handlers/route.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static const struct member members[] = {{.name = "names"},
                                        {.name = "dtypes"},
                                        {.name = "shapes"},
                                        {.name = "sizes"},
                                        {.name = "packed"},
                                        {.name = "weight_version"},
                                        {.name = "lease_s"},
                                        {.name = "temperature"},
                                        {.name = "shm"},
                                        {.name = "a/b~c"},
                                        {0}};
static const struct route strict = {
    .body = BODY_JSON, .strict = true, .form = FORM_NATIVE, .members = members};
static const struct route lenient = {.body = BODY_JSON, .form = FORM_OPENAI, .members = members};

static void check_refusal(const struct err *e, const struct route *route)
{
    struct http_reply r = {0};

    CHECK(e->code == ERR_BAD_REQUEST); /* never a lack of memory, never ours */
    CHECK(e->msg[0] != '\0' && strlen(e->msg) < ERR_MSG_MAX);
    CHECK(e->field[0] == '\0' || e->field[0] == '/');
    for (const char *p = e->field; (p = strchr(p, '~')) != NULL; p++)
        CHECK(p[1] == '0' || p[1] == '1');
    reply_error_make(route, e, NULL, &r);
    CHECK(r.status == 400 && r.len > 0 && r.release != NULL);
    r.release(r.release_arg);
}

static unsigned depth_of(const json_t *v)
{
    unsigned deepest = 0, d;
    const char *name;
    size_t i;
    json_t *child, *o = (json_t *)(uintptr_t)v;

    json_array_foreach(o, i, child)
    {
        d = depth_of(child);
        deepest = d > deepest ? d : deepest;
    }
    json_object_foreach(o, name, child)
    {
        (void)name;
        d = depth_of(child);
        deepest = d > deepest ? d : deepest;
    }
    return json_is_array(v) || json_is_object(v) ? deepest + 1 : 0;
}

static void check_rc(int rc, struct err *e)
{
    CHECK((rc == 0) == (e->code == ERR_NONE));
    if (rc != 0)
        check_refusal(e, &strict);
    memset(e, 0, sizeof *e);
}

/* Every reader on one member: at most its own type is taken, within the range. */
static void read_member(const json_t *o, const char *member)
{
    const json_t *v = json_object_get(o, member), *child = NULL;
    bool absent = v == NULL || json_is_null(v), flag = false;
    const char *text = NULL;
    uint64_t u = 3;
    int64_t i = 0;
    double f = 0;
    struct err e = {0};

    check_rc(body_str(&text, o, "/at", member, &e), &e);
    CHECK(text == NULL || text == json_string_value(v));
    CHECK(text == NULL || strlen(text) == json_string_length(v)); /* no NUL inside */
    check_rc(body_bool(&flag, o, "/at", member, &e), &e);
    CHECK(!flag || json_is_true(v));
    check_rc(body_u64(&u, o, "/at", member, 3, 1000, &e), &e);
    CHECK(!json_is_real(v) || u == 3 || (double)u - json_real_value(v) == 0.0); /* whole */
    CHECK(u >= 3 && u <= 1000 && (u == 3 || json_is_number(v)));
    check_rc(body_i64(&i, o, "/at", member, -5, 5, &e), &e);
    CHECK(i >= -5 && i <= 5);
    check_rc(body_f64(&f, o, "/at", member, &e), &e);
    CHECK(f - f == 0.0); /* finite */
    check_rc(body_array(&child, o, "/at", member, &e), &e);
    CHECK(child == NULL || json_is_array(child));
    child = NULL;
    check_rc(body_object(&child, o, "/at", member, &e), &e);
    if (child != NULL)
        check_rc(body_only(child, "/at", members, &e), &e);
    CHECK((body_required(o, "/at", member, &e) == 0) == !absent);
}

static void check_accepted(const json_t *o, const struct route *route)
{
    const char *name;
    json_t *value;

    CHECK(json_is_object(o));
    CHECK(depth_of(o) <= BODY_DEPTH_MAX);
    for (size_t i = 0; members[i].name != NULL; i++)
        read_member(o, members[i].name);
    json_object_foreach((json_t *)(uintptr_t)o, name, value)
    {
        bool known = false;

        (void)value;
        for (size_t i = 0; members[i].name != NULL; i++)
            known = known || strcmp(members[i].name, name) == 0;
        CHECK(known || !route->strict);
    }
}

static void parse_as(const struct route *route, const char *body, size_t len)
{
    struct http_request x = {.body_len = len};
    struct err e = {0};
    json_t *o = NULL;

    x.body = (char *)(uintptr_t)body;
    x.content_type = (char *)(uintptr_t) "application/json";
    if (body_parse(&o, &x, route, &e) != 0) {
        CHECK(o == NULL);
        check_refusal(&e, route);
        return;
    }
    CHECK(e.code == ERR_NONE);
    check_accepted(o, route);
    json_decref(o);
}

/* The scanners stand alone: they must bear text that no parser has seen. */
static void scan(const char *text, size_t len)
{
    char pointer[ERR_FIELD_MAX];
    size_t line, column, at = scan_depth(text, len, BODY_DEPTH_MAX);

    CHECK(at <= len);
    scan_line(text, at, &line, &column);
    CHECK(line >= 1 && column >= 1 && line + column <= at + 2);
    scan_pointer(text, len, pointer, sizeof pointer);
    CHECK(strlen(pointer) < sizeof pointer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static bool ready;
    char *body = malloc(len + 1); /* its own block: reading beyond it is seen */

    CHECK(body != NULL);
    if (!ready) {
        json_parse_init();
        json_object_seed(1); /* the same run for the same input */
        ready = true;
    }
    if (len > 0)
        memcpy(body, data, len);
    body[len] = '\0'; /* as the HTTP server leaves it */
    parse_as(&strict, body, len);
    parse_as(&lenient, body, len);
    scan(body, len);
    free(body);
    return 0;
}
