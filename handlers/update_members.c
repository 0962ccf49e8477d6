/* Members of requests about updates that several operations share. */
#include "handlers/update_members.h"

#include "base/utf8.h"
#include "fleet/members/fleet.h"
#include "handlers/body.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <string.h>

int update_id_check(const char *id, size_t len_max, const char *field, struct err *e)
{
    size_t len = strlen(id);

    if (len == 0 || len > len_max)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "an id must have 1 to %zu bytes; this one has %zu", len_max, len);
    return 0;
}

int update_id_parse(const char **id, const json_t *body, struct err *e)
{
    const char *found = NULL;

    if (body_required(body, "", "update_id", e) != 0 ||
        body_str(&found, body, "", "update_id", e) != 0 ||
        update_id_check(found, UPDATE_ID_MAX, "/update_id", e) != 0)
        return -1;
    *id = found;
    return 0;
}

int update_source_of(const char **out, const json_t *body, struct err *e)
{
    static const char *const sources[] = {"shm",         "path",
                                          "ipc_handles", "ipc_handles_pickled",
                                          "buckets",     "serialized_named_tensors",
                                          "transport"};
    const char *found = NULL;
    char field[32] = "";

    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        if (body_given(body, sources[i]) == NULL)
            continue;
        if (found != NULL)
            (void)snprintf(field, sizeof field, "/%s", sources[i]);
        found = sources[i];
    }
    if (found == NULL || field[0] != '\0')
        return err_set(e, ERR_BAD_REQUEST, field,
                       "exactly one source is needed: shm, path, ipc_handles, ipc_handles_pickled, "
                       "buckets, serialized_named_tensors, transport: nccl, or a body of type "
                       "application/vnd.safetensors");
    if (body_given(body, "serialized_format") != NULL &&
        strcmp(found, "serialized_named_tensors") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/serialized_format",
                       "serialized_format goes with serialized_named_tensors");
    *out = found;
    return 0;
}

int placement_from_body(bool *sharded, const json_t *body, struct err *e)
{
    const char *text = NULL;

    if (body_str(&text, body, "", "placement", e) != 0 || text == NULL)
        return e->code != ERR_NONE ? -1 : 0;
    if (strcmp(text, "sharded") != 0 && strcmp(text, "replicated") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/placement",
                       "placement '%.32s' is not one of replicated, sharded", text);
    *sharded = text[0] == 's';
    return 0;
}

int selector_from_body(const char **selector, const json_t *body, struct err *e)
{
    static const char *const known[] = {"all", "target"};
    const char *text = NULL;

    if (body_str(&text, body, "", "selector", e) != 0 || text == NULL)
        return e->code != ERR_NONE ? -1 : 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(text, known[i]) != 0)
            continue;
        *selector = known[i];
        return 0;
    }
    if (strcmp(text, "draft") == 0)
        return err_set(e, ERR_BAD_REQUEST, "/selector",
                       "the weights of a drafter are not supported: send selector all or "
                       "target, with the model's tensors");
    return err_set(e, ERR_BAD_REQUEST, "/selector", "selector '%.32s' is not one of all, target",
                   text);
}

int label_check(const char *label, const char *field, struct err *e)
{
    size_t len = strlen(label), at;

    if (len == 0 || len > VERSION_LABEL_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a weight version is 1 to %d bytes long; this one has %zu",
                       VERSION_LABEL_MAX, len);
    if (utf8_valid_prefix(label, len) < len) /* only from a query: JSON has been checked */
        return err_set(e, ERR_BAD_REQUEST, field, "the weight version is not well-formed UTF-8");
    at = utf8_find_hidden(label, len);
    if (at < len)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "byte %zu of the weight version begins a control character, a line "
                       "separator or a bidirectional mark",
                       at);
    if (fleet_is_dirty_marker(label))
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%s' begins the labels of unfinished updates: choose another label",
                       FLEET_DIRTY_MARKER);
    return 0;
}

int label_parse(struct label_req *req, const json_t *body, struct err *e)
{
    if (body_required(body, "", "weight_version", e) != 0 ||
        body_str(&req->label, body, "", "weight_version", e) != 0 ||
        label_check(req->label, "/weight_version", e) != 0 ||
        body_bool(&req->abort_requests, body, "", "abort_requests", e) != 0)
        return -1;
    return body_u64(&req->if_serial, body, "", "if_serial", 1, INT64_MAX, e);
}
