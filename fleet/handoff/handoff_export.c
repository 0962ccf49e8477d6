#include "fleet/handoff/handoff_export.h"

#include "fleet/handoff/handoff_torch.h"
#include "memory/device.h"
#include "transport/ipc/torch_export.h"
#include "weights/store/slab_set.h"

#include <assert.h>
#include <stdlib.h>

_Static_assert((int)IPC_MEM_NBYTES == (int)DEVICE_IPC_NBYTES, "the driver's handle is torch's");

struct handoff_export {
    struct tensor_list *list;   /* borrowed from the store */
    struct handoff_gpus gpus;   /* GPU i of the store is place i */
    struct torch_slab *slabs;   /* owned; of all places */
    struct torch_place *places; /* owned; [gpus.n_store][n_tensors] */
    char ref_name[IPC_REF_NAME_MAX + 1];
    struct torch_exports exports;
};

static int refuse_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory to export the weights");
}

void handoff_export_free(struct handoff_export *x)
{
    if (x == NULL)
        return;
    free(x->places);
    free(x->slabs);
    free(x);
}

/* The tensors of one place. */
static struct torch_place *tensors_of(const struct handoff_export *x, uint32_t place)
{
    return &x->places[(size_t)place * x->list->n_tensors];
}

/* Appends the slabs of one place, and says where its tensors are in them. */
static int export_place(struct handoff_export *x, struct store *store, const struct view *views,
                        uint32_t place, struct err *e)
{
    struct slab_set set = {0};
    struct torch_slab *grown;
    uint32_t first = x->exports.n_slabs;
    int rc = 0;

    if (slab_set_init(&set, views, x->list->n_tensors, e) != 0)
        return -1;
    grown = realloc(x->slabs, ((size_t)first + set.n + 1) * sizeof *grown);
    if (grown == NULL) {
        slab_set_fini(&set);
        return refuse_memory(e);
    }
    x->slabs = grown;
    for (uint32_t i = 0; i < set.n && rc == 0; i++) {
        struct torch_slab *out = &x->slabs[first + i];

        *out = (struct torch_slab){.uuid = x->gpus.uuids[place]};
        rc = device_export(store_device(store, place), set.slabs[i]->addr, out->mem,
                           &set.offsets[i], e);
        out->nbytes = set.offsets[i] + set.slabs[i]->nbytes;
    }
    for (uint32_t i = 0; i < x->list->n_tensors && rc == 0; i++) {
        struct torch_place *p = &tensors_of(x, place)[i];
        uint32_t k;

        if (views[i].slab == NULL)
            continue;
        k = slab_set_index(&set, views[i].slab);
        *p = (struct torch_place){.tensor = &x->list->tensors[i],
                                  .slab = first + k,
                                  .offset = set.offsets[k] + (views[i].addr - set.slabs[k]->addr)};
    }
    x->exports.n_slabs += set.n;
    slab_set_fini(&set);
    return rc;
}

/* What a GPU lacks, because the store's GPUs share the version, it maps from the one that has it.
 */
static void fill_from_peers(struct handoff_export *x)
{
    for (uint32_t i = 0; i < x->list->n_tensors; i++) {
        const struct torch_place *from = NULL;

        for (uint32_t p = 0; p < x->gpus.n_store && from == NULL; p++)
            if (tensors_of(x, p)[i].tensor != NULL)
                from = &tensors_of(x, p)[i];
        assert(from != NULL);
        for (uint32_t p = 0; p < x->gpus.n_store; p++)
            if (tensors_of(x, p)[i].tensor == NULL)
                tensors_of(x, p)[i] = *from;
    }
}

int handoff_export_new(struct handoff_export **out, struct store *store,
                       const struct version *version, const struct cuda_info *cuda, struct err *e)
{
    struct handoff_export *x = calloc(1, sizeof *x);
    int rc;

    if (x == NULL)
        return refuse_memory(e);
    x->list = store_model_spec(store)->tensor_list;
    handoff_gpus_list(&x->gpus, store, cuda);
    x->places = calloc((size_t)x->gpus.n_store * x->list->n_tensors, sizeof *x->places);
    rc = x->places != NULL ? 0 : refuse_memory(e);
    for (uint32_t i = 0; i < x->gpus.n_store && rc == 0; i++)
        rc = export_place(x, store, version->places[i], i, e);
    if (rc != 0) {
        handoff_export_free(x);
        return -1;
    }
    fill_from_peers(x);
    handoff_ref_name(x->ref_name);
    x->exports.slabs = x->slabs;
    x->exports.n_tensors = x->list->n_tensors;
    x->exports.ref_name = x->ref_name;
    *out = x;
    return 0;
}

char *handoff_export_handles(const struct handoff_export *x, struct err *e)
{
    struct torch_gpu gpus[IPC_GPUS_MAX];

    for (uint32_t i = 0; i < x->gpus.n; i++)
        gpus[i] = (struct torch_gpu){x->gpus.uuids[i], tensors_of(x, i < x->gpus.n_store ? i : 0)};
    return torch_export_handles(&x->exports, gpus, x->gpus.n, e);
}

char *handoff_export_named(const struct handoff_export *x, struct err *e)
{
    return torch_export_named(&x->exports, x->places, e);
}

struct tensor_list *handoff_export_list(const struct handoff_export *x)
{
    return x->list;
}
