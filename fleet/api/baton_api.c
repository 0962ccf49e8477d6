/* The requests of a baton: our own operations, with the update id and the rank of each upstream. */
#include "fleet/api/upstream_api_priv.h"

/* baton: our own words, with its own update's id and rank */
static const struct {
    const char *method, *path;
    bool has_body, of_update; /* of_update: it names the update that it is a step of */
} baton_rows[API_OPS] = {
    [API_INIT_TRANSFER] = {"POST", "/v1/weight_transfer/init", true},
    [API_SHUTDOWN_TRANSFER] = {"DELETE", "/v1/weight_transfer", false},
    [API_START_UPDATE] = {"POST", "/v1/update_weights/start", true},
    [API_UPDATE_WEIGHTS] = {"POST", "/v1/update_weights", true, true},
    [API_VERIFY_UPDATE] = {"POST", "/v1/update_weights/verify", true, true},
    [API_FINISH_UPDATE] = {"POST", "/v1/update_weights/finish", true, true},
    [API_ABORT_UPDATE] = {"POST", "/v1/update_weights/abort", true, true},
    [API_PAUSE] = {"POST", "/v1/pause", true},
    [API_RESUME] = {"POST", "/v1/resume", false},
    [API_SLEEP] = {"POST", "/v1/sleep", true},
    [API_WAKE] = {"POST", "/v1/wake", true},
    [API_RESET_PREFIX_CACHE] = {"POST", "/v1/reset_cache", true},
    [API_ABORT_REQUESTS] = {"POST", "/v1/abort_requests", true},
    [API_LOAD_ADAPTER] = {"POST", "/v1/load_lora_adapter", true},
    [API_UNLOAD_ADAPTER] = {"POST", "/v1/unload_lora_adapter", true},
    [API_RENEW_UPDATE] = {"POST", "/v1/update_weights/renew", true, true},
    [API_PUT_TENSOR_LIST] = {"POST", "/v1/weights/plans", true},
    [API_SET_VERSION] = {"POST", "/v1/weights/label", true},
};

int baton_make_request(struct api_request *out, enum api_op op, const json_t *native,
                       const struct api_context *about, struct err *e)
{
    json_t *body;

    if (baton_rows[op].method == NULL)
        return 0; /* its cache is keyed by the weights */
    if (!baton_rows[op].has_body)
        return api_set_path(out, baton_rows[op].method, baton_rows[op].path);
    body = json_copy((json_t *)(uintptr_t)native);
    if (body == NULL)
        return api_no_memory(e);
    if ((baton_rows[op].of_update && about->update_id != NULL &&
         api_set_text(body, "update_id", about->update_id) != 0) ||
        (about->has_rank_offset &&
         json_object_set_new(body, "rank_offset", json_integer((json_int_t)about->rank_offset)) !=
             0)) {
        json_decref(body);
        return api_no_memory(e);
    }
    return api_set_body(out, baton_rows[op].path, body, e);
}
