/* The adapters that requests may name: name -> the revision that serves.
 *
 * Loading a loaded name makes its next revision; a request that uses an older one keeps it to its
 * end. A pair (name, revision) is never reused while the server runs: a name that was unloaded and
 * is loaded again gets a number above all that were ever unloaded. Nothing is evicted.
 *
 * Loads of one name may overlap: each stages its own bytes, the later adapters_put wins and gets
 * the next revision; with if_revision the put is a compare-and-swap, and the loser gets a 409. An
 * unload does not stop a load that is under way. */
#ifndef BATON_ENGINE_LORA_ADAPTERS_H
#define BATON_ENGINE_LORA_ADAPTERS_H

#include "base/err.h"
#include "engine/lora/adapter.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ADAPTERS_MAX = 4096, ADAPTERS_NAME_LEN_MAX = 256 };

struct adapters;

struct adapters_config {
    uint32_t n_max;                    /* --max-loras: names; 1..ADAPTERS_MAX */
    uint32_t rank_max;                 /* --max-lora-rank; 1..ADAPTER_RANK_MAX */
    uint64_t nbytes_max;               /* of all revisions alive, and of those being loaded */
    enum non_finite_policy non_finite; /* of what is loaded */
    const char *const *base_names; /* NULL-terminated; borrowed: what the base model is called */
};

int adapters_new(struct adapters **out, const struct adapters_config *cfg, struct err *e);
void adapters_free(struct adapters *s); /* nothing is pinned or loading; accepts NULL */

const struct adapters_config *adapters_config_of(const struct adapters *s);

/* ---- loading ---- */

struct adapters_options {
    bool only_new;        /* load_inplace is explicitly false: a loaded name is an error */
    bool has_if_revision; /* the name must be at this revision; 0: not loaded */
    uint64_t if_revision;
    char if_digest[ADAPTER_DIGEST_LEN + 1]; /* what serves must have this digest; "": any */
    bool pinned;                            /* as listed: nothing is evicted, pinned or not */
    const char *path;                       /* borrowed; as listed; may be NULL */
};

struct adapters_load; /* a load in progress: it holds the place of its name and some bytes */

/* adapters_begin - refuse early what adapters_put would refuse, and take a place for the name.
 * Errors: ERR_BAD_REQUEST at /lora_name (empty, too long, not UTF-8, control characters, the base
 *         model's name; loaded already, with only_new); ERR_PRECONDITION at /if_revision,
 * /if_digest; ERR_CONFLICT (n_max names); ERR_NO_MEMORY. */
int adapters_begin(struct adapters *s, const char *name, const struct adapters_options *options,
                   struct adapters_load **out, struct err *e);

/* adapters_reserve - count `nbytes` against nbytes_max until the load ends, instead of what this
 * load has reserved so far: two loads at once cannot pass the limit together.
 * Errors: ERR_TOO_LARGE (more than nbytes_max), ERR_NO_STAGING (more than is free of it); what was
 *         reserved so far stays. */
int adapters_reserve(struct adapters_load *load, uint64_t nbytes, struct err *e);

/* adapters_cancel - end the load; release its place and bytes. Accepts NULL. */
void adapters_cancel(struct adapters_load *load);

struct adapters_outcome {
    uint64_t revision;
    bool unchanged;   /* the digest is the one that serves: nothing was swapped */
    bool replaced;    /* there was a revision before */
    uint64_t n_users; /* of older revisions of this name */
};

/* adapters_put - make `a` what `name` means, at once, and end the load.
 * @a  taken over, also on failure
 * Errors: as adapters_begin (what others did meanwhile counts), ERR_BAD_REQUEST (rank over
 *         rank_max), errors of adapters_reserve (more bytes than were reserved), ERR_NO_MEMORY.
 * What served before still serves. The load has ended all the same. */
int adapters_put(struct adapters_load *load, struct adapter *a, struct adapters_outcome *out,
                 struct err *e);

/* ---- using ---- */

struct adapters_revision;

struct adapter_ref {
    const struct adapter *adapter; /* valid until unpinned, and so is the name */
    const char *name;
    uint64_t revision;
    struct adapters_revision *held; /* the registry's own */
};

/* adapters_pin - the revision that serves now, kept until adapters_unpin.
 * Threads: any. Errors: ERR_NOT_FOUND at /model. */
int adapters_pin(struct adapters *s, const char *name, struct adapter_ref *out, struct err *e);

/* adapters_has - does something serve under `name` now? Threads: any. */
bool adapters_has(struct adapters *s, const char *name);

/* adapters_pin_base - the same, of the name that is loaded: what its options ask for.
 * Errors: ERR_PRECONDITION, as adapters_begin; ERR_NOT_FOUND. */
int adapters_pin_base(struct adapters_load *load, struct adapter_ref *out, struct err *e);

/* adapters_serves - does the pinned revision serve still? Threads: any. */
bool adapters_serves(struct adapters *s, const struct adapter_ref *ref);

/* adapters_unpin - the last one of a revision that does not serve any more gives its memory back,
 * in this thread. Accepts a zeroed ref; zeroes it. Threads: any, and another one than pinned. */
void adapters_unpin(struct adapters *s, struct adapter_ref *ref);

struct adapters_unloaded {
    uint64_t revision; /* the one that served */
    uint64_t n_users;  /* still using this or an older revision: memory is back when they end */
};

/* adapters_unload - the name is unknown from now on. Returns at once. Errors: ERR_NOT_FOUND. */
int adapters_unload(struct adapters *s, const char *name, struct adapters_unloaded *out,
                    struct err *e);

/* ---- seeing ---- */

struct adapters_item {
    const char *name, *path; /* of the list; path "" when there is none */
    char digest[ADAPTER_DIGEST_LEN + 1];
    uint64_t revision, nbytes;
    int64_t loaded_at; /* seconds since the epoch */
    uint32_t rank;
    bool pinned;
    uint64_t n_users;       /* of the revision that serves */
    uint64_t n_users_older; /* of older ones of this name */
};

struct adapters_list {
    struct adapters_item *items; /* owned; in the order in which the names were first loaded */
    uint32_t n;
    char *text; /* owned; the strings */
};

/* adapters_list - a consistent snapshot. Errors: ERR_NO_MEMORY. */
int adapters_list(struct adapters *s, struct adapters_list *out, struct err *e);
void adapters_list_fini(struct adapters_list *l); /* accepts a zeroed one */

struct adapters_gauges {
    uint32_t n_loaded, n_loading;
    uint64_t n_pinned_refs; /* adapters_pin without its unpin */
    uint64_t n_older;       /* revisions that do not serve, but are used */
    uint64_t nbytes;        /* of all revisions, those being given back among them */
    uint64_t nbytes_reserved;
};
void adapters_gauges(struct adapters *s, struct adapters_gauges *out);

#endif
