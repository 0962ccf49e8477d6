/* How an adapter is loaded on every engine, or unloaded, and what follows from each engine's reply.
 */
#include "fleet/ask/fleet_lora_load.h"

#include "fleet/calls/fleet_priv.h"
#include "fleet/want/fleet_cache.h"

#include <stdlib.h>
#include <string.h>

/* load */

/* Engines on which it fails may still have it.
 * @of  what is loaded: of fleet_adapter_begin */
static void unload_at(struct fleet_control *fc, struct fleet_target *targets, size_t n,
                      const struct api_args *of)
{
    const struct api_args args = {.name = of->name, .number = of->number, .slot = of->slot};

    for (size_t i = 0; i < n; i++)
        targets[i].args = &args;
    fleet_tell(fc, API_UNLOAD_ADAPTER, targets, n, FLEET_STEP_US);
}

/* An engine that cannot replace an adapter unloads it first. */
static void unload_first(struct fleet_control *fc, const struct fleet_target *targets, size_t n,
                         const struct api_args *of)
{
    struct fleet_target few[FLEET_MAX];
    size_t n_few = 0;

    for (size_t i = 0; i < n; i++)
        if (!upstream_caps_of(targets[i].upstream)->replaces_adapters)
            few[n_few++] = (struct fleet_target){.upstream = targets[i].upstream};
    unload_at(fc, few, n_few, of);
}

/* Unloads a new adapter from every engine that has it, or may have it. An engine on which that
 * fails is out of rotation and asked again. An engine that refused the load may have an adapter of
 * that name from before this server started: it would be the only engine that has it, so it unloads
 * it too. If all engines refused the load, nothing has changed. */
static void undo_load(struct fleet_control *fc, const struct fleet_results *results,
                      const struct api_args *of)
{
    struct fleet_target targets[FLEET_MAX];
    const struct fleet_result *r = results->list;
    size_t n_targets = 0, n_took = 0;

    for (size_t i = 0; i < results->n; i++)
        n_took += r[i].outcome == FLEET_OK || r[i].outcome == FLEET_UNKNOWN;
    for (size_t i = 0; n_took > 0 && i < results->n; i++)
        if (r[i].outcome != FLEET_UNSENT)
            targets[n_targets++] = (struct fleet_target){.upstream = r[i].upstream};
    unload_at(fc, targets, n_targets, of);
    (void)fleet_adapter_end_unloaded(fleet_of(fc));
}

static bool any_did(const struct fleet_results *results)
{
    bool any = false;

    for (size_t i = 0; i < results->n; i++)
        any = any || result_ok(&results->list[i]);
    return any;
}

/* A 404 means that the adapter is not there, whatever the engine's error code, unless other engines
 * have changed something.
 * Returns: 0 or -1 */
static int set_cause(const struct fleet_results *results, bool changes, struct err *e)
{
    const struct fleet_result *cause = fleet_results_cause(results);

    if (changes)
        return fleet_results_done(results, e) ? 0 : -1;
    if (cause == NULL)
        return 0;
    *e = cause->why;
    if (cause->status == 404)
        e->code = ERR_NOT_FOUND;
    return -1;
}

/* The request, to be sent again later (owned). NULL: the tensors are with its sender only, or it is
 * too long to be kept. */
static char *copy_request(const struct fleet_lora_request *req, const struct api_object *native)
{
    char *text = req->path != NULL ? api_load_again(native) : NULL;

    if (text == NULL || strlen(text) <= FLEET_ADAPTER_LOAD_MAX)
        return text;
    free(text);
    return NULL;
}

/* The fleet has the adapter: engines on which the load failed are asked again. Without memory for
 * its path nothing can be sent again. */
static uint64_t add_adapter(struct fleet_control *fc, const struct fleet_lora_request *req,
                            const struct api_object *native)
{
    char *path = req->path != NULL ? strdup(req->path) : NULL;
    char *load = path != NULL ? copy_request(req, native) : NULL;

    return fleet_adapter_end_loaded(fleet_of(fc), path, load, req->timeout_us);
}

static int apply_load_results(struct fleet_control *fc, const struct fleet_lora_request *req,
                              const struct api_args *args, bool known,
                              struct fleet_lora_reply *reply, struct err *e)
{
    const struct fleet_result *cause = fleet_results_cause(&reply->results);
    bool changes = cause == NULL || (known && any_did(&reply->results));

    if (changes)
        reply->revision = add_adapter(fc, req, args->native);
    else if (known)
        fleet_adapter_end_kept(fleet_of(fc));
    else
        undo_load(fc, &reply->results, args);
    return set_cause(&reply->results, changes, e);
}

/* No engine gets a new request until all caches are empty: the request would read, with the new
 * adapter, what was cached with the one before. An earlier server may have loaded an adapter of
 * that name too, so this is done for new names as well. */
static int request_load(struct fleet_control *fc, const struct fleet_lora_request *req,
                        const struct fleet_target *targets, size_t n, struct fleet_results *results,
                        struct err *e)
{
    uint64_t timeout_us = req->timeout_us + FLEET_GRACE_US;
    int rc;

    fleet_adapter_replacing(fc, true);
    rc = fleet_request(fc, API_LOAD_ADAPTER, targets, n, timeout_us, results, e);
    if (rc == 0)
        fleet_reset_adapter_caches(fc, results);
    fleet_adapter_replacing(fc, false);
    return rc;
}

static int load_prepare(struct fleet_control *fc, const struct upstream_list *all,
                        const struct fleet_lora_request *req, const struct api_args *args,
                        bool known, struct fleet_target *targets, size_t *n, struct err *e)
{
    if (known && !req->in_place)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name",
                       "there is an adapter '%.128s', and load_inplace is false", req->name);
    if (fleet_reachable_quorum(fc, all, args, targets, n, e) != 0)
        return -1;
    return fleet_validate(fc, API_LOAD_ADAPTER, targets, *n, e);
}

int fleet_lora_load(struct fleet_control *fc, const struct fleet_lora_request *req,
                    struct api_object *native, struct fleet_lora_reply *reply, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct api_args args = {.native = native, .name = req->name, .dir = req->path};
    bool known = fleet_adapter_exists(fleet_of(fc), req->name);
    struct fleet_target targets[FLEET_MAX];
    size_t n;

    if (load_prepare(fc, all, req, &args, known, targets, &n, e) != 0 ||
        fleet_adapter_begin(fleet_of(fc), &args, e) != 0)
        return -1;
    if (known)
        unload_first(fc, targets, n, &args);
    if (request_load(fc, req, targets, n, &reply->results, e) != 0) {
        fleet_adapter_end_kept(fleet_of(fc));
        return -1;
    }
    return apply_load_results(fc, req, &args, known, reply, e);
}

/* unload */

/* Engines on which it failed may have it, are out of rotation and asked again, unless it failed on
 * all. */
static uint64_t apply_unload_results(struct fleet_control *fc, const struct api_args *args,
                                     const struct fleet_results *results)
{
    const struct fleet_result *r = results->list;

    if (!any_did(results)) {
        fleet_adapter_end(fleet_of(fc));
        return 0;
    }
    for (size_t i = 0; i < results->n; i++)
        if (!result_ok(&r[i]) && r[i].outcome != FLEET_UNSENT)
            fleet_adapter_doubt(fleet_of(fc), r[i].upstream, args);
    return fleet_adapter_end_unloaded(fleet_of(fc));
}

static bool all_were_absent(const struct fleet_results *results)
{
    for (size_t i = 0; i < results->n; i++)
        if (results->list[i].outcome != FLEET_SKIPPED)
            return false;
    return true;
}

/* At the limit of adapters one that the fleet does not know is unloaded all the same. */
int fleet_lora_unload(struct fleet_control *fc, const char *name, struct api_object *native,
                      struct fleet_lora_reply *reply, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct api_args args = {.native = native, .name = name};
    bool known = fleet_adapter_exists(fleet_of(fc), name);
    struct fleet_target targets[FLEET_MAX];
    struct err full = {0};
    size_t n;

    if (fleet_reachable_quorum(fc, all, &args, targets, &n, e) != 0)
        return -1;
    (void)fleet_adapter_begin(fleet_of(fc), &args, &full);
    if (fleet_request(fc, API_UNLOAD_ADAPTER, targets, n, FLEET_CACHE_US, &reply->results, e) !=
        0) {
        fleet_adapter_end(fleet_of(fc));
        return -1;
    }
    if (all_were_absent(&reply->results) && !known) {
        fleet_adapter_end(fleet_of(fc));
        fleet_results_fini(&reply->results);
        return err_set(e, ERR_NOT_FOUND, "/lora_name", "no upstream has an adapter '%.128s'", name);
    }
    fleet_reset_adapter_caches(fc, &reply->results);
    reply->revision = apply_unload_results(fc, &args, &reply->results);
    return set_cause(&reply->results, any_did(&reply->results), e);
}
