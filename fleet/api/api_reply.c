/* Replies of upstreams: what all kinds have in common, and the choice of the kind's own reader. A
 * server may reply 200 and say in the body that it did nothing, or something else than was asked
 * for. */
#include "fleet/api/upstream_api_priv.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* for the kinds */

void api_copy_text(char out[FLEET_LABEL_MAX + 1], const json_t *value)
{
    if (json_is_string(value))
        (void)snprintf(out, FLEET_LABEL_MAX + 1, "%s", json_string_value(value));
}

uint64_t api_positive(const json_t *value)
{
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;

    return n > 0 ? (uint64_t)n : 0;
}

int api_is_not(struct err *e, const char *member, const char *is, const char *expected)
{
    return err_set(e, ERR_UPSTREAM, "", "its reply has %s '%.100s', expected '%.100s'", member, is,
                   expected);
}

int api_is_text(const json_t *reply, const char *member, const char *expected, struct err *e)
{
    const char *is = api_text(reply, member, "");

    return strcmp(is, expected) == 0 ? 0 : api_is_not(e, member, is, expected);
}

int api_is_version(const json_t *reply, const struct api_args *args, const char *member,
                   struct err *e)
{
    const char *version = args->label;

    return version != NULL && *version != '\0' ? api_is_text(reply, member, version, e) : 0;
}

/* Something between here and the engine may answer anything with 200. */
static bool changes_weights(enum api_op op)
{
    return op == API_INIT_TRANSFER || op == API_START_UPDATE || op == API_UPDATE_WEIGHTS ||
           op == API_FINISH_UPDATE || op == API_SET_VERSION;
}

int api_check_success(enum api_op op, const struct api_args *args, const struct api_context *ctx,
                      const json_t *reply, struct err *e)
{
    const json_t *error = json_object_get(reply, "error");

    (void)ctx;
    if (json_is_false(json_object_get(reply, "success")) || json_is_object(error) ||
        (json_is_string(error) && json_string_length(error) > 0))
        return err_set(e, ERR_UPSTREAM, "", "its reply says that it failed");
    if (changes_weights(op) && json_object_size(reply) == 0)
        return err_set(e, ERR_UPSTREAM, "",
                       "its reply has status 200 and is no JSON object with members: it does not "
                       "say that it was done");
    if ((op == API_SET_VERSION || op == API_FINISH_UPDATE) &&
        json_object_get(reply, "new_version") != NULL)
        return api_is_version(reply, args, "new_version", e);
    return 0;
}

json_t *api_vllm_config(const json_t *reply)
{
    return json_incref(json_object_get(reply, "vllm_config"));
}

/* queries */

static int read_probe_version(struct upstream_report *out, enum upstream_kind kind, int status,
                              const json_t *reply, struct err *e)
{
    const json_t *version = json_object_get(reply, "weight_version");

    if (status == 0)
        return 0;
    out->label[0] = '\0';
    if (status == 404 || status == 405) /* of a release, or a mode, without the query */
        return 0;
    if (!json_is_string(version) && !json_is_null(version))
        return err_set(e, ERR_UNREADABLE, "",
                       "its reply to %s, with status %d, has no weight_version",
                       upstream_api(kind)->queries[API_GET_PROBE_VERSION].path, status);
    api_copy_text(out->label, version);
    return 0;
}

int api_read_report(struct upstream_report *out, enum upstream_kind kind, enum api_query query,
                    int status, const char *text, size_t len, struct err *e)
{
    json_auto_t *reply = status == 200 && query != API_GET_STATUS ? json_loadb(text, len, 0, NULL)
                                                                  : NULL;
    const char *release = api_text(reply, "version", "");

    if (query == API_GET_STATUS) {
        memset(out, 0, sizeof *out);
        upstream_api(kind)->read_status(out, text != NULL ? text : "", len);
    } else if (query == API_GET_PROBE_VERSION) {
        return read_probe_version(out, kind, status, reply, e);
    } else if (query == API_GET_RELEASE && release[0] != '\0' &&
               strlen(release) <= FLEET_RELEASE_MAX) {
        (void)snprintf(out->release, sizeof out->release, "%s", release);
    } else if (query == API_GET_PAUSED || query == API_GET_ASLEEP) {
        if (json_is_true(json_object_get(reply, "is_paused")))
            out->held = "paused";
        if (json_is_true(json_object_get(reply, "is_sleeping"))) {
            out->held = "asleep";
            out->sleep = SAYS_ASLEEP;
        } else if (json_is_false(json_object_get(reply, "is_sleeping"))) {
            out->sleep = SAYS_AWAKE;
        }
    }
    return 0;
}

int api_read_version(char out[API_VERSION_MAX + 1], enum upstream_kind kind, const char *text,
                     size_t len, struct err *e)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    const json_t *version = api_at(reply, upstream_api(kind)->version_at);

    if (!json_is_string(version) && !json_is_null(version))
        return err_set(e, ERR_UNREADABLE, "", "its reply to %s has no weight_version",
                       upstream_api(kind)->queries[API_GET_VERSION].path);
    (void)snprintf(out, API_VERSION_MAX + 1, "%s",
                   json_is_string(version) ? json_string_value(version) : "");
    return 0;
}

int api_read_ranks(uint64_t *out, enum upstream_kind kind, const char *text, size_t len,
                   struct err *e)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    int64_t n = upstream_api(kind)->n_ranks(reply);

    if (n < 0)
        return err_set(e, ERR_UNREADABLE, "", "its reply to %s does not say how many ranks it has",
                       upstream_api(kind)->queries[API_GET_RANKS].path);
    *out = (uint64_t)n;
    return 0;
}

json_t *api_read_config(enum upstream_kind kind, const char *text, size_t len, struct err *e)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    json_t *config = upstream_api(kind)->config(reply);

    if (json_is_object(config))
        return config;
    json_decref(config);
    (void)err_set(e, ERR_UNREADABLE, "", "its reply to %s has no configuration",
                  upstream_api(kind)->queries[API_GET_CONFIG].path);
    return NULL;
}

/* New; NULL: it is no string, or no memory. */
static char *copy_of(const json_t *value)
{
    return json_is_string(value) ? strdup(json_string_value(value)) : NULL;
}

char *api_read_model(enum upstream_kind kind, const char *text, size_t len)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return copy_of(api_at(reply, upstream_api(kind)->model_at));
}

char *api_read_architecture(const char *text, size_t len)
{
    json_auto_t *model = json_loadb(text, len, 0, NULL);

    return copy_of(api_at(model, "/architectures/0"));
}

/* canary and checksums */

const int api_canary_ids[API_CANARY_IDS] = {17, 42, 23, 61, 34, 52, 19, 58,
                                            27, 45, 38, 63, 21, 49, 30, 55};

static enum api_answer api_reply_read_values(double *out, const struct upstream_api *api,
                                             const json_t *reply)
{
    enum api_answer answer = API_ANSWER_VALUE;

    for (size_t i = 0; i < API_CANARY_VALUES; i++) {
        const json_t *value = api->canary_value(reply, i);

        if (!json_is_number(value) && !json_is_null(value))
            return API_ANSWER_PENDING; /* such as the reply to an aborted request */
        if (json_is_null(value))
            answer = API_ANSWER_NOT_FINITE;
        out[i] = json_number_value(value);
    }
    return answer;
}

enum api_answer api_read_canary(double values[API_CANARY_VALUES], enum upstream_kind kind,
                                int status, const char *text, size_t len)
{
    const struct upstream_api *api = upstream_api(kind);
    json_auto_t *reply = status == 200 ? json_loadb(text, len, 0, NULL) : NULL;

    if (api->canary_value == NULL)
        return API_ANSWER_NO_VALUE;
    if (status == 200)
        return api_reply_read_values(values, api, reply);
    if (status >= 400 && text != NULL && api->says_not_finite != NULL &&
        api->says_not_finite(text, len))
        return API_ANSWER_NOT_FINITE;
    return status >= 400 && status < 500 && status != 408 && status != 429 &&
                   !api_is_auth_error(status)
               ? API_ANSWER_NO_VALUE
               : API_ANSWER_PENDING;
}

enum api_answer api_read_checksums(struct buf *out, enum upstream_kind kind, const char *text,
                                   size_t len)
{
    const struct upstream_api *api = upstream_api(kind);
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    json_auto_t *sums = api->checksums != NULL ? api->checksums(reply) : NULL;
    json_t *value;
    const char *key;

    json_object_foreach(sums, key, value)
    {
        const char *sum = json_is_string(value) ? json_string_value(value) : "";

        buf_append(out, key, strlen(key) + 1);
        buf_append(out, sum, strlen(sum) + 1);
    }
    if (out->failed)
        return API_ANSWER_PENDING;
    return out->len > 0 ? API_ANSWER_VALUE : API_ANSWER_NO_VALUE;
}

const char *api_checksum_parameter(enum upstream_kind kind, const char *key)
{
    const char *end = strchr(key, '\0'), *place = end;
    char separator = upstream_api(kind)->checksum_place_end;

    while (place > key && place[-1] != separator)
        place--;
    return separator != '\0' ? place : key;
}

/* operations */

int api_check_done(enum upstream_kind kind, enum api_op op, const struct api_args *args,
                   const struct api_context *ctx, const char *text, size_t len, struct err *e)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return upstream_api(kind)->check_done(op, args, ctx, reply, e);
}

bool api_reset_is_proven(enum upstream_kind kind, const struct api_args *args, const char *text,
                         size_t len)
{
    const struct upstream_api *api = upstream_api(kind);
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return api->reset_is_proven == NULL || api->reset_is_proven(args, reply);
}

bool api_adapter_is_absent(enum upstream_kind kind, const char *name, int status, const char *text,
                           size_t len)
{
    const struct upstream_api *api = upstream_api(kind);
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return api->adapter_is_absent != NULL ? api->adapter_is_absent(name, status, reply)
                                          : status == 404;
}

/* errors */

bool api_is_auth_error(int status)
{
    return status == 401 || status == 403 || status == 421;
}

bool api_is_auth_error_proxied(enum upstream_kind kind, int status)
{
    return api_is_auth_error(status) && (status != 403 || upstream_caps(kind)->forbids_by_key_only);
}

const char *api_auth_error_text(int status, bool has_key)
{
    if (status == 421)
        return "rejects the host name in its URL: start it with --allowed-host NAME, or put its "
               "address into the URL";
    if (has_key)
        return "refuses the key of this server (its key-file)";
    return "requires a key, and this server has none for it (key-file)";
}

const char *api_wrong_kind_hint(enum upstream_kind kind, int status)
{
    return status == 404 || status == 405 ? upstream_api(kind)->wrong_kind_hint : "";
}

bool api_lacks_route(int status, const char *text, size_t len)
{
    json_auto_t *reply = status == 404 ? json_loadb(text, len, 0, NULL) : NULL;
    const char *detail = json_string_value(json_object_get(reply, "detail"));

    return detail != NULL && strcmp(detail, "Not Found") == 0 && json_object_size(reply) == 1;
}

void api_read_refusal(struct api_refusal *out, const char *text, size_t len)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    const json_t *error = json_object_get(reply, "error");
    const char *param = api_text(error, "param", "");

    *out = (struct api_refusal){.code = api_error_code(api_text(error, "code", ""))};
    if (param[0] == '/')
        (void)snprintf(out->field, sizeof out->field, "%s", param);
}

uint64_t api_read_count(const char *text, size_t len, const char *member)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return api_positive(json_object_get(reply, member));
}

char *api_read_digest(const char *text, size_t len)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return copy_of(json_object_get(reply, "digest"));
}

/* {"error": {"message"}}, {"error": "…"}, {"message"}, {"detail"}, {"error_message"}. */
static const char *message_of(const json_t *reply)
{
    const json_t *error = json_object_get(reply, "error");
    const char *text = json_is_object(error) ? json_string_value(json_object_get(error, "message"))
                                             : json_string_value(error);

    text = text != NULL ? text : api_text(reply, "message", NULL);
    text = text != NULL ? text : api_text(reply, "detail", NULL);
    return text != NULL ? text : api_text(reply, "error_message", NULL);
}

void api_read_error(char *out, size_t cap, const char *text, size_t len)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    const char *message = message_of(reply);

    if (message != NULL)
        (void)snprintf(out, cap, "%s", message);
    else
        (void)snprintf(out, cap, "%.*s", (int)(len < cap ? len : cap - 1),
                       text != NULL ? text : "");
    for (char *c = out; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    (void)utf8_clean(out);
}
