/* How an adapter is loaded on every engine, or unloaded, and what follows from each engine's reply.
 */
#include "fleet/ask/fleet_lora_load.h"

#include "fleet/ask/fleet_lora.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/want/fleet_cache.h"

#include <stdlib.h>
#include <string.h>

void fleet_lora_reply_fini(struct fleet_lora_reply *reply)
{
    fleet_results_free(reply->results, reply->n);
    *reply = (struct fleet_lora_reply){0};
}

/* load */

/* An engine that cannot replace an adapter unloads it first. One that fails may still have it. */
static void unload_first(struct fleet_control *fc, const struct fleet_target *targets, size_t n,
                         const char *name)
{
    const struct api_args args = {.name = name};
    struct fleet_target few[FLEET_MAX];
    struct fleet_result *results = NULL;
    struct err ignored = {0};
    size_t n_few = 0;

    for (size_t i = 0; i < n; i++) {
        if (!upstream_caps_of(targets[i].upstream)->replaces_adapters)
            few[n_few++] = (struct fleet_target){.upstream = targets[i].upstream, .args = &args};
    }
    if (fleet_request(fc, API_UNLOAD_ADAPTER, few, n_few, FLEET_STEP_US, &results, &ignored) != 0)
        return;
    for (size_t i = 0; i < n_few; i++)
        if (result_ok(&results[i]) || fleet_has_no_adapter(&results[i], name))
            *fleet_lora_found(results[i].upstream) = FLEET_HAS_NONE;
        else if (fleet_result_may_have_run(&results[i]))
            *fleet_lora_found(results[i].upstream) = FLEET_HAS_OTHER;
    fleet_results_free(results, n_few);
}

/* Unloads a new adapter from every engine that has it, or may have it. An engine on which that
 * fails is out of rotation and asked again. An engine that refused the load may have an adapter of
 * that name from before this server started: it would be the only engine that has it, so it unloads
 * it too. If all engines refused the load, nothing has changed. */
static void undo_load(struct fleet_control *fc, const struct fleet_result *results, size_t n,
                      const char *name)
{
    const struct api_args args = {.name = name};
    struct fleet_target targets[FLEET_MAX];
    struct fleet_result *gone = NULL;
    struct err ignored = {0};
    size_t n_targets = 0, n_took = 0;

    for (size_t i = 0; i < n; i++)
        n_took += results[i].outcome == FLEET_OK || results[i].outcome == FLEET_UNKNOWN;
    for (size_t i = 0; n_took > 0 && i < n; i++)
        if (results[i].outcome != FLEET_UNSENT)
            targets[n_targets++] = (struct fleet_target){.upstream = results[i].upstream,
                                                         .args = &args};
    if (fleet_request(fc, API_UNLOAD_ADAPTER, targets, n_targets, FLEET_STEP_US, &gone, &ignored) ==
        0) {
        for (size_t i = 0; i < n_targets; i++) {
            uint8_t *has = fleet_lora_found(gone[i].upstream);

            if (result_ok(&gone[i]) ||
                (gone[i].outcome == FLEET_REFUSED && *has != FLEET_HAS_THIS) ||
                fleet_has_no_adapter(&gone[i], name))
                *has = FLEET_HAS_NONE;
        }
        fleet_results_free(gone, n_targets);
    }
    (void)fleet_lora_remove(fc, name);
}

static size_t n_good(const struct fleet_result *results, size_t n)
{
    size_t good = 0;

    for (size_t i = 0; i < n; i++)
        good += result_ok(&results[i]);
    return good;
}

/* A 404 means that the adapter is not there, whatever the engine's error code, unless other engines
 * have changed something.
 * Returns: 0 or -1 */
static int set_cause(const struct fleet_result *results, size_t n, bool changes, struct err *e)
{
    const struct fleet_result *cause = fleet_results_cause(results, n);

    if (changes)
        return fleet_results_done(results, n, e) ? 0 : -1;
    if (cause == NULL)
        return 0;
    *e = cause->why;
    if (cause->status == 404)
        e->code = ERR_NOT_FOUND;
    return -1;
}

/* What each engine has after a load: one on which it failed keeps what it had. */
static void set_after_load(const struct fleet_result *results, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t *has = fleet_lora_found(results[i].upstream);

        if (result_ok(&results[i]))
            *has = FLEET_HAS_THIS;
        else if (results[i].outcome == FLEET_UNKNOWN)
            *has = FLEET_HAS_OTHER;
    }
}

/* What engines have under the name is another revision now. */
static void set_outdated(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    for (struct fleet_engine_adapters *e = fc->adapters.engines; e != NULL; e = e->next)
        if (e->found != FLEET_HAS_NONE)
            e->found = FLEET_HAS_OTHER;
    mtx_unlock(&fc->lock);
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

/* The digest of what an engine has loaded (new); NULL: it reports none. */
static char *digest_at(const struct fleet_result *result)
{
    return result->outcome == FLEET_OK ? api_read_digest(result->text, result->text_len) : NULL;
}

/* From the first reply that has it (new). */
static char *digest_of(const struct fleet_result *results, size_t n)
{
    char *digest = NULL;

    for (size_t i = 0; digest == NULL && i < n; i++)
        digest = digest_at(&results[i]);
    return digest;
}

/* Hosts may have other files at one path. */
static void compare_digests(struct fleet_result *results, size_t n)
{
    char *first = digest_of(results, n);

    for (size_t i = 0; i < n; i++) {
        char *own = digest_at(&results[i]);

        if (own != NULL && first != NULL && strcmp(own, first) != 0) {
            results[i].outcome = FLEET_UNKNOWN;
            (void)err_set(&results[i].why, ERR_UPSTREAM, "",
                          "an upstream has loaded other files than the first that reports a digest "
                          "(%.64s, not %.64s): the lora_path must have the same files on each host",
                          own, first);
        }
        free(own);
    }
    free(first);
}

/* The fleet has the adapter: engines on which the load failed are asked again. */
static uint64_t add_adapter(struct fleet_control *fc, const struct fleet_lora_request *req,
                            const struct api_object *native, const struct fleet_result *results,
                            size_t n)
{
    char *digest = digest_of(results, n);
    struct fleet_adapter_source from = {.name = req->name,
                                        .digest = digest,
                                        .path = req->path != NULL ? strdup(req->path) : NULL,
                                        .load = copy_request(req, native),
                                        .timeout_us = req->timeout_us};
    uint64_t revision;

    if (from.path == NULL) { /* without memory for it nothing could be sent again */
        free(from.load);
        from.load = NULL;
    }
    revision = fleet_lora_put(fc, &from);
    free(digest);
    return revision;
}

static int apply_load_results(struct fleet_control *fc, const struct fleet_lora_request *req,
                              const struct api_object *native, bool known,
                              const struct fleet_result *results, size_t n, uint64_t *revision,
                              struct err *e)
{
    const struct fleet_result *cause = fleet_results_cause(results, n);
    bool changes = cause == NULL || (known && n_good(results, n) > 0);

    if (changes)
        set_outdated(fc);
    set_after_load(results, n);
    if (changes)
        *revision = add_adapter(fc, req, native, results, n);
    else if (known)
        fleet_lora_keep(fc, req->name);
    else
        undo_load(fc, results, n, req->name);
    fleet_reconcile_all(fc);
    return set_cause(results, n, changes, e);
}

/* No engine gets a new request until all caches are empty: the request would read, with the new
 * adapter, what was cached with the one before. An earlier server may have loaded an adapter of
 * that name too, so this is done for new names as well. */
static int request_load(struct fleet_control *fc, const struct fleet_lora_request *req,
                        const struct fleet_target *targets, size_t n, struct fleet_result **results,
                        struct err *e)
{
    uint64_t timeout_us = req->timeout_us + FLEET_GRACE_US;
    int rc;

    fleet_adapter_replacing(fc, true);
    rc = fleet_request(fc, API_LOAD_ADAPTER, targets, n, timeout_us, results, e);
    if (rc == 0)
        fleet_reset_adapter_caches(fc, *results, n);
    fleet_adapter_replacing(fc, false);
    return rc;
}

static int load_prepare(struct fleet_control *fc, const struct upstream_list *all,
                        const struct fleet_lora_request *req, const struct api_args *args,
                        bool known, struct fleet_target *targets, size_t *n, struct err *e)
{
    if (fleet_lora_reserve(fc, req->name, e) != 0)
        return -1;
    if (known && !req->in_place)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name",
                       "there is an adapter '%.128s', and load_inplace is false", req->name);
    if (fleet_reachable_quorum(fc, all, args, targets, n, e) != 0)
        return -1;
    return fleet_validate(fc, API_LOAD_ADAPTER, targets, *n, e);
}

static int load(struct fleet_control *fc, const struct upstream_list *all,
                const struct fleet_lora_request *req, struct api_object *native,
                struct fleet_lora_reply *reply, struct err *e)
{
    const struct api_args args = {.native = native, .name = req->name, .dir = req->path};
    bool known = fleet_lora_exists(fc, req->name);
    struct fleet_target targets[FLEET_MAX];
    size_t n;

    if (load_prepare(fc, all, req, &args, known, targets, &n, e) != 0)
        return -1;
    fleet_reconcile_watch(fc);
    fleet_lora_read(fc, req->name);
    if (known)
        unload_first(fc, targets, n, req->name);
    if (request_load(fc, req, targets, n, &reply->results, e) != 0) {
        if (known)
            fleet_lora_keep(fc, req->name);
        fleet_reconcile_all(fc);
        return -1;
    }
    reply->n = n;
    compare_digests(reply->results, n);
    return apply_load_results(fc, req, native, known, reply->results, n, &reply->revision, e);
}

int fleet_lora_load(struct fleet_control *fc, const struct fleet_lora_request *req,
                    struct api_object *native, struct fleet_lora_reply *reply, struct err *e)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);
    int rc = load(fc, all, req, native, reply, e);

    upstream_list_unref(all);
    return rc;
}

/* unload */

/* An engine that does not have the adapter counts as unloaded. Returns: how many do not. */
static size_t accept_absent(struct fleet_result *results, size_t n, const char *name)
{
    size_t n_absent = 0;

    for (size_t i = 0; i < n; i++) {
        if (!fleet_has_no_adapter(&results[i], name))
            continue;
        results[i].outcome = FLEET_SKIPPED;
        err_clear(&results[i].why);
        n_absent++;
    }
    return n_absent;
}

/* What each engine has after an unload that worked somewhere. */
static void set_after_unload(struct fleet_control *fc, const struct fleet_result *results, size_t n)
{
    set_outdated(fc);
    for (size_t i = 0; i < n; i++)
        if (result_ok(&results[i]))
            *fleet_lora_found(results[i].upstream) = FLEET_HAS_NONE;
        else if (results[i].outcome != FLEET_UNSENT)
            *fleet_lora_found(results[i].upstream) = FLEET_HAS_OTHER;
}

/* Engines on which it failed are out of rotation and asked again, unless it failed on all. */
static uint64_t apply_unload_results(struct fleet_control *fc, const char *name,
                                     const struct fleet_result *results, size_t n)
{
    uint64_t revision = 0;

    if (n_good(results, n) > 0) {
        set_after_unload(fc, results, n);
        revision = fleet_lora_remove(fc, name);
    } else {
        set_after_load(results, n);
        fleet_lora_set_has(fc, name);
    }
    fleet_reconcile_all(fc);
    return revision;
}

static int unload(struct fleet_control *fc, const struct upstream_list *all, const char *name,
                  struct api_object *native, struct fleet_lora_reply *reply, struct err *e)
{
    const struct api_args args = {.native = native, .name = name};
    struct fleet_target targets[FLEET_MAX];
    size_t n;

    if (fleet_reachable_quorum(fc, all, &args, targets, &n, e) != 0)
        return -1;
    fleet_reconcile_watch(fc);
    fleet_lora_read(fc, name);
    if (fleet_request(fc, API_UNLOAD_ADAPTER, targets, n, FLEET_CACHE_US, &reply->results, e) != 0)
        return -1;
    reply->n = n;
    if (accept_absent(reply->results, n, name) == n && !fleet_lora_exists(fc, name)) {
        fleet_lora_reply_fini(reply);
        return err_set(e, ERR_NOT_FOUND, "/lora_name", "no upstream has an adapter '%.128s'", name);
    }
    fleet_reset_adapter_caches(fc, reply->results, n);
    reply->revision = apply_unload_results(fc, name, reply->results, n);
    return set_cause(reply->results, n, n_good(reply->results, n) > 0, e);
}

int fleet_lora_unload(struct fleet_control *fc, const char *name, struct api_object *native,
                      struct fleet_lora_reply *reply, struct err *e)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);
    int rc = unload(fc, all, name, native, reply, e);

    upstream_list_unref(all);
    return rc;
}
