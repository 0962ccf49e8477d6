/* torch's pickled CUDA IPC handles: every container that trainers send is read to the value, and
 * whatever else comes is refused with a reason. Allocations fail in turn (the linker wraps them).
 */
#include "tests/unit/failing_alloc.h"
#include "transport/ipc/torch_handle.h"
#include "transport/ipc/torch_pickle.h"

#include <jansson.h>
#include <nettle/base64.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIR    FIXTURES "/torch-ipc/"
#define FIELD  "/ipc_handles_pickled"
#define UUID_0 "11111111-2222-3333-4444-000000000000"

static json_t *load(const char *name)
{
    char path[512];
    json_error_t error;
    json_t *j;

    (void)snprintf(path, sizeof path, "%s%s", DIR, name);
    j = json_load_file(path, 0, &error);
    if (j == NULL)
        fail_msg("%s: %s", path, error.text);
    return j;
}

static const char *pickled(const json_t *file, size_t i_request)
{
    const json_t *r = json_array_get(json_object_get(file, "requests"), i_request);
    const json_t *kwargs = json_object_get(r, "kwargs");
    const json_t *info = json_object_get(kwargs != NULL ? kwargs : r, "update_info");
    const char *text = json_string_value(json_object_get(info, "ipc_handles_pickled"));

    assert_non_null(text);
    return text;
}

static int read_text(struct ipc_handles *h, const char *text, struct err *e)
{
    return torch_handles_read(h, text, strlen(text), FIELD, e);
}

static struct ipc_handles must_read(const char *text)
{
    struct ipc_handles h = {0};
    struct err e = {0};

    if (read_text(&h, text, &e) != 0)
        fail_msg("refused: %s", e.msg);
    assert_int_equal(e.code, ERR_NONE);
    return h;
}

static void to_hex(char *out, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static void assert_dims(const uint64_t *found, uint32_t n, const json_t *wanted)
{
    assert_int_equal(n, json_array_size(wanted));
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(found[i], json_integer_value(json_array_get(wanted, i)));
}

/* The wire's form of a handle again, with version and type where it had them. */
static void assert_memory(const struct ipc_handle *h, const char *wanted)
{
    char hex[2 * (2 + IPC_MEM_NBYTES) + 1] = "";
    uint8_t head[2] = {h->version, (uint8_t)h->type};
    size_t n = 0;

    assert_int_equal(h->has_memory, wanted != NULL);
    if (wanted == NULL)
        return;
    if (h->version > 0) {
        to_hex(hex, head, 2);
        n = 4;
    }
    to_hex(hex + n, h->mem, IPC_MEM_NBYTES);
    assert_string_equal(hex, wanted);
}

static void assert_event(const struct ipc_handle *h, const char *wanted, bool sync)
{
    char hex[2 * IPC_EVENT_NBYTES + 1];

    assert_int_equal(h->event_sync, sync);
    to_hex(hex, h->event, IPC_EVENT_NBYTES);
    if (wanted != NULL)
        assert_string_equal(hex, wanted);
    else
        assert_int_equal(strspn(hex, "0"), 2 * IPC_EVENT_NBYTES);
}

static uint64_t count_of(const json_t *object, const char *member)
{
    const json_t *value = json_object_get(object, member);

    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static void assert_handle(const struct ipc_handle *h, const json_t *x)
{
    const char *cls = json_string_value(json_object_get(x, "tensor_cls"));
    const char *dtype = json_string_value(json_object_get(x, "dtype"));
    const char *counter = json_string_value(json_object_get(x, "ref_counter_handle"));

    assert_int_equal(h->is_parameter, strcmp(cls, "torch.Tensor") != 0);
    assert_string_equal(json_string_value(json_object_get(x, "storage_cls")),
                        "torch.storage.TypedStorage");
    assert_int_equal(h->dtype, dtype_parse(dtype));
    assert_dims(h->shape, h->ndim, json_object_get(x, "size"));
    assert_dims(h->stride, h->ndim, json_object_get(x, "stride"));
    assert_int_equal(h->tensor_offset,
                     count_of(x, "tensor_offset_elements") * dtype_nbytes(h->dtype));
    assert_int_equal(h->device, count_of(x, "device_index_of_sender"));
    assert_memory(h, json_string_value(json_object_get(x, "storage_handle_hex")));
    assert_int_equal(h->storage_nbytes, count_of(x, "storage_size_bytes"));
    assert_int_equal(h->storage_offset, count_of(x, "storage_offset_bytes"));
    assert_int_equal(h->requires_grad, json_is_true(json_object_get(x, "requires_grad")));
    assert_string_equal(h->ref_name, counter != NULL ? counter : "");
    assert_int_equal(h->ref_slot, count_of(x, "ref_counter_offset"));
    assert_event(h, json_string_value(json_object_get(x, "event_handle_hex")),
                 json_is_true(json_object_get(x, "event_sync_required")));
}

static const struct ipc_gpu *gpu_of(const struct ipc_handles *h, const char *uuid)
{
    for (uint32_t i = 0; i < h->n_gpus; i++)
        if (strcmp(h->gpus[i].uuid, uuid) == 0)
            return &h->gpus[i];
    fail_msg("GPU %s is not among those read", uuid);
    return NULL;
}

/* One dict of the expectation against handle i of each GPU. */
static void assert_dict(const struct ipc_handles *h, uint32_t i, json_t *dict)
{
    const char *uuid;
    json_t *x;

    assert_int_equal(h->n_gpus, json_object_size(dict));
    json_object_foreach(dict, uuid, x) assert_handle(&gpu_of(h, uuid)->handles[i], x);
}

static void test_packed_containers_are_read_to_the_value(void **state)
{
    static const struct {
        const char *file;
        size_t n_requests;
        uint32_t n_gpus;
    } rows[] = {
        {"skyrl_packed_1gpu.json", 1, 1},
        {"skyrl_packed_4gpu.json", 1, 4},
        {"skyrl_per_gpu_metadata.json", 1, 2},
        {"vllm_packed_args_only.json", 2, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *file = load(rows[i].file);
        json_t *wanted = json_object_get(json_object_get(file, "expect"), "handles");
        for (size_t k = 0; k < rows[i].n_requests; k++) {
            struct ipc_handles h = must_read(pickled(file, k));
            assert_true(h.packed);
            assert_int_equal(h.n_handles, 1);
            assert_int_equal(h.n_gpus, rows[i].n_gpus);
            assert_dict(&h, 0, wanted);
            ipc_handles_fini(&h);
        }
        json_decref(file);
    }
}

static void test_list_of_pairs_is_read_to_the_value(void **state)
{
    json_t *file = load("vllm_unpacked_func_args.json");
    json_t *wanted = json_object_get(json_object_get(file, "expect"), "handles");
    struct ipc_handles h = must_read(pickled(file, 0));

    (void)state;
    assert_false(h.packed);
    assert_int_equal(h.n_handles, 7);
    for (uint32_t i = 0; i < h.n_handles; i++)
        assert_dict(&h, i, json_array_get(wanted, i));
    ipc_handles_fini(&h);
    json_decref(file);
}

/* Two frames, 3,615 memos. */
static void test_list_of_400_is_read_to_the_value(void **state)
{
    json_t *file = load("vllm_unpacked_400.json");
    json_t *wanted = json_object_get(file, "expect");
    struct ipc_handles h = must_read(pickled(file, 0));

    (void)state;
    assert_false(h.packed);
    assert_int_equal(h.n_gpus, 1);
    assert_int_equal(h.n_handles, count_of(wanted, "count"));
    assert_handle(&h.gpus[0].handles[0], json_object_get(wanted, "first"));
    assert_handle(&h.gpus[0].handles[399], json_object_get(wanted, "last"));
    for (uint32_t i = 0; i < h.n_handles; i++)
        assert_int_equal(h.gpus[0].handles[i].ref_slot, i);
    ipc_handles_fini(&h);
    json_decref(file);
}

/* The arguments as a process with a GPU printed them. */
static void assert_printed(const struct ipc_handle *h, const json_t *args)
{
    const uint8_t *name = (const uint8_t *)h->ref_name;
    char counter[2 * IPC_REF_NAME_MAX + 1] = "";

    assert_false(h->is_parameter);
    assert_dims(h->shape, h->ndim, json_array_get(args, 1));
    assert_dims(h->stride, h->ndim, json_array_get(args, 2));
    assert_int_equal(h->tensor_offset, json_integer_value(json_array_get(args, 3)) *
                                           (json_int_t)dtype_nbytes(h->dtype));
    assert_int_equal(h->dtype, dtype_parse(json_string_value(json_array_get(args, 5))));
    assert_int_equal(h->device, json_integer_value(json_array_get(args, 6)));
    assert_memory(h, json_string_value(json_array_get(args, 7)));
    assert_int_equal(h->storage_nbytes, json_integer_value(json_array_get(args, 8)));
    assert_int_equal(h->storage_offset, json_integer_value(json_array_get(args, 9)));
    to_hex(counter, name, strlen(h->ref_name));
    assert_string_equal(counter, json_string_value(json_array_get(args, 11)));
    assert_int_equal(h->ref_slot, json_integer_value(json_array_get(args, 12)));
    assert_event(h, json_string_value(json_array_get(args, 13)), true);
}

static void test_pickles_of_torch_on_a_gpu(void **state)
{
    static const char *const of_list[] = {"base_f32", "view_f32", "f8"};
    json_t *file = load("handles.json"), *args = json_object_get(file, "args");
    const char *uuid = json_string_value(json_object_get(file, "uuid"));
    struct ipc_handles h;

    (void)state;
    h = must_read(json_string_value(json_object_get(file, "skyrl_packed_dict")));
    assert_printed(&gpu_of(&h, uuid)->handles[0], json_object_get(args, "packed_bf16"));
    ipc_handles_fini(&h);
    h = must_read(json_string_value(json_object_get(file, "vllm_packed_args_only")));
    assert_printed(&gpu_of(&h, uuid)->handles[0], json_object_get(args, "u8"));
    ipc_handles_fini(&h);
    h = must_read(json_string_value(json_object_get(file, "skyrl_two_gpus_dict")));
    assert_int_equal(h.n_gpus, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_printed(&h.gpus[i].handles[0], json_object_get(args, "packed_bf16"));
    ipc_handles_fini(&h);
    h = must_read(json_string_value(json_object_get(file, "vllm_list_of_dicts")));
    assert_int_equal(h.n_handles, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_printed(&gpu_of(&h, uuid)->handles[i], json_object_get(args, of_list[i]));
    ipc_handles_fini(&h);
    json_decref(file);
}

static const struct {
    const char *name, *says;
} hostile[] = {
    {"surrogate_utf8", "byte 0xed"},
    {"list_key", "a dict's key is a list"},
    {"long1_u64", "an int of 9 bytes"},
    {"long_binput_max", "LONG_BINPUT"},
    {"arity_16", "this has 16"},
    {"pop_empty", "POP"},
    {"handle_v4", "version 4, of a newer torch"},
    {"deep_lists", "nested too deep"},
    {"slot_10000", "ref_counter_offset is 10000"},
    {"ctr_traversal", "ref_counter_handle"},
    {"frame_nested", "a frame within a frame"},
    {"tuple_bomb", "nested more than 8 deep"},
    {"b64_urlsafe", "byte 0x2d at 4"},
    {"int_key", "a dict's key is an int"},
    {"trailing", "2 trailing bytes"},
    {"float", "BINFLOAT"},
    {"numel_overflow", "more than 2^63 - 1 bytes"},
    {"stop_empty", "stops with 0 values"},
    {"append_to_dict", "adds to a list, here to a dict"},
    {"build_twice_sglang", "FlattenedTensorMetadata"},
    {"os_system_stack_global", "'posix.system'"},
    {"obj", "OBJ (0x6f)"},
    {"proto2", "protocol 2"},
    {"recursive_list", "memo 0 is a list"},
    {"prefix_load_from_bytes", "'torch.storage._load_from_bytes'"},
    {"bare_args", "the pickle holds a tuple"},
    {"handle_long", "67 bytes"},
    {"marks", "more than 16 marks"},
    {"size_bytes_negative", "storage_size_bytes is -1"},
    {"reduce_non_global", "REDUCE would call a str"},
    {"b64_newline", "padded to a multiple of 4"},
    {"newobj_eval_sglang_mode", "'builtins.eval'"},
    {"ext1", "EXT1"},
    {"func_wrong", "not rebuild_cuda_tensor"},
    {"dup_key", "named twice"},
    {"newobj_ex", "NEWOBJ_EX"},
    {"dtype_str", "dtype is not a dtype"},
    {"list_of_tuples", "a list, beginning with a tuple"},
    {"prefix_torch_load", "'torch.load'"},
    {"stride_rank", "tensor_stride has 2 dimensions"},
    {"b64_garbage", "byte 0x21 at 0"},
    {"ctr_empty", "ref_counter_handle (0 bytes)"},
    {"binget_unset", "memo 7 is fetched"},
    {"reduce_dtype", "REDUCE would call bfloat16"},
    {"b64_nopad", "padded to a multiple of 4"},
    {"no_stop", "the pickle is cut off"},
    {"long1_255", "an int of 255 bytes"},
    {"size_too_many_dims", "at most 16 ints"},
    {"long_binget_max", "memo 4294967295 is fetched"},
    {"frame_cuts_operand", "beyond its frame"},
    {"handle_e_v1_posix_fd", "expandable_segments:False"},
    {"binunicode8_neg", "BINUNICODE8"},
    {"recursive_dict", "memo 0 is a dict"},
};

static void test_hostile_inputs_are_refused_with_the_reason(void **state)
{
    json_t *file = load("hostile.json"), *cases = json_object_get(file, "cases"), *c;
    size_t n = 0, i;

    (void)state;
    json_array_foreach(cases, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        const char *text = json_string_value(json_object_get(c, "payload_b64"));
        struct ipc_handles h = {0};
        struct err e = {0};
        size_t row = 0;

        alloc_nbytes_asked = 0;
        if (read_text(&h, text, &e) == 0)
            fail_msg("%s was accepted", name);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, FIELD);
        assert_null(h.all);
        assert_true(alloc_nbytes_asked <= 16384 + 100 * strlen(text));
        while (row < sizeof hostile / sizeof hostile[0] && strcmp(hostile[row].name, name) != 0)
            row++;
        if (row == sizeof hostile / sizeof hostile[0])
            fail_msg("no reason is written down for %s: %s", name, e.msg);
        if (strstr(e.msg, hostile[row].says) == NULL)
            fail_msg("%s: '%s' does not say '%s'", name, e.msg, hostile[row].says);
        n++;
    }
    assert_int_equal(n, sizeof hostile / sizeof hostile[0]);
    json_decref(file);
}

/* Its own mode of reading is not offered: the first strange global is named. */
static void test_sglang_is_refused_by_name(void **state)
{
    json_t *file = load("sglang_flattened_bucket.json");
    const json_t *r = json_array_get(json_object_get(file, "requests"), 0);
    const json_t *list = json_object_get(r, "serialized_named_tensors");

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ipc_handles h = {0};
        struct err e = {0};
        assert_int_equal(read_text(&h, json_string_value(json_array_get(list, i)), &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_non_null(strstr(e.msg, "_rebuild_cuda_tensor_modified"));
    }
    json_decref(file);
}

enum { BYTES_MAX = 8192 };

/* The bytes of a fixture's pickle, for tests that change them. */
static size_t decode(uint8_t out[BYTES_MAX], const char *text)
{
    struct err e = {0};
    size_t n;

    assert_true(strlen(text) / 4 * 3 + 3 <= BYTES_MAX);
    assert_int_equal(ipc_base64(out, &n, text, strlen(text), "a test", FIELD, &e), 0);
    return n;
}

static int read_bytes(struct ipc_handles *h, const uint8_t *bytes, size_t n, struct err *e)
{
    static char text[BASE64_ENCODE_RAW_LENGTH(BYTES_MAX) + 1];

    base64_encode_raw(text, n, bytes);
    return torch_handles_read(h, text, BASE64_ENCODE_RAW_LENGTH(n), FIELD, e);
}

static void test_truncation_at_every_byte_is_refused(void **state)
{
    static const char *const files[] = {"skyrl_packed_4gpu.json", "vllm_unpacked_func_args.json"};
    uint8_t bytes[BYTES_MAX];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        json_t *file = load(files[i]);
        size_t n = decode(bytes, pickled(file, 0));
        for (size_t cut = 0; cut < n; cut++) {
            struct ipc_handles h = {0};
            struct err e = {0};
            assert_int_equal(read_bytes(&h, bytes, cut, &e), -1);
            assert_int_equal(e.code, ERR_BAD_REQUEST);
        }
        json_decref(file);
    }
}

/* Python 3.14 writes protocol 5, which differs in this byte. */
static void test_protocol_5_is_the_same(void **state)
{
    json_t *file = load("skyrl_packed_4gpu.json");
    uint8_t bytes[BYTES_MAX];
    size_t n = decode(bytes, pickled(file, 0));
    struct ipc_handles h = {0};
    struct err e = {0};

    (void)state;
    bytes[1] = 5;
    assert_int_equal(read_bytes(&h, bytes, n, &e), 0);
    assert_dict(&h, 0, json_object_get(json_object_get(file, "expect"), "handles"));
    ipc_handles_fini(&h);
    bytes[1] = 6;
    assert_int_equal(read_bytes(&h, bytes, n, &e), -1);
    assert_non_null(strstr(e.msg, "protocol 6"));
    json_decref(file);
}

/* One byte of the packed fixture becomes another; the message must say what is wrong then. */
static void test_changed_arguments_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t was, becomes;
        const char *says;
    } rows[] = {
        {14 + 1, '1', 'g', "is not the UUID of a GPU"},
        {152, 1, 2, "not contiguous"},
        {156, 0, 1, "reaches beyond its storage"},
        {215, 2, 0, "version 0"},
        {215, 2, 4, "newer torch"},
        {216, 'c', 'e', "expandable segment"},
        {216, 'c', 'd', "type 0x64"},
        {283, 0x40, 0x3f, "reaches beyond its storage"},
        {290, 0x89, 'N', "requires_grad is None; it is a bool"},
        {293, '/', '.', "ref_counter_handle"},
        {319, 7, 8, NULL},
        {387, 0x88, 'N', "event_sync_required is None"},
        {392, 's', 'a', "adds to a list"},
    };
    json_t *file = load("skyrl_packed_1gpu.json");
    uint8_t bytes[BYTES_MAX];
    size_t n = decode(bytes, pickled(file, 0));

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ipc_handles h = {0};
        struct err e = {0};
        int rc;
        assert_int_equal(bytes[rows[i].at], rows[i].was);
        bytes[rows[i].at] = rows[i].becomes;
        rc = read_bytes(&h, bytes, n, &e);
        assert_int_equal(rc, rows[i].says != NULL ? -1 : 0);
        if (rows[i].says != NULL && strstr(e.msg, rows[i].says) == NULL)
            fail_msg("byte %zu: '%s' does not say '%s'", rows[i].at, e.msg, rows[i].says);
        bytes[rows[i].at] = rows[i].was;
        ipc_handles_fini(&h);
    }
    json_decref(file);
}

/* The packed fixture's dict, from its first byte to its SETITEM; its export is memo 24. */
enum { DICT_AT = 11, DICT_NBYTES = 393 - DICT_AT };

/* A pickle that a test writes by itself. */
struct text {
    uint8_t *bytes;
    size_t n;
};

static void add(struct text *t, const void *bytes, size_t n)
{
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
}

static void add_key(struct text *t, const char *uuid)
{
    uint8_t head[2] = {0x8c, (uint8_t)strlen(uuid)};

    add(t, head, 2);
    add(t, uuid, strlen(uuid));
}

static struct text begin(size_t nbytes_max, const char *head)
{
    json_t *file = load("skyrl_packed_1gpu.json");
    struct text t = {.bytes = malloc(nbytes_max + BYTES_MAX)};
    uint8_t bytes[BYTES_MAX];

    assert_non_null(t.bytes);
    (void)decode(bytes, pickled(file, 0));
    add(&t, "\x80\x04", 2);
    add(&t, head, strlen(head));
    add(&t, bytes + DICT_AT, DICT_NBYTES);
    json_decref(file);
    return t;
}

/* Ends the pickle and frees it; @says NULL: it is accepted, with n_handles. */
static void finish(struct text *t, enum err_code code, const char *says, uint32_t n_handles)
{
    char *text = malloc(BASE64_ENCODE_RAW_LENGTH(t->n + 1) + 1);
    struct ipc_handles h = {0};
    struct err e = {0};
    int rc;

    assert_non_null(text);
    add(t, ".", 1);
    base64_encode_raw(text, t->n, t->bytes);
    rc = torch_handles_read(&h, text, BASE64_ENCODE_RAW_LENGTH(t->n), FIELD, &e);
    assert_int_equal(rc, code == ERR_NONE ? 0 : -1);
    assert_int_equal(e.code, code);
    if (says != NULL && strstr(e.msg, says) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, says);
    assert_int_equal(h.n_handles, n_handles);
    ipc_handles_fini(&h);
    free(text);
    free(t->bytes);
}

#define UUID_1 "11111111-2222-3333-4444-000000000001"

static void test_lists_name_the_same_gpus_throughout(void **state)
{
    struct text t = begin(0, "]");

    (void)state;
    add(&t, "a}", 2);
    add_key(&t, "GPU-" UUID_0);
    add(&t, "h\x18sa", 4);
    finish(&t, ERR_NONE, NULL, 2);

    t = begin(0, "]");
    add(&t, "a}", 2);
    add_key(&t, UUID_1);
    add(&t, "h\x18sa", 4);
    finish(&t, ERR_BAD_REQUEST, "handle 1, GPU " UUID_1 ": the first dict does not name it", 0);

    t = begin(0, "]");
    add(&t, "a}", 2);
    add_key(&t, UUID_0);
    add(&t, "h\x18s", 3);
    add_key(&t, UUID_1);
    add(&t, "h\x18sa", 4);
    finish(&t, ERR_BAD_REQUEST, "a dict of 2 GPUs; the first has 1", 0);

    t = begin(0, "]");
    add(&t, "a}a", 3);
    finish(&t, ERR_BAD_REQUEST, "a dict of 0 GPUs; the first has 1", 0);

    t = begin(0, "]");
    add(&t, "aNa", 3);
    finish(&t, ERR_BAD_REQUEST, "an entry of the list is None", 0);

    t = begin(0, "");
    add_key(&t, "MIG-" UUID_0);
    add(&t, "h\x18s", 3);
    finish(&t, ERR_BAD_REQUEST, "named twice", 0);
}

static void test_nothing_is_no_handle(void **state)
{
    static const struct {
        const char *body, *says;
    } rows[] = {
        {"N", "the pickle holds None"},
        {"]", "a list, beginning with nothing"},
        {"}", "a dict of 0 GPUs"},
        {"]}a", "a dict of 0 GPUs"},
        {"](}e", "a dict of 0 GPUs"},
        {"(.", "0 values and 1 marks"},
        {"NN", "stops with 2 values"},
        {"]N(e", "adds to a list, here to None"},
        {"}(Nu", "make no pairs"},
        {"](a", "needs 2 values on the stack, there are 0"},
        {"\x85", "needs 1 values on the stack"},
        {"\x94", "needs 1 values on the stack"},
        {"t", "needs a mark"},
        {"\x80\x04", "opcode 0x80"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct text t = begin(0, "");
        t.n = 2;
        add(&t, rows[i].body, strlen(rows[i].body));
        finish(&t, ERR_BAD_REQUEST, rows[i].says, 0);
    }
}

/* One export that a list repeats without end, and values without end: both have a limit. */
static void test_limits_hold(void **state)
{
    static const uint8_t entry[] = {'a', '}', 'h', 1, 'h', 24, 's'};
    struct text t = begin(sizeof entry * (size_t)IPC_HANDLES_MAX, "]");
    struct ipc_handles h = {0};
    struct err e = {0};

    (void)state;
    for (uint32_t i = 0; i < IPC_HANDLES_MAX; i++)
        add(&t, entry, sizeof entry);
    add(&t, "a", 1);
    finish(&t, ERR_TOO_LARGE, "1048577 handles; 1048576 is the limit", 0);

    t = begin(2 * ((size_t)PICKLE_ITEMS_MAX + 1), "]");
    t.n = 3;
    for (uint32_t i = 0; i < PICKLE_ITEMS_MAX; i++)
        add(&t, "Na", 2);
    finish(&t, ERR_TOO_LARGE, "send the tensors in several requests", 0);

    assert_int_equal(torch_handles_read(&h, "", (size_t)PICKLE_NBYTES_MAX / 3 * 4 + 8, FIELD, &e),
                     -1);
    assert_int_equal(e.code, ERR_TOO_LARGE); /* before a byte is read */
}

static void test_every_allocation_fails_in_turn(void **state)
{
    json_t *file = load("vllm_unpacked_400.json");
    bool failed = true;
    long n = 0;

    (void)state;
    for (; failed; n++) {
        struct ipc_handles h = {0};
        struct err e = {0};
        int rc;
        alloc_left = n;
        rc = read_text(&h, pickled(file, 0), &e);
        failed = alloc_left < 0;
        alloc_left = -1;
        assert_int_equal(rc, failed ? -1 : 0);
        assert_int_equal(e.code, failed ? ERR_NO_MEMORY : ERR_NONE);
        assert_true((h.all != NULL) == (rc == 0));
        ipc_handles_fini(&h);
    }
    assert_true(n > 10);
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_containers_are_read_to_the_value),
        cmocka_unit_test(test_list_of_pairs_is_read_to_the_value),
        cmocka_unit_test(test_list_of_400_is_read_to_the_value),
        cmocka_unit_test(test_pickles_of_torch_on_a_gpu),
        cmocka_unit_test(test_hostile_inputs_are_refused_with_the_reason),
        cmocka_unit_test(test_sglang_is_refused_by_name),
        cmocka_unit_test(test_truncation_at_every_byte_is_refused),
        cmocka_unit_test(test_protocol_5_is_the_same),
        cmocka_unit_test(test_changed_arguments_are_refused),
        cmocka_unit_test(test_lists_name_the_same_gpus_throughout),
        cmocka_unit_test(test_nothing_is_no_handle),
        cmocka_unit_test(test_limits_hold),
        cmocka_unit_test(test_every_allocation_fails_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
