/* Does an answer of success say that it was done? A server may answer 200 and say in the body that
 * it did nothing, or that what it did is something else than it was asked for. */
#include "fleet/api/upstream_api.h"

#include <string.h>

static const char *text_of(const json_t *object, const char *member)
{
    const char *text = json_string_value(json_object_get(object, member));

    return text != NULL ? text : "";
}

static int not_done(struct err *e, const char *member, const char *is, const char *wanted)
{
    return err_set(e, ERR_UPSTREAM, "", "its answer says that %s is '%.100s', not '%.100s'", member,
                   is, wanted);
}

static int is_text(const json_t *answer, const char *member, const char *wanted, struct err *e)
{
    const char *is = text_of(answer, member);

    return strcmp(is, wanted) == 0 ? 0 : not_done(e, member, is, wanted);
}

static int is_bool(const json_t *answer, const char *member, bool wanted, struct err *e)
{
    const json_t *value = json_object_get(answer, member);
    const char *is = json_is_true(value) ? "true" : json_is_false(value) ? "false" : "";

    return strcmp(is, wanted ? "true" : "false") == 0
               ? 0
               : not_done(e, member, is, wanted ? "true" : "false");
}

/* Of the update that was named, and not at its end. */
static int is_open(const json_t *answer, const struct api_context *about, struct err *e)
{
    const char *phase = text_of(answer, "phase");

    if (about->update_id != NULL && is_text(answer, "update_id", about->update_id, e) != 0)
        return -1;
    if (strcmp(phase, "committed") != 0 && strcmp(phase, "aborted") != 0)
        return 0;
    return not_done(e, "phase", phase, "receiving");
}

static int is_ended(const json_t *answer, const struct api_context *about, const char *phase,
                    struct err *e)
{
    if (about->update_id != NULL && is_text(answer, "update_id", about->update_id, e) != 0)
        return -1;
    return is_text(answer, "phase", phase, e);
}

static int is_named(const json_t *answer, const json_t *native, const char *member, struct err *e)
{
    const char *label = text_of(native, "weight_version");

    return *label != '\0' ? is_text(answer, member, label, e) : 0;
}

static int baton_done(enum api_op op, const json_t *native, const struct api_context *about,
                      const json_t *answer, struct err *e)
{
    switch (op) {
    case API_INIT_TRANSFER:
        return strcmp(text_of(native, "transport"), "nccl") == 0
                   ? is_text(answer, "state", "joined", e)
                   : 0;
    case API_UPDATE_WEIGHTS:
    case API_RENEW_UPDATE:
        return is_open(answer, about, e);
    case API_VERIFY_UPDATE:
        return is_ended(answer, about, "verified", e);
    case API_FINISH_UPDATE:
        return is_ended(answer, about, "committed", e) == 0
                   ? is_named(answer, native, "weight_version", e)
                   : -1;
    case API_ABORT_UPDATE:
        return is_ended(answer, about, "aborted", e);
    case API_PAUSE:
        return is_bool(answer, "paused", true, e);
    case API_RESUME:
        return is_bool(answer, "paused", false, e);
    case API_SET_VERSION:
        return is_named(answer, native, "weight_version", e);
    default:
        return 0;
    }
}

/* Many of the others' answers have no body, or one that says nothing. */
static int other_done(enum api_op op, const json_t *native, const json_t *answer, struct err *e)
{
    const json_t *error = json_object_get(answer, "error");

    if (json_is_false(json_object_get(answer, "success")) || json_is_object(error) ||
        (json_is_string(error) && json_string_length(error) > 0))
        return err_set(e, ERR_UPSTREAM, "", "its answer says that it failed");
    if ((op == API_SET_VERSION || op == API_FINISH_UPDATE) &&
        json_object_get(answer, "new_version") != NULL)
        return is_named(answer, native, "new_version", e);
    return 0;
}

bool api_reset_is_proven(enum upstream_kind d, const json_t *native, const char *text, size_t len)
{
    json_t *answer;
    bool success;

    if (d != UPSTREAM_VLLM || json_is_true(json_object_get(native, "running")))
        return true;
    answer = json_loadb(text, len, 0, NULL);
    success = json_is_true(json_object_get(answer, "success"));
    json_decref(answer);
    return success;
}

/* An SGLang has one status for all that is wrong [srt/lora/lora_registry.py, unregister]. */
static bool says_absent(const json_t *answer, const char *name)
{
    const char *at = strstr(text_of(answer, "error_message"), "LoRA with name ");
    size_t len = strlen(name);

    if (at == NULL)
        return false;
    at += strlen("LoRA with name ");
    return strncmp(at, name, len) == 0 && strncmp(at + len, " does not exist", 15) == 0;
}

bool api_adapter_is_absent(enum upstream_kind d, const char *name, int status, const char *text,
                           size_t len)
{
    json_t *answer;
    bool absent;

    if (d != UPSTREAM_SGLANG || status != 400)
        return status == 404;
    answer = json_loadb(text, len, 0, NULL);
    absent = says_absent(answer, name);
    json_decref(answer);
    return absent;
}

int api_check_done(enum upstream_kind d, enum api_op op, const json_t *native,
                   const struct api_context *about, const char *text, size_t len, struct err *e)
{
    json_t *answer = json_loadb(text, len, 0, NULL);
    int rc = d == UPSTREAM_BATON ? baton_done(op, native, about, answer, e)
                                 : other_done(op, native, answer, e);

    json_decref(answer);
    return rc;
}
