/* Requests that are passed on to an engine unchanged, and the reply to a generate request that was
 * aborted before an engine had it. */
#include "fleet/proxy/proxy.h"

#include "base/buf.h"
#include "base/clock.h"
#include "control/metrics.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/route.h"

#include <stdlib.h>
#include <string.h>

enum { ABORTED_SEQS_MAX = 1024 };

/* What the reply repeats of the request. */
struct aborted {
    enum operation operation;
    const char *id;
    json_t *body; /* borrowed */
    size_t n_seqs;
    json_int_t n_prompt; /* tokens of all prompts; -1: there is text */
    bool many;           /* SGLang: the reply is a list */
    bool stream;
};

static size_t n_of(const json_t *params)
{
    const json_t *n = json_object_get(params, "n");

    if (n == NULL || json_is_null(n))
        return 1;
    return json_is_integer(n) && json_integer_value(n) > 0 &&
                   json_integer_value(n) <= ABORTED_SEQS_MAX
               ? (size_t)json_integer_value(n)
               : 0;
}

/* Prompts in a member that has one, or a list: a text, ids, texts, or lists of ids. */
static size_t n_prompts_of(const json_t *prompt, struct aborted *a)
{
    size_t n = json_array_size(prompt);

    if (json_is_string(prompt))
        return 1;
    if (n == 0)
        return 0;
    if (json_is_integer(json_array_get(prompt, 0))) {
        a->n_prompt = (json_int_t)n;
        return 1;
    }
    a->n_prompt = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(prompt, i);

        if (!json_is_array(one)) {
            a->n_prompt = -1;
            break;
        }
        a->n_prompt += (json_int_t)json_array_size(one);
    }
    return n;
}

static size_t count_seqs(struct aborted *a)
{
    const json_t *body = a->body, *params = json_object_get(body, "sampling_params");
    size_t n_prompts;

    switch (a->operation) {
    case OPERATION_GENERATE:
        return n_prompts_of(json_object_get(body, "token_ids"), a) * n_of(params);
    case OPERATION_COMPLETIONS:
        return n_prompts_of(json_object_get(body, "prompt"), a) * n_of(body);
    case OPERATION_CHAT:
        return n_of(body);
    case OPERATION_SGLANG_GENERATE:
        n_prompts = n_prompts_of(json_object_get(body, "input_ids"), a);
        if (n_prompts == 0)
            n_prompts = n_prompts_of(json_object_get(body, "text"), a);
        if (json_is_array(params))
            params = json_array_get(params, 0);
        a->many = n_prompts * n_of(params) > 1 || json_is_array(json_object_get(body, "text")) ||
                  json_is_array(json_array_get(json_object_get(body, "input_ids"), 0));
        return n_prompts * n_of(params);
    default:
        return 0;
    }
}

static json_t *openai_choice(const struct aborted *a, size_t i)
{
    json_t *c = json_pack("{s:I, s:n, s:s, s:n, s:[]}", "index", (json_int_t)i, "logprobs",
                          "finish_reason", "abort", "stop_reason", "weight_versions");
    json_t *value = a->operation == OPERATION_GENERATE ? json_array()
                    : a->operation == OPERATION_COMPLETIONS
                        ? json_string("")
                        : json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    const char *name = a->operation == OPERATION_GENERATE      ? "token_ids"
                       : a->operation == OPERATION_COMPLETIONS ? "text"
                       : a->stream                             ? "delta"
                                                               : "message";

    if (json_object_set_new(c, name, value) == 0)
        return c;
    json_decref(c);
    return NULL;
}

static json_t *usage_of(const struct aborted *a)
{
    if (a->n_prompt < 0 || a->stream)
        return json_null();
    return json_pack("{s:I, s:i, s:I}", "prompt_tokens", a->n_prompt, "completion_tokens", 0,
                     "total_tokens", a->n_prompt);
}

/* The reply with the choices [from, to). */
static json_t *openai_reply(const struct aborted *a, size_t from, size_t to)
{
    bool chat = a->operation == OPERATION_CHAT, ids = a->operation == OPERATION_GENERATE;
    const char *object = !chat       ? "text_completion"
                         : a->stream ? "chat.completion.chunk"
                                     : "chat.completion";
    const json_t *id = json_object_get(a->body, "request_id");
    json_t *choices = json_array();

    for (size_t i = from; i < to; i++)
        choices = json_list_append(choices, openai_choice(a, i));
    return json_pack("{s:o, s:s*, s:I, s:O?, s:o, s:o, s:o*}", ids ? "request_id" : "id",
                     json_sprintf("%s%s",
                                  ids    ? ""
                                  : chat ? "chatcmpl-"
                                         : "cmpl-",
                                  json_is_string(id) ? json_string_value(id) : a->id),
                     "object", ids ? NULL : object, "created", (json_int_t)clock_wall_s(), "model",
                     json_object_get(a->body, "model"), "choices", choices, "usage", usage_of(a),
                     "boot_id", ids ? json_null() : NULL);
}

static json_t *sglang_id(const struct aborted *a, size_t i)
{
    const json_t *rid = json_object_get(a->body, "rid");

    if (json_is_array(rid))
        rid = json_array_get(rid, i);
    else if (a->many)
        return json_sprintf("%s_%zu", json_is_string(rid) ? json_string_value(rid) : a->id, i);
    return json_sprintf("%s", json_is_string(rid) ? json_string_value(rid) : a->id);
}

/* @n_prompt  of one prompt alone */
static json_t *sglang_one(const struct aborted *a, size_t i)
{
    json_t *one = json_pack("{s:s, s:[], s:{s:o, s:{s:s, s:s, s:n, s:n}, s:i, s:i}}", "text", "",
                            "output_ids", "meta_info", "id", sglang_id(a, i), "finish_reason",
                            "type", "abort", "message", "Abort before prefill", "status_code",
                            "err_type", "completion_tokens", 0, "cached_tokens", 0);

    if (one != NULL && !a->many && a->n_prompt >= 0)
        (void)json_object_set_new(json_object_get(one, "meta_info"), "prompt_tokens",
                                  json_integer(a->n_prompt));
    if (one != NULL && a->many && a->stream)
        (void)json_object_set_new(one, "index", json_integer((json_int_t)i));
    return one;
}

static json_t *whole_of(const struct aborted *a)
{
    json_t *list;

    if (a->operation != OPERATION_SGLANG_GENERATE)
        return openai_reply(a, 0, a->n_seqs);
    if (!a->many)
        return sglang_one(a, 0);
    list = json_array();
    for (size_t i = 0; i < a->n_seqs; i++)
        list = json_list_append(list, sglang_one(a, i));
    return list;
}

static bool stream_make(const struct aborted *a, struct http_reply *out)
{
    struct buf text = {0};

    for (size_t i = 0; i < a->n_seqs; i++) {
        json_t *event = a->operation == OPERATION_SGLANG_GENERATE ? sglang_one(a, i)
                                                                  : openai_reply(a, i, i + 1);

        buf_puts(&text, "data: ");
        reply_append_json(&text, event);
        buf_puts(&text, "\n\n");
        json_decref(event);
    }
    buf_puts(&text, "data: [DONE]\n\n");
    if (text.failed) {
        buf_fini(&text);
        return false;
    }
    *out = (struct http_reply){
        .status = 200, .content_type = "text/event-stream; charset=utf-8", .release = free};
    out->data = out->release_arg = buf_take(&text, &out->len);
    return out->data != NULL;
}

/* What the embedded engine and the engines reply to a request that is aborted before its first
 * token: each sequence without tokens, and with finish_reason "abort". What only an engine knows,
 * as the number of tokens of a text, is null or left out. Only the members that say how many
 * sequences there are, and how they are named, are read: the rest of the request is the engine's to
 * check, and the same request may be sent again. Returns: false, with *out untouched: replies of
 * this route have no such form, the body is not what the route takes, or there is no memory. */
static bool aborted_reply_make(const struct http_request *x, struct http_reply *out)
{
    const struct route *route = x->route;
    struct aborted a = {.operation = route->operation, .id = x->actor.request_id, .n_prompt = -1};
    bool made = false;

    if (strstr(x->accept, BODY_TENSORS_TYPE) != NULL)
        return false;
    a.body = x->body != NULL ? json_loadb(x->body, x->body_len, 0, NULL) : NULL;
    a.stream = json_is_true(json_object_get(a.body, "stream"));
    a.n_seqs = count_seqs(&a);
    if (a.n_seqs > 0 && a.n_seqs <= ABORTED_SEQS_MAX)
        made = a.stream ? stream_make(&a, out) : reply_json_make(x, 200, whole_of(&a), out);
    json_decref(a.body);
    return made;
}

/* requests */

static void error_reply(const struct http_request *x, const struct err *e, struct http_reply *out)
{
    if (e->code != ERR_ABORTED || !aborted_reply_make(x, out))
        reply_error_make(x->route, e, NULL, out);
}

static void count_token_age(const struct http_request *x, uint64_t serial)
{
    const struct app *app = x->app;

    metrics_token_age(app->metrics, serial);
}

int handle_fleet_proxy(struct app *app, struct http_request *x, struct err *e)
{
    static const struct proxy_hooks hooks = {.error_reply = error_reply, .made = count_token_age};
    const struct route *route = x->route;

    (void)app;
    return proxy_forward(x, route->executor == EXECUTOR_GENERATE ? FLEET_GENERATE : FLEET_TEXT,
                         &hooks, e);
}

/* Which engine gets the request is not known before it has a permit, so all must have the route. */
int handle_fleet_rollouts(struct app *app, struct http_request *x, struct err *e)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);

    for (size_t i = 0; i < all->n; i++)
        if (!upstream_is_removed(all->items[i]) && !upstream_caps_of(all->items[i])->makes_rollouts)
            return err_set(e, ERR_HAS_UPSTREAMS, "",
                           "%.200s is of kind %s and makes no batches: generate each prompt by "
                           "itself, and put the replies together by assemble_rollouts() of the "
                           "Python client",
                           upstream_name(all->items[i]),
                           upstream_kind_name(upstream_kind(all->items[i])));
    return handle_fleet_proxy(app, x, e);
}
