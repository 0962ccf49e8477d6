/* The reply to a load of an adapter, and its log lines. */
#include "base/log.h"
#include "handlers/app.h"
#include "handlers/lora/lora_json.h"
#include "handlers/lora/lora_load.h"
#include "handlers/reply.h"
#include "weights/model/adapter_method.h"

enum {
    LORA_NAMES_REPORTED_MAX = 4096
}; /* of each list in a reply; the counts next to them are whole */

static json_t *names_array_json(const struct names *names)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < names->n && i < LORA_NAMES_REPORTED_MAX && array != NULL; i++) {
        if (json_array_append_new(array, json_string(names->items[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static json_t *load_reply_json(const struct lora_load *l, const struct lora_loaded *d)
{
    const struct adapter_report *r = &d->report;
    const struct adapters_outcome *o = &d->outcome;

    return json_pack(
        "{s:s, s:s, s:I, s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:I, s:o, s:I, "
        "s:o, s:I, s:o, s:I, s:b, s:s?, s:o}",
        "status", "ok", "lora_name", l->name, "revision", (json_int_t)o->revision, "digest",
        d->digest, "unchanged", (int)o->unchanged, "replaced", (int)o->replaced, "pinned",
        (int)l->options.pinned, "rank", (json_int_t)d->rank, "nbytes", (json_int_t)d->nbytes,
        "n_users_older", (json_int_t)o->n_users, "n_matched", (json_int_t)r->matched.n, "matched",
        names_array_json(&r->matched), "n_unmatched", (json_int_t)r->unmatched.n, "unmatched",
        names_array_json(&r->unmatched), "n_ignored", (json_int_t)r->ignored.n, "ignored",
        names_array_json(&r->ignored), "n_missing", (json_int_t)r->missing.n, "missing",
        names_array_json(&r->missing), "n_non_finite", (json_int_t)r->non_finite.n, "non_finite",
        names_array_json(&r->non_finite), "n_config_keys_ignored", (json_int_t)r->n_keys_ignored,
        "base_changed", (int)r->base_changed, "warning",
        r->base_changed ? ADAPTER_BASE_CHANGED : NULL, "loaded_adapters",
        lora_loaded_json(l->app->generate));
}

/* The adapter is in service, so the reply is a success even if there is no memory for the full
 * body. */
void lora_reply_loaded(struct lora_load *l, const struct lora_loaded *d)
{
    static const char bare[] = "{\"status\":\"ok\"}";
    struct http_reply r;

    if (!reply_json_make(l->x, 200, load_reply_json(l, d), &r))
        r = (struct http_reply){.status = 200,
                                .content_type = "application/json",
                                .data = bare,
                                .len = sizeof bare - 1};
    http_reply(l->x, &r);
}

static void lora_warn_base_changed(const struct lora_load *l, const struct lora_loaded *d)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "lora.base_changed");
    log_str(&r, "lora_name", l->name);
    log_u64(&r, "revision", d->outcome.revision);
    log_str(&r, "why", ADAPTER_BASE_CHANGED);
    log_event(&r);
}

void lora_log_loaded(const struct lora_load *l, const struct lora_loaded *d)
{
    struct log_rec r;

    if (d->report.base_changed)
        lora_warn_base_changed(l, d);
    log_begin(&r, LOG_INFO, d->outcome.unchanged ? "lora.unchanged" : "lora.loaded");
    log_str(&r, "lora_name", l->name);
    log_u64(&r, "revision", d->outcome.revision);
    log_str(&r, "digest", d->digest);
    log_u64(&r, "rank", d->rank);
    log_u64(&r, "nbytes", d->nbytes);
    log_u64(&r, "n_matched", d->report.matched.n);
    log_u64(&r, "n_unmatched", d->report.unmatched.n);
    log_event(&r);
}

void lora_log_failed(const struct lora_load *l, const struct err *e)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "lora.failed");
    log_str(&r, "lora_name", l->name);
    log_err(&r, e);
    log_event(&r);
}

void lora_warn_non_finite(const struct lora_load *l, const struct lora_loaded *d)
{
    for (uint32_t i = 0; i < d->report.non_finite.n && i < LORA_NAMES_REPORTED_MAX; i++) {
        struct log_rec r;

        log_begin(&r, LOG_WARN, "lora.non_finite");
        log_str(&r, "lora_name", l->name);
        log_u64(&r, "revision", d->outcome.revision);
        log_str(&r, "tensor", d->report.non_finite.items[i]);
        log_end(&r);
    }
}
