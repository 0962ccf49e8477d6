/* Our operations in the words of an upstream: which request asks it for what, and how its answers
 * read. Tables and JSON only; nothing is sent here. */
#ifndef BATON_FLEET_API_UPSTREAM_API_H
#define BATON_FLEET_API_UPSTREAM_API_H

#include "base/err.h"
#include "fleet/members/fleet.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an SGLang calls a group that was given no name. */
#define SGLANG_GROUP_NAME "weight_update_group"

enum upstream_kind { UPSTREAM_BATON, UPSTREAM_VLLM, UPSTREAM_SGLANG, UPSTREAM_KINDS };

/* upstream_kind_parse - "baton", "vllm", "sglang". Errors: ERR_BAD_REQUEST at `field`. */
int upstream_kind_parse(enum upstream_kind *out, const char *name, const char *field,
                        struct err *e);
const char *upstream_kind_name(enum upstream_kind d);

enum api_op {
    API_INIT_TRANSFER,
    API_SHUTDOWN_TRANSFER, /* the group with the trainer */
    API_START_UPDATE,
    API_UPDATE_WEIGHTS,
    API_VERIFY_UPDATE,
    API_FINISH_UPDATE,
    API_ABORT_UPDATE,
    API_PAUSE,
    API_RESUME,
    API_SLEEP,
    API_WAKE,
    API_RESET_PREFIX_CACHE,  /* of prefixes; "running": preempt what runs, "external": beyond it too
                              */
    API_RESET_ENCODER_CACHE, /* of what was made of images: where that is another cache */
    API_RESET_STORAGE_CACHE, /* of prefixes in the storage beyond an SGLang's memory (HiCache) */
    API_RETRACT_REQUESTS,    /* what is held gives up its KV: where its reset does not do that */
    API_ABORT_REQUESTS,
    API_LOAD_ADAPTER,
    API_UNLOAD_ADAPTER,
    API_RENEW_UPDATE,    /* the lease of its update */
    API_PUT_TENSOR_LIST, /* which tensors are to come */
    API_SET_VERSION,     /* another name for what it serves */
    API_OPS
};

/* How the trainer's group packs tensors, as was said when it was formed; zeroed: not at all. */
struct api_packing {
    bool packed;
    uint64_t bucket_nbytes; /* 0: not said */
};

/* What differs from upstream to upstream in one operation. */
struct api_context {
    const char
        *release; /* of upstream_report; NULL or one that says nothing: taken for the newest */
    struct api_packing group;
    const char *group_name; /* it was joined under; NULL or "": under none */
    const char *update_id;  /* the upstream's own, of its start; of the others, which have none, the
                               version that they are to tell until the update ends; NULL: none */
    bool has_rank_offset;
    uint64_t rank_offset; /* of its first rank in the trainer's group */
    bool has_begun;       /* its own update is open: API_START_UPDATE was not refused */
};

enum { API_PATH_MAX = 256 };

struct api_request {
    const char *method; /* static; NULL: this dialect needs nothing sent for it */
    char path[API_PATH_MAX];
    const char *older; /* static: its path in older releases, to be asked where `path` is a 404;
                          NULL: the same */
    char *body;        /* owned, NUL behind it; NULL: none */
    size_t body_len;
};
void api_request_fini(struct api_request *r); /* accepts a zeroed one */

/* api_make_request - the request for one upstream.
 * @native  borrowed; the body that our own route takes for it
 * Errors: ERR_BAD_REQUEST at the member that this dialect has no words for; ERR_NO_MEMORY.
 *         *out is empty then. */
int api_make_request(struct api_request *out, enum upstream_kind d, enum api_op op,
                     const json_t *native, const struct api_context *about, struct err *e);

/* upstream_is_two_phase - can it prove an update without serving it? Where not, every byte that
 * comes changes what it serves. */
bool upstream_is_two_phase(enum upstream_kind d);

/* What is asked of it about itself. */
enum api_query {
    API_GET_STATUS,        /* the process, and the version that it serves */
    API_GET_PROBE_VERSION, /* the version, where API_GET_STATUS does not say */
    API_GET_VERSION,       /* the version alone */
    API_GET_RANKS,         /* how many ranks it is in a trainer's group */
    API_GENERATE_TOKEN,    /* one token: does it still generate? */
    API_GET_RELEASE,       /* of its software, where its wire differs by that */
    API_GET_CONFIG,        /* its configuration, as a vLLM tells it */
    API_QUERIES
};

/* api_make_query - the request of a question; none where this dialect needs none for it.
 * Errors: ERR_NO_MEMORY. */
int api_make_query(struct api_request *out, enum upstream_kind d, enum api_query q, struct err *e);

/* api_read_status - what an answer of status 200 to API_GET_STATUS says.
 * @text  not NUL-terminated. An answer that says nothing leaves *out empty. */
void api_read_status(struct upstream_report *out, enum upstream_kind d, const char *text,
                     size_t len);

/* api_read_probe_version - what an answer to API_GET_PROBE_VERSION says: out->label, which it
 * leaves as it is where that was not asked (status 0), and empty where the upstream knows no such
 * question. Errors: ERR_UNREADABLE: it does not say. */
int api_read_probe_version(struct upstream_report *out, enum upstream_kind d, int status,
                           const char *text, size_t len, struct err *e);

/* api_wrong_kind_hint - what to write if an answer of this status to API_GET_STATUS, which every
 * upstream of the dialect knows, is another dialect's: "; if it is no baton, …"; "" for other
 * statuses. */
const char *api_wrong_kind_hint(enum upstream_kind d, int status);

/* api_read_release - what an answer to API_GET_RELEASE says: out->release, which it leaves as it is
 * where the answer does not say it. */
void api_read_release(struct upstream_report *out, int status, const char *text, size_t len);

/* Where vLLM says how tensors are packed: in each update before these releases, and since then when
 * its transfer is set up; and what it has since when. */
#define VLLM_PACKS_HANDLES_AT_INIT 27
#define VLLM_PACKS_GROUP_AT_INIT   28
#define VLLM_TAKES_UNIQUE_ID       30
#define VLLM_SHUTS_TRANSFER_DOWN   32
#define VLLM_RELEASES_KV           31

/* vllm_has - is a release 0.`minor` or later? One that cannot be read, and one built from sources
 * without their tags ("0.1.dev1+g…"), are taken for the newest. */
bool vllm_has(const char *release, unsigned minor);

/* api_is_auth_error - does this status of an answer say that we are not let in: by our key, or by
 * the name in the URL (421, of a baton)?
 * api_is_auth_error_proxied - the same, of the answer to a client's request: a vLLM and an SGLang
 * refuse a key by 401, and what they forbid (403) is what was asked for, a route that is switched
 * off. A baton forbids no such request but for its key. api_auth_error_text - what such a status
 * says of the upstream, and what to do: "wants a key, …".
 * @has_key  one was sent */
bool api_is_auth_error(int status);
bool api_is_auth_error_proxied(enum upstream_kind d, int status);
const char *api_auth_error_text(int status, bool has_key);

/* api_read_version - what an answer of status 200 to API_GET_VERSION says; "": that it has none.
 * @out  of one that is longer its first API_VERSION_MAX bytes, which is more than any name of ours
 * Errors: ERR_UNREADABLE: it does not say. */
enum { API_VERSION_MAX = 257 };
int api_read_version(char out[API_VERSION_MAX + 1], enum upstream_kind d, const char *text,
                     size_t len, struct err *e);

/* api_read_ranks - of API_GET_RANKS. Errors: ERR_UNREADABLE: it does not say. */
int api_read_ranks(uint64_t *out, enum upstream_kind d, const char *text, size_t len,
                   struct err *e);

/* api_read_config - what an answer of status 200 to API_GET_CONFIG says, with the names of a vLLM's
 * configuration; of an SGLang, what means the same there. New; NULL on errors.
 * Errors: ERR_UNREADABLE: it does not say. */
json_t *api_read_config(enum upstream_kind d, const char *text, size_t len, struct err *e);

/* api_read_boot_id - the process that an answer to API_START_UPDATE of a baton names; "": none. */
void api_read_boot_id(char out[FLEET_LABEL_MAX + 1], const char *text, size_t len);

/* api_read_update_id - of an answer to API_START_UPDATE of a baton. Errors: ERR_UNREADABLE. */
enum { API_UPDATE_ID_MAX = 64 };
int api_read_update_id(char out[API_UPDATE_ID_MAX + 1], const char *text, size_t len,
                       struct err *e);

/* api_read_open_update - of an answer of a baton to API_GET_STATUS. False: none is open there. */
bool api_read_open_update(char out[API_UPDATE_ID_MAX + 1], const char *text, size_t len);

/* api_check_done - does an answer of status 200 say that the operation was done, as it was asked
 * for?
 * @native, @about  as they were given to api_make_request
 * Errors: ERR_UPSTREAM: what it says instead. */
int api_check_done(enum upstream_kind d, enum api_op op, const json_t *native,
                   const struct api_context *about, const char *text, size_t len, struct err *e);

/* api_reset_is_proven - does an answer of success to API_RESET_PREFIX_CACHE prove that the cache is
 * empty? Many versions of vLLM answer alike when nothing was reset, but never where they were told
 * to preempt what runs.
 * @native  as it was given to api_make_request */
bool api_reset_is_proven(enum upstream_kind d, const json_t *native, const char *text, size_t len);

/* api_adapter_is_absent - does an answer that refuses to unload an adapter say that it has none of
 * that name? */
bool api_adapter_is_absent(enum upstream_kind d, const char *name, int status, const char *text,
                           size_t len);

/* api_read_error - the message of an answer that is no success: as each of the three says it, or
 * the beginning of its text. @out  of at least 2 bytes; "" when it is empty */
void api_read_error(char *out, size_t cap, const char *text, size_t len);

#endif
