/* Questions about itself that an upstream is asked, and how its answers read. */
#include "fleet/api/upstream_api.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VLLM_FIRST_MINOR = 10 }; /* before it there was no transfer: 0.1.dev is no release */

/* Of /get_weight_version the newer SGLangs (of 2026) say only that it is gone; the names of before
 * for the others they answer with a warning in their log. */
static const char *const paths[UPSTREAM_KINDS][API_QUERIES] = {
    [UPSTREAM_BATON] = {"/v1/status", NULL, "/v1/status", "/v1/status", "/v1/completions", NULL,
                        "/server_info?config_format=json"},
    [UPSTREAM_VLLM] = {"/metrics", "/weight_info", "/weight_info", "/get_world_size",
                       "/v1/completions", "/version", "/server_info?config_format=json"},
    [UPSTREAM_SGLANG] = {"/model_info", NULL, "/model_info", "/server_info", "/v1/completions",
                         NULL, "/server_info"},
};
static const char *const sglang_before[API_QUERIES] = {[API_GET_STATUS] = "/get_model_info",
                                                       [API_GET_VERSION] = "/get_model_info",
                                                       [API_GET_RANKS] = "/get_server_info",
                                                       [API_GET_CONFIG] = "/get_server_info"};

int api_make_query(struct api_request *out, enum upstream_kind d, enum api_query q, struct err *e)
{
    static const char one_token[] =
        "{\"prompt\":[0],\"max_tokens\":1,\"temperature\":0}"; /* every vocabulary has it */
    struct api_request made = {.method = q == API_GENERATE_TOKEN ? "POST" : "GET"};

    memset(out, 0, sizeof *out);
    if (paths[d][q] == NULL)
        return 0;
    (void)snprintf(made.path, sizeof made.path, "%s", paths[d][q]);
    made.older = d == UPSTREAM_SGLANG ? sglang_before[q] : NULL;
    if (q == API_GENERATE_TOKEN) {
        made.body = strdup(one_token);
        if (made.body == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a request to an upstream");
        made.body_len = sizeof one_token - 1;
    }
    *out = made;
    return 0;
}

static void copy_text(char out[FLEET_LABEL_MAX + 1], const json_t *value)
{
    if (json_is_string(value))
        (void)snprintf(out, FLEET_LABEL_MAX + 1, "%s", json_string_value(value));
}

/* What a pause or a sleep ends, or a moment without load, is not told: who ended it would find the
 * upstream out of rotation until it is asked again. */
static void unready_baton(struct upstream_report *out, const json_t *status)
{
    static const char *const codes[] = {"starting", "draining", "no_weights", "non_finite_logits",
                                        "no_engine"};
    const json_t *reason = json_object_get(status, "reason");
    const char *code = json_string_value(json_object_get(reason, "code"));

    if (!json_is_false(json_object_get(status, "ready")) || code == NULL)
        return;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (strcmp(codes[i], code) == 0)
            (void)snprintf(out->not_ready, sizeof out->not_ready, "%s", code);
}

static void who_baton(struct upstream_report *out, const json_t *status)
{
    copy_text(out->process, json_object_get(status, "boot_id"));
    copy_text(out->label, json_object_get(json_object_get(status, "weights"), "weight_version"));
    unready_baton(out, status);
}

/* What Python's client of Prometheus says of every process: when it began. */
static void who_vllm(struct upstream_report *out, const char *text, size_t len)
{
    static const char name[] = "\nprocess_start_time_seconds ";
    const char *at = memmem(text, len, name, sizeof name - 1), *end;

    if (at == NULL)
        return;
    at += sizeof name - 1;
    end = memchr(at, '\n', len - (size_t)(at - text));
    if (end != NULL && end - at <= FLEET_LABEL_MAX)
        (void)snprintf(out->process, sizeof out->process, "%.*s", (int)(end - at), at);
}

void api_read_status(struct upstream_report *out, enum upstream_kind d, const char *text,
                     size_t len)
{
    json_t *answer;

    memset(out, 0, sizeof *out);
    if (d == UPSTREAM_VLLM) {
        who_vllm(out, text, len);
        return;
    }
    answer = json_loadb(text, len, 0, NULL);
    if (d == UPSTREAM_BATON)
        who_baton(out, answer);
    else
        copy_text(out->label, json_object_get(answer, "weight_version"));
    json_decref(answer);
}

int api_read_probe_version(struct upstream_report *out, enum upstream_kind d, int status,
                           const char *text, size_t len, struct err *e)
{
    json_t *answer;
    const json_t *label;
    bool says;

    if (status == 0)
        return 0;
    out->label[0] = '\0';
    if (status == 404 || status == 405) /* of a release, or a mode, without it */
        return 0;
    answer = json_loadb(text, len, 0, NULL);
    label = json_object_get(answer, "weight_version");
    says = status == 200 && (json_is_string(label) || json_is_null(label));
    if (says)
        copy_text(out->label, label);
    json_decref(answer);
    return says ? 0
                : err_set(e, ERR_UNREADABLE, "", "its answer to %s, of status %d, names no version",
                          paths[d][API_GET_PROBE_VERSION], status);
}

void api_read_release(struct upstream_report *out, int status, const char *text, size_t len)
{
    json_t *answer = status == 200 ? json_loadb(text, len, 0, NULL) : NULL;
    const char *release = json_string_value(json_object_get(answer, "version"));

    if (release != NULL && strlen(release) <= FLEET_RELEASE_MAX)
        (void)snprintf(out->release, sizeof out->release, "%s", release);
    json_decref(answer);
}

bool vllm_has(const char *release, unsigned minor)
{
    unsigned of_major = 0, of_minor = 0;

    if (release == NULL || sscanf(release, "%3u.%4u", &of_major, &of_minor) != 2)
        return true;
    return of_major > 0 || of_minor >= minor || of_minor < VLLM_FIRST_MINOR;
}

int api_read_version(char out[API_VERSION_MAX + 1], enum upstream_kind d, const char *text,
                     size_t len, struct err *e)
{
    json_t *answer = json_loadb(text, len, 0, NULL);
    const json_t *holder = d == UPSTREAM_BATON ? json_object_get(answer, "weights") : answer;
    const json_t *label = json_object_get(holder, "weight_version");
    bool says = json_is_string(label) || json_is_null(label);

    if (says)
        (void)snprintf(out, API_VERSION_MAX + 1, "%s",
                       json_is_string(label) ? json_string_value(label) : "");
    json_decref(answer);
    return says ? 0
                : err_set(e, ERR_UNREADABLE, "", "its answer to %s names no version",
                          paths[d][API_GET_VERSION]);
}

bool api_is_auth_error(int status)
{
    return status == 401 || status == 403 || status == 421;
}

bool api_is_auth_error_proxied(enum upstream_kind d, int status)
{
    return api_is_auth_error(status) && (status != 403 || d == UPSTREAM_BATON);
}

const char *api_auth_error_text(int status, bool has_key)
{
    if (status == 421)
        return "does not answer to the name in its URL: start it with --allowed-host NAME, or "
               "write its address in the URL";
    if (has_key)
        return "refuses the key of this server (its key-file)";
    return "wants a key, and this server has none for it (key-file)";
}

const char *api_wrong_kind_hint(enum upstream_kind d, int status)
{
    static const char *const hints[] = {
        [UPSTREAM_BATON] = "; if it is no baton, write URL,vllm or URL,sglang",
        [UPSTREAM_VLLM] = "; if it is no vLLM, write URL,sglang, or URL,baton",
        [UPSTREAM_SGLANG] = "; if it is no SGLang, write URL,vllm, or URL,baton",
    };

    return status == 404 || status == 405 ? hints[d] : "";
}

static uint64_t positive(const json_t *value)
{
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;

    return n > 0 ? (uint64_t)n : 0;
}

static uint64_t ranks_of(enum upstream_kind d, const json_t *answer)
{
    const json_t *cuda = json_object_get(answer, "cuda");
    uint64_t tp, pp, dp;

    if (d == UPSTREAM_BATON)
        return json_array_size(json_object_get(cuda, "ranks"));
    if (d == UPSTREAM_VLLM)
        return positive(json_object_get(answer, "world_size"));
    tp = positive(json_object_get(answer, "tp_size"));
    pp = positive(json_object_get(answer, "pp_size"));
    dp = positive(json_object_get(answer, "dp_size"));
    return tp * (pp > 0 ? pp : 1) * (dp > 0 ? dp : 1);
}

int api_read_ranks(uint64_t *out, enum upstream_kind d, const char *text, size_t len, struct err *e)
{
    json_t *answer = json_loadb(text, len, 0, NULL);
    uint64_t n = ranks_of(d, answer);

    json_decref(answer);
    if (n == 0)
        return err_set(e, ERR_UNREADABLE, "", "its answer to %s does not say how many ranks it is",
                       paths[d][API_GET_RANKS]);
    *out = n;
    return 0;
}

/* A trainer's group is all that it can join, and it calls its replicas by the same name. */
static json_t *config_sglang(const json_t *answer)
{
    uint64_t dp = positive(json_object_get(answer, "dp_size"));

    if (!json_is_object(answer))
        return NULL;
    return json_pack("{s:{s:I}, s:{s:s}}", "parallel_config", "data_parallel_size",
                     (json_int_t)(dp > 0 ? dp : 1), "weight_transfer_config", "backend", "nccl");
}

json_t *api_read_config(enum upstream_kind d, const char *text, size_t len, struct err *e)
{
    json_t *answer = json_loadb(text, len, 0, NULL);
    json_t *config = d == UPSTREAM_SGLANG ? config_sglang(answer)
                                          : json_incref(json_object_get(answer, "vllm_config"));

    json_decref(answer);
    if (json_is_object(config))
        return config;
    json_decref(config);
    (void)err_set(e, ERR_UNREADABLE, "", "its answer to %s has no vllm_config",
                  paths[d][API_GET_CONFIG]);
    return NULL;
}

void api_read_boot_id(char out[FLEET_LABEL_MAX + 1], const char *text, size_t len)
{
    json_t *answer = json_loadb(text, len, 0, NULL);

    out[0] = '\0';
    copy_text(out, json_object_get(answer, "boot_id"));
    json_decref(answer);
}

int api_read_update_id(char out[API_UPDATE_ID_MAX + 1], const char *text, size_t len, struct err *e)
{
    json_t *answer = json_loadb(text, len, 0, NULL);
    const char *id = json_string_value(json_object_get(answer, "update_id"));
    bool good = id != NULL && id[0] != '\0' && strlen(id) <= API_UPDATE_ID_MAX;

    if (good)
        (void)snprintf(out, API_UPDATE_ID_MAX + 1, "%s", id);
    json_decref(answer);
    return good ? 0 : err_set(e, ERR_UNREADABLE, "", "its answer to start has no update_id");
}

bool api_read_open_update(char out[API_UPDATE_ID_MAX + 1], const char *text, size_t len)
{
    json_t *answer = json_loadb(text, len, 0, NULL);
    const json_t *update = json_object_get(answer, "update");
    const char *id = json_string_value(json_object_get(update, "update_id"));
    bool open = id != NULL && id[0] != '\0' && strlen(id) <= API_UPDATE_ID_MAX;

    if (open)
        (void)snprintf(out, API_UPDATE_ID_MAX + 1, "%s", id);
    json_decref(answer);
    return open;
}

/* {"error": {"message"}}, {"error": "…"}, {"message"}, {"detail"}. */
static const char *message_of(const json_t *answer)
{
    static const char *const members[] = {"message", "detail", "error_message"};
    const json_t *error = json_object_get(answer, "error");
    const char *text = json_is_object(error) ? json_string_value(json_object_get(error, "message"))
                                             : json_string_value(error);

    for (size_t i = 0; text == NULL && i < sizeof members / sizeof members[0]; i++)
        text = json_string_value(json_object_get(answer, members[i]));
    return text;
}

void api_read_error(char *out, size_t cap, const char *text, size_t len)
{
    json_t *answer = json_loadb(text, len, 0, NULL);
    const char *said = message_of(answer);

    if (said != NULL)
        (void)snprintf(out, cap, "%s", said);
    else
        (void)snprintf(out, cap, "%.*s", (int)(len < cap ? len : cap - 1), text);
    json_decref(answer);
    for (char *c = out; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    (void)utf8_clean(out);
}
