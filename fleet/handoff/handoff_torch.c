#include "fleet/handoff/handoff_torch.h"

#include "base/id.h"
#include "memory/device.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_listed(const struct handoff_gpus *g, const char *uuid)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (strcmp(g->uuids[i], uuid) == 0)
            return true;
    return false;
}

static void add_gpu(struct handoff_gpus *g, const char *text)
{
    char uuid[IPC_UUID_LEN + 1];

    if (g->n < IPC_GPUS_MAX && ipc_uuid_parse(uuid, text, strlen(text)) && !is_listed(g, uuid))
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
