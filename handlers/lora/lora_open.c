/* The source of an adapter in a request: a PEFT directory, shared memory, CUDA IPC handles, the
 * broadcasts of a trainer's group, or the body itself. */
#include "engine/lora/adapter_file.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/lora/lora_load.h"
#include "handlers/reply.h"
#include "handlers/source/source_json.h"
#include "handlers/tensor_list_json.h"
#include "transport/body.h"
#include "transport/roots.h"
#include "weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum lora_source {
    FROM_PATH = 1,
    FROM_SHM = 2,
    FROM_HANDLES = 4,
    FROM_BUCKETS = 8,
    FROM_NCCL = 16,
    FROM_TENSORS = FROM_SHM | FROM_HANDLES | FROM_BUCKETS | FROM_NCCL
};

static const struct {
    const char *member;
    enum lora_source source;
} sources[] = {
    {"lora_path", FROM_PATH},      {"shm", FROM_SHM},
    {"ipc_handles", FROM_HANDLES}, {"ipc_handles_pickled", FROM_HANDLES},
    {"buckets", FROM_BUCKETS},     {"transport", FROM_NCCL},
};

/* Members, and the sources that they are for. Members of buckets are checked by ipc_from_body. */
static const struct {
    const char *member;
    unsigned sources_allowed;
    const char *why;
} members_of_source[] = {
#define TENSORS "the files of a directory describe their tensors"
    {"names", FROM_TENSORS, TENSORS},
    {"dtypes", FROM_TENSORS, TENSORS},
    {"dtype_names", FROM_TENSORS, TENSORS},
    {"shapes", FROM_TENSORS, TENSORS},
    {"sizes", FROM_TENSORS, TENSORS},
    {"packed", FROM_TENSORS, TENSORS},
    {"checksums", FROM_TENSORS, TENSORS},
    {"adapter_config", FROM_TENSORS, TENSORS},
#undef TENSORS
#define HANDLES "it is for ipc_handles and ipc_handles_pickled"
    {"tensor_sizes", FROM_HANDLES | FROM_BUCKETS, HANDLES},
    {"per_gpu", FROM_HANDLES | FROM_BUCKETS, HANDLES},
    {"metadata_by_gpu", FROM_HANDLES | FROM_BUCKETS, HANDLES},
#undef HANDLES
#define NCCL "it is for transport: nccl"
    {"expected_digest", FROM_NCCL, NCCL},
    {"bucket_nbytes", FROM_NCCL, NCCL},
    {"packed_buffer_size_bytes", FROM_NCCL, NCCL},
    {"group_name", FROM_NCCL, NCCL},
#undef NCCL
};

/* Finds the one source that the body names; none or several are refused. @name  its member */
static int source_of(enum lora_source *out, const char **name, const json_t *body, struct err *e)
{
    char field[32] = "";

    *name = NULL;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        if (body_given(body, sources[i].member) == NULL)
            continue;
        if (*name != NULL)
            (void)snprintf(field, sizeof field, "/%s", sources[i].member);
        *name = sources[i].member;
        *out = sources[i].source;
    }
    if (*name != NULL && field[0] == '\0')
        return 0;
    return err_set(
        e, ERR_BAD_REQUEST, field,
        "exactly one source is needed: lora_path; shm, ipc_handles, "
        "ipc_handles_pickled, buckets or transport: nccl, with adapter_config and names, "
        "dtypes, shapes; or a body of type application/vnd.safetensors");
}

static int check_members_of_source(enum lora_source source, const char *name, const json_t *body,
                                   struct err *e)
{
    char field[32];

    for (size_t i = 0; i < sizeof members_of_source / sizeof members_of_source[0]; i++) {
        if ((members_of_source[i].sources_allowed & source) != 0 ||
            body_given(body, members_of_source[i].member) == NULL)
            continue;
        (void)snprintf(field, sizeof field, "/%s", members_of_source[i].member);
        return err_set(e, ERR_BAD_REQUEST, field, "%s does not go with %s: %s",
                       members_of_source[i].member, name, members_of_source[i].why);
    }
    return 0;
}

static int open_directory(struct lora_load *l, struct err *e)
{
    const struct settings *s = &l->app->settings;

    return roots_open(&l->root, &l->rest, s->allow_path, s->n_allow_path, l->path, "/lora_path", e);
}

/* In a file an incomplete config is ERR_UNREADABLE, because it may still be written; in a
 * request it is a mistake. */
static int read_config(struct lora_load *l, const char *text, size_t len, struct err *e)
{
    if (adapter_config_parse(&l->config, text, len, e) == 0)
        return 0;
    if (e->code == ERR_UNREADABLE)
        e->code = ERR_BAD_REQUEST;
    return -1;
}

static int config_from_body(struct lora_load *l, const json_t *body, struct err *e)
{
    const json_t *object = NULL;
    struct buf text = {0};
    int rc;

    if (body_required(body, "", "adapter_config", e) != 0 ||
        body_object(&object, body, "", "adapter_config", e) != 0)
        return -1;
    reply_append_json(&text, object);
    rc = text.failed ? err_set(e, ERR_NO_MEMORY, "", "no memory for the adapter's config")
                     : read_config(l, text.data, text.len, e);
    buf_fini(&text);
    return rc;
}

static int chunk_new(struct lora_load *l, struct err *e)
{
    l->chunk = calloc(1, sizeof *l->chunk);
    return l->chunk != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
}

static int open_shm(struct update_chunk *c, const json_t *body, struct err *e)
{
    if (tensor_list_from_body(&c->tensor_list, body, NULL, e) != 0 ||
        checksums_add(&c->checksums, &c->has_checksum, body, "", c->tensor_list, 0,
                      c->tensor_list->n_tensors, e) != 0)
        return -1;
    return shm_from_body(&c->source, body, c->tensor_list, e);
}

/* Buckets that are for one rank may leave another without tensors. */
static int check_every_rank(const struct update_chunk *c, struct err *e)
{
    for (uint32_t r = 0; c->ranks != NULL && r < c->n_ranks; r++)
        if (c->ranks[r].tensor_list == NULL)
            return err_set(e, ERR_BAD_REQUEST, "/buckets",
                           "rank %u gets no tensors, and an adapter is the same on every rank: "
                           "send its buckets without rank",
                           (unsigned)r);
    return 0;
}

/* An adapter is the same on every GPU, so it is never sharded. */
static int open_tensors(struct lora_load *l, enum lora_source source, const json_t *body,
                        struct err *e)
{
    if (chunk_new(l, e) != 0 || config_from_body(l, body, e) != 0)
        return -1;
    if (source == FROM_SHM)
        return open_shm(l->chunk, body, e);
    if (source == FROM_NCCL)
        return nccl_from_body(l->chunk, l->app->weights, body, NULL, e);
    return ipc_from_body(l->chunk, l->app->weights, body, NULL, false, e) == 0
               ? check_every_rank(l->chunk, e)
               : -1;
}

int lora_open(struct lora_load *l, const json_t *body, struct err *e)
{
    enum lora_source source = FROM_PATH;
    const char *name;

    if (source_of(&source, &name, body, e) != 0 ||
        check_members_of_source(source, name, body, e) != 0)
        return -1;
    return source == FROM_PATH ? open_directory(l, e) : open_tensors(l, source, body, e);
}

/* The body is tensors, so the config is in the query. */
int lora_open_stream(struct lora_load *l, struct err *e)
{
    const char *config = http_request_query(l->x, "adapter_config");
    struct safetensors head = {0};

    if (config == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/adapter_config",
                       "'adapter_config' is required, in the query when the body is tensors");
    if (chunk_new(l, e) != 0 || read_config(l, config, strlen(config), e) != 0 ||
        safetensors_parse(&head, l->x->body, l->x->body_len, l->x->content_length, e) != 0)
        return -1;
    l->chunk->tensor_list = tensor_list_ref(head.tensor_list);
    l->chunk->checksums = head.checksums;
    l->chunk->has_checksum = head.has_checksum;
    head.checksums = NULL;
    head.has_checksum = NULL;
    safetensors_fini(&head);
    return body_source_new(&l->chunk->source, l->x, l->app->settings.body_stall_timeout_ms * 1000,
                           e);
}

enum lora_pool lora_pool_of(const struct lora_load *l)
{
    const struct source_ops *ops = l->chunk != NULL ? l->chunk->source->ops : NULL;

    if (ops == NULL || ops->fill != NULL)
        return LORA_POOL_HOST;
    return ops->map != NULL ? LORA_POOL_HANDLES : LORA_POOL_GROUP;
}
