#include "handlers/fleet/lora_sent.h"

#include "base/json_parse.h"
#include "base/log.h"
#include "engine/lora/adapter_config.h"
#include "handlers/body.h"
#include "weights/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Must be a whole file: an engine would find only later that it is not. */
static int check_tensors(const struct http_request *x, struct err *e)
{
    struct safetensors head = {0};
    uint64_t nbytes = 0;

    if (safetensors_head_nbytes(x->body, x->body_len, &nbytes, e) != 0)
        return -1;
    if (nbytes == 0 || nbytes > x->body_len)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the body has %zu bytes, and the header of a .safetensors file has more: "
                       "send the whole file",
                       x->body_len);
    if (safetensors_parse(&head, x->body, nbytes, x->body_len, e) != 0)
        return -1;
    safetensors_fini(&head);
    return 0;
}

/* The engines that get it do not look. */
static void warn_base_changed(const json_t *config, const char *name)
{
    struct log_rec r;

    if (!adapter_method_changes_base(
            json_string_value(json_object_get(config, "init_lora_weights"))))
        return;
    log_begin(&r, LOG_WARN, "lora.base_changed");
    log_str(&r, "lora_name", name != NULL ? name : "");
    log_str(&r, "why", ADAPTER_BASE_CHANGED);
    log_event(&r);
}

static int check_config(const char *text, const char *name, struct err *e)
{
    json_error_t why;
    bool starved = false;
    json_t *config;

    if (text == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/adapter_config",
                       "'adapter_config' is required, in the query when the body is tensors");
    config = json_parse_file(text, strlen(text), JSON_REJECT_DUPLICATES, &why, &starved);
    if (starved)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the adapter's config");
    if (!json_is_object(config)) {
        json_decref(config);
        return err_set(e, ERR_BAD_REQUEST, "/adapter_config",
                       "it is not the JSON object of adapter_config.json: %.200s",
                       config != NULL ? "another value" : why.text);
    }
    warn_base_changed(config, name);
    json_decref(config);
    return 0;
}

static int put_bool(json_t *body, const struct http_request *x, const char *member, struct err *e)
{
    bool value = false;

    if (http_request_query(x, member) == NULL)
        return 0;
    if (query_bool(&value, x, member, e) != 0)
        return -1;
    (void)json_object_set_new(body, member, json_boolean(value));
    return 0;
}

static int put_u64(json_t *body, const struct http_request *x, const char *member, struct err *e)
{
    uint64_t value = 0;

    if (http_request_query(x, member) == NULL)
        return 0;
    if (query_u64(&value, x, member, 0, INT64_MAX, e) != 0)
        return -1;
    (void)json_object_set_new(body, member, json_integer((json_int_t)value));
    return 0;
}

/* A lack of memory is found at the end: the members are counted. */
static int members_of(json_t **out, const struct http_request *x, struct err *e)
{
    const char *name = http_request_query(x, "lora_name");
    json_t *body = json_object();

    *out = body;
    if (name == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name",
                       "'lora_name' is required, in the query when the body is tensors");
    (void)json_object_set_new(body, "lora_name", json_string(name));
    if (put_bool(body, x, "load_inplace", e) != 0 || put_bool(body, x, "pinned", e) != 0 ||
        put_bool(body, x, "allow_partial", e) != 0 || put_u64(body, x, "if_revision", e) != 0 ||
        put_u64(body, x, "timeout_s", e) != 0)
        return -1;
    if (json_object_size(body) + 1 != x->n_query) /* adapter_config */
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the members of the request");
    return 0;
}

int lora_sent_parse(struct lora_sent *out, json_t **body, struct http_request *x, struct err *e)
{
    const char *config = http_request_query(x, "adapter_config");

    if (check_config(config, http_request_query(x, "lora_name"), e) != 0 ||
        members_of(body, x, e) != 0 || check_tensors(x, e) != 0)
        return -1;
    out->x = x;
    out->content = (struct adapter_content){.name = http_request_query(x, "lora_name"),
                                            .config = config,
                                            .tensors = x->body,
                                            .nbytes = x->body_len};
    return 0;
}

int lora_sent_write(struct lora_sent *sent, const struct adapter_dir *dir, json_t *body,
                    char **path, struct err *e)
{
    int rc = adapter_dir_write(dir, &sent->content, path, e);

    sent->content.tensors = NULL;
    http_request_drop_body(sent->x);
    if (rc != 0)
        return -1;
    if (json_object_set_new(body, "lora_path", json_string(*path)) == 0)
        return 0;
    free(*path);
    *path = NULL;
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the path of an adapter");
}
