/* The tensors of a request become a delta: its source and list become those of what it makes. */
#include "handlers/update/update_delta.h"

#include "control/weight_transfer.h"
#include "weights/delta/delta_source.h"
#include "weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first patches of an update decide what it is, and what it builds on. */
static int begin_patches(struct delta_request *out, const char *update_id,
                         const struct app_weights *weights, struct err *e)
{
    struct update_base base = {.delta = true, .unchecked = true};
    struct store_info served;

    if (update_id[0] == '\0')
        return err_set(e, ERR_CONFLICT, "/num_updates_list",
                       "no update is open: start one for the patches, and finish it");
    store_info(weights->store, &served);
    base.serial = served.serial;
    (void)snprintf(base.label, sizeof base.label, "%s", served.label);
    if (weight_transfer_chain(weights->transfer, out->base.unchecked ? 0 : served.serial, update_id,
                              e) != 0)
        return -1;
    if (out->base.unchecked)
        return 0;
    out->base = base;
    return updates_build_on(weights->updates, update_id, &base, e);
}

int delta_request_begin(struct delta_request *out, struct update_chunk *c,
                        const struct app_weights *weights, const struct update_request *w,
                        struct err *e)
{
    struct update_info info;

    if (c->update_id[0] != '\0') {
        if (updates_get(weights->updates, c->update_id, &info, e) != 0)
            return -1;
        out->base = info.base;
    }
    if (w->n_updates != NULL)
        return begin_patches(out, c->update_id, weights, e);
    if (c->update_id[0] != '\0')
        return 0;
    if (w->base_version == NULL)
        return 0;
    if (update_base_find(weights->store, w->base_version, w->base_update_id, &c->base, e) != 0)
        return -1;
    c->base.delta = w->delta;
    out->base = c->base;
    return 0;
}

int delta_request_proves(const struct app_weights *weights, const char *update_id, struct err *e)
{
    struct update_info info;
    struct err ignored = {0}; /* the finish says that there is none, or that it has ended */

    if (updates_get(weights->updates, update_id, &info, &ignored) != 0 || !info.base.unchecked ||
        info.phase == UPDATE_COMMITTED || info.phase == UPDATE_ABORTED ||
        weight_transfer_chain(weights->transfer, 0, update_id, e) == 0)
        return 0;
    (void)updates_fail(weights->updates, update_id, e, &info, &ignored);
    return -1;
}

void delta_request_fini(struct delta_request *r)
{
    delta_free(r->patches);
    r->patches = NULL;
    free(r->file_base);
    r->file_base = NULL;
    made_sums_fini(&r->made);
}

static int check_file(const struct delta_request *r, struct err *e)
{
    const char *field = r->from_path ? "/path" : "/base_version";

    if (r->file_base == NULL && !r->from_path)
        return 0;
    if (r->file_base == NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the file is no delta: its __metadata__ has no \"format\": \"%s\"; without "
                       "\"delta\" its tensors are read as they are",
                       SAFETENSORS_DELTA);
    if (r->file_base[0] != '\0' && strcmp(r->file_base, r->base.label) != 0)
        return err_set(e, ERR_PRECONDITION, field,
                       "the delta's __metadata__ says that it builds on version '%.128s', but the "
                       "request says '%.128s'",
                       r->file_base, r->base.label);
    return 0;
}

/* The update is no delta. */
static int check_no_delta_file(const struct delta_request *r, struct err *e)
{
    if (r->file_base == NULL)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, r->from_path ? "/path" : "",
                   "%s a delta of version '%.128s', and the update is none: send \"delta\": true "
                   "and \"base_version\"",
                   r->from_path ? "the file is" : "the body is, by its __metadata__,",
                   r->file_base);
}

/* What the file says of tensors that this request does not make is not looked at. */
static int use_made_sums(const struct delta_request *r, struct update_chunk *c, struct err *e)
{
    uint32_t n = c->tensor_list->n_tensors, k;

    if (r->made.names.n == 0)
        return 0;
    c->checksums = calloc(n, sizeof *c->checksums);
    c->has_checksum = calloc(n, sizeof *c->has_checksum);
    if (c->checksums == NULL || c->has_checksum == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums of a delta");
    for (uint32_t i = 0; i < r->made.names.n; i++) {
        k = tensor_list_find(c->tensor_list, r->made.names.items[i]);
        if (k == TENSOR_LIST_NO_TENSOR)
            continue;
        c->checksums[k] = r->made.sums[i];
        c->has_checksum[k] = true;
    }
    return 0;
}

int delta_request_apply(struct delta_request *r, struct update_chunk *c,
                        const struct app_weights *weights, struct err *e)
{
    struct delta_link link = {0};
    struct delta_source_cfg cfg = {.store = weights->store,
                                   .base_serial = r->base.serial,
                                   .devices = weights->devices,
                                   .n_devices = weights->n_devices};

    if (c->source == NULL)
        return 0;
    if (!r->base.delta)
        return check_no_delta_file(r, e);
    if (c->ranks != NULL)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the parts of a delta are one list, the same for every GPU");
    if (r->base.unchecked && r->patches == NULL)
        return err_set(e, ERR_CONFLICT, "",
                       "the update was begun with patches of tensors, and these are whole ones");
    link.delta = r->patches;
    r->patches = NULL;
    if (link.delta == NULL &&
        (check_file(r, e) != 0 ||
         delta_of_list(&link.delta, weights->lists, store_model_spec(weights->store),
                       c->tensor_list, e) != 0))
        return -1;
    link.source = c->source;
    link.sent = (struct chunk_rank){c->tensor_list, c->checksums, c->has_checksum};
    c->source = NULL;
    c->tensor_list = NULL;
    c->checksums = NULL;
    c->has_checksum = NULL;
    free(c->origins); /* they are places of parts */
    c->origins = NULL;
    c->n_origins = 0;
    if (delta_source_new(&c->source, &c->tensor_list, &link, &cfg, e) != 0)
        return -1;
    c->sent = delta_source_sent(c->source, &c->sent_at);
    return use_made_sums(r, c, e);
}
