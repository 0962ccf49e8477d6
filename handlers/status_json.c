/* The members of the status that every server has. */
#include "handlers/status_json.h"

#include "base/clock.h"
#include "control/life.h"
#include "driver/cuda_info.h"
#include "driver/nccl_info.h"
#include "handlers/app.h"
#include "handlers/history_json.h"
#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"
#include "handlers/transfer_json.h"
#include "handlers/update_json.h"
#include "memory/device.h"
#include "transport/nixl/nixl.h"
#include "transport/peer/seeder.h"
#include "weights/state/state_dir.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

/* What the options set of SGLang's arguments. */
static json_t *server_args_json(const struct app *app)
{
    uint64_t gpu = app->settings.sglang_base_gpu_id;

    return json_pack("{s:b, s:b, s:o*}", "enable_memory_saver",
                     (int)app->settings.sglang_memory_saver, "enable_return_routed_experts",
                     app->generate != NULL && app->generate->info.n_route_layers > 0, "base_gpu_id",
                     gpu != UINT64_MAX ? json_integer((json_int_t)gpu) : NULL);
}

json_t *status_head_json(const struct app *app)
{
    struct err live_why = {0}, why = {0}, control_why = {0};
    bool live = app_live(app, &live_why);
    bool ready = app_ready(app, &why);
    bool control = app_control_ready(app, &control_why);
    json_t *reason = ready ? json_null() : member_write(&why, reason_rows);

    return json_pack("{s:s, s:s, s:f, s:s, s:b, s:b, s:b, s:o, s:o, s:o, s:o}", "boot_id",
                     app->life->boot_id, "version", BATON_VERSION, "uptime_s",
                     (double)(clock_now_us() - app->life->started_us) / 1e6, "life",
                     life_state_name(life_state(app->life)), "live", (int)live, "ready", (int)ready,
                     "control_ready", (int)control, "reason", reason, "server_args",
                     server_args_json(app), "recent_updates", recent_updates_json(app->history),
                     "recent_errors", recent_errors_json(app->history));
}

void app_http_server_stats(const struct app *app, struct http_server_stats *out)
{
    struct http_server *const http_servers[] = {app->http_server, app->control_http_server};
    struct http_server_stats sum = {0};

    for (size_t i = 0; i < sizeof http_servers / sizeof http_servers[0]; i++) {
        struct http_server_stats s = {0};

        if (http_servers[i] == NULL)
            continue;
        http_server_stats(http_servers[i], &s);
        sum.n_connections += s.n_connections;
        sum.n_accepted += s.n_accepted;
        sum.n_requests += s.n_requests;
        sum.n_rejected += s.n_rejected;
        sum.n_gone += s.n_gone;
        sum.n_timeouts += s.n_timeouts;
        if (s.lag_us_max > sum.lag_us_max)
            sum.lag_us_max = s.lag_us_max;
    }
    *out = sum;
}

json_t *status_http_json(const struct app *app)
{
    struct http_server_stats s = {0};

    app_http_server_stats(app, &s);
    return member_write(&s, http_rows);
}

json_t *status_update_id_json(const struct store_info *info)
{
    return info->serial > 0 ? json_sprintf(UPDATE_ID_PREFIX "%s", info->commit_id) : json_null();
}

json_t *status_update_json(const struct app *app)
{
    struct update_info info;

    updates_current(app->weights->updates, &info);
    return info.phase == UPDATE_NONE ? json_null() : update_json(&info);
}

static json_t *text_or_null(const char *text)
{
    return text[0] != '\0' ? json_string(text) : json_null();
}

/* The GPUs that hold the weights. Makes no driver call: this runs on an event loop. */
static json_t *ranks_json(const struct app_weights *weights)
{
    json_t *ranks = json_array();

    for (uint32_t r = 0; r < weights->n_devices; r++) {
        const struct cuda_device *d = device_about(weights->devices[r]);

        ranks = json_list_append(ranks, json_pack("{s:i, s:s, s:s, s:s, s:b}", "rank", (int)r,
                                                  "place", device_name(weights->devices[r]), "uuid",
                                                  d->uuid, "name", d->name, "checksums_on_gpu",
                                                  (int)device_has_kernels(weights->devices[r])));
    }
    return ranks;
}

json_t *status_cuda_json(const struct app *app)
{
    const struct app_weights *weights = app->weights;
    const struct cuda_info *cuda = weights->cuda;
    json_t *devices = member_write_list(cuda->devices, cuda->n_devices, sizeof cuda->devices[0],
                                        cuda_device_rows);

    return json_pack("{s:b, s:o, s:o, s:o, s:o}", "available", (int)cuda->available,
                     "driver_version", text_or_null(cuda->driver_version), "devices", devices,
                     "ranks", ranks_json(weights), "reason", text_or_null(cuda->reason));
}

json_t *status_nccl_json(const struct app *app)
{
    return json_object_with(member_write(app->weights->nccl, nccl_rows), "group",
                            transfer_json(app->weights->transfer));
}

json_t *status_nixl_json(const struct app *app)
{
    struct nixl_info info;

    if (app->weights->nixl == NULL)
        return json_null();
    nixl_info(app->weights->nixl, &info);
    return member_write(&info, nixl_status_rows);
}

static json_t *version_or_null(uint64_t serial, const char *label)
{
    if (serial == 0)
        return json_null();
    return json_pack("{s:I, s:s}", "serial", (json_int_t)serial, "weight_version", label);
}

/* What --state-dir remembers. */
json_t *status_state_json(const struct app *app)
{
    struct state_dir *state = app->weights->state;
    struct state_info info;

    if (state == NULL)
        return json_null();
    state_dir_info(state, &info);
    return json_pack(
        "{s:s, s:s, s:o, s:I, s:{s:I, s:o, s:b, s:I, s:I, s:I, s:o}}", "dir", info.path,
        "started_from", info.how, "journal", version_or_null(info.serial, info.label),
        "journal_failures", (json_int_t)info.n_journal_failures, "snapshots", "keep",
        (json_int_t)info.n_snapshots, "newest",
        version_or_null(info.snapshot_serial, info.snapshot_label), "writing", (int)info.writing,
        "written", (json_int_t)info.n_written, "given_up", (json_int_t)info.n_given_up, "failed",
        (json_int_t)info.n_failed, "error",
        info.snapshot_error.code != ERR_NONE ? json_string(info.snapshot_error.msg) : json_null());
}

static json_t *seeded_from_json(const struct seeder_info *info)
{
    return info->serial == 0 ? json_null() : member_write(info, seeded_from_rows);
}

json_t *status_seed_json(const struct app *app)
{
    struct seeder_info info;

    if (app->weights->seeder == NULL)
        return json_null();
    seeder_info(app->weights->seeder, &info);
    return json_pack(
        "{s:s, s:o, s:o, s:I, s:I, s:I, s:b, s:o}", "state", seeder_state_name(info.state), "peer",
        text_or_null(info.peer), "error", text_or_null(info.error.msg), "versions",
        (json_int_t)info.n_versions, "failures", (json_int_t)info.n_failures, "nbytes_read",
        (json_int_t)info.nbytes_read, "passes", (int)store_has_host(app->weights->store),
        "seeded_from", seeded_from_json(&info));
}
