/* Replies. If there is no memory to build one, a static body is sent, because a client without a
 * reply would wait forever. */
#include "handlers/reply.h"

#include "base/utf8.h"
#include "handlers/dialect.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char media_type[] = "application/json";

/* Replies that ask the client to retry say when. */
static void add_retry_after(struct http_reply *r)
{
    if (r->status == 503 || r->status == 507)
        http_reply_header(r, "Retry-After", "1");
}

static void make_no_memory_reply(enum route_form form, struct http_reply *out)
{
    static const char native[] =
        "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"unavailable_error\","
        "\"code\":\"out_of_memory\",\"param\":null,\"retryable\":true,\"details\":null}}";
    static const char openai[] =
        "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"ServiceUnavailable\","
        "\"param\":null,\"code\":503}}";

    static const char sglang[] = "{\"success\":false,\"message\":\"no memory for the answer\","
                                 "\"error\":{\"message\":\"no memory for the answer\"}}";
    static const struct {
        const char *text;
        size_t len;
    } forms[] = {[FORM_NATIVE] = {native, sizeof native - 1},
                 [FORM_OPENAI] = {openai, sizeof openai - 1},
                 [FORM_SGLANG] = {sglang, sizeof sglang - 1},
                 [FORM_SGLANG_LORA] = {sglang, sizeof sglang - 1}};

    *out = (struct http_reply){
        .status = err_http_status(ERR_NO_MEMORY),
        .content_type = media_type,
        .data = forms[form].text,
        .len = forms[form].len,
        .log_code = err_wire_name(ERR_NO_MEMORY),
    };
    add_retry_after(out);
}

static int append_piece(const char *text, size_t len, void *arg)
{
    struct buf *out = arg;

    buf_append(out, text, len);
    return out->failed ? -1 : 0;
}

void reply_append_json(struct buf *out, const json_t *body)
{
    if (body == NULL ||
        json_dump_callback(body, append_piece, out, REPLY_JSON_FLAGS | JSON_ENCODE_ANY) != 0)
        out->failed = true;
}

/* Translates a reply for the dialect's clients. *body NULL afterwards: an empty body. */
static int translate(const struct http_request *x, json_t **body)
{
    const struct route *route = x != NULL ? x->route : NULL;

    if (route == NULL || route->translate_response == NULL || *body == NULL)
        return 0;
    return route->translate_response(body, x);
}

static bool make_empty(int status, struct http_reply *out)
{
    *out = (struct http_reply){.status = status, .data = ""};
    add_retry_after(out);
    return true;
}

/* The text ends with a newline, so that a shell's prompt begins a line of its own.
 * @text  emptied. Returns false without memory. */
static bool make_text(int status, struct buf *text, struct http_reply *out)
{
    size_t len;
    char *data;

    buf_append(text, "\n", 1);
    data = buf_take(text, &len);
    if (data == NULL)
        return false;
    *out = (struct http_reply){
        .status = status,
        .content_type = media_type,
        .data = data,
        .len = len,
        .release = free,
        .release_arg = data,
    };
    add_retry_after(out);
    return true;
}

bool reply_json_make(const struct http_request *x, int status, json_t *body, struct http_reply *out)
{
    struct buf dump = {0};
    bool had_body = body != NULL;

    if (translate(x, &body) != 0) {
        json_decref(body);
        return false;
    }
    if (had_body && body == NULL)
        return make_empty(status, out);
    reply_append_json(&dump, body);
    json_decref(body);
    return make_text(status, &dump, out);
}

static enum route_form form_of(const struct route *route)
{
    return route == NULL ? FORM_NATIVE : route->form;
}

void reply_json(struct http_request *x, int status, json_t *body)
{
    struct http_reply r;

    if (!reply_json_make(x, status, body, &r))
        make_no_memory_reply(form_of(x->route), &r);
    http_reply(x, &r);
}

void reply_empty(struct http_request *x, int status)
{
    struct http_reply r;

    (void)make_empty(status, &r);
    http_reply(x, &r);
}

static const char *native_type(int status)
{
    switch (status) {
    case 404:
        return "not_found_error";
    case 409:
        return "conflict_error";
    case 422:
        return "unprocessable_error";
    case 503:
    case 507:
        return "unavailable_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

/* As vLLM: a few names of its own, else the reason phrase. */
static const char *openai_type(int status)
{
    static const struct {
        int status;
        const char *type;
    } rows[] = {
        {400, "BadRequestError"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "NotFoundError"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {413, "Request Entity Too Large"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {422, "UnprocessableEntityError"},
        {499, "Client Closed Request"},
        {501, "NotImplementedError"},
        {503, "ServiceUnavailable"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].status == status)
            return rows[i].type;
    }
    return status >= 500 ? "InternalServerError" : "BadRequestError";
}

static json_t *native_type_json(const void *code)
{
    return json_string(native_type(err_http_status(*(const enum err_code *)code)));
}

static json_t *retryable_json(const void *code)
{
    return json_boolean(err_retryable(*(const enum err_code *)code));
}

static const struct member native_error_rows[] = {
    {"message", M_STRING, M_IN(struct err, msg), .flags = M_REQUIRED,
     .doc = "One line: what was found, and what is allowed"},
    {"type", M_STRING, M_MADE(native_type_json, struct err, code), .flags = M_REQUIRED,
     M_WORDS("invalid_request_error", "not_found_error", "conflict_error", "unprocessable_error",
             "server_error", "unavailable_error")},
    {"code", M_STRING, M_IN(struct err, code), .word = err_wire_name, .flags = M_REQUIRED},
    {"param", M_STRING | M_NULL, M_IN(struct err, field), .flags = M_REQUIRED,
     .doc = "JSON pointer of the offending member"},
    {"retryable", M_BOOL, M_MADE(retryable_json, struct err, code), .flags = M_REQUIRED},
    {"details", M_OBJECT | M_NULL, .flags = M_REQUIRED},
    {0},
};

const struct member native_error_reply[] = {
    {"error", M_OBJECT, .of = native_error_rows, .flags = M_REQUIRED},
    {0},
};

/* @details  stolen, or NULL */
static json_t *native_json(const struct err *e, json_t *details)
{
    return json_object_with(json_object(), "error",
                            json_object_with(member_write(e, native_error_rows), "details",
                                             details != NULL ? details : json_null()));
}

/* SGLang's clients expect one status for all mistakes in a request, except for authorization.
 * vLLM answers 400 to an unknown media type. */
static int reply_status(enum route_form form, const struct err *e)
{
    int status = err_http_status(e->code);

    if (e->code == ERR_UNAUTHORIZED || e->code == ERR_FORBIDDEN)
        return status;
    if (form == FORM_OPENAI)
        return e->code == ERR_MEDIA_TYPE ? 400 : status;
    return form == FORM_SGLANG && status < 500 ? 400 : status;
}

/* Converts a JSON pointer, in place, to vLLM's form: "/tokens/1" is tokens.1. */
static void make_dotted(char *field)
{
    char *to = field;

    for (const char *from = field + (*field == '/'); *from != '\0'; from++) {
        bool escaped = from[0] == '~' && (from[1] == '0' || from[1] == '1');

        *to++ = *from == '/' ? '.' : *from;
        if (escaped)
            to[-1] = *++from == '0' ? '~' : '/';
    }
    *to = '\0';
}

static json_t *openai_json(const struct err *e, const char *msg, const char *field)
{
    int status = reply_status(FORM_OPENAI, e);

    return json_pack("{s:{s:s, s:s, s:s?, s:i}}", "error", "message", msg, "type",
                     openai_type(status), "param", field, "code", status);
}

/* The forms of SGLang's control routes, of generate, and of adapters. They have no member for
 * the field of an error, so the message begins with it. */
static json_t *sglang_json(enum route_form form, const char *text, const char *field)
{
    char msg[ERR_FIELD_MAX + sizeof ": " + ERR_MSG_MAX];

    (void)snprintf(msg, sizeof msg, "%s%s%s", field != NULL ? field : "", field != NULL ? ": " : "",
                   text);
    return json_pack("{s:b, s:s, s:s*, s:{s:s}}", "success", 0, "message", msg, "error_message",
                     form == FORM_SGLANG_LORA ? msg : NULL, "error", "message", msg);
}

/* A message may have been cut inside a character, and JSON must be UTF-8. */
const struct member cause_reply[] = {
    {"code", M_STRING, M_IN(struct err, code), .word = err_wire_name},
    {"message", M_STRING, M_IN(struct err, msg)},
    {"param", M_STRING | M_NULL, M_IN(struct err, field)},
    {"retryable", M_BOOL, M_MADE(retryable_json, struct err, code)},
    {0},
};

static struct err err_cleaned(const struct err *e)
{
    struct err cleaned = *e;

    (void)utf8_clean(cleaned.msg);
    (void)utf8_clean(cleaned.field);
    return cleaned;
}

json_t *error_json(const void *cause)
{
    struct err e = err_cleaned(cause);

    return e.code == ERR_NONE ? json_null() : member_write(&e, cause_reply);
}

json_t *reply_error_json(enum route_form form, const struct err *e, json_t *details)
{
    struct err told = err_cleaned(e);
    const char *param = told.field[0] != '\0' ? told.field : NULL;

    assert(e->code != ERR_NONE);
    if (form == FORM_NATIVE)
        return native_json(&told, details);
    json_decref(details);
    if (form != FORM_OPENAI)
        return sglang_json(form, told.msg, param);
    make_dotted(told.field);
    return openai_json(e, told.msg, param);
}

void reply_error_make(const struct route *route, const struct err *e, json_t *details,
                      struct http_reply *out)
{
    enum route_form form = form_of(route);
    struct err shown = *e;

    if (route != NULL)
        dialect_error(&shown, route);
    if (reply_json_make(NULL, reply_status(form, e), reply_error_json(form, &shown, details), out))
        out->log_code = err_wire_name(e->code);
    else
        make_no_memory_reply(form, out);
    if (out->status == err_http_status(ERR_UNAUTHORIZED))
        http_reply_header(out, "WWW-Authenticate", "%s", REPLY_CHALLENGE);
}

void reply_error(struct http_request *x, const struct err *e, json_t *details)
{
    struct http_reply r;

    http_request_note_error(x, e);
    reply_error_make(x->route, e, details, &r);
    http_reply(x, &r);
}
