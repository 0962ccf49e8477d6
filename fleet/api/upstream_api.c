/* One table for each dialect, a row for each operation. What the rows of a dialect cannot say is
 * refused by the member that asks for it, never left out. */
#include "fleet/api/upstream_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dialect_names[UPSTREAM_KINDS] = {"baton", "vllm", "sglang"};

int upstream_kind_parse(enum upstream_kind *out, const char *name, const char *field, struct err *e)
{
    for (int d = 0; d < UPSTREAM_KINDS; d++) {
        if (strcmp(name, dialect_names[d]) != 0)
            continue;
        *out = (enum upstream_kind)d;
        return 0;
    }
    return err_set(e, ERR_BAD_REQUEST, field, "'%.32s' is none of baton, vllm, sglang", name);
}

const char *upstream_kind_name(enum upstream_kind d)
{
    return dialect_names[d];
}

bool upstream_is_two_phase(enum upstream_kind d)
{
    return d == UPSTREAM_BATON;
}

void api_request_fini(struct api_request *r)
{
    free(r->body);
    memset(r, 0, sizeof *r);
}

/* pieces */

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a request to an upstream");
}

static int set_path(struct api_request *out, const char *method, const char *path)
{
    out->method = method;
    (void)snprintf(out->path, sizeof out->path, "%s", path);
    return 0;
}

/* Steals body; NULL: building it ran out of memory. */
static int set_body(struct api_request *out, const char *path, json_t *body, struct err *e)
{
    if (body != NULL)
        out->body = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(body);
    if (out->body == NULL)
        return no_memory(e);
    out->body_len = strlen(out->body);
    return set_path(out, "POST", path);
}

/* A new object with those members of `from`; pairs {ours, theirs} up to a NULL. */
struct pair {
    const char *ours, *theirs;
};

static json_t *pick(const json_t *from, const struct pair *pairs)
{
    json_t *to = json_object();

    for (; to != NULL && pairs->ours != NULL; pairs++) {
        json_t *value = json_object_get(from, pairs->ours);

        if (value == NULL || json_is_null(value))
            continue;
        if (json_object_set(to, pairs->theirs, value) != 0) {
            json_decref(to);
            return NULL;
        }
    }
    return to;
}

static bool given(const json_t *native, const char *member)
{
    const json_t *value = json_object_get(native, member);

    return value != NULL && !json_is_null(value);
}

static const char *text_of(const json_t *native, const char *member, const char *otherwise)
{
    const json_t *value = json_object_get(native, member);

    return json_is_string(value) ? json_string_value(value) : otherwise;
}

/* Members that this dialect has no words for; up to a NULL. */
/* @takes  what the dialect takes instead; "" */
static int refuse_instead(const json_t *native, const char *const *members, const char *dialect,
                          const char *takes, struct err *e)
{
    char field[64];

    for (; *members != NULL; members++) {
        if (!given(native, *members))
            continue;
        (void)snprintf(field, sizeof field, "/%s", *members);
        return err_set(e, ERR_BAD_REQUEST, field, "%s upstreams know nothing of %s%s", dialect,
                       *members, takes);
    }
    return 0;
}

static int refuse_given(const json_t *native, const char *const *members, const char *dialect,
                        struct err *e)
{
    return refuse_instead(native, members, dialect, "", e);
}

/* baton: our own words, with its own update's id and rank */
static const struct {
    const char *method, *path;
    bool has_body, of_update; /* of_update: it names the update that it is a step of */
} baton_rows[API_OPS] = {
    [API_INIT_TRANSFER] = {"POST", "/v1/weight_transfer/init", true},
    [API_SHUTDOWN_TRANSFER] = {"DELETE", "/v1/weight_transfer", false},
    [API_START_UPDATE] = {"POST", "/v1/update_weights/start", true},
    [API_UPDATE_WEIGHTS] = {"POST", "/v1/update_weights", true, true},
    [API_VERIFY_UPDATE] = {"POST", "/v1/update_weights/verify", true, true},
    [API_FINISH_UPDATE] = {"POST", "/v1/update_weights/finish", true, true},
    [API_ABORT_UPDATE] = {"POST", "/v1/update_weights/abort", true, true},
    [API_PAUSE] = {"POST", "/v1/pause", true},
    [API_RESUME] = {"POST", "/v1/resume", false},
    [API_SLEEP] = {"POST", "/v1/sleep", true},
    [API_WAKE] = {"POST", "/v1/wake", true},
    [API_RESET_PREFIX_CACHE] = {"POST", "/v1/reset_cache", true},
    [API_ABORT_REQUESTS] = {"POST", "/v1/abort_requests", true},
    [API_LOAD_ADAPTER] = {"POST", "/v1/load_lora_adapter", true},
    [API_UNLOAD_ADAPTER] = {"POST", "/v1/unload_lora_adapter", true},
    [API_RENEW_UPDATE] = {"POST", "/v1/update_weights/renew", true, true},
    [API_PUT_TENSOR_LIST] = {"POST", "/v1/weights/plans", true},
    [API_SET_VERSION] = {"POST", "/v1/weights/label", true},
};

static int set_text(json_t *body, const char *member, const char *text)
{
    return json_object_set_new(body, member, json_string(text));
}

static int make_baton(struct api_request *out, enum api_op op, const json_t *native,
                      const struct api_context *about, struct err *e)
{
    json_t *body;

    if (baton_rows[op].method == NULL)
        return 0; /* its cache is keyed by the weights */
    if (!baton_rows[op].has_body)
        return set_path(out, baton_rows[op].method, baton_rows[op].path);
    body = json_copy((json_t *)(uintptr_t)native);
    if (body == NULL)
        return no_memory(e);
    if ((baton_rows[op].of_update && about->update_id != NULL &&
         set_text(body, "update_id", about->update_id) != 0) ||
        (about->has_rank_offset &&
         json_object_set_new(body, "rank_offset", json_integer((json_int_t)about->rank_offset)) !=
             0)) {
        json_decref(body);
        return no_memory(e);
    }
    return set_body(out, baton_rows[op].path, body, e);
}

/* What goes into a path is a word of ours, or nothing. */
static int check_word(const char *word, const char *const *words, const char *field, struct err *e)
{
    for (size_t i = 0; words[i] != NULL; i++)
        if (strcmp(words[i], word) == 0)
            return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "'%.32s' is not known here", word);
}

static const char *const pause_modes[] = {"keep", "wait", "abort", NULL};

static int refuse_tensor_list(const char *dialect, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "",
                   "%s upstreams keep no plans: say in each update what comes", dialect);
}

/* What comes while it is paused waits there; nobody can tell it to refuse. */
static int refuse_reject(const json_t *native, const char *dialect, struct err *e)
{
    if (strcmp(text_of(native, "new_requests", "queue"), "reject") != 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/new_requests",
                   "%s upstreams queue what comes while they are paused: they cannot reject it",
                   dialect);
}

static int relabel(struct api_request *out, const json_t *native, struct err *e)
{
    return set_body(out, "/update_weight_version",
                    json_pack("{s:s, s:b}", "new_version", text_of(native, "weight_version", ""),
                              "abort_all_requests", 0),
                    e);
}

/* vllm */

enum { VLLM_BUCKET_NBYTES = 1 << 30 }; /* of a packed broadcast, where nobody says it */

static uint64_t bucket_of(const json_t *native)
{
    const json_t *bucket = json_object_get(native, "bucket_nbytes");

    if (!json_is_integer(bucket))
        bucket = json_object_get(native, "packed_buffer_size_bytes");
    return json_is_integer(bucket) ? (uint64_t)json_integer_value(bucket) : 0;
}

static bool says(const json_t *native, const char *member)
{
    return json_is_true(json_object_get(native, member));
}

/* What its init_info says of packing, where its release takes it there. NULL: no memory. Steals
 * info. */
static json_t *vllm_packing(json_t *info, const json_t *native)
{
    static const struct pair pairs[] = {{"packed", "packed"}, {0}};
    static const struct pair buffers[] = {{"bucket_nbytes", "packed_buffer_size_bytes"},
                                          {"packed_buffer_size_bytes", "packed_buffer_size_bytes"},
                                          {"packed_num_buffers", "packed_num_buffers"},
                                          {0}};
    json_t *packed = pick(native, pairs), *sizes = pick(native, buffers);

    if (info == NULL || packed == NULL || sizes == NULL || json_object_update(info, packed) != 0 ||
        (says(native, "packed") && json_object_update(info, sizes) != 0)) {
        json_decref(info);
        info = NULL;
    }
    json_decref(packed);
    json_decref(sizes);
    return info;
}

/* Of handles there is no group, and no buffer of ours. */
static json_t *vllm_init_handles(const json_t *native, const struct api_context *about)
{
    static const struct pair packed[] = {{"packed", "packed"}, {0}}, none[] = {{0}};

    return pick(native, vllm_has(about->release, VLLM_PACKS_HANDLES_AT_INIT) ? packed : none);
}

static json_t *vllm_init_group(const json_t *native, const struct api_context *about)
{
    static const struct pair pairs[] = {{"master_address", "master_address"},
                                        {"master_port", "master_port"},
                                        {"world_size", "world_size"},
                                        {"rank_offset", "rank_offset"},
                                        {"nccl_unique_id", "nccl_unique_id_b64"},
                                        {0}};
    json_t *info = pick(native, pairs);

    if (info != NULL && about->has_rank_offset &&
        json_object_set_new(info, "rank_offset", json_integer((json_int_t)about->rank_offset)) !=
            0) {
        json_decref(info);
        return NULL;
    }
    return vllm_has(about->release, VLLM_PACKS_GROUP_AT_INIT) ? vllm_packing(info, native) : info;
}

static int vllm_init(struct api_request *out, const json_t *native, const struct api_context *about,
                     struct err *e)
{
    static const char *const unknown[] = {"group_name", NULL}, *const id[] = {"nccl_unique_id",
                                                                              NULL};
    bool handles = strcmp(text_of(native, "transport", "nccl"), "ipc") == 0;
    json_t *info;

    if (refuse_given(native, unknown, "vllm", e) != 0 ||
        (!vllm_has(about->release, VLLM_TAKES_UNIQUE_ID) &&
         refuse_given(native, id, "vllm (before 0.30)", e) != 0))
        return -1;
    if (json_is_false(json_object_get(native, "warm_up")))
        return err_set(e, ERR_BAD_REQUEST, "/warm_up",
                       "vllm upstreams always begin with an all-reduce: leave warm_up out");
    info = handles ? vllm_init_handles(native, about) : vllm_init_group(native, about);
    return set_body(out, "/init_weight_transfer_engine",
                    info != NULL ? json_pack("{s:o}", "init_info", info) : NULL, e);
}

static int vllm_start(struct api_request *out, const json_t *native, struct err *e)
{
    static const char *const unknown[] = {"partial", "convert", NULL};

    if (refuse_given(native, unknown, "vllm", e) != 0)
        return -1;
    return set_body(out, "/start_weight_update", json_pack("{s:b}", "is_checkpoint_format", 1), e);
}

/* With sizes all is one broadcast, which has no bound. */
static uint64_t vllm_bound(const json_t *native)
{
    uint64_t bucket = bucket_of(native);

    if (bucket != 0)
        return bucket;
    return given(native, "sizes") ? INT64_MAX : VLLM_BUCKET_NBYTES;
}

/* It cuts all that comes by its group in one way. */
static int check_group_packs(const json_t *native, const struct api_context *about, struct err *e)
{
    uint64_t of_group = about->group.bucket_nbytes != 0 ? about->group.bucket_nbytes
                                                        : VLLM_BUCKET_NBYTES;
    bool packed = says(native, "packed");

    if (packed == about->group.packed && (!packed || vllm_bound(native) == of_group))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/packed",
                   "vllm %s is told how tensors are packed when its group is formed, and was told "
                   "%s: say packed and bucket_nbytes (packed_buffer_size_bytes) there, as here",
                   about->release != NULL && about->release[0] != '\0' ? about->release
                                                                       : "of an unknown release",
                   about->group.packed ? "otherwise" : "nothing of it");
}

/* Before, each update says it; a bound beside what is not packed is nobody's. */
static json_t *vllm_say_packing(json_t *info, const json_t *native)
{
    if (info == NULL || !says(native, "packed"))
        return info;
    if (json_object_set_new(info, "packed", json_true()) == 0 &&
        (!given(native, "transport") || (bucket_of(native) == 0 && !given(native, "sizes")) ||
         json_object_set_new(info, "packed_buffer_size_bytes",
                             json_integer((json_int_t)vllm_bound(native))) == 0))
        return info;
    json_decref(info);
    return NULL;
}

static int vllm_update(struct api_request *out, const json_t *native,
                       const struct api_context *about, struct err *e)
{
    static const struct pair pairs[] = {{"names", "names"},
                                        {"dtypes", "dtype_names"},
                                        {"dtype_names", "dtype_names"},
                                        {"shapes", "shapes"},
                                        {"tensor_sizes", "tensor_sizes"},
                                        {"ipc_handles_pickled", "ipc_handles_pickled"},
                                        {0}};
    static const char *const unknown[] = {"shm",
                                          "path",
                                          "ipc_handles",
                                          "buckets",
                                          "plan_id",
                                          "per_gpu",
                                          "checksums",
                                          "metadata_by_gpu",
                                          "expected_digest",
                                          "serialized_named_tensors",
                                          "chunk_id",
                                          "group_name",
                                          NULL};
    bool group = given(native, "transport");
    bool said_before = vllm_has(about->release,
                                group ? VLLM_PACKS_GROUP_AT_INIT : VLLM_PACKS_HANDLES_AT_INIT);
    json_t *info;

    if (refuse_instead(native, unknown, "vllm",
                       ": they take tensors over NCCL, or ipc_handles_pickled", e) != 0 ||
        (said_before && group && check_group_packs(native, about, e) != 0))
        return -1;
    info = pick(native, pairs);
    if (!said_before)
        info = vllm_say_packing(info, native);
    return set_body(out, "/update_weights",
                    info != NULL ? json_pack("{s:o}", "update_info", info) : NULL, e);
}

static int vllm_finish(struct api_request *out, const json_t *native, struct err *e)
{
    static const struct pair pairs[] = {{"weight_version", "weight_version"}, {0}};
    static const char *const unknown[] = {"checksums", NULL};

    if (refuse_given(native, unknown, "vllm", e) != 0)
        return -1;
    return set_body(out, "/finish_weight_update", pick(native, pairs), e);
}

static int vllm_pause(struct api_request *out, const json_t *native, struct err *e)
{
    const char *mode = text_of(native, "mode", "keep");

    if (check_word(mode, pause_modes, "/mode", e) != 0 || refuse_reject(native, "vllm", e) != 0)
        return -1;
    (void)set_path(out, "POST", "");
    (void)snprintf(out->path, sizeof out->path, "/pause?mode=%s&clear_cache=false", mode);
    return 0;
}

static int vllm_reset(struct api_request *out, const json_t *native)
{
    bool running = says(native, "running"), external = says(native, "external");

    (void)set_path(out, "POST", "");
    (void)snprintf(out->path, sizeof out->path, "/reset_prefix_cache%s%s%s%s",
                   running || external ? "?" : "", running ? "reset_running_requests=true" : "",
                   running && external ? "&" : "", external ? "reset_external=true" : "");
    return 0;
}

/* Its sleep knows no parts, its wake does, and since 0.31 there is a word for the KV cache alone.
 */
static int vllm_sleep(struct api_request *out, const json_t *native,
                      const struct api_context *about, struct err *e)
{
    const json_t *level = json_object_get(native, "level"), *tags = json_object_get(native, "tags");
    const char *tag = json_string_value(json_array_get(tags, 0));

    if (json_array_size(tags) == 1 && tag != NULL && strcmp(tag, "kv_cache") == 0 &&
        vllm_has(about->release, VLLM_RELEASES_KV))
        return set_path(out, "POST", "/release_kv_cache_memory");
    if (json_array_size(tags) == 1)
        return err_set(e, ERR_BAD_REQUEST, "/tags",
                       "vllm upstreams sleep as a whole: leave tags out, and wake them by parts");
    (void)set_path(out, "POST", "");
    (void)snprintf(out->path, sizeof out->path, "/sleep?level=%" JSON_INTEGER_FORMAT,
                   json_is_integer(level) ? json_integer_value(level) : 1);
    return 0;
}

static int vllm_wake(struct api_request *out, const json_t *native, struct err *e)
{
    static const char *const known[] = {"weights", "kv_cache", NULL};
    const json_t *tags = json_object_get(native, "tags"), *tag;
    size_t i, len = (size_t)snprintf(out->path, sizeof out->path, "/wake_up");

    out->method = "POST";
    if (json_array_size(tags) > 2)
        return err_set(e, ERR_BAD_REQUEST, "/tags", "there are two tags: weights, kv_cache");
    json_array_foreach(tags, i, tag)
    {
        const char *word = json_is_string(tag) ? json_string_value(tag) : "";

        if (check_word(word, known, "/tags", e) != 0)
            return -1;
        len += (size_t)snprintf(out->path + len, sizeof out->path - len, "%ctags=%s",
                                i == 0 ? '?' : '&', word);
    }
    return 0;
}

static int lora_load(struct api_request *out, const char *path, const char *dialect,
                     const json_t *native, bool in_place, struct err *e)
{
    static const struct pair pairs[] = {
        {"lora_name", "lora_name"}, {"lora_path", "lora_path"}, {0}};
    json_t *body;

    if (!given(native, "lora_path"))
        return err_set(e, ERR_BAD_REQUEST, "/lora_path",
                       "%s upstreams take adapters from a directory only: send lora_path", dialect);
    body = pick(native, pairs);
    if (body != NULL && in_place && json_object_set_new(body, "load_inplace", json_true()) != 0) {
        json_decref(body);
        body = NULL;
    }
    return set_body(out, path, body, e);
}

static int lora_unload(struct api_request *out, const char *path, const json_t *native,
                       struct err *e)
{
    static const struct pair pairs[] = {{"lora_name", "lora_name"}, {0}};

    return set_body(out, path, pick(native, pairs), e);
}

static int make_vllm(struct api_request *out, enum api_op op, const json_t *native,
                     const struct api_context *about, struct err *e)
{
    static const struct pair ids[] = {{"request_ids", "request_ids"}, {0}};

    switch (op) {
    case API_INIT_TRANSFER:
        return vllm_init(out, native, about, e);
    case API_SHUTDOWN_TRANSFER:
        return vllm_has(about->release, VLLM_SHUTS_TRANSFER_DOWN)
                   ? set_path(out, "POST", "/shutdown_weight_transfer_engine")
                   : 0; /* it had no word for it */
    case API_START_UPDATE:
        return vllm_start(out, native, e);
    case API_UPDATE_WEIGHTS:
        return vllm_update(out, native, about, e);
    case API_FINISH_UPDATE:
        return vllm_finish(out, native, e);
    case API_PAUSE:
        return vllm_pause(out, native, e);
    case API_RESUME:
        return set_path(out, "POST", "/resume");
    case API_SLEEP:
        return vllm_sleep(out, native, about, e);
    case API_WAKE:
        return vllm_wake(out, native, e);
    case API_RESET_PREFIX_CACHE:
        return vllm_reset(out, native);
    case API_RESET_ENCODER_CACHE:
        return set_path(out, "POST", "/reset_encoder_cache");
    case API_ABORT_REQUESTS:
        if (given(native, "request_ids") &&
            json_array_size(json_object_get(native, "request_ids")) == 0)
            return 0; /* an empty list is all of them, there */
        return set_body(out, "/abort_requests", pick(native, ids), e);
    case API_LOAD_ADAPTER:
        return lora_load(out, "/v1/load_lora_adapter", "vllm", native, true, e);
    case API_UNLOAD_ADAPTER:
        return lora_unload(out, "/v1/unload_lora_adapter", native, e);
    case API_PUT_TENSOR_LIST:
        return refuse_tensor_list("vllm", e);
    case API_SET_VERSION:
        return relabel(out, native, e);
    default: /* it proves nothing, and aborts nothing */
        return 0;
    }
}

/* sglang */

static int sglang_init(struct api_request *out, const json_t *native,
                       const struct api_context *about, struct err *e)
{
    static const struct pair pairs[] = {
        {"master_address", "master_address"}, {"master_port", "master_port"},
        {"world_size", "world_size"},         {"rank_offset", "rank_offset"},
        {"group_name", "group_name"},         {0}};
    static const char *const unknown[] = {"nccl_unique_id", NULL};
    json_t *body;

    if (refuse_given(native, unknown, "sglang", e) != 0)
        return -1;
    if (strcmp(text_of(native, "transport", "nccl"), "ipc") == 0)
        return 0; /* handles need no group */
    body = pick(native, pairs);
    if (body == NULL || set_text(body, "backend", "nccl") != 0 ||
        (about->has_rank_offset &&
         json_object_set_new(body, "rank_offset", json_integer((json_int_t)about->rank_offset)) !=
             0)) {
        json_decref(body);
        return no_memory(e);
    }
    return set_body(out, "/init_weights_update_group", body, e);
}

/* Since 0.5.18. One that says nothing of a selector means all: the model and its drafter. */
static int sglang_begin(struct api_request *out, const json_t *native, struct err *e)
{
    static const struct pair pairs[] = {{"selector", "selector"}, {0}};

    return set_body(out, "/begin_weight_update", pick(native, pairs), e);
}

/* Where there is a text. Steals body; NULL: no memory. */
static json_t *with_text(json_t *body, const char *member, const char *text)
{
    if (body == NULL || text == NULL || text[0] == '\0' || set_text(body, member, text) == 0)
        return body;
    json_decref(body);
    return NULL;
}

/* As the version that it serves until the update has its name: whoever tells that one has all that
 * came since. Steals body. */
static json_t *marked(json_t *body, const struct api_context *about)
{
    return with_text(body, "weight_version", about->update_id);
}

/* Whatever its trainer asked for: where requests are held an older one does not survive a flush
 * that fails, and all are told to flush at the end of the update. Steals body. */
static json_t *unflushed(json_t *body)
{
    if (body == NULL || json_object_set_new(body, "flush_cache", json_false()) == 0)
        return body;
    json_decref(body);
    return NULL;
}

static int sglang_from_disk(struct api_request *out, const json_t *native,
                            const struct api_context *about, struct err *e)
{
    static const struct pair pairs[] = {
        {"path", "model_path"}, {"weight_version", "weight_version"}, {0}};

    if (about->has_begun) /* its end would process what has been processed already */
        return err_set(e, ERR_BAD_REQUEST, "/path",
                       "sglang upstreams take files in an update of their own: end the one that "
                       "has begun with tensors first");
    return set_body(out, "/update_weights_from_disk", unflushed(marked(pick(native, pairs), about)),
                    e);
}

/* One broadcast of all tensors back to back is what it calls flattened. */
static int sglang_cut(const json_t *native, const char **load_format, struct err *e)
{
    const json_t *bucket = json_object_get(native, "bucket_nbytes");
    bool whole = given(native, "sizes") || json_integer_value(bucket) == INT64_MAX;

    if (!json_is_true(json_object_get(native, "packed")))
        return given(native, "bucket_nbytes")
                   ? err_set(e, ERR_BAD_REQUEST, "/bucket_nbytes", "bucket_nbytes goes with packed")
                   : 0;
    if (!whole)
        return err_set(e, ERR_BAD_REQUEST, "/packed",
                       "sglang upstreams receive one broadcast for each tensor, or one of all: "
                       "send sizes, or no packed");
    *load_format = "flattened_bucket";
    return 0;
}

/* Tensors that say themselves what they are. */
static int sglang_from_tensor(struct api_request *out, const json_t *native,
                              const struct api_context *about, struct err *e)
{
    static const struct pair pairs[] = {{"serialized_named_tensors", "serialized_named_tensors"},
                                        {"serialized_format", "load_format"},
                                        {"weight_version", "weight_version"},
                                        {"selector", "selector"},
                                        {0}};

    json_t *body = unflushed(marked(pick(native, pairs), about));

    /* What selector target is called before 0.5.18; of a group's tensors it is what these mean. */
    if (body != NULL && strcmp(text_of(native, "selector", ""), "target") == 0 &&
        json_object_set_new(body, "disable_draft_model", json_true()) != 0) {
        json_decref(body);
        body = NULL;
    }
    return set_body(out, "/update_weights_from_tensor", body, e);
}

/* It may be in several groups, and ends where it is in none of that name. */
static int sglang_update(struct api_request *out, const json_t *native,
                         const struct api_context *about, struct err *e)
{
    static const struct pair pairs[] = {
        {"names", "names"},           {"dtypes", "dtypes"},
        {"dtype_names", "dtypes"},    {"shapes", "shapes"},
        {"group_name", "group_name"}, {"weight_version", "weight_version"},
        {"selector", "selector"},     {0}};
    static const char *const unknown[] = {"shm",
                                          "ipc_handles",
                                          "ipc_handles_pickled",
                                          "buckets",
                                          "plan_id",
                                          "per_gpu",
                                          "checksums",
                                          "metadata_by_gpu",
                                          "packed_buffer_size_bytes",
                                          "expected_digest",
                                          "chunk_id",
                                          NULL};
    const char *load_format = NULL;
    json_t *body;

    if (refuse_instead(native, unknown, "sglang",
                       ": they take tensors over NCCL, serialized_named_tensors or a path", e) != 0)
        return -1;
    if (given(native, "serialized_named_tensors"))
        return sglang_from_tensor(out, native, about, e);
    if (given(native, "path"))
        return sglang_from_disk(out, native, about, e);
    if (sglang_cut(native, &load_format, e) != 0)
        return -1;
    body = unflushed(marked(pick(native, pairs), about));
    body = with_text(body, "group_name", about->group_name);
    return set_body(out, "/update_weights_from_distributed",
                    with_text(body, "load_format", load_format), e);
}

/* The end of an update takes no name. Where none has begun, the name is all that is left. */
static int sglang_finish(struct api_request *out, const json_t *native,
                         const struct api_context *about, struct err *e)
{
    static const char *const unknown[] = {"checksums", NULL};

    if (refuse_given(native, unknown, "sglang", e) != 0)
        return -1;
    if (about->has_begun)
        return set_body(out, "/end_weight_update", json_object(), e);
    if (!given(native, "weight_version"))
        return 0;
    return relabel(out, native, e);
}

/* It cannot wait for what runs; what is frozen goes on. */
static int sglang_pause(struct api_request *out, const json_t *native, struct err *e)
{
    const char *mode = text_of(native, "mode", "keep");

    if (check_word(mode, pause_modes, "/mode", e) != 0 || refuse_reject(native, "sglang", e) != 0)
        return -1;
    if (strcmp(mode, "wait") == 0)
        return err_set(e, ERR_BAD_REQUEST, "/mode",
                       "sglang upstreams cannot wait for what runs: pause with keep or abort");
    return set_body(out, "/pause_generation",
                    json_pack("{s:s}", "mode", strcmp(mode, "keep") == 0 ? "in_place" : "abort"),
                    e);
}

static int sglang_memory(struct api_request *out, const char *path, const json_t *native,
                         struct err *e)
{
    static const struct pair pairs[] = {{"tags", "tags"}, {0}};

    return set_body(out, path, pick(native, pairs), e);
}

/* One at a time, by the rid that its client gave it. */
static int sglang_abort_requests(struct api_request *out, const json_t *native, struct err *e)
{
    const json_t *ids = json_object_get(native, "request_ids");
    const char *rid = json_string_value(json_array_get(ids, 0));

    if (!given(native, "request_ids"))
        return set_body(out, "/abort_request", json_pack("{s:b}", "abort_all", 1), e);
    if (json_array_size(ids) == 0)
        return 0;
    if (json_array_size(ids) > 1 || rid == NULL || rid[0] == '\0')
        return err_set(e, ERR_BAD_REQUEST, "/request_ids",
                       "sglang upstreams abort one request at a time, by its rid");
    return set_body(out, "/abort_request", json_pack("{s:s}", "rid", rid), e);
}

static int make_sglang(struct api_request *out, enum api_op op, const json_t *native,
                       const struct api_context *about, struct err *e)
{
    switch (op) {
    case API_INIT_TRANSFER:
        return sglang_init(out, native, about, e);
    case API_SHUTDOWN_TRANSFER:
        return set_body(out, "/destroy_weights_update_group",
                        with_text(json_object(), "group_name", about->group_name), e);
    case API_START_UPDATE:
        return sglang_begin(out, native, e);
    case API_UPDATE_WEIGHTS:
        return sglang_update(out, native, about, e);
    case API_FINISH_UPDATE:
        return sglang_finish(out, native, about, e);
    case API_PAUSE:
        return sglang_pause(out, native, e);
    case API_RESUME:
        return set_body(out, "/continue_generation", json_object(), e);
    case API_SLEEP:
        return sglang_memory(out, "/release_memory_occupation", native, e);
    case API_WAKE:
        return sglang_memory(out, "/resume_memory_occupation", native, e);
    case API_RESET_PREFIX_CACHE:
        return set_body(out, "/flush_cache", json_object(), e);
    case API_RESET_STORAGE_CACHE:
        return set_path(out, "POST", "/hicache/storage-backend/clear");
    case API_RETRACT_REQUESTS:
        return set_body(out, "/pause_generation", json_pack("{s:s}", "mode", "retract"), e);
    case API_ABORT_REQUESTS:
        return sglang_abort_requests(out, native, e);
    case API_LOAD_ADAPTER:
        return lora_load(out, "/load_lora_adapter", "sglang", native, false, e);
    case API_UNLOAD_ADAPTER:
        return lora_unload(out, "/unload_lora_adapter", native, e);
    case API_PUT_TENSOR_LIST:
        return refuse_tensor_list("sglang", e);
    case API_SET_VERSION:
        return relabel(out, native, e);
    default: /* it proves nothing, and aborts nothing */
        return 0;
    }
}

int api_make_request(struct api_request *out, enum upstream_kind d, enum api_op op,
                     const json_t *native, const struct api_context *about, struct err *e)
{
    static int (*const make[UPSTREAM_KINDS])(struct api_request *, enum api_op, const json_t *,
                                             const struct api_context *,
                                             struct err *) = {make_baton, make_vllm, make_sglang};
    struct api_request made = {0};

    if (make[d](&made, op, native, about, e) != 0) {
        api_request_fini(&made);
        memset(out, 0, sizeof *out);
        return -1;
    }
    *out = made;
    return 0;
}
