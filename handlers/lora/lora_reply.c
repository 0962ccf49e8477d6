/* The reply to a load of an adapter, and its log lines. */
#include "base/log.h"
#include "handlers/app.h"
#include "handlers/lora/lora_json.h"
#include "handlers/lora/lora_load.h"
#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"
#include "weights/model/adapter_method.h"

enum {
    LORA_NAMES_REPORTED_MAX = 4096
}; /* of each list in a reply; the counts next to them are whole */

static json_t *names_array_json(const void *from)
{
    const struct names *names = from;
    json_t *array = json_array();

    for (uint32_t i = 0; i < names->n && i < LORA_NAMES_REPORTED_MAX; i++)
        array = json_list_append(array, json_string(names->items[i]));
    return array;
}

static json_t *warning_json(const void *from)
{
    const struct lora_loaded *d = from;

    return d->report.base_changed ? json_string(ADAPTER_BASE_CHANGED) : json_null();
}

const struct member loaded_adapter_reply[] = {
    {"status", M_STRING, .def = "ok", .flags = M_REQUIRED},
    {"lora_name", M_STRING, M_IN(struct lora_loaded, name), .flags = M_REQUIRED},
    {"revision", M_INT, M_IN(struct lora_loaded, outcome.revision), .flags = M_REQUIRED},
    {"digest", M_STRING, M_IN(struct lora_loaded, digest)},
    {"unchanged", M_BOOL, M_IN(struct lora_loaded, outcome.unchanged),
     .doc = "The content equals the loaded revision: nothing was swapped"},
    {"replaced", M_BOOL, M_IN(struct lora_loaded, outcome.replaced),
     .doc = "The name had an earlier revision"},
    {"pinned", M_BOOL, M_IN(struct lora_loaded, pinned)},
    {"rank", M_INT, M_IN(struct lora_loaded, rank), .doc = "The largest of its modules"},
    {"nbytes", M_INT, M_IN(struct lora_loaded, nbytes)},
    {"n_users_older", M_INT, M_IN(struct lora_loaded, outcome.n_users),
     .doc = "Requests that still use older revisions of this name"},
    {"n_matched", M_INT, M_IN(struct lora_loaded, report.matched.n)},
    {"matched", M_ARRAY, M_MADE(names_array_json, struct lora_loaded, report.matched),
     .items = M_STRING, .max = LORA_NAMES_REPORTED_MAX},
    {"n_unmatched", M_INT, M_IN(struct lora_loaded, report.unmatched.n)},
    {"unmatched", M_ARRAY, M_MADE(names_array_json, struct lora_loaded, report.unmatched),
     .items = M_STRING, .max = LORA_NAMES_REPORTED_MAX,
     .doc = "Tensors of no module of this model, or of a module that the config does not list"},
    {"n_ignored", M_INT, M_IN(struct lora_loaded, report.ignored.n)},
    {"ignored", M_ARRAY, M_MADE(names_array_json, struct lora_loaded, report.ignored),
     .items = M_STRING, .max = LORA_NAMES_REPORTED_MAX,
     .doc = "Tensors that are known to have no effect"},
    {"n_missing", M_INT, M_IN(struct lora_loaded, report.missing.n)},
    {"missing", M_ARRAY, M_MADE(names_array_json, struct lora_loaded, report.missing),
     .items = M_STRING, .max = LORA_NAMES_REPORTED_MAX,
     .doc = "Modules that the config lists and that have no tensors"},
    {"n_non_finite", M_INT, M_IN(struct lora_loaded, report.non_finite.n)},
    {"non_finite", M_ARRAY, M_MADE(names_array_json, struct lora_loaded, report.non_finite),
     .items = M_STRING, .max = LORA_NAMES_REPORTED_MAX,
     .doc = "Tensors with NaN or infinity, loaded because of --non-finite warn"},
    {"n_config_keys_ignored", M_INT, M_IN(struct lora_loaded, report.n_keys_ignored),
     .doc = "Keys of the config that do not change the result"},
    {"base_changed", M_BOOL, M_IN(struct lora_loaded, report.base_changed),
     .doc = "It was trained from base weights that its method had changed: init_lora_weights is "
            "pissa, olora, corda, loftq or lora_ga"},
    {"warning", M_STRING | M_NULL, .make = warning_json,
     .doc = "Why its output may be wrong: base_changed; the log has it too (lora.base_changed)"},
    {"loaded_adapters", M_MAP, .items = M_STRING | M_NULL, .doc = DOC_LOADED_ADAPTERS},
    {0},
};

static json_t *load_reply_json(const struct lora_load *l, const struct lora_loaded *d)
{
    return json_object_with(member_write(d, loaded_adapter_reply), "loaded_adapters",
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
