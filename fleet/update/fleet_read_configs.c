/* What the parameters of an engine with adapters are called, found out in each update, before its
 * first byte: an engine that gets other names fails after it has taken its weights apart, and must
 * then be started again. And whether an engine keeps what a partial update does not bring. What was
 * learned earlier may have been about another process. */
#include "base/file.h"
#include "fleet/update/fleet_update_priv.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_NBYTES_MAX = 16 << 20 };

struct learning {
    struct fleet_control *fc;
    const struct fleet_session *s;
    bool by_path;
};

/* A vLLM takes no partial update. Files are another question than tensors. */
static bool is_to_read(const struct fleet_part *p, const void *arg)
{
    const struct learning *l = arg;
    struct upstream_info info;

    if (p->two_phase || p->out || (p->names_known && !(l->s->partial && l->by_path)))
        return false;
    fleet_info(fleet_of(l->fc), p->upstream, &info);
    if (l->s->partial)
        return true;
    return info.report.has_lora &&
           api_release_of(upstream_kind(p->upstream), info.report.release).renames_for_lora;
}

/* Its model's config.json: new text, or NULL: it is not known. The engine's own directory may be on
 * another host, and then --model has the same model here. @dir  where it was, borrowed */
static char *config_of(const struct fleet_control *fc, const char *theirs, const char **dir,
                       size_t *len)
{
    const char *const dirs[] = {theirs != NULL && theirs[0] == '/' ? theirs : NULL,
                                fc->cfg.model_dir};
    char *text = NULL;

    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0] && text == NULL; i++) {
        struct file_cfg file = {
            .dir = dirs[i], .path = "config.json", .nbytes_max = CONFIG_NBYTES_MAX};
        struct err ignored = {0};

        if (dirs[i] != NULL && file_read(&text, len, &file, &ignored) == 0)
            *dir = dirs[i];
    }
    return text;
}

/* Two formats say so in a file of their own. */
static bool is_quantized_by_file(const char *dir)
{
    static const char *const files[] = {"hf_quant_config.json", "quant_model_description.json"};
    bool found = false;

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct file_cfg file = {
            .dir = dir, .path = files[i], .nbytes_max = CONFIG_NBYTES_MAX, .optional = true};
        struct err ignored = {0};
        char *text = NULL;
        size_t len;

        found = found || file_read(&text, &len, &file, &ignored) != 0 || text != NULL;
        free(text);
    }
    return found;
}

static int learn_names(enum api_names *out, struct fleet_control *fc, const struct fleet_part *p,
                       const char *config, size_t config_len, const struct fleet_result *result,
                       struct err *why)
{
    char *architecture = config != NULL ? api_read_architecture(config, config_len) : NULL;
    struct upstream_info info;
    int rc;

    fleet_info(fleet_of(fc), p->upstream, &info);
    rc = api_names_for_lora(out, upstream_kind(p->upstream), info.report.release, architecture,
                            result->text, result->text_len, why);
    free(architecture);
    return rc;
}

/* Its model's configuration may have to be read from a file: not under the lock. */
static void read_config(const struct learning *l, struct fleet_part *p,
                        const struct fleet_result *result)
{
    struct fleet_control *fc = l->fc;
    enum upstream_kind kind = upstream_kind(p->upstream);
    enum api_names names = API_NAMES_PLAIN;
    struct err why = {0}, named = {0};
    const char *dir = NULL;
    size_t len = 0;
    char *model = api_read_model(kind, result->text, result->text_len),
         *config = config_of(fc, model, &dir, &len);
    int rc = l->s->partial
                 ? api_check_partial(kind, l->by_path, result->text, result->text_len,
                                     dir != NULL && is_quantized_by_file(dir) ? NULL : config, len,
                                     &why)
                 : learn_names(&names, fc, p, config, len, result, &why);

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
    free(config);
}

int fleet_read_configs(struct fleet_control *fc, struct fleet_session *s, bool by_path,
                       struct err *e)
{
    struct learning l = {.fc = fc, .s = s, .by_path = by_path};
    const struct fanout f = {.select = is_to_read, .arg = &l};
    fleet_results_auto results = {0};
    struct fleet_batch b;

    if (fanout_select(fc, s, &f, &b) == 0)
        return 0;
    if (fleet_query(fc, API_GET_CONFIG, b.targets, b.n, FLEET_CONFIG_US, &results, e) != 0)
        return -1;
    for (size_t i = 0; i < b.n; i++) {
        struct fleet_part *p = &s->parts[b.part[i]];

        if (result_ok(&results.list[i])) {
            read_config(&l, p, &results.list[i]);
            continue;
        }
        mtx_lock(&fc->lock);
        part_drop_failed(p, &results.list[i]);
        mtx_unlock(&fc->lock);
    }
    return fleet_require_quorum(fc, s, e);
}
