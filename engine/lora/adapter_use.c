/* A count around a pin of the registry. */
#include "engine/lora/adapter_use.h"

#include "engine/gen.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

_Static_assert((int)GEN_ADAPTER_LEN_MAX >= (int)ADAPTERS_NAME_LEN_MAX, "outputs hold every name");

struct adapter_use {
    atomic_uint_fast32_t n_refs; /* release on the way down, acquire by the last: see unref */
    struct adapters *set;        /* borrowed; immutable, as the next */
    struct adapter_ref pin;      /* of the set; unpinned by the last unref */
};

int adapter_use_new(struct adapter_use **out, struct adapters *set, const char *name, struct err *e)
{
    struct adapter_use *u = calloc(1, sizeof *u);

    if (u == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to use an adapter");
    if (adapters_pin(set, name, &u->pin, e) != 0) {
        free(u);
        return -1;
    }
    u->set = set;
    atomic_init(&u->n_refs, 1);
    *out = u;
    return 0;
}

struct adapter_use *adapter_use_ref(struct adapter_use *u)
{
    (void)atomic_fetch_add_explicit(&u->n_refs, 1, memory_order_relaxed);
    return u;
}

void adapter_use_unref(struct adapter_use *u)
{
    uint_fast32_t was;

    if (u == NULL)
        return;
    was = atomic_fetch_sub_explicit(&u->n_refs, 1, memory_order_acq_rel);
    assert(was > 0);
    if (was > 1)
        return;
    adapters_unpin(u->set, &u->pin);
    free(u);
}

const struct adapter *adapter_use_adapter(const struct adapter_use *u)
{
    return u->pin.adapter;
}

const char *adapter_use_name(const struct adapter_use *u)
{
    return u->pin.name;
}

uint64_t adapter_use_revision(const struct adapter_use *u)
{
    return u->pin.revision;
}
