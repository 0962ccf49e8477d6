#include "fleet/handoff/handoff_export.h"

#include "base/id.h"
#include "memory/device.h"
#include "transport/ipc/torch_export.h"
#include "weights/store/slab_set.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert((int)IPC_MEM_NBYTES == (int)DEVICE_IPC_NBYTES, "the driver's handle is torch's");

/* what both exports say */

static bool handoff_export_is_listed(const struct handoff_gpus *g, const char *uuid)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (strcmp(g->uuids[i], uuid) == 0)
            return true;
    return false;
}

static void add_gpu(struct handoff_gpus *g, const char *text)
{
    char uuid[IPC_UUID_LEN + 1];

    if (g->n < IPC_GPUS_MAX && ipc_uuid_parse(uuid, text, strlen(text)) &&
        !handoff_export_is_listed(g, uuid))
        memcpy(g->uuids[g->n++], uuid, sizeof uuid);
}

void handoff_gpus_list(struct handoff_gpus *out, struct store *store, const struct cuda_info *cuda)
{
    *out = (struct handoff_gpus){.n_store = store_n_ranks(store)};
    for (uint32_t i = 0; i < out->n_store; i++)
        add_gpu(out, device_about(store_device(store, i))->uuid);
    assert(out->n == out->n_store);
    for (size_t i = 0; i < cuda->n_devices; i++)
        add_gpu(out, cuda->devices[i].uuid);
}

void handoff_ref_name(char out[IPC_REF_NAME_MAX + 1])
{
    (void)snprintf(out, IPC_REF_NAME_MAX + 1, "/torch_%ld_%llu_0", (long)getpid(),
                   (unsigned long long)id_random_u64());
}

/* the slabs */

/* The slabs of all places, and where in them each place finds its tensors. */
struct slabs {
    const struct tensor_list *list; /* borrowed from the store */
    struct handoff_gpus gpus;       /* GPU i of the store is place i */
    struct torch_slab *all;         /* owned; [n] */
    uint32_t n;
    struct torch_place *places; /* owned; [gpus.n_store][n_tensors] */
};

static int export_refuse_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory to export the weights");
}

/* The tensors of one place. */
static struct torch_place *tensors_of(const struct slabs *s, uint32_t place)
{
    return &s->places[(size_t)place * s->list->n_tensors];
}

/* Appends the slabs of one place, and says where its tensors are in them. */
static int export_place(struct slabs *s, struct store *store, const struct view *views,
                        uint32_t place, struct err *e)
{
    struct slab_set set = {0};
    struct torch_slab *grown;
    int rc = 0;

    if (slab_set_init(&set, views, s->list->n_tensors, e) != 0)
        return -1;
    grown = realloc(s->all, ((size_t)s->n + set.n + 1) * sizeof *grown);
    if (grown == NULL) {
        slab_set_fini(&set);
        return export_refuse_memory(e);
    }
    s->all = grown;
    for (uint32_t i = 0; i < set.n && rc == 0; i++) {
        struct torch_slab *out = &s->all[s->n + i];

        *out = (struct torch_slab){.uuid = s->gpus.uuids[place]};
        rc = device_export(store_device(store, place), set.slabs[i]->addr, out->mem,
                           &set.offsets[i], e);
        out->nbytes = set.offsets[i] + set.slabs[i]->nbytes;
    }
    for (uint32_t i = 0; i < s->list->n_tensors && rc == 0; i++) {
        uint32_t k;

        if (views[i].slab == NULL)
            continue;
        k = slab_set_index(&set, views[i].slab);
        tensors_of(s, place)[i] = (struct torch_place){
            .tensor = &s->list->tensors[i],
            .slab = s->n + k,
            .offset = set.offsets[k] + (views[i].addr - set.slabs[k]->addr)};
    }
    s->n += set.n;
    slab_set_fini(&set);
    return rc;
}

/* What a GPU lacks, because the store's GPUs share the version, it maps from the one that has it.
 */
static void fill_from_peers(struct slabs *s)
{
    for (uint32_t i = 0; i < s->list->n_tensors; i++) {
        const struct torch_place *from = NULL;

        for (uint32_t p = 0; p < s->gpus.n_store && from == NULL; p++)
            if (tensors_of(s, p)[i].tensor != NULL)
                from = &tensors_of(s, p)[i];
        assert(from != NULL);
        for (uint32_t p = 0; p < s->gpus.n_store; p++)
            if (tensors_of(s, p)[i].tensor == NULL)
                tensors_of(s, p)[i] = *from;
    }
}

static int write_texts(struct handoff_export *out, const struct slabs *s)
{
    char ref_name[IPC_REF_NAME_MAX + 1];
    const struct torch_exports x = {s->all, s->n, s->list->n_tensors, ref_name, 0};
    struct torch_gpu gpus[IPC_GPUS_MAX];

    handoff_ref_name(ref_name);
    for (uint32_t i = 0; i < s->gpus.n; i++)
        gpus[i] = (struct torch_gpu){s->gpus.uuids[i], tensors_of(s, i < s->gpus.n_store ? i : 0)};
    out->handles = torch_export_handles(&x, gpus, s->gpus.n, out->e);
    if (out->for_sglang && out->handles != NULL)
        out->named = torch_export_named(&x, s->places, out->e);
    return out->e->code == ERR_NONE ? 0 : -1;
}

void handoff_export_make(void *export)
{
    struct handoff_export *x = export;
    struct slabs s = {.list = store_model_spec(x->store)->tensor_list};

    x->list = store_model_spec(x->store)->tensor_list;
    handoff_gpus_list(&s.gpus, x->store, x->cuda);
    s.places = calloc((size_t)s.gpus.n_store * s.list->n_tensors, sizeof *s.places);
    x->rc = s.places != NULL ? 0 : export_refuse_memory(x->e);
    for (uint32_t i = 0; i < s.gpus.n_store && x->rc == 0; i++)
        x->rc = export_place(&s, x->store, x->v->places[i], i, x->e);
    if (x->rc == 0) {
        fill_from_peers(&s);
        x->rc = write_texts(x, &s);
    }
    free(s.places);
    free(s.all);
}

void handoff_export_fini(struct handoff_export *x)
{
    free(x->handles);
    free(x->named);
}
