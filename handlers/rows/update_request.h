/* Requests about updates, and about the group that brings them, as plain C: what the rows of
 * handlers/rows/update_rows.c read. Strings and JSON are borrowed from the body or the request;
 * NULL: not given. */
#ifndef BATON_HANDLERS_ROWS_UPDATE_REQUEST_H
#define BATON_HANDLERS_ROWS_UPDATE_REQUEST_H

#include "handlers/rows/member.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Groups of members of an update, or of a load of an adapter (struct member.flags). */
enum {
    IS_SOURCE = M_OWN << 0,    /* names where the bytes are: exactly one is given */
    OF_LIST = M_OWN << 1,      /* describes tensors: not with pickles, which do so themselves */
    OF_ONE_LIST = M_OWN << 2,  /* ... of one list: not beside one for each GPU */
    WITH_HANDLES = M_OWN << 3, /* only with ipc_handles and ipc_handles_pickled */
    WITH_GROUP = M_OWN << 4,   /* only with transport nccl */
    AT_START = M_OWN << 5,     /* an option of a session: given at its start only */
    WITH_PULLED = M_OWN << 6,  /* may go with the name of what was pulled */
    WITH_NIXL = M_OWN << 8,    /* only with transport nixl */
    OF_PATCHES = M_OWN << 7,   /* of broadcasts that bring patches, not whole tensors */
    WITH_PACKING = M_OWN << 9, /* only where tensors may be packed: shm, handles, broadcasts */
    WITH_PICKLES = M_OWN << 10 /* only with serialized_named_tensors */
};

enum placement { PLACEMENT_REPLICATED, PLACEMENT_SHARDED }; /* in the order of the row's words */

struct selector_request {
    const char *selector; /* static */
};

struct update_start_request {
    const char *label;
    struct selector_request selector;
    const char *base_version, *base_update_id;
    bool partial, partial_given, convert, delta;
    int placement; /* enum placement */
    uint32_t lease_s, trainer_ranks;
};

/* Tensors, besides their list and source; the same in JSON and in the query. */
struct update_request {
    const char *update_id, *chunk_id, *label, *path, *format, *base_version;
    const char *base_update_id;
    struct selector_request selector;
    bool partial, convert, abort_requests, delta;
    bool partial_given, convert_given, delta_given, placement_given, trainer_rank_given;
    int placement;
    uint32_t trainer_rank;
    const json_t *n_updates; /* vLLM's patches */
};

/* A finish, a verification, an abort or a renewal. */
struct update_end_request {
    const char *update_id, *label, *reason;
    const json_t *checksums;
    uint32_t lease_s; /* 0: not given */
};

/* How the tensors of broadcasts are packed. `packing_settle` makes one of the two sizes. */
struct packing_request {
    bool packed, packed_given;
    uint64_t bucket_nbytes, buffer_nbytes; /* 0: not given */
    const char *field; /* static: "/bucket_nbytes" or its other name, which was given */
};

struct broadcast_request {
    const char *transport, *digest, *group_name;
    struct packing_request packing;
};

/* What is read by NIXL, besides the list of tensors. */
struct nixl_request {
    const json_t *agents, *shards, *shard_table;
    bool unchecked;
};

struct nixl_agent_request {
    const char *name, *metadata;
    uint64_t device;
    bool device_given;
};

struct nixl_shard_request {
    uint64_t agent, device, offset, numel, addr;
    int mem; /* in the order of the row's words */
    bool device_given, mem_given;
};

/* A version of a directory of deltas */
struct pull_request {
    const char *source, *name, *base;
    uint64_t version;
    int form; /* enum pull_form */
};

/* checkpoint-engine's sockets */
struct zmq_request {
    const json_t *handles;
    const char *label;
    uint64_t timeout_ms; /* 0: not given */
};

/* A trainer invites to its group, or says how it will send handles. */
struct transfer_request {
    const char *transport, *id, *host, *group_name;
    uint32_t world_size, rank_offset, port, timeout_s; /* 0: not given */
    bool rank_offset_given, warm_up, warm_up_given;
    struct packing_request packing;
    uint64_t n_buffers; /* has no effect on what is sent */
};

#endif
