/* The adapters of the fleet, and which upstream has which of them. No I/O and no lock here: whoever
 * has the fleet's control locks it (fleet/fleet_priv.h).
 *
 * What an upstream has is known from what it answered, and lost with its process. One that lacks an
 * adapter of the fleet, or may still have one that the fleet has no more, is not as the others are,
 * and gets no traffic until that is made good. An adapter that cannot be made again (its tensors
 * came with the request that loaded it) keeps who lacks it away until it is loaded again or
 * unloaded; when no upstream has it any more, it keeps nobody away: all are alike without it. */
#ifndef BATON_FLEET_FLEET_ADAPTERS_H
#define BATON_FLEET_FLEET_ADAPTERS_H

#include "base/err.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FLEET_ADAPTERS_MAX = 1024,
    FLEET_ADAPTER_NAME_MAX = 256,
    FLEET_ADAPTER_DIGEST_MAX = 64,
    FLEET_ADAPTER_LOAD_MAX = 1 << 20 /* bytes of a request that is kept, to load it again with */
};

/* What an upstream has by an adapter's name. */
enum fleet_has {
    FLEET_HAS_NONE,
    FLEET_HAS_OTHER,   /* another revision, or nobody knows what */
    FLEET_HAS_REFUSED, /* none, or another: it did not take this one when it was asked to */
    FLEET_HAS_THIS
};

struct fleet_adapter {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char *path; /* owned; NULL: it came by tensors */
    char *load; /* owned; the request that loads it, as JSON; NULL: it cannot be made again */
    char
        digest[FLEET_ADAPTER_DIGEST_MAX + 1]; /* of what is in it, as it was said; "": nobody did */
    uint64_t revision, timeout_us;
    uint64_t change;         /* the last change that a request made of it */
    bool removed;            /* the fleet has it no more, an upstream may */
    uint8_t has[FLEET_MAX];  /* enum fleet_has */
    bool pending[FLEET_MAX]; /* it is being asked for there: it may come, or go, at any time */
};

struct fleet_adapters {
    struct fleet_adapter *list; /* owned; [n] */
    size_t n;
    uint64_t changes;                /* of all this: grows with each */
    uint64_t incarnation[FLEET_MAX]; /* which process of an upstream `has` speaks of */
};

void fleet_adapters_fini(struct fleet_adapters *fa);

/* fleet_adapters_find - of the fleet's; NULL: there is none. Until the next change. */
const struct fleet_adapter *fleet_adapters_find(const struct fleet_adapters *fa, const char *name);

/* fleet_adapters_reserve - for one more, before anybody is asked.
 * Errors: ERR_CONFLICT (as many as may be), ERR_NO_MEMORY. */
int fleet_adapters_reserve(struct fleet_adapters *fa, const char *name, struct err *e);

/* fleet_adapters_put - the fleet has it, in a revision more than the one before; room was made.
 * @path, @load  moved in; as struct fleet_adapter's
 * @has          [FLEET_MAX]: what of it each upstream has. Returns: its revision. */
struct fleet_adapter_source {
    const char *name, *digest; /* NULL: it is not known */
    char *path, *load;
    uint64_t timeout_us;
};
uint64_t fleet_adapters_put(struct fleet_adapters *fa, const struct fleet_adapter_source *from,
                            const uint8_t *has);

/* fleet_adapters_set_has - no other revision came of it, but upstreams may have lost the one
 * before.
 */
void fleet_adapters_set_has(struct fleet_adapters *fa, const char *name, const uint8_t *has);

/* fleet_adapters_remove - the fleet has it no more.
 * @left  [FLEET_MAX]: what each upstream may still have by that name
 * Returns: the revision that it had; 0: none. */
uint64_t fleet_adapters_remove(struct fleet_adapters *fa, const char *name, const uint8_t *left);

/* fleet_adapters_set_incarnation - an upstream's process is of this number (upstream_info.n_lives).
 * @is_new  another than before has nothing of what that one had, for sure */
void fleet_adapters_set_incarnation(struct fleet_adapters *fa, size_t upstream,
                                    uint64_t incarnation, bool is_new);

/* Something that an upstream is to be asked for. */
struct fleet_adapter_task {
    char name[FLEET_ADAPTER_NAME_MAX + 1];
    char digest[FLEET_ADAPTER_DIGEST_MAX + 1];
    char *load;          /* owned; NULL: to unload it */
    bool may_have;       /* something by that name */
    enum fleet_has had;  /* before */
    uint64_t timeout_us; /* of a load */
    uint64_t change, incarnation;
};

/* fleet_adapters_begin_task - the next that an upstream can be asked for; each is to be ended.
 * Returns: 1; 0: there is nothing; -1: no memory. */
int fleet_adapters_begin_task(struct fleet_adapters *fa, size_t upstream,
                              struct fleet_adapter_task *out);

/* fleet_adapters_end_task - it has been asked. What another process said, or what was said of
 * another revision, is not believed: then nobody knows what is there. Frees what the fit owns. */
void fleet_adapters_end_task(struct fleet_adapters *fa, size_t upstream,
                             struct fleet_adapter_task *task, enum fleet_has has);

/* fleet_adapters_has_task - is there anything that it can be asked for? */
bool fleet_adapters_has_task(const struct fleet_adapters *fa, size_t upstream);

/* fleet_adapters_blocking - one that keeps an upstream away; NULL: none does. */
const struct fleet_adapter *fleet_adapters_blocking(const struct fleet_adapters *fa,
                                                    size_t upstream);

/* fleet_adapters_is_missing - is it one of the fleet's that the upstream does not have? */
bool fleet_adapters_is_missing(const struct fleet_adapter *a, size_t upstream);

#endif
