/* The source of an adapter in a request: a PEFT directory, shared memory, CUDA IPC handles, the
 * broadcasts of a trainer's group, or the body itself. */
#include "engine/lora/adapter_file.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/lora/lora_load.h"
#include "handlers/reply.h"
#include "handlers/rows/update_request.h"
#include "handlers/source/source_json.h"
#include "handlers/tensor_list_json.h"
#include "handlers/update_members.h"
#include "transport/body.h"
#include "transport/roots.h"
#include "weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_directory(struct lora_load *l, struct err *e)
{
    const struct settings *s = &l->app->settings;

    return roots_open(&l->root, &l->rest, s->allow_path, s->n_allow_path, l->path, "/lora_path", e);
}

/* In a file an incomplete config is ERR_UNREADABLE, because it may still be written; in a
 * request it is a mistake. */
static int read_adapter_config(struct lora_load *l, const char *text, size_t len, struct err *e)
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
                     : read_adapter_config(l, text.data, text.len, e);
    buf_fini(&text);
    return rc;
}

static int lora_chunk_new(struct lora_load *l, struct err *e)
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
static int open_tensors(struct lora_load *l, const char *source, const json_t *body, struct err *e)
{
    if (lora_chunk_new(l, e) != 0 || config_from_body(l, body, e) != 0)
        return -1;
    if (strcmp(source, "shm") == 0)
        return open_shm(l->chunk, body, e);
    if (strcmp(source, "transport") == 0 && body_reads_nixl(body))
        return err_set(e, ERR_BAD_REQUEST, "/transport",
                       "transport nixl is for updates; send an adapter by another source");
    if (strcmp(source, "transport") == 0)
        return nccl_from_body(l->chunk, NULL, l->app->weights, body, NULL, e);
    return ipc_from_body(l->chunk, l->app->weights, body, NULL, false, e) == 0
               ? check_every_rank(l->chunk, e)
               : -1;
}

int lora_open(struct lora_load *l, const json_t *body, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *source = member_only_given(field, lora_load_members, IS_SOURCE, body, "");

    if (source == NULL)
        return err_set(
            e, ERR_BAD_REQUEST, field,
            "exactly one source is needed: lora_path; shm, ipc_handles, "
            "ipc_handles_pickled, buckets or transport: nccl, with adapter_config and names, "
            "dtypes, shapes; or a body of type application/vnd.safetensors");
    if (source_members_check(lora_load_members, source, body, e) != 0)
        return -1;
    return strcmp(source, "lora_path") == 0 ? open_directory(l, e)
                                            : open_tensors(l, source, body, e);
}

/* The body is tensors, so the config is in the query. */
int lora_open_stream(struct lora_load *l, struct err *e)
{
    const char *config = http_request_query(l->x, "adapter_config");
    struct safetensors head = {0};

    if (config == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/adapter_config",
                       "'adapter_config' is required, in the query when the body is tensors");
    if (lora_chunk_new(l, e) != 0 || read_adapter_config(l, config, strlen(config), e) != 0 ||
        safetensors_parse(&head, l->x->body, l->x->body_len, l->x->content_length, e) != 0)
        return -1;
    l->chunk->tensor_list = tensor_list_ref(head.tensor_list);
    l->chunk->checksums = head.checksums;
    l->chunk->has_checksum = head.has_checksum;
    l->delta_base = head.delta_base;
    l->made = head.made;
    head.checksums = NULL;
    head.has_checksum = NULL;
    head.delta_base = NULL;
    head.made = (struct made_sums){0};
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
