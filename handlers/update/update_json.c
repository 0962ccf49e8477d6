/* An update as JSON. */
#include "handlers/update/update_json.h"

#include "handlers/lora_json.h"
#include "handlers/reply.h"
#include "http/exchange.h"

#include <stdlib.h>
#include <string.h>

json_t *names_json(const char *const *names, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n && i < UPDATE_MISSING_MAX; i++) {
        if (json_array_append_new(list, json_string(names[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *timing_json(const struct update_info *info)
{
    return json_pack("{s:f, s:f, s:f}", "receive_ms", (double)info->receive_us / 1e3, "verify_ms",
                     (double)info->verify_us / 1e3, "commit_ms", (double)info->commit_us / 1e3);
}

/* Of trainers' memory, by this update. */
static json_t *mappings_json(const struct update_info *info)
{
    return json_pack("{s:I, s:I, s:I}", "opened", (json_int_t)info->mappings.n_opened, "closed",
                     (json_int_t)info->mappings.n_closed, "still_mapped",
                     (json_int_t)info->mappings.n_mapped);
}

/* Bytes that come from or to GPU memory are summed there, by a GPU that can; all others on their
 * way through the host. NULL while none has come. */
static const char *checksums_on(const struct update_info *info)
{
    if (info->n_tensors_done == 0 && !info->on_gpu)
        return NULL;
    return info->host_sums || !info->on_gpu ? "host" : "gpu";
}

/* Since the first byte was asked for, waits for the trainer counted. NULL while none has come. */
static json_t *rate_json(const struct update_info *info)
{
    if (info->nbytes_done == 0 || info->receive_us == 0)
        return json_null();
    return json_integer((json_int_t)((double)info->nbytes_done * 1e6 / (double)info->receive_us));
}

/* Of the model's tensors, which are known here. */
static const char *coverage(const struct update_info *info)
{
    if (info->partial)
        return "partial";
    return info->n_missing > 0 ? "incomplete" : "whole";
}

json_t *update_json(const struct update_info *info)
{
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:I, s:o, s:f, s:f, "
        "s:I, "
        "s:o, s:I, s:o, "
        "s:o, s:s?, s:o, s:o}",
        "update_id", info->id, "phase", update_phase_name(info->phase), "coverage", coverage(info),
        "mode", "staged", "placement", info->sharded ? "sharded" : "replicated", "partial",
        (int)info->partial, "weight_version",
        info->label[0] != '\0' ? json_string(info->label) : json_null(), "serial",
        info->serial > 0 ? json_integer((json_int_t)info->serial) : json_null(), "staging_nbytes",
        (json_int_t)info->nbytes_staging, "nbytes_done", (json_int_t)info->nbytes_done,
        "nbytes_total", (json_int_t)info->nbytes_total, "nbytes_per_s", rate_json(info),
        "n_tensors_done", (json_int_t)info->n_tensors_done, "n_tensors_total",
        (json_int_t)info->n_tensors_total, "tensor",
        info->tensor[0] != '\0' ? json_string(info->tensor) : json_null(), "lease_left_s",
        (double)info->lease_left_us / 1e6, "deadline_left_s", (double)info->deadline_left_us / 1e6,
        "n_missing", (json_int_t)info->n_missing, "missing",
        names_json(info->missing, info->n_missing), "n_non_finite", (json_int_t)info->non_finite.n,
        "non_finite", names_json(info->non_finite.names, info->non_finite.n), "mappings",
        mappings_json(info), "checksums_on", checksums_on(info), "timing", timing_json(info),
        "error", error_json(&info->error));
}

json_t *update_details(const struct update_info *info)
{
    if (info == NULL || info->phase == UPDATE_NONE)
        return NULL;
    return json_pack("{s:s, s:s, s:I, s:o}", "update_id", info->id, "phase",
                     update_phase_name(info->phase), "n_missing", (json_int_t)info->n_missing,
                     "missing", names_json(info->missing, info->n_missing));
}

struct update_asker {
    const struct app *app; /* borrowed */
    struct exchange *x;
};

int update_asker_new(struct update_asker **out, const struct app *app, struct exchange *x,
                     struct err *e)
{
    struct update_asker *a = malloc(sizeof *a);

    if (a == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
    *a = (struct update_asker){.app = app, .x = x};
    *out = a;
    return 0;
}

void update_asker_free(struct update_asker *a)
{
    free(a);
}

bool update_asker_gone(void *asker)
{
    return exchange_gone(((struct update_asker *)asker)->x);
}

/* What was committed serves, whatever memory is left to tell of it: a 503 here would say that
 * nothing has changed. */
static json_t *committed_json(const struct app *app, const struct update_info *info)
{
    json_t *reply = update_json(info);

    if (reply != NULL && json_object_set_new(reply, "adapters", lora_valid_json(app)) != 0) {
        json_decref(reply);
        return NULL;
    }
    return reply;
}

static void answer_committed(const struct app *app, struct exchange *x,
                             const struct update_info *info)
{
    static const char bare[] = "{\"phase\":\"committed\"}";
    struct exchange_reply r;

    if (!reply_json_make(x, 200, committed_json(app, info), &r))
        r = (struct exchange_reply){.status = 200,
                                    .content_type = "application/json",
                                    .data = bare,
                                    .len = sizeof bare - 1};
    exchange_reply(x, &r);
}

void update_answered(void *arg, const struct update_info *info, const struct err *e)
{
    struct update_asker a = *(struct update_asker *)arg;

    update_asker_free(arg);
    if (e->code != ERR_NONE)
        reply_error(a.x, e, update_details(info));
    else if (info->phase == UPDATE_COMMITTED)
        answer_committed(a.app, a.x, info);
    else
        reply_json(a.x, 200, update_json(info));
}
