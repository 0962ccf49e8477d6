/* The APIs of the engines behind baton. For each kind of upstream: which request performs an
 * operation or a query, what its replies mean, and what the kind can do. Only tables and JSON:
 * nothing is sent here. Any thread; nothing blocks. To add a kind: fleet/api/upstream_api.c. */
#ifndef BATON_FLEET_API_UPSTREAM_API_H
#define BATON_FLEET_API_UPSTREAM_API_H

#include "base/buf.h"
#include "base/err.h"
#include "fleet/api/api_args.h"
#include "fleet/api/upstream_report.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- kinds ---- */

enum upstream_kind { UPSTREAM_BATON, UPSTREAM_VLLM, UPSTREAM_SGLANG, UPSTREAM_KINDS };

/* upstream_kind_parse - "baton", "vllm", "sglang". Errors: ERR_BAD_REQUEST at `field`. */
int upstream_kind_parse(enum upstream_kind *out, const char *name, const char *field,
                        struct err *e);
const char *upstream_kind_name(enum upstream_kind kind);

/* How a kind differs from the others. */
struct upstream_caps {
    bool two_phase; /* it can prove an update before it serves it; the others serve every byte as
                       soon as it arrives */
    bool status_names_process;   /* API_GET_STATUS names the process, so that a restart is seen */
    bool reply_names_process;    /* and so does each reply to a client, in a header */
    bool reply_names_version;    /* each reply to a generate has the version that made it */
    bool reply_has_spans;        /* it adds the versions by itself: X-Baton-Weight-Versions */
    bool forbids_by_key_only;    /* it replies 403 to a client's request only because of our key */
    bool replaces_adapters;      /* a load replaces an adapter of the same name */
    bool caches_by_adapter_name; /* its prefix cache does not tell two adapters of one name apart */
    bool finish_takes_no_version; /* API_FINISH_UPDATE of an update that it has open */
    bool retracts_requests;       /* a pause holds KV, which API_RETRACT_REQUESTS frees */
    bool makes_rollouts;          /* it has POST /v1/rollouts */
    bool waits_in_pause;          /* a pause can wait until what runs has ended */
    bool hides_pause;             /* no query says whether it is paused or asleep */
    bool aborts_one_request;      /* API_ABORT_REQUESTS takes one id, or all */
    bool joins_many_groups;       /* else the last group joined replaces the one before */
    bool wakes_twice;             /* API_WAKE of one that is awake has no effect */
    bool keeps_handle_setup;      /* API_INIT_TRANSFER for handles sets up what it then keeps */
};

/* upstream_caps - static. */
const struct upstream_caps *upstream_caps(enum upstream_kind kind);

/* How a release of a kind differs from others. */
struct api_release {
    bool packs_handles_at_init; /* it takes how IPC handles are packed only when its transfer is set
                                   up (API_INIT_TRANSFER), not in each update */
    bool renames_for_lora;      /* if it can load adapters, it may not take plain names */
    /* Why it cannot take a version by windows, memory that is overwritten when it has answered
     * (fleet/handoff/handoff_windows.h), and what to do; static. NULL: it can */
    const char *refuses_windows;
};

/* api_release_of - @release  of upstream_report; NULL or unreadable: the newest */
struct api_release api_release_of(enum upstream_kind kind, const char *release);

/* What the parameters of a model are called in updates. */
enum api_names {
    API_NAMES_PLAIN, /* as in a checkpoint */
    API_NAMES_LORA,  /* those of linear layers end in ".base_layer.weight" and ".base_layer.bias" */
    API_NAMES_LORA_EMBEDDING /* and those of the embedding */
};

/* api_names_for_lora - which names an upstream takes whose release may rename them.
 * @release       of upstream_report
 * @architecture  of its model, as in config.json; NULL: not known
 * @text          its reply 200 to API_GET_CONFIG
 * Errors: ERR_UNREADABLE: that is none; ERR_CONFLICT: its names are not known, so that it cannot be
 * updated; the message says why, as a predicate, and what to do. */
int api_names_for_lora(enum api_names *out, enum upstream_kind kind, const char *release,
                       const char *architecture, const char *text, size_t len, struct err *e);

/* api_check_partial - does the end of an update leave the tensors of an upstream that did not come
 * as they are? Of what it says of itself and its model, and only if that shows it.
 * @by_path  it loads files
 * @text     its reply 200 to API_GET_CONFIG
 * @model    the text of its model's config.json; NULL: not known, or the model is quantized
 * Errors: ERR_CONFLICT: that is not known; the message says why, as a predicate, and what to do. */
int api_check_partial(enum upstream_kind kind, bool by_path, const char *text, size_t len,
                      const char *model, size_t model_len, struct err *e);

/* The owner of a pause of engines that are fenced (--pause-fenced), as a baton reports it. */
#define API_FENCE_OWNER "baton:fenced"

/* The group name that an SGLang uses if it was given none. */
#define SGLANG_GROUP_NAME "weight_update_group"

/* ---- requests ---- */

enum api_op {
    API_INIT_TRANSFER,     /* join the trainer's group, or prepare for its handles */
    API_SHUTDOWN_TRANSFER, /* leave the group */
    API_START_UPDATE,
    API_UPDATE_WEIGHTS,
    API_VERIFY_UPDATE,
    API_FINISH_UPDATE,
    API_ABORT_UPDATE,
    API_PAUSE,
    API_RESUME,
    API_SLEEP,
    API_WAKE,
    API_RESET_PREFIX_CACHE,  /* "running": preempt running requests; "external": its storage too */
    API_RESET_ENCODER_CACHE, /* of image embeddings, if that is another cache */
    API_RESET_STORAGE_CACHE, /* of prefixes in storage outside an SGLang's memory (HiCache) */
    API_RETRACT_REQUESTS,    /* requests held by a pause give up their KV */
    API_ABORT_REQUESTS,
    API_LOAD_ADAPTER,
    API_UNLOAD_ADAPTER,
    API_RENEW_UPDATE,    /* the lease of its update */
    API_PUT_TENSOR_LIST, /* register the tensors of later updates */
    API_SET_VERSION,     /* change only the version that it reports */
    API_SEED,            /* read the version of one of these peers, and serve it */
    API_OPS
};

/* How a trainer's group packs tensors, as declared when it was formed; zeroed: it does not. */
struct api_packing {
    bool packed;
    uint64_t bucket_nbytes; /* 0: not declared */
};

/* What differs from upstream to upstream in one operation. All borrowed. */
struct api_context {
    const char *release; /* of upstream_report; NULL or unreadable: the newest */
    enum api_names names;
    struct api_packing group;
    const char *group_name; /* that it joined; NULL or "": none was given */
    const char *update_id;  /* a baton: its own, of its start. Others have none: the version to
                               report until the update ends. NULL: none */
    bool has_rank_offset;
    uint64_t rank_offset; /* of its first rank in the trainer's group */
    bool has_begun;       /* its own update is open: it accepted API_START_UPDATE */
};

enum { API_PATH_MAX = 256 };

struct api_request {
    const char *method; /* static; NULL: this kind needs no request */
    char path[API_PATH_MAX];
    const char *older; /* static; the path in older releases, for a reply 404 or 405; NULL: the same
                        */
    char *body;        /* owned, NUL-terminated; NULL: none */
    size_t body_len;
    atomic_uint *n_refs; /* of `body`, shared by requests; NULL: it is this one's alone */
};
void api_request_fini(struct api_request *r); /* accepts a zeroed one */

/* api_request_share - the same request once more, with the same body; each needs its own fini, on
 * any thread. Errors: ERR_NO_MEMORY; *out is empty then.
 * api_context_equal - do they make the same request of the same arguments? */
int api_request_share(struct api_request *out, struct api_request *from, struct err *e);
bool api_context_equal(const struct api_context *a, const struct api_context *b);

/* api_make_request - the request that performs an operation at one upstream.
 * @args  borrowed; those of the operation
 * Errors: ERR_BAD_REQUEST at the member that this kind cannot express; ERR_NO_MEMORY.
 *         *out is empty then. */
int api_make_request(struct api_request *out, enum upstream_kind kind, enum api_op op,
                     const struct api_args *args, const struct api_context *ctx, struct err *e);

enum api_query {
    API_GET_STATUS,        /* the process, and the version that it serves */
    API_GET_PROBE_VERSION, /* the version, if API_GET_STATUS does not have it */
    API_GET_VERSION,       /* the version alone */
    API_GET_RANKS,         /* how many ranks it is in a trainer's group */
    API_GENERATE_TOKEN,    /* one token, as a test of its generation */
    API_GENERATE_CANARY,   /* log-probabilities of a fixed prompt, computed without any cache */
    API_GET_CHECKSUMS,     /* of its own parameters; it stands still until it has them */
    API_GET_RELEASE,       /* of its software, if its API depends on it */
    API_GET_PAUSED,        /* is it paused, if API_GET_STATUS does not have it? */
    API_GET_ASLEEP,        /* the same of a sleep, which may count as a pause too */
    API_GET_CONFIG,        /* its configuration, in the form of a vLLM's */
    API_QUERIES
};

/* api_make_query - the request of a query; empty if this kind does not have it.
 * Errors: ERR_NO_MEMORY. */
int api_make_query(struct api_request *out, enum upstream_kind kind, enum api_query query,
                   struct err *e);

/* ---- replies; `text` is never NUL-terminated; NULL: there is none ---- */

/* api_read_report - what a reply says of an upstream; what it does not say stays as it is.
 * @query   API_GET_STATUS: it is of status 200, and *out is zeroed first. out->held is also set by
 * a pause of this server; a baton's says if that is one of API_FENCE_OWNER. API_GET_PROBE_VERSION:
 * out->label; API_GET_RELEASE: out->release; API_GET_PAUSED, and then API_GET_ASLEEP: out->held
 * and out->sleep
 * @status  0: it was not sent, or there is no reply
 * Errors: ERR_UNREADABLE: a reply to API_GET_PROBE_VERSION without a version, unless the upstream
 * does not have that query (404, 405), nor a label. */
int api_read_report(struct upstream_report *out, enum upstream_kind kind, enum api_query query,
                    int status, const char *text, size_t len, struct err *e);

/* api_read_version - of a reply 200 to API_GET_VERSION; "": the weights have no version.
 * @out  the first API_VERSION_MAX bytes of a longer one, which is more than any of ours has
 * Errors: ERR_UNREADABLE: it does not say. */
enum { API_VERSION_MAX = 257 };
int api_read_version(char out[API_VERSION_MAX + 1], enum upstream_kind kind, const char *text,
                     size_t len, struct err *e);

/* api_read_ranks - of a reply to API_GET_RANKS; 0: the upstream has no GPU, so no rank.
 * Errors: ERR_UNREADABLE: it does not say. */
int api_read_ranks(uint64_t *out, enum upstream_kind kind, const char *text, size_t len,
                   struct err *e);

/* api_read_bucket_ranks - of an SGLang's reply to API_GET_RANKS: how its ranks read
 * serialized_named_tensors, and its release. Errors: ERR_UNREADABLE: it does not say. */
struct api_bucket_ranks {
    uint64_t n_entries;                  /* one for each tensor-parallel rank */
    uint64_t n_stages;                   /* of its pipeline: so many ranks read each entry */
    char release[FLEET_RELEASE_MAX + 1]; /* "": it does not say */
};
int api_read_bucket_ranks(struct api_bucket_ranks *out, const char *text, size_t len,
                          struct err *e);

/* api_read_model - of a reply 200 to API_GET_CONFIG: the model's name or directory there. New;
 * NULL: it does not say, or no memory. api_read_architecture - of the text of a model's
 * config.json. New; NULL: as above. */
char *api_read_model(enum upstream_kind kind, const char *text, size_t len);
char *api_read_architecture(const char *text, size_t len);

/* What an upstream has answered to the canary, or to a query of its checksums. */
enum api_answer {
    API_ANSWER_PENDING,    /* nothing yet, or nothing that says anything: ask again */
    API_ANSWER_NO_VALUE,   /* it cannot be asked: it refuses, and would again */
    API_ANSWER_NOT_FINITE, /* of the canary */
    API_ANSWER_VALUE
};

/* api_read_canary - of a reply to API_GENERATE_CANARY: log-probabilities of the tokens of its
 * prompt, but for the first token, which has none.
 * @values  written if it returns API_ANSWER_VALUE; else undefined
 * @status  0: there is no whole reply */
enum { API_CANARY_VALUES = 15 };
enum api_answer api_read_canary(double values[API_CANARY_VALUES], enum upstream_kind kind,
                                int status, const char *text, size_t len);

/* api_read_checksums - of a reply 200 to API_GET_CHECKSUMS: the upstream's name of each parameter,
 * with its rank if it has several, and its checksum, "" if it is no text; each ends in a NUL.
 * Returns: API_ANSWER_PENDING: no memory; API_ANSWER_NO_VALUE: it does not say.
 * @out  empty; buf_fini, whatever it returns */
enum api_answer api_read_checksums(struct buf *out, enum upstream_kind kind, const char *text,
                                   size_t len);

/* api_checksum_parameter - the parameter's name in a key of api_read_checksums: the end of it. */
const char *api_checksum_parameter(enum upstream_kind kind, const char *key);

/* api_read_start - of a baton's reply to API_START_UPDATE: its update, and its process; "": it does
 * not say. Errors: ERR_UNREADABLE: it names no update. */
enum { API_UPDATE_ID_MAX = FLEET_UPDATE_ID_MAX };
int api_read_start(char update_id[API_UPDATE_ID_MAX + 1], char process[FLEET_LABEL_MAX + 1],
                   const char *text, size_t len, struct err *e);

/* api_read_open_update - of a baton's reply to API_GET_STATUS. False: no update is open there. */
bool api_read_open_update(char out[API_UPDATE_ID_MAX + 1], const char *text, size_t len);

/* api_is_committed - does a baton's error body say that its update is committed all the same? Then
 * the upstreams that it hands the version to lack it so far. */
bool api_is_committed(const char *text, size_t len);

/* api_check_done - does a reply 200 say that the operation was done as requested?
 * @args, @ctx  as they were given to api_make_request
 * Errors: ERR_UPSTREAM: what it says instead. */
int api_check_done(enum upstream_kind kind, enum api_op op, const struct api_args *args,
                   const struct api_context *ctx, const char *text, size_t len, struct err *e);

/* api_reset_is_proven - does a reply of success to API_RESET_PREFIX_CACHE prove that the cache is
 * empty?
 * @args  as they were given to api_make_request */
bool api_reset_is_proven(enum upstream_kind kind, const struct api_args *args, const char *text,
                         size_t len);

/* api_adapter_is_absent - does a reply that refuses API_UNLOAD_ADAPTER say that the upstream has no
 * adapter of this name? */
bool api_adapter_is_absent(enum upstream_kind kind, const char *name, int status, const char *text,
                           size_t len);

/* api_is_auth_error - does this status mean that the upstream does not let us in: because of our
 * key (401, 403), or of the host name in its URL (421, of a baton)?
 * api_is_auth_error_proxied - the same for a reply to a client's request. A vLLM or an SGLang
 * refuses a key by 401; its 403 is about the request, as for a route that is switched off. A baton
 * replies 403 only because of the key.
 * api_auth_error_text - what such a status says of the upstream, and what to do, as a predicate:
 * "requires a key, and this server has none for it (key-file)".
 * @has_key  we sent one */
bool api_is_auth_error(int status);
bool api_is_auth_error_proxied(enum upstream_kind kind, int status);
const char *api_auth_error_text(int status, bool has_key);

/* api_has_mapped_nothing - of a reply of failure to API_UPDATE_WEIGHTS: is it certain that no rank
 * has mapped, nor will map, the memory that the request names? */
bool api_has_mapped_nothing(enum upstream_kind kind, int status, const char *text, size_t len);

/* api_wrong_kind_hint - every upstream of the kind has API_GET_STATUS. If it replied 404 or 405: a
 * hint that it is of another kind, "; if it is not a baton, …"; "" for other statuses. Static. */
const char *api_wrong_kind_hint(enum upstream_kind kind, int status);

/* api_error_code - the error code of that name in our own error bodies; ERR_NONE: there is none. */
enum err_code api_error_code(const char *name);

/* api_read_refusal - what the error body of a baton says; ERR_NONE and "" of other bodies. */
struct api_refusal {
    enum err_code code;        /* ERR_NONE: it has none of ours */
    char field[ERR_FIELD_MAX]; /* JSON pointer of the member that it blames; "": none */
};
void api_read_refusal(struct api_refusal *out, const char *text, size_t len);

/* api_read_count - a member of a reply that counts something; 0: it does not say.
 * api_read_digest - of a reply to API_LOAD_ADAPTER: the digest of what was loaded. New; NULL: it
 * does not say, or no memory. */
uint64_t api_read_count(const char *text, size_t len, const char *member);
char *api_read_digest(const char *text, size_t len);

/* api_lacks_route - is it the reply of a server of FastAPI's, as vLLM and SGLang are, to a path
 * that it does not know? Their other replies of 404 have another form. */
bool api_lacks_route(int status, const char *text, size_t len);

/* api_read_error - the message of a reply that is no success, in the form of any of the kinds, or
 * else the beginning of its text. @out  at least 2 bytes; "" when the reply is empty */
void api_read_error(char *out, size_t cap, const char *text, size_t len);

#endif
