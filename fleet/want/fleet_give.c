/* Gives one engine what it needs besides the weights before it gets requests: empty caches, the
 * adapters of the fleet, and the last name of its version (fleet/want/fleet_reconcile.h). */
#include "base/log.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/want/fleet_cache.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_US = 1000000 }; /* operations wait for each of two requests */

/* caches */

bool fleet_give_caches(struct fleet_control *fc, struct upstream *upstream)
{
    struct err why = {0};
    struct log_rec r;

    fleet_reset_caches(fc, upstream, CACHES_AS_BEFORE, &why);
    if (why.code != ERR_NONE)
        return false;
    log_begin(&r, LOG_INFO, "fleet.cache_reset");
    log_str(&r, "upstream", upstream_name(upstream));
    log_end(&r);
    return true;
}

/* adapters */

static void log_task(struct upstream *upstream, const struct fleet_adapter_task *task,
                     const struct err *why)
{
    struct log_rec r;

    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN,
              task->load != NULL ? "fleet.adapter_reloaded" : "fleet.adapter_unloaded");
    log_str(&r, "upstream", upstream_name(upstream));
    log_str(&r, "lora_name", task->name);
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_event(&r);
}

static void unload(struct fleet_control *fc, struct upstream *upstream,
                   const struct fleet_adapter_task *task, struct err *why)
{
    const struct api_args args = {.name = task->name, .number = task->number, .slot = task->slot};
    const struct fleet_target target = {.upstream = upstream, .args = &args};
    fleet_results_auto results = {0};

    if (fleet_request(fc, API_UNLOAD_ADAPTER, &target, 1, FLEET_CACHE_US, &results, why) != 0)
        return;
    fleet_reset_adapter_caches(fc, &results);
    *why = results.list[0].why;
}

/* An engine that can replace an adapter, and refused this one, keeps what it had under that name:
 * without an unload it would serve it once no engine has this one. One that cannot would refuse
 * this one for ever if it has another: it unloads that first, also if none is known, since an error
 * may have come after it had loaded one. */
static void fleet_give_load(struct fleet_control *fc, struct upstream *upstream,
                            const struct fleet_adapter_task *task, struct api_object *native,
                            struct err *why)
{
    const struct api_args args = {.native = native,
                                  .name = task->name,
                                  .dir = task->path,
                                  .number = task->number,
                                  .slot = task->slot};
    const struct fleet_target target = {.upstream = upstream, .args = &args};
    bool replaces = upstream_caps_of(upstream)->replaces_adapters;
    fleet_results_auto results = {0};
    struct err ignored = {0};

    if (!replaces)
        unload(fc, upstream, task, &ignored);
    if (fleet_request(fc, API_LOAD_ADAPTER, &target, 1, task->timeout_us + FLEET_GRACE_US, &results,
                      why) != 0)
        return;
    fleet_reset_adapter_caches(fc, &results);
    *why = results.list[0].why;
    err_clear(&ignored);
    if (results.list[0].outcome == FLEET_REFUSED && replaces &&
        fleet_adapter_may_have(fleet_of(fc), upstream, task->slot))
        unload(fc, upstream, task, &ignored);
}

bool fleet_give_adapter(struct fleet_control *fc, struct upstream *upstream)
{
    struct fleet_adapter_task task;
    struct api_object *native = NULL;
    struct err why = {0};

    if (fleet_adapter_next(fleet_of(fc), upstream, &task) <= 0)
        return false;
    if (task.load != NULL)
        native = api_object_parse(task.load, strlen(task.load));
    if (task.load == NULL)
        unload(fc, upstream, &task, &why);
    else if (native == NULL)
        (void)err_set(&why, ERR_NO_MEMORY, "", "no memory to load an adapter");
    else
        fleet_give_load(fc, upstream, &task, native, &why);
    log_task(upstream, &task, &why);
    api_object_unref(native);
    fleet_adapter_task_fini(&task);
    fleet_need_tried(fleet_of(fc), upstream, NEED_ADAPTERS, &why);
    return why.code == ERR_NONE;
}

/* names */

/* A version is set only after it was read: another process, or another client, may have changed it.
 */
static bool may_name(struct fleet_control *fc, const struct fleet_result *result, struct err *why)
{
    char label[API_VERSION_MAX + 1];

    if (result->outcome != FLEET_OK)
        *why = result->why;
    else if (api_read_version(label, upstream_kind(result->upstream), result->text,
                              result->text_len, why) == 0 &&
             !fleet_may_name(fleet_of(fc), result->upstream, label))
        (void)err_set(why, ERR_UNSYNCED, "", "it reports version '%.100s'", label);
    return why->code == ERR_NONE;
}

static void give_name(struct fleet_control *fc, struct upstream *upstream, const char *label,
                      struct err *why)
{
    const struct api_args args = {.label = label};
    const struct fleet_target target = {.upstream = upstream, .args = &args};
    fleet_results_auto read = {0}, set = {0};

    if (fleet_query(fc, API_GET_VERSION, &target, 1, NAME_US, &read, why) == 0 &&
        may_name(fc, &read.list[0], why) &&
        fleet_request(fc, API_SET_VERSION, &target, 1, NAME_US, &set, why) == 0)
        *why = set.list[0].why;
}

/* An update sets names, too. */
bool fleet_give_name(struct fleet_control *fc, struct upstream *upstream)
{
    struct fleet_stats stats;
    struct err why = {0};
    bool updates;

    if (!fleet_lock_if_free(fc, FLEET_LOCK_STEP, "another name at one upstream"))
        return false;
    mtx_lock(&fc->lock);
    updates = fc->session != NULL && fc->session->prepare_begun;
    mtx_unlock(&fc->lock);
    fleet_stats(fleet_of(fc), &stats);
    if (!updates) {
        give_name(fc, upstream, stats.label, &why);
        fleet_named(fleet_of(fc), upstream, stats.label, &why);
    }
    fleet_op_unlock(fc);
    fleet_need_tried(fleet_of(fc), upstream, NEED_NAME, &why);
    return !updates && why.code == ERR_NONE;
}
