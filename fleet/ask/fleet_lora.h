/* The adapters of a fleet, for handlers: fleet/calls/fleet_adapters.h with its lock. Changed by the
 * owner of the operation lock (asserted), and by reconciling (fleet/want/fleet_reconcile.h).
 * Threads: any; no lock held. */
#ifndef BATON_FLEET_ASK_FLEET_LORA_H
#define BATON_FLEET_ASK_FLEET_LORA_H

#include "base/err.h"
#include "fleet/calls/fleet_adapters.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

/* fleet_lora_read - what is known now of each engine, also of an adapter that was unloaded: `found`
 * (fleet/calls/fleet_adapters.h). It is the caller's until fleet_lora_put, _remove, _set_has or
 * _keep, in which an engine that was restarted since becomes FLEET_HAS_OTHER first.
 * fleet_lora_found - of one engine. */
void fleet_lora_read(struct fleet_control *fc, const char *name);
uint8_t *fleet_lora_found(const struct upstream *upstream);

/* fleet_lora_exists - does the fleet have an adapter of that name? */
bool fleet_lora_exists(struct fleet_control *fc, const char *name);

/* fleet_lora_path - where the fleet's adapter of that name was loaded from.
 * @out  for free(); NULL: there is none, or its tensors came otherwise. Returns -1: no memory. */
int fleet_lora_path(struct fleet_control *fc, const char *name, char **out);

/* fleet_lora_reserve - memory for one more, before any request is sent. Errors: as
 * fleet_adapters_reserve. */
int fleet_lora_reserve(struct fleet_control *fc, const char *name, struct err *e);

/* fleet_lora_put, _remove, _set_has - as fleet_adapters_put and so on. */
uint64_t fleet_lora_put(struct fleet_control *fc, const struct fleet_adapter_source *from);
uint64_t fleet_lora_remove(struct fleet_control *fc, const char *name);
void fleet_lora_set_has(struct fleet_control *fc, const char *name);

/* fleet_lora_keep - no engine took a load that was to replace the adapter: fleet_lora_set_has, or
 * fleet_lora_remove if every engine had to unload it first. */
void fleet_lora_keep(struct fleet_control *fc, const char *name);

struct fleet_lora_entry {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char *path; /* owned; NULL: its tensors came with the request */
    uint64_t revision;
};

/* fleet_lora_list - a copy of the fleet's adapters: [n], to be freed with fleet_lora_list_free.
 * NULL: no memory. */
struct fleet_lora_entry *fleet_lora_list(struct fleet_control *fc, size_t *n);
void fleet_lora_list_free(struct fleet_lora_entry *list, size_t n); /* accepts NULL */

#endif
