/* CUDA IPC handles in plain JSON; UUIDs and base64, which the pickled form uses too. */
#include "transport/ipc/ipc_handle.h"

#include "base/json_parse.h"
#include "base/utf8.h"

#include <nettle/base64.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void ipc_handles_fini(struct ipc_handles *h)
{
    free(h->all);
    memset(h, 0, sizeof *h);
}

static char lower_hex(char c)
{
    if (c >= 'A' && c <= 'F')
        return (char)(c - 'A' + 'a');
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ? c : '\0';
}

bool ipc_uuid_parse(char out[IPC_UUID_LEN + 1], const char *text, size_t len)
{
    static const char form[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    char uuid[IPC_UUID_LEN + 1] = {0};

    if (len == IPC_UUID_LEN + 4 &&
        (strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0)) {
        text += 4;
        len -= 4;
    }
    if (len != IPC_UUID_LEN)
        return false;
    for (size_t i = 0; i < len; i++) {
        uuid[i] = form[i] == '-' ? (char)(text[i] == '-' ? '-' : '\0') : lower_hex(text[i]);
        if (uuid[i] == '\0')
            return false;
    }
    memcpy(out, uuid, sizeof uuid);
    return true;
}

static bool in_alphabet(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/';
}

/* nettle ignores white space; here it is refused. */
int ipc_base64(uint8_t *out, size_t *nbytes, const char *text, size_t len, const char *what,
               const char *field, struct err *e)
{
    size_t n_pad = 0, n = 0;
    struct base64_decode_ctx ctx;

    if (len == 0 || len % 4 != 0)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the base64 of %s has %zu characters; it is padded to a multiple of 4", what,
                       len);
    while (n_pad < 2 && text[len - 1 - n_pad] == '=')
        n_pad++;
    for (size_t i = 0; i < len - n_pad; i++)
        if (!in_alphabet(text[i]))
            return err_set(e, ERR_BAD_REQUEST, field,
                           "the base64 of %s has byte 0x%02x at %zu, which is not in the standard "
                           "alphabet",
                           what, (unsigned char)text[i], i);
    base64_decode_init(&ctx);
    if (!base64_decode_update(&ctx, &n, out, len, text) || !base64_decode_final(&ctx))
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the base64 of %s ends in bits that belong to no byte", what);
    *nbytes = n;
    return 0;
}

/* "<at>/<member>"; a pointer that is too long is cut, like every field. */
static void ipc_field_of(char field[ERR_FIELD_MAX], const char *at, const char *member)
{
    size_t len = strnlen(at, ERR_FIELD_MAX - 1);

    memcpy(field, at, len);
    (void)snprintf(field + len, ERR_FIELD_MAX - len, "/%s", member);
}

static int ipc_handle_read_bytes(uint8_t out[IPC_MEM_NBYTES], const json_t *value,
                                 const char *member, const char *field, struct err *e)
{
    enum { LEN = (IPC_MEM_NBYTES + 2) / 3 * 4 };
    uint8_t bytes[LEN / 4 * 3 + 3];
    size_t nbytes;

    _Static_assert((int)IPC_MEM_NBYTES == (int)IPC_EVENT_NBYTES, "both are read here");
    if (!json_is_string(value) || json_string_length(value) != LEN)
        return err_set(e, ERR_BAD_REQUEST, field, "%s is %d characters, the base64 of %d bytes",
                       member, (int)LEN, (int)IPC_MEM_NBYTES);
    if (ipc_base64(bytes, &nbytes, json_string_value(value), LEN, member, field, e) != 0)
        return -1;
    if (nbytes != IPC_MEM_NBYTES)
        return err_set(e, ERR_BAD_REQUEST, field, "%s has %zu bytes; it is %d", member, nbytes,
                       (int)IPC_MEM_NBYTES);
    memcpy(out, bytes, IPC_MEM_NBYTES);
    return 0;
}

static int read_count(uint64_t *out, const json_t *value, const char *member, const char *field,
                      struct err *e)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s must be a number of bytes: an integer from 0 on", member);
    *out = (uint64_t)json_integer_value(value);
    return 0;
}

static int read_member(struct ipc_handle *h, const char *member, const json_t *value,
                       const char *field, struct err *e)
{
    if (strcmp(member, "handle") == 0) {
        h->has_memory = true;
        return ipc_handle_read_bytes(h->mem, value, member, field, e);
    }
    if (strcmp(member, "offset") == 0)
        return read_count(&h->storage_offset, value, member, field, e);
    if (strcmp(member, "nbytes") == 0)
        return read_count(&h->storage_nbytes, value, member, field, e);
    if (strcmp(member, "event") != 0)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a handle is an object {handle, offset, nbytes, event?}; '%.*s' is no "
                       "member of it",
                       utf8_cut_name(member), member);
    if (json_is_null(value))
        return 0;
    h->event_sync = true;
    return ipc_handle_read_bytes(h->event, value, member, field, e);
}

static int read_object(struct ipc_handle *h, json_t *object, const char *at, struct err *e)
{
    static const char *const required[] = {"handle", "offset", "nbytes"};
    char field[ERR_FIELD_MAX];
    const char *member;
    json_t *value;

    if (!json_is_object(object))
        return err_set(e, ERR_BAD_REQUEST, at,
                       "a handle is an object {handle, offset, nbytes, event?}");
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        if (json_object_get(object, required[i]) != NULL)
            continue;
        ipc_field_of(field, at, required[i]);
        return err_set(e, ERR_BAD_REQUEST, field, "%s is required", required[i]);
    }
    json_object_foreach(object, member, value)
    {
        ipc_field_of(field, at, member);
        if (read_member(h, member, value, field, e) != 0)
            return -1;
    }
    ipc_field_of(field, at, "offset");
    if (h->storage_offset > TENSOR_LIST_NBYTES_MAX - h->storage_nbytes)
        return err_set(
            e, ERR_BAD_REQUEST, field, "offset %llu and nbytes %llu reach beyond 2^63 - 1",
            (unsigned long long)h->storage_offset, (unsigned long long)h->storage_nbytes);
    h->type = 'c';
    h->dtype = DTYPE_U8;
    h->ndim = 1;
    h->shape[0] = h->nbytes = h->storage_nbytes;
    h->stride[0] = 1;
    return 0;
}

static int read_gpu(struct ipc_handles *set, const char *key, json_t *value, const char *field,
                    struct err *e)
{
    struct ipc_gpu *gpu = &set->gpus[set->n_gpus];
    struct ipc_handle *h = &set->all[set->n_gpus];
    char at[ERR_FIELD_MAX];

    if (!ipc_uuid_parse(gpu->uuid, key, strlen(key)))
        return err_set(e, ERR_BAD_REQUEST, field, "'%.*s' is not the UUID of a GPU",
                       utf8_cut_name(key), key);
    ipc_field_of(at, field, key);
    for (uint32_t i = 0; i < set->n_gpus; i++)
        if (strcmp(set->gpus[i].uuid, gpu->uuid) == 0)
            return err_set(e, ERR_BAD_REQUEST, at, "GPU %s is named twice", gpu->uuid);
    gpu->handles = h;
    set->n_gpus++;
    return read_object(h, value, at, e);
}

int ipc_handles_from_json(struct ipc_handles *out, const json_t *value, const char *field,
                          struct err *e)
{
    struct ipc_handles set = {.packed = true, .n_handles = 1};
    size_t n = json_object_size(value);
    const char *key;
    json_t *one;

    if (!json_is_object(value) || n == 0 || n > IPC_GPUS_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "handles are an object {\"<gpu uuid>\": {handle, offset, nbytes, event?}} "
                       "of 1 to %d GPUs",
                       IPC_GPUS_MAX);
    set.all = calloc(n, sizeof *set.all);
    if (set.all == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the handles");
    json_object_foreach(json_mutable(value), key, one)
    {
        if (read_gpu(&set, key, one, field, e) != 0) {
            ipc_handles_fini(&set);
            return -1;
        }
    }
    *out = set;
    return 0;
}
