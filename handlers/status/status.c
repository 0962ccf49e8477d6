/* GET /v1/status: the current state of the server. It takes short locks and reads atomics only. */
#include "handlers/status/status.h"
#include "base/clock.h"
#include "control/admission.h"
#include "control/engine.h"
#include "control/life.h"
#include "handlers/control_plane.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"
#include "handlers/status_json.h"
#include "memory/dtype.h"
#include "weights/state/state_dir.h"
#include "weights/store/store.h"

/* The dtype that most bytes have. */
static enum dtype main_dtype(const struct tensor_list *tensor_list)
{
    uint64_t nbytes[DTYPE_COUNT] = {0};
    enum dtype best = tensor_list->tensors[0].dtype;

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        enum dtype d = tensor_list->tensors[i].dtype;

        nbytes[d] += tensor_list->tensors[i].nbytes;
        best = nbytes[d] > nbytes[best] ? d : best;
    }
    return best;
}

static json_t *store_weights_json(const struct app_weights *weights)
{
    const struct tensor_list *tensor_list = store_model_spec(weights->store)->tensor_list;
    struct store_info info;
    json_t *age;

    store_info(weights->store, &info);
    age = info.serial > 0 ? json_real((double)(clock_now_us() - info.committed_at_us) / 1e6)
                          : json_null();
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:I, s:I, s:s, s:o, s:I, s:I, s:o}", "state",
        store_state_name(info.state), "update_id", status_update_id_json(&info), "serial",
        info.serial > 0 ? json_integer((json_int_t)info.serial) : json_null(), "weight_version",
        info.serial > 0 ? json_string(info.label) : json_null(), "dtype",
        dtype_name(main_dtype(tensor_list)), "nbytes", (json_int_t)tensor_list->nbytes, "n_tensors",
        (json_int_t)tensor_list->n_tensors, "plan_digest", tensor_list->digest, "digest",
        info.content[0] != '\0' ? json_string(info.content) : json_null(), "versions_alive",
        (json_int_t)info.n_live, "n_commits", (json_int_t)info.n_commits, "age_s", age);
}

static json_t *admission_json(struct admission *a)
{
    struct admission_stats s;

    admission_stats(a, &s);
    return member_write(&s, admission_reply);
}

static json_t *embedded_engine_json(const struct app *app)
{
    struct engine_stats s = {0};
    uint64_t now = clock_now_us();

    if (app->generate->engine == NULL)
        return json_null();
    engine_stats_get(app->generate->engine, &s);
    return json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s, s:s, s:I}",
                     "name", app->generate->engine->ops->name, "heartbeat_age_ms",
                     now > s.heartbeat_us ? (double)(now - s.heartbeat_us) / 1e3 : 0.0, "running",
                     (json_int_t)s.n_running, "waiting", (json_int_t)s.n_waiting, "kv_tokens_used",
                     (json_int_t)s.kv_tokens_used, "kv_tokens_max", (json_int_t)s.kv_tokens_max,
                     "n_steps", (json_int_t)s.n_steps, "n_prompt_tokens",
                     (json_int_t)s.n_prompt_tokens, "n_generated_tokens",
                     (json_int_t)s.n_generated_tokens, "n_recomputed_tokens",
                     (json_int_t)s.n_recomputed_tokens, "step_ms_max", (double)s.step_us_max / 1e3,
                     "on_update", gen_on_update_name(app->settings.on_update), "logprobs_mode",
                     gen_logprobs_mode_name(app->settings.logprobs_mode), "max_logprobs",
                     (json_int_t)app->settings.max_logprobs);
}

static json_t *adapters_json(const struct app_generate *generate)
{
    return generate->lora != NULL ? generate->lora->totals(generate) : json_null();
}

static json_t *model_json(const struct app_generate *generate)
{
    if (generate->model_name[0] == '\0')
        return json_null();
    return member_write(generate, model_rows);
}

static json_t *pause_or_null(const struct app *app)
{
    struct pause_controller_info info;

    pause_controller_info(app->pause_controller, &info);
    return info.pause.state == PAUSE_OFF ? json_null() : pause_controller_pause_json(&info);
}

json_t *status_json(const struct app *app)
{
    json_t *status = status_head_json(app);

    if (status != NULL &&
        json_object_update_new(
            status,
            json_pack(
                "{s:o, s:o, s:o, s:o, s:{s:o, s:o}, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                "weights", store_weights_json(app->weights), "state", status_state_json(app),
                "seed", status_seed_json(app), "update", status_update_json(app), "admission",
                "generate", admission_json(app->generate->admission), "detokenize",
                admission_json(app->generate->text_admission), "engine", embedded_engine_json(app),
                "http", status_http_json(app), "model", model_json(app->generate), "cuda",
                status_cuda_json(app), "nccl", status_nccl_json(app), "nixl", status_nixl_json(app),
                "pause", pause_or_null(app), "sleep",
                pause_controller_sleep_json(app->pause_controller), "adapters",
                adapters_json(app->generate))) != 0) {
        json_decref(status);
        status = NULL;
    }
    return status;
}

int handle_status(struct app *app, struct http_request *x, struct err *e)
{
    (void)e;
    reply_json(x, 200, status_json(app));
    return 0;
}
