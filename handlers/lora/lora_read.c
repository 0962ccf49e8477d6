/* Reading an adapter, on a thread of control/lora_loads.h. */
#include "base/utf8.h"
#include "control/lora_loads.h"
#include "engine/lora/adapter_delta.h"
#include "handlers/app.h"
#include "handlers/lora/lora_load.h"
#include "weights/update/host_copy.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static bool load_client_disconnected(void *arg)
{
    return http_request_disconnected(((struct lora_load *)arg)->x);
}

/* A source checks only `gone`, so a stop of the server is reported to it in the same way. */
static bool load_cancelled(void *arg)
{
    const struct lora_load *l = arg;

    return atomic_load_explicit(lora_loads_stopping(l->app->generate->loads),
                                memory_order_relaxed) ||
           http_request_disconnected(l->x);
}

static struct adapter_spec spec_of(const struct lora_load *l)
{
    const struct adapters_config *cfg = adapters_config_of(l->app->generate->adapters);

    return (struct adapter_spec){
        .model = l->app->generate->model,
        .base = l->base.adapter,
        .config = l->config,
        .rank_max = cfg->rank_max,
        .nbytes_max = cfg->nbytes_max < ADAPTER_NBYTES_MAX ? cfg->nbytes_max : ADAPTER_NBYTES_MAX,
        .allow_partial = l->allow_partial,
        .non_finite = cfg->non_finite};
}

static int reserve_memory(void *arg, uint64_t nbytes, struct err *e)
{
    return adapters_reserve(arg, nbytes, e);
}

int lora_read_directory(struct lora_load *l, struct adapter **out, struct adapter_report *report,
                        struct err *e)
{
    struct adapter_spec spec = spec_of(l);
    struct adapter_dir dir = {.rootfd = l->root, .path = l->rest};
    struct adapter_room room = {.take = reserve_memory, .arg = l->place};
    struct adapter_wait wait = {.deadline_us = l->deadline_us,
                                .appear_us = l->appear_us,
                                .stop = lora_loads_stopping(l->app->generate->loads),
                                .gone = load_client_disconnected,
                                .gone_arg = l};

    return adapter_file_look(&l->sight, out, report, &spec, &dir, &room, &wait, e);
}

/* The destination of the tensors that a source delivers. */
struct tensor_sink {
    const struct lora_load *l;
    struct adapter_builder *builder;
    void *scratch; /* owned; memory for a tensor that the adapter does not use, but that the source
                      delivers */
};

static const struct tensor_list *tensor_list_of(const struct lora_load *l)
{
    return l->chunk->ranks != NULL ? l->chunk->ranks[0].tensor_list : l->chunk->tensor_list;
}

static void *sink_buffer(void *arg, uint32_t i)
{
    const struct tensor_sink *t = arg;
    void *place = adapter_builder_place(t->builder, i);

    return place != NULL ? place : t->scratch;
}

static int check_sum(const struct lora_load *l, uint32_t i, const void *bytes, struct err *e)
{
    const struct update_chunk *c = l->chunk;
    const struct checksum *sums = c->ranks != NULL ? c->ranks[0].checksums : c->checksums;
    const bool *has_sum = c->ranks != NULL ? c->ranks[0].has_checksum : c->has_checksum;
    const struct tensor_spec *t = &tensor_list_of(l)->tensors[i];
    char found[CHECKSUM_LEN + 1], expected[CHECKSUM_LEN + 1], field[32];
    struct checksum sum;

    if (sums == NULL || !has_sum[i])
        return 0;
    sum = checksum_of(bytes, t->nbytes);
    if (checksum_equal(sum, sums[i]))
        return 0;
    checksum_text(&sum, found);
    checksum_text(&sums[i], expected);
    (void)snprintf(field, sizeof field, "/checksums/%u", i);
    return err_set(e, ERR_CHECKSUM, field, "tensor '%.*s' has checksum %s, not %s",
                   utf8_cut_name(t->name), t->name, found, expected);
}

static int sink_arrived(void *arg, uint32_t i, const void *bytes, struct err *e)
{
    const struct tensor_sink *t = arg;

    return check_sum(t->l, i, bytes, e) != 0
               ? -1
               : adapter_builder_came(t->builder, tensor_list_of(t->l), i, e);
}

static void *scratch_new(const struct tensor_list *tensor_list, const struct adapter_builder *b,
                         struct err *e)
{
    uint64_t nbytes = 1;
    void *scratch;

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        if (adapter_builder_place(b, i) == NULL && tensor_list->tensors[i].nbytes > nbytes)
            nbytes = tensor_list->tensors[i].nbytes;
    scratch = malloc(nbytes);
    if (scratch == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for a tensor of %" PRIu64 " bytes", nbytes);
    return scratch;
}

/* A client that disconnected may have reused the memory while it was read. */
static int check_client(const struct lora_load *l, struct err *e)
{
    if (!http_request_disconnected(l->x))
        return 0;
    return err_set(e, ERR_GONE, "",
                   "the client disconnected while its tensors were read; they may have changed "
                   "meanwhile and were not used");
}

static int read_source(struct lora_load *l, struct adapter_builder *b, struct err *e)
{
    struct progress p = {.deadline_us = l->deadline_us, .gone = load_cancelled, .gone_arg = l};
    struct tensor_sink t = {.l = l, .builder = b};
    struct host_copy copy = {.source = l->chunk->source,
                             .tensor_list = tensor_list_of(l),
                             .devices = l->app->weights->devices,
                             .n_devices = l->app->weights->n_devices,
                             .progress = &p,
                             .place = sink_buffer,
                             .arrived = sink_arrived,
                             .arg = &t};
    int rc;

    atomic_init(&p.tensor, PROGRESS_NO_TENSOR);
    if (adapters_reserve(l->place, adapter_builder_nbytes(b), e) != 0 ||
        adapter_builder_reserve(b, e) != 0)
        return -1;
    t.scratch = scratch_new(tensor_list_of(l), b, e);
    if (t.scratch == NULL)
        return -1;
    rc = host_copy_run(&copy, e);
    free(t.scratch);
    return rc == 0 ? check_client(l, e) : -1;
}

/* A source reports ERR_GONE also if the server stops; corrects the error. */
static void set_stop_error(const struct lora_load *l, struct err *e)
{
    if (e->code != ERR_GONE || http_request_disconnected(l->x) ||
        !atomic_load_explicit(lora_loads_stopping(l->app->generate->loads), memory_order_relaxed))
        return;
    err_clear(e);
    (void)err_set(e, ERR_CONFLICT, "", "the load was stopped while its tensors were read");
}

int lora_read_tensors(struct lora_load *l, struct adapter **out, struct adapter_report *report,
                      struct err *e)
{
    struct adapter_spec spec = spec_of(l);
    const struct tensor_list *tensor_list = tensor_list_of(l);
    struct adapter_builder *b;

    if (tensor_list->nbytes > spec.nbytes_max)
        return err_set(e, ERR_TOO_LARGE, "",
                       "the tensors have %" PRIu64 " bytes; at most %" PRIu64 " are allowed",
                       tensor_list->nbytes, spec.nbytes_max);
    if (adapter_delta_check(l->delta_base, l->delta ? adapter_digest(l->base.adapter) : NULL, false,
                            "", e) != 0)
        return -1;
    if (adapter_builder_new(&b, &spec, tensor_list, e) != 0) {
        chunk_refield(l->chunk, 0, e);
        return -1;
    }
    if (read_source(l, b, e) != 0 || adapter_builder_apply(b, &l->made, e) != 0) {
        adapter_builder_free(b);
        chunk_refield(l->chunk, 0, e);
        set_stop_error(l, e);
        return -1;
    }
    *out = adapter_builder_finish(b, report);
    return 0;
}
