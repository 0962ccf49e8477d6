/* The routes that AReaL adds to vLLM's server. Its clients use vLLM's routes for the rest.
 *
 * Differences from AReaL's server:
 *   pause     aborts running requests, as in AReaL; new requests queue until
 * /areal_continue_generation meta      is the tensor list of exactly one update, the next: an old
 * list is never applied to other tensors update    a received bucket is served once the model is
 * complete or generation continues group     there is one at a time; a newer one replaces it */
#ifndef BATON_HANDLERS_COMPAT_AREAL_DIALECT_AREAL_H
#define BATON_HANDLERS_COMPAT_AREAL_DIALECT_AREAL_H

#include "handlers/compat/sglang/dialect_sglang.h"
#include "handlers/control_plane.h"
#include "handlers/dialect.h"

struct app;

extern const struct member areal_disk_members[], areal_group_members[];
extern const struct member areal_meta_members[], areal_lora_members[];
extern const struct member areal_lora_tensors_members[];
int areal_pause_request(json_t **body, const struct http_request *x, struct err *e);
int areal_pause_response(json_t **reply, const struct http_request *x);
int areal_continue_response(json_t **reply, const struct http_request *x);
int areal_group_request(json_t **body, const struct http_request *x, struct err *e);
int areal_update_request(json_t **body, const struct http_request *x, struct err *e);
int areal_lora_request(json_t **body, const struct http_request *x, struct err *e);
int areal_lora_tensors_request(json_t **body, const struct http_request *x, struct err *e);
int areal_lora_response(json_t **reply, const struct http_request *x);

/* handle_areal_meta - keep a tensor list for the next /areal_update_weights_xccl.
 * Errors: those of tensor_columns_check. */
int handle_areal_meta(struct app *app, struct http_request *x, struct err *e);

/* handle_areal_lora_meta - check the tensor list of an adapter. It is not kept: the update that
 * follows repeats it. */
int handle_areal_lora_meta(struct app *app, struct http_request *x, struct err *e);

/* Columns: maximum length of the body; path, operationId, operation; then other members of the row.
 */
#define AREAL_ROW(max, path, id, op, ...)                                                          \
    SGLANG_ROW(DIALECT_AREAL, FORM_SGLANG, METHOD_POST, BODY_JSON, max, path, id, op, __VA_ARGS__)

#define AREAL_WEIGHTS                                                                              \
    AREAL_ROW(ROUTE_SMALL_MAX, "/areal_update_weights", "arealUpdate", OPERATION_UPDATE,           \
              .members = areal_disk_members, .translated_members = update_members,                 \
              .translate_request = sglang_disk_request,                                            \
              .translate_response = sglang_update_response),                                       \
        AREAL_ROW(ROUTE_SMALL_MAX, "/areal_init_weights_update_group", "arealInitGroup",           \
                  OPERATION_TRANSFER_INIT, .session = SESSION_AUTO_COMMIT,                         \
                  .members = areal_group_members, .translated_members = transfer_init_members,     \
                  .translate_request = areal_group_request,                                        \
                  .translate_response = sglang_group_response),                                    \
        AREAL_ROW(ROUTE_BODY_CONFIG, "/areal_set_update_weight_meta", "arealMeta",                 \
                  OPERATION_AREAL_META, .whole = true, .members = areal_meta_members),             \
        AREAL_ROW(ROUTE_SMALL_MAX, "/areal_update_weights_xccl", "arealUpdateXccl",                \
                  OPERATION_UPDATE, .session = SESSION_AUTO_COMMIT, .broadcasts = true,            \
                  .whole = true, .translated_members = update_members,                             \
                  .error_members = areal_meta_members, .translate_request = areal_update_request,  \
                  .translate_response = sglang_update_response)

#define AREAL_LORA                                                                                 \
    AREAL_ROW(ROUTE_SMALL_MAX, "/areal_update_weights_lora", "arealUpdateLora",                    \
              OPERATION_LORA_LOAD, .members = areal_lora_members,                                  \
              .translated_members = lora_load_members, .translate_request = areal_lora_request,    \
              .translate_response = areal_lora_response),                                          \
        AREAL_ROW(ROUTE_BODY_CONFIG, "/areal_set_update_weight_meta_lora", "arealMetaLora",        \
                  OPERATION_AREAL_LORA_META, .whole = true,                                        \
                  .members = areal_lora_tensors_members),                                          \
        AREAL_ROW(ROUTE_BODY_CONFIG, "/areal_update_weights_lora_xccl", "arealUpdateLoraXccl",     \
                  OPERATION_LORA_LOAD, .broadcasts = true, .whole = true,                          \
                  .members = areal_lora_tensors_members, .translated_members = lora_load_members,  \
                  .translate_request = areal_lora_tensors_request,                                 \
                  .translate_response = areal_lora_response)

/* Rows of the route table. */
#define DIALECT_AREAL_ROUTES                                                                       \
    AREAL_ROW(ROUTE_NO_BODY_MAX, "/areal_pause_generation", "arealPause", OPERATION_PAUSE,         \
              .translated_members = pause_members, .translate_request = areal_pause_request,       \
              .translate_response = areal_pause_response),                                         \
        AREAL_ROW(ROUTE_NO_BODY_MAX, "/areal_continue_generation", "arealContinue",                \
                  OPERATION_COMMIT_RESUME, .translate_response = areal_continue_response),         \
        AREAL_WEIGHTS, AREAL_LORA,

#endif
