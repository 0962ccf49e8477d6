/* What the parameters of an engine with adapters are called, found out in each update, before its
 * first byte: an engine that gets other names fails after it has taken its weights apart, and must
 * then be started again. What was learned earlier may have been about another process. */
#include "base/file.h"
#include "fleet/update/fleet_update_priv.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_NBYTES_MAX = 16 << 20 };

struct names_request {
    struct fleet_control *fc;
    size_t n_asked;
    struct names_reply {
        bool has;
        char *text; /* owned */
        size_t len;
    } replies[FLEET_MAX]; /* by part */
};

static bool needs_names(const struct fleet_part *p, const void *arg)
{
    const struct names_request *r = arg;
    struct upstream_info info;

    if (p->two_phase || p->names_known || !part_takes_part(p))
        return false;
    fleet_info(fleet_of(r->fc), p->upstream, &info);
    return api_renames_for_lora(upstream_kind(p->upstream), &info.report);
}

static void on_config(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    struct names_request *r = arg;

    r->n_asked++;
    part_drop_failed(p, result);
    if (!result_ok(result))
        return;
    r->replies[part] = (struct names_reply){
        .has = true, .text = result->text, .len = result->text_len};
    result->text = NULL;
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

static void learn(struct names_request *r, struct fleet_session *s, size_t part)
{
    const struct names_reply *reply = &r->replies[part];
    const char *text = reply->text != NULL ? reply->text : "";
    struct err why = {0}, named = {0};
    struct upstream_info info;
    enum api_names names = API_NAMES_PLAIN;
    char *model, *architecture;
    int rc;

    fleet_info(fleet_of(r->fc), s->parts[part].upstream, &info);
    model = api_read_model(upstream_kind(s->parts[part].upstream), text, reply->len);
    architecture = architecture_of(r->fc, model);
    rc = api_names_for_lora(&names, upstream_kind(s->parts[part].upstream), info.report.release,
                            architecture, text, reply->len, &why);
    mtx_lock(&r->fc->lock);
    s->parts[part].names = names;
    s->parts[part].names_known = rc == 0;
    if (rc != 0) {
        (void)err_set(&named, why.code, why.field, "%.120s %.380s",
                      upstream_name(s->parts[part].upstream), why.msg);
        part_drop(&s->parts[part], FLEET_REFUSED, 0, &named);
    }
    mtx_unlock(&r->fc->lock);
    free(model);
    free(architecture);
}

int fleet_learn_names(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct names_request r = {.fc = fc};
    const struct fanout f = {.is_query = true,
                             .query = API_GET_CONFIG,
                             .timeout_us = FLEET_CONFIG_US,
                             .select = needs_names,
                             .on_result = on_config,
                             .arg = &r};

    if (fanout_apply(fc, s, &f, e) != 0)
        return -1;
    for (size_t i = 0; i < s->n_parts; i++) {
        if (r.replies[i].has)
            learn(&r, s, i);
        free(r.replies[i].text);
    }
    if (r.n_asked == 0 || fleet_has_quorum(fc, s))
        return 0;
    fleet_set_cause(fc, s, e);
    return -1;
}
