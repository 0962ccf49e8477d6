/* Health. Live: can the process do its work? Ready: would a generation request sent now be served?
 * Ready for control: would an update, a resume or a wake that is sent now be served? All are
 * computed from the current state at each request, never from a flag that could be stale.
 */
#include "base/clock.h"
#include "control/admission.h"
#include "control/engine.h"
#include "control/life.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"
#include "handlers/app.h"
#include "transport/peer/seeder.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

enum { LIVE_HEARTBEAT_MAX_S = 60 }; /* an engine without a step for this long is dead */

bool app_live(const struct app *app, struct err *why)
{
    struct engine_stats s = {0};
    uint64_t now = clock_now_us(), age_us;

    if (app->fleet != NULL && upstreams_live(app->fleet->upstreams, why) != 0)
        return false;
    if (app->weights == NULL)
        return true;
    if (app->weights->transfer != NULL && !weight_transfer_live(app->weights->transfer, why))
        return false;
    if (app->generate->engine == NULL)
        return true;
    engine_stats_get(app->generate->engine, &s);
    age_us = now > s.heartbeat_us ? now - s.heartbeat_us : 0;
    if (age_us <= LIVE_HEARTBEAT_MAX_S * UINT64_C(1000000))
        return true;
    (void)err_set(why, ERR_ENGINE, "", "the engine has made no step for %llu s",
                  (unsigned long long)(age_us / 1000000));
    return false;
}

static int weights_ready(const struct app *app, struct err *why)
{
    struct store_info info;

    store_info(app->weights->store, &info);
    switch (info.state) {
    case STORE_UNSYNCED:
        if (seeder_is_seeding(app->weights->seeder))
            return err_set(why, ERR_SEEDING, "", "a version of a peer is being read");
        return store_readable(app->weights->store, why);
    case STORE_ASLEEP:
        return err_set(why, ERR_ASLEEP, "", "the weights are asleep (level 1)");
    case STORE_DROPPED:
        return err_set(why, ERR_ASLEEP, "",
                       "the weights were dropped (sleep at level 2); a whole update is needed");
    case STORE_READY:
    case STORE_STATE_COUNT:
        break;
    }
    return 0;
}

/* The same weights would fail the same prompt again, so this lasts until other weights are served,
 * whatever their label. No request can cause it by its parameters: logits are checked before any
 * sampling rule. */
static int logits_ready(const struct app *app, struct err *why)
{
    struct engine_stats s = {0};
    struct store_info info;

    /* before store_info: if a commit comes between, the serials differ */
    engine_stats_get(app->generate->engine, &s);
    store_info(app->weights->store, &info);
    if (s.failing_serial == 0 || s.failing_serial != info.serial)
        return 0;
    return err_set(why, ERR_LOGITS, "",
                   "a generation with weights '%.256s' (serial %llu) ended because their logits "
                   "are not finite (NaN or infinity); ready again once an update commits others",
                   info.label, (unsigned long long)info.serial);
}

/* A paused server may accept requests, but does not serve them now. */
static int pause_controller_ready(const struct app *app, struct err *why)
{
    struct pause_controller_info info;

    if (app->pause_controller == NULL)
        return 0;
    pause_controller_info(app->pause_controller, &info);
    if (info.pause.state != PAUSE_OFF)
        return err_set(why, ERR_PAUSED, "", "generation is paused by '%s' (%s)", info.pause.owner,
                       lifecycle_pause_name(info.pause.mode));
    return pause_controller_allows(app->pause_controller, CALL_GENERATE, why);
}

static int check_control_ready(const struct app *app, struct err *why)
{
    switch (life_state(app->life)) {
    case LIFE_STARTING:
        return err_set(why, ERR_STARTING, "", "the server is loading its first weights");
    case LIFE_LEAVING:
        return err_set(why, ERR_DRAINING, "",
                       "the server will stop soon (--drain-delay): send requests to another one");
    case LIFE_DRAINING:
        return err_set(why, ERR_DRAINING, "", "the server is draining");
    case LIFE_SERVING:
        break;
    }
    return app_live(app, why) ? 0 : -1;
}

static int check_ready(const struct app *app, struct err *why)
{
    struct admission_stats s;

    if (check_control_ready(app, why) != 0)
        return -1;
    if (app->fleet != NULL)
        return app->fleet->ready(app, why);
    if (app->generate->engine == NULL)
        return err_set(why, ERR_NO_ENGINE, "", "the server runs with --engine none");
    if (weights_ready(app, why) != 0 || logits_ready(app, why) != 0 ||
        pause_controller_ready(app, why) != 0)
        return -1;
    admission_stats(app->generate->admission, &s);
    if (s.n_running >= s.n_permits && s.n_waiting >= s.n_queue_max)
        return err_set(why, ERR_OVERLOADED, "", "the generate queue is full");
    return 0;
}

bool app_ready(const struct app *app, struct err *why)
{
    return check_ready(app, why) == 0;
}

bool app_control_ready(const struct app *app, struct err *why)
{
    return check_control_ready(app, why) == 0;
}

bool app_update_lease(const struct app *app, uint64_t *left_us)
{
    struct update_info info;

    if (app->weights == NULL)
        return fleet_update_lease(app->fleet->control, left_us);
    updates_current(app->weights->updates, &info);
    *left_us = info.lease_left_us;
    return info.phase != UPDATE_NONE && !info.yields;
}
