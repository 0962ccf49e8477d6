/* An update as JSON. */
#include "handlers/update_json.h"

#include "handlers/reply.h"

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

/* This update's mappings of trainers' memory. */
static json_t *mappings_json(const struct update_info *info)
{
    return json_pack("{s:I, s:I, s:I}", "opened", (json_int_t)info->mappings.n_opened, "closed",
                     (json_int_t)info->mappings.n_closed, "still_mapped",
                     (json_int_t)info->mappings.n_mapped);
}

/* Where checksums are computed: on the GPU for bytes from or to GPU memory, if the GPU can;
 * otherwise on the host. NULL until bytes have arrived. */
static const char *checksums_on(const struct update_info *info)
{
    if (info->n_tensors_done == 0 && !info->on_gpu)
        return NULL;
    return info->host_sums || !info->on_gpu ? "host" : "gpu";
}

/* Bytes per second since the first byte was requested, including waits for the trainer. null
 * until bytes have arrived. */
static json_t *rate_json(const struct update_info *info)
{
    if (info->nbytes_done == 0 || info->receive_us == 0)
        return json_null();
    return json_integer((json_int_t)((double)info->nbytes_done * 1e6 / (double)info->receive_us));
}

/* Coverage of the model's tensors. */
static const char *coverage(const struct update_info *info)
{
    if (info->partial)
        return "partial";
    return info->n_missing > 0 ? "incomplete" : "whole";
}

static json_t *sender_json(const struct update_sender *sender)
{
    bool trainer = sender->place == NULL;

    return json_pack("{s:o, s:s?, s:s?, s:I, s:I, s:s?}", "trainer_rank",
                     trainer ? json_integer(sender->rank) : json_null(), "place", sender->place,
                     "gpu", sender->gpu, "n_tensors", (json_int_t)sender->n_tensors, "nbytes",
                     (json_int_t)sender->nbytes, "refused",
                     sender->refused != ERR_NONE ? err_wire_name(sender->refused) : NULL);
}

/* Adds which rank brought what, if requests tell ranks apart. @object  may be NULL; NULL is
 * returned for lack of memory */
static json_t *with_senders(json_t *object, const struct update_info *info)
{
    json_t *list;

    if (object == NULL || info->n_senders == 0)
        return object;
    list = json_array();
    for (uint32_t i = 0; i < info->n_senders; i++)
        if (json_array_append_new(list, sender_json(&info->senders[i])) != 0)
            goto err_decref;
    if (json_object_set_new(object, "senders", list) == 0)
        return object;
    list = NULL; /* stolen */

err_decref:
    json_decref(list);
    json_decref(object);
    return NULL;
}

static json_t *warnings_json(const struct change_counts *c)
{
    json_t *list = json_array();

    for (int i = 0; i < CHANGE_WARNING_COUNT; i++) {
        if (c->warnings[i] &&
            json_array_append_new(list, json_string(change_warning_name(i))) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

json_t *changes_json(const struct change_counts *c)
{
    if (!c->known)
        return json_null();
    return json_pack(
        "{s:{s:s, s:I}, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "before", "weight_version",
        c->before_label, "serial", (json_int_t)c->before_serial, "n_changed",
        (json_int_t)c->n[CHANGE_CHANGED], "n_unchanged", (json_int_t)c->n[CHANGE_UNCHANGED],
        "n_not_sent", (json_int_t)c->n[CHANGE_NOT_SENT], "n_not_compared",
        (json_int_t)c->n[CHANGE_NOT_COMPARED], "n_newly_unchanged",
        (json_int_t)c->n_newly_unchanged, "n_equal_to_another", (json_int_t)c->n_equal_to_another,
        "repeated", (int)c->repeated, "warnings", warnings_json(c));
}

json_t *update_json(const struct update_info *info)
{
    return with_senders(
        json_pack(
            "{s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:I, s:o, s:f, s:f, "
            "s:I, "
            "s:o, s:I, s:o, "
            "s:o, s:s?, s:I, s:o, s:o, s:o}",
            "update_id", info->id, "phase", update_phase_name(info->phase), "coverage",
            coverage(info), "placement", info->sharded || info->by_owner ? "sharded" : "replicated",
            "partial", (int)info->partial, "weight_version",
            info->label[0] != '\0' ? json_string(info->label) : json_null(), "serial",
            info->serial > 0 ? json_integer((json_int_t)info->serial) : json_null(),
            "staging_nbytes", (json_int_t)info->nbytes_staging, "nbytes_done",
            (json_int_t)info->nbytes_done, "nbytes_total", (json_int_t)info->nbytes_total,
            "nbytes_per_s", rate_json(info), "n_tensors_done", (json_int_t)info->n_tensors_done,
            "n_tensors_total", (json_int_t)info->n_tensors_total, "tensor",
            info->tensor[0] != '\0' ? json_string(info->tensor) : json_null(), "lease_left_s",
            (double)info->lease_left_us / 1e6, "deadline_left_s",
            (double)info->deadline_left_us / 1e6, "n_missing", (json_int_t)info->n_missing,
            "missing", names_json(info->missing, info->n_missing), "n_non_finite",
            (json_int_t)info->non_finite.n, "non_finite",
            names_json(info->non_finite.names, info->non_finite.n), "mappings", mappings_json(info),
            "checksums_on", checksums_on(info), "n_checksums", (json_int_t)info->n_checksums,
            "timing", timing_json(info), "error", error_json(&info->error), "changes",
            changes_json(&info->changes)),
        info);
}

json_t *update_details(const struct update_info *info)
{
    if (info == NULL || info->phase == UPDATE_NONE)
        return NULL;
    return with_senders(json_pack("{s:s, s:s, s:I, s:o}", "update_id", info->id, "phase",
                                  update_phase_name(info->phase), "n_missing",
                                  (json_int_t)info->n_missing, "missing",
                                  names_json(info->missing, info->n_missing)),
                        info);
}
