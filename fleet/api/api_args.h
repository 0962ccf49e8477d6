/* What an operation asks of an engine, whatever its kind. Each kind makes its own request of it
 * (fleet/api/upstream_api.h). */
#ifndef BATON_FLEET_API_API_ARGS_H
#define BATON_FLEET_API_API_ARGS_H

#include "control/lifecycle.h"
#include "fleet/api/api_object.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tensor_list;

/* What the fleet looks at; all of it is in the body, of the client or of the hand-off
 * (api_object_of). */
struct api_tensors {
    struct tensor_list *list;   /* NULL: none, or not read */
    const char *group;          /* name of the group that brings them; NULL: none is named */
    const char *chunk_id;       /* told to batons only; NULL: none */
    bool by_path;               /* read from a directory */
    bool by_handles, packed;    /* mapped from a GPU; packed: all of them back to back */
    bool serialized;            /* `entries`, of SGLang's form */
    const char *const *entries; /* [n_entries], a string for each rank; NULL: none is readable */
    size_t n_entries;

    const char *handles; /* of the hand-off, as text; NULL: none */
    const char *format;  /* of `entries`; NULL: the usual one */
};

struct api_join {
    const char *group;         /* NULL: none is named */
    bool by_handles;           /* no group: set up for handles */
    bool packed_given, packed; /* of handles */
};

struct api_pause {
    enum lifecycle_pause mode;
    bool reject;       /* new requests are refused, else they wait */
    const char *owner; /* NULL: none is named */
};

struct api_sleep {
    int level;        /* 1: weights to host memory; 2: dropped; 0: a wake */
    bool weights, kv; /* what sleeps, or wakes */
};

/* The arguments of an operation: those of its name are set. All borrowed. */
struct api_args {
    /* The body that a client sent to our own route, without what only the fleet uses, or that of
     * the hand-off. It is opaque, so that no member of ours can be lost on the way: a baton gets
     * all of it, with the members of its own request behind them; another kind refuses, by name,
     * what it cannot express. NULL: no client sent it */
    struct api_object *native;
    const struct api_tensors *tensors;
    const struct api_join *join;
    const struct api_pause *pause;
    const struct api_sleep *sleep; /* and of a wake */

    const char *label;      /* of a finish, and to be set; NULL: none */
    const char *selector;   /* of a start; NULL: none */
    bool convert;           /* of a start; told to batons only, as is the next */
    uint32_t lease_s;       /* of a start, and of a renewal; 0: not told */
    const char *reason;     /* of an abort */
    const char *name, *dir; /* of an adapter; dir NULL: from no directory */
    uint32_t number, slot;  /* of an adapter: for what is known of engines, not sent */
    bool running, external; /* of a reset: preempt running requests; its storage too */
    const char *const *ids; /* [n_ids], of requests to be aborted; NULL: none, or in the body. Of a
                               seed: URLs of its peers */
    size_t n_ids;
    uint64_t if_serial; /* of a seed: what the engine serves, else it refuses; 0: nothing */
    bool all;           /* requests are to be aborted */
};

#endif
