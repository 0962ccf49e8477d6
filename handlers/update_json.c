/* An update as JSON. */
#include "handlers/update_json.h"

#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"
#include "handlers/rows/rows.h"

json_t *names_json(const char *const *names, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n && i < UPDATE_MISSING_MAX; i++)
        list = json_list_append(list, json_string(names[i]));
    return list;
}

/* The rows of senders: which rank brought what. */

static json_t *trainer_rank_json(const void *from)
{
    const struct update_sender *sender = from;

    return sender->place == NULL ? json_integer(sender->rank) : json_null();
}

const struct member sender_reply[] = {
    {"trainer_rank", M_INT | M_NULL, .make = trainer_rank_json},
    {"place", M_STRING | M_NULL, M_IN(struct update_sender, place),
     .doc = "The GPU of this server that the tensors were for: `cuda:0`"},
    {"gpu", M_STRING | M_NULL, M_IN(struct update_sender, gpu), .doc = "Its UUID"},
    {"n_tensors", M_INT, M_IN(struct update_sender, n_tensors),
     .doc = "Tensors that arrived, as sent"},
    {"nbytes", M_INT, M_IN(struct update_sender, nbytes)},
    {"refused", M_STRING | M_NULL, M_IN(struct update_sender, refused), .word = err_wire_name,
     .doc = "The error code of its last request; null if that was not refused"},
    {0},
};

static json_t *senders_json(const void *from)
{
    const struct update_info *info = from;

    return member_write_list(info->senders, info->n_senders, sizeof info->senders[0], sender_reply);
}

static json_t *missing_json(const void *from)
{
    const struct update_info *info = from;

    return names_json(info->missing, info->n_missing);
}

static const struct member missing_rows[] = {
    {"n_missing", M_INT, M_IN(struct update_info, n_missing)},
    {"missing", M_ARRAY, .items = M_STRING, .max = UPDATE_MISSING_MAX, .make = missing_json},
    {0},
};

static const struct member senders_rows[] = {
    {"senders", M_ARRAY, .items = M_OBJECT, .of = sender_reply, .max = UPDATE_SENDERS_MAX,
     .make = senders_json, .flags = M_IF_ANY,
     .doc = "Which rank has brought what. Absent if requests do not tell ranks apart: there is an "
            "entry for each `trainer_rank` that was declared or named, and, where GPUs got lists "
            "of their own (`per_gpu`, `rank` of a bucket, `placement` sharded), one for each of "
            "these GPUs. It is also in the `details` of an error of the update."},
    {0},
};

/* The rows of what a commit changed. */

static json_t *warnings_json(const void *from)
{
    const bool *warnings = from;
    json_t *list = json_array();

    for (int i = 0; i < CHANGE_WARNING_COUNT; i++)
        if (warnings[i])
            list = json_list_append(list, json_string(change_warning_name(i)));
    return list;
}

static const struct member before_rows[] = {
    {"weight_version", M_STRING, M_IN(struct change_counts, before_label)},
    {"serial", M_INT, M_IN(struct change_counts, before_serial)},
    {0},
};

const struct member changes_reply[] = {
    {"before", M_OBJECT, .of = before_rows, .store = STORE_ROWS,
     .doc = "The version that it is compared with"},
    {"n_changed", M_INT, M_IN(struct change_counts, n[CHANGE_CHANGED])},
    {"n_unchanged", M_INT, M_IN(struct change_counts, n[CHANGE_UNCHANGED]),
     .doc = "Sent, with the bytes that were served"},
    {"n_not_sent", M_INT, M_IN(struct change_counts, n[CHANGE_NOT_SENT]),
     .doc = "Of a partial update"},
    {"n_not_compared", M_INT, M_IN(struct change_counts, n[CHANGE_NOT_COMPARED]),
     .doc = "Without a checksum, now or before: copied between GPUs, and the trainer gave none"},
    {"n_newly_unchanged", M_INT, M_IN(struct change_counts, n_newly_unchanged),
     .doc = "How many of n_unchanged are large (65536 elements or more, not all equal) and were "
            "changed by the update before, or are compared for the first time"},
    {"n_equal_to_another", M_INT, M_IN(struct change_counts, n_equal_to_another),
     .doc = "Of n_changed: with the bytes that another tensor has, or had in the version before, "
            "which were not equal before. Tensors of less than 64 bytes and constant ones (zeros, "
            "ones) do not count"},
    {"repeated", M_BOOL, M_IN(struct change_counts, repeated),
     .doc = "Nothing changed, and the version has the label of the one before: the same push "
            "again"},
    {"warnings", M_ARRAY, .items = M_STRING, M_MADE(warnings_json, struct change_counts, warnings),
     M_WORDS("nothing_changed", "few_unchanged", "equal_to_another"),
     .doc = "`nothing_changed`: no tensor, in a version with another label. `few_unchanged`: "
            "n_newly_unchanged is not 0, and less than n_changed. `equal_to_another`: "
            "n_equal_to_another is not 0. Each is also an event (`weights.nothing_changed`)"},
    {0},
};

json_t *changes_json(const void *from)
{
    const struct change_counts *c = from;

    return c->known ? member_write(c, changes_reply) : json_null();
}

/* The rows of an update. */

json_t *base_json(const void *from)
{
    const struct update_base *base = from;

    return base->unchecked ? json_string("unchecked") : json_null();
}

/* Coverage of the model's tensors. */
static json_t *coverage_json(const void *from)
{
    const struct update_info *info = from;

    if (info->partial)
        return json_string("partial");
    return json_string(info->n_missing > 0 ? "incomplete" : "whole");
}

static json_t *placement_json(const void *from)
{
    const struct update_info *info = from;

    return json_string(info->sharded || info->by_owner ? "sharded" : "replicated");
}

/* Bytes per second since the first byte was requested, including waits for the trainer. null
 * until bytes have arrived. */
static json_t *rate_json(const void *from)
{
    const struct update_info *info = from;

    if (info->nbytes_done == 0 || info->receive_us == 0)
        return json_null();
    return json_integer((json_int_t)((double)info->nbytes_done * 1e6 / (double)info->receive_us));
}

static json_t *non_finite_json(const void *from)
{
    const struct non_finite_names *found = from;

    return names_json(found->names, found->n);
}

/* Where checksums are computed: on the GPU for bytes from or to GPU memory, if the GPU can;
 * otherwise on the host. null until bytes have arrived. */
static json_t *checksums_on(const void *from)
{
    const struct update_info *info = from;

    if (info->n_tensors_done == 0 && !info->on_gpu)
        return json_null();
    return json_string(info->host_sums || !info->on_gpu ? "host" : "gpu");
}

static const struct member mappings_rows[] = {
    {"opened", M_INT, M_IN(struct source_counts, n_opened)},
    {"closed", M_INT, M_IN(struct source_counts, n_closed)},
    {"still_mapped", M_INT, M_IN(struct source_counts, n_mapped)},
    {0},
};

static const struct member timing_rows[] = {
    {"receive_ms", M_NUMBER, M_IN(struct update_info, receive_us), .per = M_MS},
    {"verify_ms", M_NUMBER, M_IN(struct update_info, verify_us), .per = M_MS},
    {"commit_ms", M_NUMBER, M_IN(struct update_info, commit_us), .per = M_MS},
    {0},
};

const struct member valid_adapter_reply[] = {
    {.name = "name", .type = M_STRING},
    {.name = "revision", .type = M_INT},
    {.name = "valid", .type = M_BOOL},
    {0},
};

const struct member staging_reply[] = {
    {"place", M_STRING, M_IN(struct update_room, place), .doc = "`host`, or a GPU: `cuda:0`"},
    {"needed", M_INT, M_IN(struct update_room, nbytes_needed), .doc = "Bytes"},
    {"available", M_INT, M_IN(struct update_room, nbytes_available), .doc = "Bytes"},
    {0},
};

const struct member update_reply[] = {
    {"update_id", M_STRING, M_IN(struct update_info, id), .flags = M_REQUIRED},
    {"phase", M_STRING, M_IN(struct update_info, phase), .word = update_phase_name,
     .flags = M_REQUIRED,
     M_WORDS("starting", "open", "receiving", "verifying", "verified", "committed", "aborted"),
     .doc = "`starting` only in front of a fleet"},
    {"coverage", M_STRING | M_NULL, .make = coverage_json, COVERAGE_WORDS, .doc = DOC_COVERAGE},
    {"placement", M_STRING, .make = placement_json, M_WORDS("replicated", "sharded"),
     .doc = DOC_PLACEMENT},
    {"partial", M_BOOL, M_IN(struct update_info, partial)},
    {"delta", M_BOOL, M_IN(struct update_info, base.delta),
     .doc = "Its requests bring parts of a delta (docs/delta.md)"},
    {"base_version", M_STRING | M_NULL, M_IN(struct update_info, base.label),
     .doc = "The version that it builds on; null if the start named none"},
    {"base", M_STRING | M_NULL, M_MADE(base_json, struct update_info, base), M_WORDS("unchecked"),
     .doc = DOC_BASE},
    {"weight_version", M_STRING | M_NULL, M_IN(struct update_info, label),
     .doc = "`null` if none was given yet"},
    {"serial", M_INT | M_NULL, M_IN(struct update_info, serial),
     .doc = "Serial of the committed version"},
    {"staging_nbytes", M_INT, M_IN(struct update_info, nbytes_staging),
     .doc = "Bytes of the memory that it fills"},
    {"nbytes_done", M_INT, M_IN(struct update_info, nbytes_done),
     .doc = "Bytes of tensors that arrived"},
    {"nbytes_total", M_INT, M_IN(struct update_info, nbytes_total)},
    {"nbytes_sent", M_INT, M_IN(struct update_info, nbytes_sent),
     .doc = "Of the requests that arrived, as sent; with `delta` these are the parts, and "
            "nbytes_done counts the tensors that were made"},
    {"nbytes_per_s", M_INT | M_NULL, .make = rate_json,
     .doc = "Over the time in which requests were received, with waits for their senders; null "
            "before the first bytes"},
    {"n_tensors_done", M_INT, M_IN(struct update_info, n_tensors_done)},
    {"n_tensors_total", M_INT, M_IN(struct update_info, n_tensors_total)},
    {"tensor", M_STRING | M_NULL, M_IN(struct update_info, tensor),
     .doc = "The tensor being received; null until memory for the whole request is allocated"},
    {"lease_left_s", M_NUMBER, M_IN(struct update_info, lease_left_us), .per = M_S,
     .doc = "The whole lease while chunks are received; 0 after the end"},
    {"deadline_left_s", M_NUMBER, M_IN(struct update_info, deadline_left_us), .per = M_S,
     .doc = "Time until the server ends the running chunk; without one, that of the lease"},
    {"", M_ROWS_WITH(missing_rows)},
    {"n_non_finite", M_INT, M_IN(struct update_info, non_finite.n)},
    {"non_finite", M_ARRAY, .items = M_STRING, .max = UPDATE_NON_FINITE_MAX,
     M_MADE(non_finite_json, struct update_info, non_finite),
     .doc = "With --non-finite warn, the first tensors with NaN or infinity in the chunks that "
            "arrived. Bytes that pass host memory are checked; of tensors copied from GPU to GPU "
            "those that have checksums, are converted, are tied or are made by a delta"},
    {"mappings", M_OBJECT_IN(mappings_rows, struct update_info, mappings),
     .doc = "Mappings of trainers' memory by this update"},
    {"checksums_on", M_STRING | M_NULL, .make = checksums_on, M_WORDS("gpu", "host"),
     .doc = "Where checksums of received bytes were computed: on the GPU in the pass that copied "
            "them, or on the host; null before the first bytes"},
    {"n_checksums", M_INT, M_IN(struct update_info, n_checksums),
     .doc = "Checksums of the trainer that were compared with the bytes: those of each request on "
            "each GPU, and those of the finish. 0: nothing proves that the bytes are the "
            "trainer's"},
    {"timing", M_OBJECT, .of = timing_rows, .store = STORE_ROWS},
    {"error", M_OBJECT | M_NULL, .of = cause_reply, M_MADE(error_json, struct update_info, error)},
    {"changes", M_OBJECT | M_NULL, .of = changes_reply,
     M_MADE(changes_json, struct update_info, changes)},
    {"", M_ROWS_WITH(senders_rows)},
    {"n_unseen", M_INT, .flags = M_FLEET,
     .doc = "In front of vLLM and SGLang: requests with tensors whose names cannot be read: those "
            "of a path, and pickles of an unknown form. A broadcast without names is refused. With "
            "--model or --manifest they are refused too, unless --allow-unseen-tensors is given"},
    {"adapters", M_ARRAY, .items = M_OBJECT, .of = valid_adapter_reply,
     .doc = "In the answer to a commit: the loaded LoRA adapters. An update keeps every shape of "
            "the model, so they stay valid"},
    {"plan_digest", M_STRING, .doc = "Digest of the model's manifest; in the answer to start"},
    {"boot_id", M_STRING, .doc = "In the answer to start"},
    {"staging", M_ARRAY, .items = M_OBJECT, .of = staging_reply,
     .doc = "In the answer to start: the memory that staging needs in each place that holds the "
            "weights, and the memory available there"},
    {"upstreams", M_ARRAY, .items = M_OBJECT, .of = result_reply, .flags = M_FLEET,
     .doc = "With --stage: in the answer to a commit, and in the details of the error of a failed "
            "hand-off, which upstreams have the version; `ok: false` gets it again without another "
            "update"},
    {0},
};

json_t *update_json(const struct update_info *info)
{
    return member_write(info, update_reply);
}

json_t *update_details(const struct update_info *info)
{
    static const struct member rows[] = {
        {"update_id", M_STRING, M_IN(struct update_info, id)},
        {"phase", M_STRING, M_IN(struct update_info, phase), .word = update_phase_name},
        {"", M_ROWS_WITH(missing_rows)},
        {"", M_ROWS_WITH(senders_rows)},
        {0},
    };

    return info != NULL && info->phase != UPDATE_NONE ? member_write(info, rows) : NULL;
}
