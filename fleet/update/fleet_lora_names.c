/* What the parameters of an engine with adapters are called, found out in each update, before its
 * first byte: an engine that gets other names fails after it has taken its weights apart, and must
 * then be started again. What was learned earlier may have been about another process. */
#include "base/file.h"
#include "fleet/update/fleet_update_priv.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_NBYTES_MAX = 16 << 20 };

static bool needs_names(const struct fleet_part *p, const void *arg)
{
    const struct fleet_control *fc = arg;
    struct upstream_info info;

    if (p->two_phase || p->names_known || p->out)
        return false;
    fleet_info(fleet_of(fc), p->upstream, &info);
    return info.report.has_lora &&
           api_release_of(upstream_kind(p->upstream), info.report.release).renames_for_lora;
}

/* New text, or NULL: it is not known. The engine's own directory may be on another host, and then
 * --model has the same model here. */
static char *architecture_of(const struct fleet_control *fc, const char *theirs)
{
    const char *dir = fc->cfg.model_dir != NULL ? fc->cfg.model_dir : theirs;
    struct file_cfg file = {.dir = dir, .path = "config.json", .nbytes_max = CONFIG_NBYTES_MAX};
    struct err ignored = {0};
    char *text = NULL, *name;
    size_t len;

    if (dir == NULL || (dir == theirs && dir[0] != '/') ||
        file_read(&text, &len, &file, &ignored) != 0)
        return NULL;
    name = api_read_architecture(text, len);
    free(text);
    return name;
}

/* Its model's configuration may have to be read from a file: not under the lock. */
static void learn(struct fleet_control *fc, struct fleet_part *p, const struct fleet_result *result)
{
    enum upstream_kind kind = upstream_kind(p->upstream);
    enum api_names names = API_NAMES_PLAIN;
    struct err why = {0}, named = {0};
    struct upstream_info info;
    char *model, *architecture;
    int rc;

    fleet_info(fleet_of(fc), p->upstream, &info);
    model = api_read_model(kind, result->text, result->text_len);
    architecture = architecture_of(fc, model);
    rc = api_names_for_lora(&names, kind, info.report.release, architecture, result->text,
                            result->text_len, &why);
    if (rc != 0)
        (void)err_set(&named, why.code, why.field, "%.120s %.380s", upstream_name(p->upstream),
                      why.msg);
    mtx_lock(&fc->lock);
    p->names = names;
    p->names_known = rc == 0;
    if (rc != 0)
        part_drop(p, FLEET_REFUSED, 0, &named);
    mtx_unlock(&fc->lock);
    free(model);
    free(architecture);
}

int fleet_learn_names(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    const struct fanout f = {.select = needs_names, .arg = fc};
    fleet_results_auto results = {0};
    struct fleet_batch b;

    if (fanout_select(fc, s, &f, &b) == 0)
        return 0;
    if (fleet_query(fc, API_GET_CONFIG, b.targets, b.n, FLEET_CONFIG_US, &results, e) != 0)
        return -1;
    for (size_t i = 0; i < b.n; i++) {
        struct fleet_part *p = &s->parts[b.part[i]];

        if (result_ok(&results.list[i])) {
            learn(fc, p, &results.list[i]);
            continue;
        }
        mtx_lock(&fc->lock);
        part_drop_failed(p, &results.list[i]);
        mtx_unlock(&fc->lock);
    }
    return fleet_require_quorum(fc, s, e);
}
