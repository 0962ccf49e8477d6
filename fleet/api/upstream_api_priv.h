/* What the files of fleet/api share: helpers that build and check JSON bodies. */
#ifndef BATON_FLEET_API_UPSTREAM_API_PRIV_H
#define BATON_FLEET_API_UPSTREAM_API_PRIV_H

#include "fleet/api/upstream_api.h"

struct api_member {
    const char *ours, *theirs;
};

extern const char *const api_pause_modes[];

int api_no_memory(struct err *e);
int api_set_path(struct api_request *out, const char *method, const char *path);
int api_set_body(struct api_request *out, const char *path, json_t *body, struct err *e);

json_t *api_pick(const json_t *from, const struct api_member *pairs);
bool api_has(const json_t *native, const char *member);
const char *api_text(const json_t *native, const char *member, const char *otherwise);
int api_set_text(json_t *body, const char *member, const char *text);
json_t *api_with_text(json_t *body, const char *member, const char *text);

int api_check_word(const char *word, const char *const *words, const char *field, struct err *e);
int api_refuse(const json_t *native, const char *const *members, const char *dialect,
               struct err *e);
int api_refuse_instead(const json_t *native, const char *const *members, const char *dialect,
                       const char *takes, struct err *e);
int api_refuse_tensor_list(const char *dialect, struct err *e);
int api_refuse_reject(const json_t *native, const char *dialect, struct err *e);

int api_set_version(struct api_request *out, const json_t *native, struct err *e);
int api_load_adapter(struct api_request *out, const char *path, const char *dialect,
                     const json_t *native, bool in_place, struct err *e);
int api_unload_adapter(struct api_request *out, const char *path, const json_t *native,
                       struct err *e);

int baton_make_request(struct api_request *out, enum api_op op, const json_t *native,
                       const struct api_context *about, struct err *e);
int vllm_make_request(struct api_request *out, enum api_op op, const json_t *native,
                      const struct api_context *about, struct err *e);
int sglang_make_request(struct api_request *out, enum api_op op, const json_t *native,
                        const struct api_context *about, struct err *e);

#endif
