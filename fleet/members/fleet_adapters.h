/* The adapters of the fleet, and which engine has which of them (struct adapter_have). All of it is
 * guarded by the fleet's lock (MTX_ADMISSION), as the table of engines is, because rotation follows
 * from both; each function takes it. Threads: any; those that change something, without a lock.
 * Blocks: no.
 *
 * An engine that lacks an adapter, or may still have one that was unloaded, gets no requests until
 * that is resolved. An adapter whose tensors came with the request cannot be loaded again from
 * here: an engine that lacks it stays out of rotation until a trainer loads it again or unloads it.
 * When no engine has it any more, it keeps none out: all are alike without it. An engine that may
 * have an older revision unloads that first.
 *
 * An engine that is removed keeps its adapters, and may be added again: what it had is remembered
 * as long as it is in the list of the fleet. It keeps no other out meanwhile. */
#ifndef BATON_FLEET_MEMBERS_FLEET_ADAPTERS_H
#define BATON_FLEET_MEMBERS_FLEET_ADAPTERS_H

#include "base/err.h"
#include "fleet/api/api_args.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FLEET_ADAPTERS_MAX = 1024,
    FLEET_ADAPTER_NAME_MAX = 256,
    FLEET_ADAPTER_DIGEST_MAX = 64,
    FLEET_ADAPTER_LOAD_MAX = 1 << 20 /* bytes of a request that is kept to load it again */
};

struct fleet_adapter {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char *path; /* owned; NULL: its tensors came with the request */
    char *load; /* owned; the request that loads it, as JSON; NULL: it is not known */
    /* Of the tensors of the load `digest_of`, as the first engine reported it; "": none did. */
    char digest[FLEET_ADAPTER_DIGEST_MAX + 1];
    uint64_t revision, timeout_us;
    uint32_t number; /* of the load that engines are to have; 0: it was unloaded, or never loaded */
    uint32_t asked;  /* of the last load or unload that a client asked for */
    uint32_t digest_of;
    uint32_t slot; /* its place in fleet_adapters.list, and in upstream.adapters */
    size_t n_have; /* members that have it */
};

struct fleet_adapters {
    struct fleet_adapter *list[FLEET_ADAPTERS_MAX]; /* owned; NULL: free */
    size_t n;                                       /* all others are free */
    uint32_t n_asked;                               /* clients' loads and unloads */
    struct fleet_adapter *asked;                    /* the one that is under way; NULL: none */
};

/* ---- loads and unloads for all engines ---- */

/* fleet_adapter_begin - before the first engine is asked: memory for the adapter, and a number for
 * what they are asked. Until one of the next functions ends it, an engine counts as having what it
 * had before, whatever it has by then. At the limit the oldest adapter is forgotten that was
 * unloaded, and that only removed engines may still have. One at a time: the owner of the operation
 * lock.
 * @args  in: `name`; out: `number`, `slot`
 * Errors: ERR_CONFLICT: there are FLEET_ADAPTERS_MAX; ERR_NO_MEMORY. After an error nothing is kept
 * of what engines answer, and the functions that end it do nothing. */
int fleet_adapter_begin(struct fleet *f, struct api_args *args, struct err *e);

/* fleet_adapter_end - the fleet has what it had before.
 * fleet_adapter_end_kept - the same of a load that no engine took; but if each had to unload the
 * adapter before, the fleet does not have it any more.
 * fleet_adapter_end_loaded - it has the adapter, as the next revision, which is returned. Engines
 * that have not taken this load lack it. @path, @load  moved in; as in struct fleet_adapter
 * fleet_adapter_end_unloaded - it does not have it any more. Returns: the revision that it had. */
void fleet_adapter_end(struct fleet *f);
void fleet_adapter_end_kept(struct fleet *f);
uint64_t fleet_adapter_end_loaded(struct fleet *f, char *path, char *load, uint64_t timeout_us);
uint64_t fleet_adapter_end_unloaded(struct fleet *f);

/* fleet_adapter_doubt - within that: the engine's answer does not say whether it has the adapter.
 * @args  of fleet_adapter_begin */
void fleet_adapter_doubt(struct fleet *f, struct upstream *u, const struct api_args *args);

/* fleet_adapter_exists - does the fleet have an adapter of that name?
 * fleet_adapter_path - where it was loaded from: for free(); NULL: there is none, its tensors came
 * otherwise. Returns: -1: no memory. */
bool fleet_adapter_exists(struct fleet *f, const char *name);
int fleet_adapter_path(struct fleet *f, const char *name, char **out);

struct fleet_adapter_entry {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char *path; /* owned; NULL: its tensors came with the request */
    uint64_t revision;
};

/* fleet_adapter_list - a copy of the fleet's adapters: [n], to be freed with
 * fleet_adapter_list_free. NULL: no memory.
 * @lacking  only those that this engine lacks; NULL: all */
struct fleet_adapter_entry *fleet_adapter_list(struct fleet *f, const struct upstream *lacking,
                                               size_t *n);
void fleet_adapter_list_free(struct fleet_adapter_entry *list, size_t n); /* accepts NULL */

/* ---- one engine ---- */

/* fleet_adapter_may_have - may it have the adapter of a task, whichever revision? */
bool fleet_adapter_may_have(struct fleet *f, struct upstream *u, uint32_t slot);

/* A load or an unload that an engine needs. */
struct fleet_adapter_task {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char *load, *path; /* owned; load NULL: an unload */
    uint32_t number, slot;
    uint64_t timeout_us; /* for a load */
};

/* fleet_adapter_next - what it needs next: none that a client's request changes now; those that it
 * refused come last. fleet_adapter_task_fini frees it.
 * Returns: 1; 0: nothing; -1: no memory. */
int fleet_adapter_next(struct fleet *f, struct upstream *u, struct fleet_adapter_task *out);
void fleet_adapter_task_fini(struct fleet_adapter_task *task);

#endif
