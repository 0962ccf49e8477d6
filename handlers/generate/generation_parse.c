/* The model, ids and stream options of a generate request. */
#include "handlers/generate/generation_parse.h"

#include "handlers/body.h"
#include "handlers/generate/completion_text.h"
#include "handlers/rows/rows.h"

#include <stdlib.h>
#include <string.h>

static int check_len(const char *s, const char *field, size_t max, struct err *e)
{
    if (s != NULL && (s[0] == '\0' || strlen(s) > max))
        return err_set(e, ERR_BAD_REQUEST, field, "a string of %zu bytes; expected 1 to %zu",
                       strlen(s), max);
    return 0;
}

static int check_salt(const char *s, struct err *e)
{
    uint64_t n = s != NULL ? completion_text_chars(s, strlen(s)) : 1;

    if (n >= 1 && n <= GENERATION_CACHE_SALT_MAX)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/cache_salt",
                   "a string of %llu characters; expected 1 to %d", (unsigned long long)n,
                   GENERATION_CACHE_SALT_MAX);
}

static int parse_model(struct generation *g, const char *model, struct err *e)
{
    int kind = generation_check_model(g->app, model, e);

    if (kind <= 0)
        return kind;
    g->lora = strdup(model);
    if (g->lora == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the name of the adapter");
    return 0;
}

int generation_parse_names(char **request_id, struct generation *g, const json_t *body,
                           struct err *e)
{
    const char *model = NULL, *id = NULL, *salt = NULL, *session = NULL, *rid = NULL;

    if (body_str(&model, body, "", "model", e) != 0 ||
        body_str(&id, body, "", "request_id", e) != 0 || body_str(&rid, body, "", "rid", e) != 0 ||
        body_str(&salt, body, "", "cache_salt", e) != 0 ||
        body_str(&session, body, "", "session_id", e) != 0 || parse_model(g, model, e) != 0 ||
        check_len(id, "/request_id", GENERATION_REQUEST_ID_MAX, e) != 0 ||
        check_len(rid, "/rid", GENERATION_REQUEST_ID_MAX, e) != 0 || check_salt(salt, e) != 0)
        return -1;
    id = id != NULL ? id : rid;
    *request_id = strdup(id != NULL ? id : g->x->actor.request_id);
    if (*request_id == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request id");
    g->request_id = *request_id;
    return 0;
}

int generation_parse_on_update(struct generation *g, const json_t *body, struct err *e)
{
    const char *mode = NULL;

    if (body_str(&mode, body, "", "on_update", e) != 0)
        return -1;
    return mode == NULL ? 0 : gen_on_update_parse(&g->on_update, mode, "/on_update", e);
}

int generation_parse_stream(struct generation_stream *out, const json_t *body, bool strict,
                            struct err *e)
{
    static const char at[] = "/stream_options";
    struct generation_stream s = {0};
    const json_t *options = NULL;

    if (body_bool(&s.on, body, "", "stream", e) != 0 ||
        body_object(&options, body, "", "stream_options", e) != 0)
        return -1;
    if (options != NULL && !s.on)
        return err_set(e, ERR_BAD_REQUEST, at,
                       "stream options are given, but 'stream' is not true");
    if (options != NULL &&
        ((strict && body_only(options, at, stream_options_rows, e) != 0) ||
         body_bool(&s.usage_last, options, at, "include_usage", e) != 0 ||
         body_bool(&s.usage_each, options, at, "continuous_usage_stats", e) != 0))
        return -1;
    s.usage_each = s.usage_each && s.usage_last;
    *out = s;
    return 0;
}
