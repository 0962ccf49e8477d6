/* The requests that load a missing adapter on one engine, or unload one that the fleet has
 * unloaded. */
#include "fleet/calls/fleet_priv.h"
#include "fleet/want/fleet_cache.h"

#include <stdlib.h>
#include <string.h>

bool fleet_has_no_adapter(const struct fleet_result *result, const char *name)
{

    return result->outcome == FLEET_REFUSED &&
           api_adapter_is_absent(upstream_kind(result->upstream), name, result->status,
                                 result->text != NULL ? result->text : "", result->text_len);
}

static enum fleet_has unload(struct fleet_control *fc, const struct fleet_target *target,
                             const char *name, struct err *why)
{
    enum fleet_has has = FLEET_HAS_OTHER;
    struct fleet_result *result = NULL;

    if (fleet_request(fc, API_UNLOAD_ADAPTER, target, 1, FLEET_CACHE_US, &result, why) != 0)
        return has;
    fleet_reset_adapter_caches(fc, result, 1);
    if (result->outcome == FLEET_OK || fleet_has_no_adapter(result, name))
        has = FLEET_HAS_NONE;
    else
        *why = result->why;
    fleet_results_free(result, 1);
    return has;
}

/* The files may have been replaced since the others read them; only an engine that reports a digest
 * shows it. */
static bool is_same(const struct fleet_result *result, const struct fleet_adapter_task *task,
                    struct err *why)
{
    char *digest = api_read_digest(result->text, result->text_len);
    bool same = digest == NULL || task->digest[0] == '\0' || strcmp(digest, task->digest) == 0;

    free(digest);
    if (!same)
        (void)err_set(
            why, ERR_CONFLICT, "",
            "the files at its lora_path have changed since the other upstreams loaded them");
    return same;
}

/* An engine that refused a load keeps what it had under that name: without an unload it would
 * serve it once no engine has this one (fleet_adapters_blocking).
 * @had  before the load */
static enum fleet_has after_refused(struct fleet_control *fc, const struct fleet_target *target,
                                    const char *name, bool replaces, enum fleet_has had)
{
    struct err ignored = {0};

    if (had == FLEET_HAS_OTHER && replaces)
        had = unload(fc, target, name, &ignored);
    return had == FLEET_HAS_OTHER ? FLEET_HAS_OTHER : FLEET_HAS_REFUSED;
}

static enum fleet_has load(struct fleet_control *fc, const struct fleet_target *target,
                           const struct fleet_adapter_task *task, struct err *why)
{
    enum fleet_has has = task->had;
    struct fleet_result *result = NULL;
    struct err ignored = {0};
    bool replaces;

    replaces = upstream_caps_of(target->upstream)->replaces_adapters;
    if (task->may_have && !replaces)
        has = unload(fc, target, task->name, &ignored);
    if (fleet_request(fc, API_LOAD_ADAPTER, target, 1, task->timeout_us + FLEET_GRACE_US, &result,
                      why) != 0)
        return has;
    fleet_reset_adapter_caches(fc, result, 1);
    *why = result->why;
    if (result->outcome == FLEET_OK)
        has = is_same(result, task, why) ? FLEET_HAS_THIS : FLEET_HAS_OTHER;
    else if (result->outcome == FLEET_REFUSED)
        has = after_refused(fc, target, task->name, replaces, has);
    else if (result->outcome == FLEET_UNKNOWN)
        has = FLEET_HAS_OTHER;
    fleet_results_free(result, 1);
    return has;
}

enum fleet_has fleet_run_adapter_task(struct fleet_control *fc, struct upstream *upstream,
                                      const struct fleet_adapter_task *task, struct err *why)
{
    struct api_object *native = task->load != NULL
                                    ? api_object_parse(task->load, strlen(task->load))
                                    : NULL;
    const struct api_args args = {.native = native, .name = task->name, .dir = task->path};
    const struct fleet_target target = {.upstream = upstream, .args = &args};
    enum fleet_has has = task->had;

    if (task->load == NULL)
        has = unload(fc, &target, task->name, why);
    else if (native == NULL)
        (void)err_set(why, ERR_NO_MEMORY, "", "no memory to load an adapter");
    else
        has = load(fc, &target, task, why);
    api_object_unref(native);
    return has;
}
