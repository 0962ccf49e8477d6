/* What replies of other handlers say of the adapters. */
#include "base/prometheus.h"
#include "engine/lora/adapters.h"
#include "handlers/app.h"
#include "handlers/lora/lora_json.h"

static void put_metrics(const struct app_generate *generate, struct buf *out)
{
    struct adapters_gauges g;

    adapters_gauges(generate->adapters, &g);
    prom_one(out, "baton_lora_loaded", "gauge", "Adapters that requests may name", g.n_loaded);
    prom_one(out, "baton_lora_loading", "gauge", "Loads of adapters under way", g.n_loading);
    prom_one(out, "baton_lora_users", "gauge", "Requests that use a revision of an adapter",
             g.n_pinned_refs);
    prom_one(out, "baton_lora_older_revisions", "gauge",
             "Older revisions that running requests still use", g.n_older);
    prom_one(out, "baton_lora_bytes", "gauge", "Bytes of all revisions in memory", g.nbytes);
    prom_one(out, "baton_lora_reserved_bytes", "gauge", "Bytes set aside for loads under way",
             g.nbytes_reserved);
    prom_one(out, "baton_lora_limit_bytes", "gauge", "Bytes that revisions and loads may take",
             adapters_config_of(generate->adapters)->nbytes_max);
}

const struct lora_view lora_view = {
    .totals = lora_gauges_json, .valid = lora_valid_json, .metrics = put_metrics};
