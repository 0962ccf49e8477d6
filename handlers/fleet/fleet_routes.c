/* The table of handlers in front of upstream engines. */
#include "handlers/fleet/fleet_routes.h"

#include "fleet/fleet_control.h"
#include "fleet/proxy/relay.h"
#include "handlers/compat/areal/dialect_areal.h"
#include "handlers/compat/sglang/sglang_generate.h"
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/fleet/fleet_status.h"
#include "handlers/relayed.h"
#include "handlers/update/commit_resume.h"
#include "handlers/update/update_zmq.h"

#include <string.h>

static const struct fleet_row rows[] = {
    /* data plane: as they come; first, since they come most */
    {handle_generate, LANE_LOOP, handle_relay},
    {handle_completions, LANE_LOOP, handle_relay},
    {handle_chat, LANE_LOOP, handle_relay},
    {handle_sglang_generate, LANE_LOOP, handle_relay},
    {handle_tokenize, LANE_LOOP, handle_relay},
    {handle_detokenize, LANE_LOOP, handle_relay},
    {handle_chat_render, LANE_LOOP, handle_relay},
    {handle_models, LANE_LOOP, handle_relay},
    {handle_model, LANE_LOOP, handle_relay},
    {handle_relayed, LANE_LOOP, handle_relay},
    /* Control plane. Who waits for the operation lock, however many they are, never keeps a pause,
     * a resume, an abort or a lease waiting for a thread: each of these has threads of its own. The
     * steps of an open update (tensors, their proof) run on those that generate where there is an
     * engine. */
    {handle_update_start, LANE_OPERATION, fleet_update_start},
    {handle_update, LANE_GENERATE, fleet_update},
    {handle_update_verify, LANE_GENERATE, fleet_update_verify},
    {handle_update_finish, LANE_GENERATE, fleet_update_finish},
    {handle_update_abort, LANE_ABORT, fleet_update_abort},
    {handle_update_renew, LANE_CONTROL, fleet_update_renew},
    {handle_update_get, LANE_LOOP, fleet_update_get},
    {handle_update_delete, LANE_ABORT, fleet_update_delete},
    {handle_commit_resume, LANE_RESUME, fleet_commit_resume},
    {handle_commit_implicit, LANE_OPERATION, fleet_commit_implicit},
    {handle_weights_label, LANE_OPERATION, fleet_weights_label},
    {handle_plan_put, LANE_GENERATE, fleet_plan_put},
    {handle_transfer_init, LANE_OPERATION, fleet_transfer_init},
    {handle_transfer_get, LANE_LOOP, fleet_transfer_get},
    {handle_transfer_delete, LANE_OPERATION, fleet_transfer_delete},
    {handle_pause, LANE_PAUSE, fleet_pause},
    {handle_resume, LANE_RESUME, fleet_resume},
    {handle_sleep, LANE_OPERATION, fleet_sleep},
    {handle_wake, LANE_OPERATION, fleet_wake},
    {handle_reset_cache, LANE_CONTROL, fleet_reset_cache},
    {handle_flush_cache, LANE_CONTROL, fleet_flush_cache},
    {handle_abort_requests, LANE_CONTROL, fleet_abort_requests},
    {handle_lora_load, LANE_OPERATION, fleet_lora_load},
    {handle_lora_unload, LANE_OPERATION, fleet_lora_unload},
    {handle_lora_list, LANE_LOOP, fleet_lora_list},
    {handle_session_finish, LANE_LOOP, handle_session_finish},
    {handle_update_zmq, LANE_OPERATION, fleet_update_zmq},
    {handle_unsupported, LANE_CONTROL, handle_unsupported},
    {handle_areal_meta, LANE_CONTROL, handle_areal_meta},
    {handle_areal_lora_meta, LANE_CONTROL, handle_areal_lora_meta},
    /* of this process */
    {handle_live, LANE_LOOP, handle_live},
    {handle_ready, LANE_LOOP, handle_ready},
    {handle_version, LANE_LOOP, handle_version},
    {handle_metrics, LANE_CONTROL, handle_metrics},
    {handle_status, LANE_LOOP, handle_fleet_status},
    {handle_upstreams, LANE_LOOP, handle_fleet_upstreams},
    {handle_resync, LANE_OPERATION, handle_fleet_resync},
};

/* Views of the status that need more than it: how many ranks there are is asked of each upstream.
 */
static const struct {
    const char *operation;
    struct fleet_row row;
} own_rows[] = {
    {"vllmGetWorldSize", {handle_status, LANE_CONTROL, handle_fleet_ranks}},
    {"sglangServerInfo", {handle_status, LANE_CONTROL, handle_fleet_ranks}},
    {"sglangServerInfoNew", {handle_status, LANE_CONTROL, handle_fleet_ranks}},
    {"skyrlServerInfo", {handle_status, LANE_CONTROL, handle_fleet_ranks}},
};

const struct fleet_row *fleet_row_of(const struct route *route)
{
    for (size_t i = 0; i < sizeof own_rows / sizeof own_rows[0] && route->handle == handle_status;
         i++)
        if (strcmp(own_rows[i].operation, route->operation) == 0)
            return &own_rows[i].row;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].native == route->handle)
            return &rows[i];
    return NULL;
}
