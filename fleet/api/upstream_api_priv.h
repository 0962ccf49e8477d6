/* What the files of fleet/api share: the description of one kind of upstream, and helpers that
 * build and read JSON bodies. */
#ifndef BATON_FLEET_API_UPSTREAM_API_PRIV_H
#define BATON_FLEET_API_UPSTREAM_API_PRIV_H

#include "fleet/api/api_json.h"
#include "fleet/api/upstream_api.h"

/* A request that is being made; its method and path are those of its row. All borrowed. */
struct api_draft {
    const struct upstream_api *api;
    const struct api_args *args;
    const struct api_context *ctx;
    const json_t *own; /* the body of a client; NULL: no client sent the request */
    struct api_request *out;
    struct err *e;
};

/* Completes it: sets the body, changes the path, or calls api_send_nothing(). Errors:
 * api_make_request's; api_make_request() cleans up. */
typedef int api_make_fn(const struct api_draft *d);

/* A zeroed row: this kind needs no request for the operation, or does not have the query. */
struct api_row {
    const char *method, *path; /* NULL: none, `make` only refuses */
    api_make_fn *make;         /* of an operation; NULL: there is nothing to complete */
    const char *refuses; /* members of our own body that it cannot express, between spaces; NULL:
                            none */
    const char *takes;   /* what it takes instead of these; NULL: nothing */
    const char *body;    /* static; NULL: none, or that of `make` */
    const char *older;   /* the path in older releases; NULL: the same */
};

/* One token of a prompt that every vocabulary has. */
#define API_ONE_TOKEN "{\"prompt\":[0],\"max_tokens\":1,\"temperature\":0}"

/* Ids that every vocabulary has, behind those that many keep for special tokens. */
#define API_CANARY_PROMPT "[17,42,23,61,34,52,19,58,27,45,38,63,21,49,30,55]"
enum { API_CANARY_IDS = API_CANARY_VALUES + 1 };
extern const int api_canary_ids[API_CANARY_IDS];

/* One kind of upstream. Replies are parsed JSON, NULL if they are not JSON. */
struct upstream_api {
    const char *name;
    const char *wrong_kind_hint; /* of api_wrong_kind_hint */
    struct upstream_caps caps;
    struct api_row ops[API_OPS], queries[API_QUERIES];

    /* Fills a zeroed *out from a reply to API_GET_STATUS. */
    void (*read_status)(struct upstream_report *out, const char *text, size_t len);
    const char *version_at; /* api_at of a reply to API_GET_VERSION: a string, or null */
    /* Of a reply to API_GET_RANKS: api_read_ranks; -1: it does not say. */
    int64_t (*n_ranks)(const json_t *reply);
    /* Value i of a reply 200 to API_GENERATE_CANARY: a number; null if it is not finite; NULL if
     * the reply does not have it. Borrowed. May be NULL: this kind has no canary. */
    const json_t *(*canary_value)(const json_t *reply, size_t i);
    /* Does the message of a reply of failure to it say that a value is not finite? */
    bool (*says_not_finite)(const char *text, size_t len);
    /* Of a reply to API_GET_CHECKSUMS: new; NULL: it does not say, or no memory. */
    json_t *(*checksums)(const json_t *reply);
    char checksum_place_end; /* ends a rank's place in its keys; the parameter's name follows */
    /* Of a reply to API_GET_CONFIG: new; NULL: it does not say, or no memory. */
    json_t *(*config)(const json_t *reply);
    const char *model_at; /* api_at of the same reply: the model's name or directory */
    /* api_check_partial; NULL: it keeps them. */
    int (*check_partial)(bool by_path, const json_t *reply, const json_t *model, struct err *e);
    /* api_check_done. */
    int (*check_done)(enum api_op op, const struct api_args *args, const struct api_context *ctx,
                      const json_t *reply, struct err *e);
    /* api_reset_is_proven; NULL: every success is a proof. */
    bool (*reset_is_proven)(const struct api_args *args, const json_t *reply);
    /* api_adapter_is_absent; NULL: status 404 says so, and nothing else. */
    bool (*adapter_is_absent)(const char *name, int status, const json_t *reply);
    /* api_release_of, into a zeroed *out; NULL: no release differs. */
    void (*read_release)(struct api_release *out, const char *release);
    /* api_names_for_lora; NULL: none renames them. */
    int (*names_for_lora)(enum api_names *out, const char *release, const char *architecture,
                          const json_t *config, struct err *e);
    /* api_has_mapped_nothing; NULL: never known. */
    bool (*has_mapped_nothing)(int status, const json_t *reply);
};

extern const struct upstream_api baton_api, vllm_api, sglang_api;

/* upstream_api - the description of a kind; never NULL. */
const struct upstream_api *upstream_api(enum upstream_kind kind);

/* vllm_has - is the release of a vLLM 0.`minor` or later? One that is unknown or cannot be read,
 * and one built from sources without their tags ("0.1.dev1+g…"), is taken for the newest. */
bool vllm_has(const char *release, unsigned minor);

/* ---- vllm_names.c: the names of parameters ---- */

/* vllm_names_for_lora - as api_names_for_lora.
 * vllm_with_names - update_info, with these names in place of a checkpoint's. Steals info; NULL: no
 * memory. */
int vllm_names_for_lora(enum api_names *out, const char *release, const char *architecture,
                        const json_t *config, struct err *e);
json_t *vllm_with_names(json_t *info, enum api_names names);

/* ---- api_body.c: requests ---- */

int api_no_memory(struct err *e);

/* api_send_nothing - this upstream needs no request. Returns 0. */
int api_send_nothing(const struct api_draft *d);

int api_set_path(struct api_request *out, const char *path);

/* api_set_text - sets the body. Steals text; NULL: no memory for it. Errors: ERR_NO_MEMORY. */
int api_set_text(struct api_request *out, char *text, struct err *e);

/* api_set_body - steals body; NULL: building it ran out of memory. Errors: ERR_NO_MEMORY. */
int api_set_body(const struct api_draft *d, json_t *body);

/* api_tags - `tags` of a sleep or a wake: as the client has them. New; NULL: none. */
json_t *api_tags(const struct api_draft *d);

/* api_pick - a new object with those members of the client's body that are there and not null.
 * NULL: no memory.
 * @members  their names, between spaces; "ours=theirs" if the upstream has another one */
json_t *api_pick(const json_t *own, const char *members);

/* api_next_word - the next of words between spaces. Returns: what follows it; NULL: there is none.
 * @at  may be NULL */
enum { API_WORD_MAX = 64 };
const char *api_next_word(char word[API_WORD_MAX], const char *at);

/* api_at - borrowed; NULL: there is none. @pointer  a JSON pointer without escapes, "/error/code"
 */
json_t *api_at(const json_t *json, const char *pointer);

/* api_has - is the member there, and not null? */
bool api_has(const json_t *own, const char *member);

/* api_text - borrowed; `otherwise` if the member is no string. */
const char *api_text(const json_t *object, const char *member, const char *otherwise);

/* api_with - body with one more member. Steals body and value; either is NULL: no memory, returns
 * NULL.
 * api_with_text - the same; text NULL or "": body is returned as it is. */
json_t *api_with(json_t *body, const char *member, json_t *value);
json_t *api_with_text(json_t *body, const char *member, const char *text);

/* api_with_rank - body with "rank_offset", if this upstream has its own. Steals body. */
json_t *api_with_rank(json_t *body, const struct api_context *ctx);

/* api_check_pause - a pause that rejects new requests, which only a baton can. Errors:
 * ERR_BAD_REQUEST at /new_requests. */
int api_check_pause(const struct api_draft *d);

/* The same in vLLM and SGLang. A load is from a directory: else ERR_BAD_REQUEST at /lora_path. A
 * tensor list is always refused: ERR_BAD_REQUEST. */
api_make_fn api_load_adapter, api_unload_adapter, api_set_version, api_refuse_tensor_list;

/* ---- api_reply.c: replies ---- */

/* api_copy_text - the text of a string, cut at FLEET_LABEL_MAX; of anything else nothing. */
void api_copy_text(char out[FLEET_LABEL_MAX + 1], const json_t *value);

/* api_positive - 0 if it is no positive integer. */
uint64_t api_positive(const json_t *value);

/* api_is_text - Errors: ERR_UPSTREAM if the member of the reply is not this text. */
int api_is_text(const json_t *reply, const char *member, const char *expected, struct err *e);

/* api_is_not - the error of a reply whose member has another value than expected. Returns -1. */
int api_is_not(struct err *e, const char *member, const char *is, const char *expected);

/* api_is_version - api_is_text for the version that was to be set, if there is one. */
int api_is_version(const json_t *reply, const struct api_args *args, const char *member,
                   struct err *e);

/* The same in vLLM and SGLang: many of their replies have no body, or one that says nothing. */
int api_check_success(enum api_op op, const struct api_args *args, const struct api_context *ctx,
                      const json_t *reply, struct err *e);

/* A baton has its configuration in the form of a vLLM's. */
json_t *api_vllm_config(const json_t *reply);

#endif
