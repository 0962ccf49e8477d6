/* The adapters of the fleet, and which engine has which of them. No I/O and no locking: callers
 * hold the lock of the fleet's control (fleet/calls/fleet_priv.h).
 *
 * What an engine has is known from its replies, and lost with its process. An engine that lacks an
 * adapter, or may still have one that was unloaded, gets no requests until that is resolved. An
 * adapter whose tensors came with the request cannot be loaded again from here: an engine that
 * lacks it stays out of rotation until a trainer loads it again or unloads it. When no engine has
 * it any more, it keeps none out: all are alike without it. An engine that may have an older
 * revision unloads that first.
 *
 * An engine that is removed keeps its adapters, and may be added again: what it had is remembered
 * as long as it is in the list of the fleet. It keeps no other out meanwhile. */
#ifndef BATON_FLEET_CALLS_FLEET_ADAPTERS_H
#define BATON_FLEET_CALLS_FLEET_ADAPTERS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FLEET_ADAPTERS_MAX = 1024,
    FLEET_ADAPTER_NAME_MAX = 256,
    FLEET_ADAPTER_DIGEST_MAX = 64,
    FLEET_ADAPTER_LOAD_MAX = 1 << 20 /* bytes of a request that is kept to load it again */
};

#define FLEET_REMOVED UINT64_MAX /* the incarnation of an engine that is removed */

/* What an engine has under an adapter's name. */
enum fleet_has {
    FLEET_HAS_NONE,
    FLEET_HAS_OTHER,   /* another revision, or unknown */
    FLEET_HAS_REFUSED, /* none: it refused to load this one */
    FLEET_HAS_THIS
};

struct fleet_adapter {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char *path; /* owned; NULL: its tensors came with the request */
    char *load; /* owned; the request that loads it, as JSON; NULL: it is not known */
    /* Of its tensors, as an engine reported it; "": none did. */
    char digest[FLEET_ADAPTER_DIGEST_MAX + 1];
    uint64_t revision, timeout_us;
    uint64_t change; /* `changes` when a request last changed it */
    bool removed;    /* unloaded, but an engine may still have it */
    size_t slot;     /* of fleet_engine_adapters.at */
};

/* What one engine has. */
struct fleet_engine_adapters {
    struct fleet_engine_adapters *next; /* of those that are members */
    uint64_t incarnation;               /* the process that this is about; FLEET_REMOVED */
    struct {
        uint8_t has;          /* enum fleet_has */
        bool pending;         /* a task is under way there: `has` may change at any time */
    } at[FLEET_ADAPTERS_MAX]; /* by fleet_adapter.slot */

    /* Of the operation under way, which its owner works on: what the engine has of one adapter, and
     * which process has it. */
    uint8_t found; /* enum fleet_has */
    uint64_t found_incarnation;
};

struct fleet_adapters {
    struct fleet_adapter *list; /* owned; [n] */
    size_t n;
    uint64_t changes;                      /* grows with each change of the list or of `has` */
    struct fleet_engine_adapters *engines; /* of the members; borrowed */
    bool used[FLEET_ADAPTERS_MAX];         /* the slot is of an adapter */
};

void fleet_adapters_fini(struct fleet_adapters *fa);

/* fleet_adapters_join, fleet_adapters_leave - an engine comes into the list of the fleet, without
 * adapters, or leaves it. */
void fleet_adapters_join(struct fleet_adapters *fa, struct fleet_engine_adapters *engine);
void fleet_adapters_leave(struct fleet_adapters *fa, struct fleet_engine_adapters *engine);

/* fleet_adapters_find - one that is loaded, valid until the next change; NULL: there is none. */
const struct fleet_adapter *fleet_adapters_find(const struct fleet_adapters *fa, const char *name);

/* fleet_adapters_reserve - memory for one more, before any request is sent. At the limit the oldest
 * one is forgotten that was unloaded, and that only removed engines may still have.
 * Errors: ERR_CONFLICT: there are FLEET_ADAPTERS_MAX; ERR_NO_MEMORY. */
int fleet_adapters_reserve(struct fleet_adapters *fa, const char *name, struct err *e);

/* fleet_adapters_put - an adapter was loaded, as the next revision. Needs fleet_adapters_reserve
 * before.
 * What each engine has of it now: `found`.
 * @path, @load  moved in; as in struct fleet_adapter
 * Returns: the revision. */
struct fleet_adapter_source {
    const char *name, *digest; /* digest NULL: not known */
    char *path, *load;
    uint64_t timeout_us;
};
uint64_t fleet_adapters_put(struct fleet_adapters *fa, const struct fleet_adapter_source *from);

/* fleet_adapters_find_has - what engines have under a name, also one that was unloaded, is `found`
 * from now on. */
void fleet_adapters_find_has(struct fleet_adapters *fa, const char *name);

/* fleet_adapters_set_has - a load or an unload failed: there is no new revision, but engines may
 * have lost the one before, and have what was `found`. An unknown name is ignored. */
void fleet_adapters_set_has(struct fleet_adapters *fa, const char *name);

/* fleet_adapters_any_found - may a member have what was `found`? */
bool fleet_adapters_any_found(const struct fleet_adapters *fa);

/* fleet_adapters_remove - an adapter was unloaded. What each engine may still have under that name:
 * `found`.
 * Returns: the revision that it had; 0: there was none. */
uint64_t fleet_adapters_remove(struct fleet_adapters *fa, const char *name);

/* fleet_adapters_set_incarnation - the number of an engine's process (upstream_info.incarnation),
 * or FLEET_REMOVED.
 * @is_new  a changed number means another process, which has none; false: it may be the same */
void fleet_adapters_set_incarnation(struct fleet_adapters *fa, struct fleet_engine_adapters *engine,
                                    uint64_t incarnation, bool is_new);

/* A load or an unload that an engine needs. */
struct fleet_adapter_task {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char digest[FLEET_ADAPTER_DIGEST_MAX + 1];
    char *load, *path;   /* owned; load NULL: an unload */
    bool may_have;       /* the engine may have one of that name */
    enum fleet_has had;  /* what it had before */
    uint64_t timeout_us; /* for a load */
    uint64_t change, incarnation;
};

/* fleet_adapters_begin_task - the next task of an engine; end it with fleet_adapters_end_task.
 * Returns: 1; 0: there is none; -1: no memory. */
int fleet_adapters_begin_task(struct fleet_adapters *fa, struct fleet_engine_adapters *engine,
                              struct fleet_adapter_task *out);

/* fleet_adapters_end_task - the engine replied. If the process or the revision has changed since
 * the task began, the result is not trusted and becomes FLEET_HAS_OTHER. Frees what the task owns.
 * @has  what the engine has now, by its reply */
void fleet_adapters_end_task(struct fleet_adapters *fa, struct fleet_engine_adapters *engine,
                             struct fleet_adapter_task *task, enum fleet_has has);

/* fleet_adapters_has_task - does the engine need a load or an unload that can be sent from here? */
bool fleet_adapters_has_task(const struct fleet_adapters *fa,
                             const struct fleet_engine_adapters *engine);

/* fleet_adapters_blocking - an adapter that keeps an engine out of rotation; NULL: none does. */
const struct fleet_adapter *fleet_adapters_blocking(const struct fleet_adapters *fa,
                                                    const struct fleet_engine_adapters *engine);

/* fleet_adapters_is_missing - is it loaded in the fleet, and not at this engine? */
bool fleet_adapters_is_missing(const struct fleet_adapter *a,
                               const struct fleet_engine_adapters *engine);

#endif
