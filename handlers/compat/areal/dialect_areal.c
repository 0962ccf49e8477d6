/* The routes that AReaL adds to vLLM's server. An update is two requests: the tensor list, then the
 * request to receive the tensors. */
#include "handlers/compat/areal/dialect_areal.h"

#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/reply.h"
#include "handlers/tensor_list_json.h"

#include <stdatomic.h>
#include <string.h>

/* The tensor list of the next update; NULL: none. Owned; the thread that takes it by an exchange
 * owns it then. Acquire and release, because another thread reads the JSON. */
static _Atomic(json_t *) next_list;

static int put_success(json_t **reply, const char *message)
{
    return dialect_replace(reply, json_pack("{s:b, s:s}", "success", 1, "message", message));
}

/* As in AReaL's server, running requests are aborted: its clients send them again with the tokens
 * that they have. */
int areal_pause_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)x;
    (void)json_object_clear(*body);
    return dialect_set(*body, "mode", json_string("abort"), e);
}

int areal_pause_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return put_success(reply, "Generation paused and all requests aborted");
}

int areal_continue_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return put_success(reply, "Generation continued");
}

/* AReaL sends an IPv6 address in brackets, as in a URL. */
static int strip_brackets(json_t *body, struct err *e)
{
    const char *address = json_string_value(json_object_get(body, "master_address"));
    size_t len = address != NULL ? strlen(address) : 0;

    if (len < 2 || address[0] != '[' || address[len - 1] != ']')
        return 0;
    return dialect_set(body, "master_address", json_stringn(address + 1, len - 2), e);
}

int areal_group_request(json_t **body, const struct http_request *x, struct err *e)
{
    return sglang_group_request(body, x, e) != 0 ? -1 : strip_brackets(*body, e);
}

static int check_list(const json_t *body, struct err *e)
{
    return body_required(body, "", "names", e) != 0 ? -1 : tensor_columns_check(body, NULL, "", e);
}

int handle_areal_meta(struct app *app, struct http_request *x, struct err *e)
{
    json_t *body;

    (void)app;
    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    if (check_list(body, e) != 0) {
        json_decref(body);
        return -1;
    }
    json_decref(atomic_exchange_explicit(&next_list, body, memory_order_acq_rel));
    reply_json(x, 200,
               json_pack("{s:b, s:s}", "success", 1, "message",
                         "POST /areal_update_weights_xccl receives these"));
    return 0;
}

int handle_areal_lora_meta(struct app *app, struct http_request *x, struct err *e)
{
    json_t *body;
    int rc;

    (void)app;
    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = check_list(body, e);
    json_decref(body);
    if (rc == 0)
        reply_json(x, 200,
                   json_pack("{s:b, s:s}", "success", 1, "message",
                             "POST /areal_update_weights_lora_xccl receives these"));
    return rc;
}

int areal_update_request(json_t **body, const struct http_request *x, struct err *e)
{
    json_t *list = atomic_exchange_explicit(&next_list, NULL, memory_order_acq_rel);
    int rc;

    (void)x;
    if (list == NULL)
        return err_set(
            e, ERR_CONFLICT, "",
            "there is no tensor list: POST it to /areal_set_update_weight_meta before each update");
    rc = dialect_translate(body, list, areal_meta_members, 0, e);
    json_decref(list);
    return rc != 0 ? -1 : dialect_set(*body, "transport", json_string("nccl"), e);
}

int areal_lora_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (body_required(*body, "", "lora_model_path", e) != 0 ||
        dialect_request_plain(body, x, e) != 0)
        return -1;
    return dialect_set(*body, "load_inplace", json_true(), e);
}

/* PEFT's tensor names without "default.", PEFT's name for an adapter without a name. */
static json_t *plain_names(const json_t *names)
{
    static const char word[] = "default.";
    json_t *plain = json_array();
    const json_t *name;
    size_t i;

    json_array_foreach(names, i, name)
    {
        const char *text = json_string_value(name), *at = text != NULL ? strstr(text, word) : NULL;
        json_t *one = at == NULL
                          ? json_incref(json_mutable(name))
                          : json_sprintf("%.*s%s", (int)(at - text), text, at + sizeof word - 1);

        if (plain == NULL || json_array_append_new(plain, one) != 0) {
            json_decref(plain);
            return NULL;
        }
    }
    return plain;
}

int areal_lora_tensors_request(json_t **body, const struct http_request *x, struct err *e)
{
    json_t *names;

    if (check_list(*body, e) != 0)
        return -1;
    names = plain_names(json_object_get(*body, "names"));
    if (dialect_request_plain(body, x, e) != 0 ||
        dialect_set(*body, "adapter_config/peft_type", json_string("LORA"), e) != 0 ||
        dialect_set(*body, "names", json_incref(names), e) != 0 ||
        dialect_set(*body, "transport", json_string("nccl"), e) != 0 ||
        dialect_set(*body, "load_inplace", json_true(), e) != 0) {
        json_decref(names);
        return -1;
    }
    json_decref(names);
    return 0;
}

int areal_lora_response(json_t **reply, const struct http_request *x)
{
    (void)x;
    return put_success(reply, "the adapter is loaded");
}
