/* The pin of one request on a revision of an adapter: pinned once, shared by its sequences, and
 * unpinned when the last of them is freed, so that all of a reply is of one revision. */
#ifndef BATON_ENGINE_LORA_ADAPTER_USE_H
#define BATON_ENGINE_LORA_ADAPTER_USE_H

#include "base/err.h"
#include "engine/lora/adapters.h"

#include <stdint.h>

struct adapter_use; /* immutable; shared, counted */

/* adapter_use_new - pin what serves under `name` now; one reference.
 * @set  borrowed; outlives the use
 * Threads: any. Errors: ERR_NOT_FOUND at /model, ERR_NO_MEMORY. */
int adapter_use_new(struct adapter_use **out, struct adapters *set, const char *name,
                    struct err *e);

/* adapter_use_ref, adapter_use_unref - Threads: any. The last unref unpins: it may give memory back
 * to the system, so it is not for the step loop. adapter_use_unref accepts NULL. */
struct adapter_use *adapter_use_ref(struct adapter_use *u);
void adapter_use_unref(struct adapter_use *u);

/* Valid as long as the reference. */
const struct adapter *adapter_use_adapter(const struct adapter_use *u);
const char *adapter_use_name(const struct adapter_use *u);
uint64_t adapter_use_revision(const struct adapter_use *u);

#endif
