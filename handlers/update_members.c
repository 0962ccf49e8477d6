/* Members of requests about updates that several operations share. */
#include "handlers/update_members.h"

#include "base/utf8.h"
#include "fleet/members/fleet.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/rows/update_request.h"
#include "transport/nccl/nccl_id.h"
#include "transport/nccl/nccl_join.h"
#include "weights/tensor_list.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <string.h>

static int check_text_length(const char *text, size_t len_max, const char *field, struct err *e)
{
    size_t len = strlen(text);

    if (len == 0 || len > len_max)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "an id must have 1 to %zu bytes; this one has %zu", len_max, len);
    return 0;
}

int update_id_check(const char *text, const char *field, struct err *e)
{
    return check_text_length(text, UPDATE_ID_MAX, field, e);
}

int chunk_id_check(const char *text, const char *field, struct err *e)
{
    return check_text_length(text, UPDATE_CHUNK_ID_MAX, field, e);
}

int digest_check(const char *text, const char *field, struct err *e)
{
    if (strlen(text) == TENSOR_LIST_DIGEST_LEN &&
        strspn(text, "0123456789abcdefABCDEF") == TENSOR_LIST_DIGEST_LEN)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "expected a digest of %d hex digits",
                   TENSOR_LIST_DIGEST_LEN);
}

int nccl_id_check(const char *text, const char *field, struct err *e)
{
    uint8_t id[NCCL_ID_NBYTES];

    return nccl_id_from_base64(id, text, strlen(text), field, e);
}

static int check_group_place(const char *text, size_t len_max, const char *field, struct err *e)
{
    size_t len = strlen(text);

    if (len == 0 || len > len_max)
        return err_set(e, ERR_BAD_REQUEST, field, "%s must have 1 to %zu bytes, and has %zu",
                       field + 1, len_max, len);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return err_set(e, ERR_BAD_REQUEST, field, "byte %zu of %s is a control character", i,
                           field + 1);
    return 0;
}

int master_address_check(const char *text, const char *field, struct err *e)
{
    return check_group_place(text, NCCL_JOIN_HOST_MAX, field, e);
}

int group_name_check(const char *text, const char *field, struct err *e)
{
    return check_group_place(text, NCCL_JOIN_GROUP_NAME_MAX, field, e);
}

int label_or_none_check(const char *text, const char *field, struct err *e)
{
    return text[0] == '\0' ? 0 : label_check(text, field, e);
}

int selector_check(const char *text, const char *field, struct err *e)
{
    if (strcmp(text, "draft") != 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field,
                   "the weights of a drafter are not supported: send selector all or target, with "
                   "the model's tensors");
}

int broadcast_check(const char *text, const char *field, struct err *e)
{
    if (strcmp(text, "nccl") == 0 || strcmp(text, "nixl") == 0)
        return 0;
    return err_set(
        e, ERR_BAD_REQUEST, field,
        "transport '%.32s' is not nccl or nixl; other sources have their own members: shm, path, "
        "ipc_handles",
        text);
}

int group_transport_check(const char *text, const char *field, struct err *e)
{
    if (strcmp(text, "nccl") == 0 || strcmp(text, "ipc") == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field,
                   "transport '%.32s' is not nccl or ipc; the others need no group", text);
}

/* Groups of members, the sources that they go with, and why with no other. With buckets they are
 * in each of them, which is checked there. */
static const struct source_group {
    unsigned group;
    const char *sources[8], *why;
} source_groups[] = {
    {WITH_HANDLES,
     {"ipc_handles", "ipc_handles_pickled", "buckets"},
     "it is for ipc_handles and ipc_handles_pickled"},
    {WITH_GROUP, {"nccl"}, "it goes with transport: nccl"},
    {WITH_NIXL, {"nixl"}, "it goes with transport: nixl"},
    {WITH_PACKING,
     {"shm", "ipc_handles", "ipc_handles_pickled", "buckets", "nccl"},
     "it is for shm, handles and transport: nccl"},
    {WITH_PICKLES, {"serialized_named_tensors"}, "it goes with serialized_named_tensors"},
    {OF_LIST,
     {"shm", "path", "ipc_handles", "ipc_handles_pickled", "buckets", "nccl", "nixl"},
     "the tensors are described in its directory or pickles"},
};

static bool group_goes(const struct source_group *g, const char *source)
{
    for (const char *const *s = g->sources; *s != NULL; s++)
        if (strcmp(*s, source) == 0)
            return true;
    return false;
}

int source_members_check(const struct member *rows, const char *source, const json_t *body,
                         struct err *e)
{
    if (strcmp(source, "transport") == 0 && (body_str(&source, body, "", "transport", e) != 0 ||
                                             broadcast_check(source, "/transport", e) != 0))
        return -1;
    for (size_t i = 0; i < sizeof source_groups / sizeof source_groups[0]; i++) {
        const struct source_group *g = &source_groups[i];
        char field[ERR_FIELD_MAX];
        const char *name = member_given(field, rows, g->group, body, "");

        if (name != NULL && !group_goes(g, source))
            return err_set(e, ERR_BAD_REQUEST, field, "%s does not go with %s: %s", name, source,
                           g->why);
    }
    return 0;
}

int update_source_of(const char **out, const json_t *body, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *found = member_only_given(field, update_members, IS_SOURCE, body, "");

    if (found == NULL)
        return err_set(
            e, ERR_BAD_REQUEST, field,
            "exactly one source is needed: shm, path, ipc_handles, ipc_handles_pickled, "
            "buckets, serialized_named_tensors, transport: nccl or nixl, or a body of type "
            "application/vnd.safetensors");
    *out = found;
    return source_members_check(update_members, found, body, e);
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
