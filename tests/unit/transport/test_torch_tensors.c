/* Pickles of named tensors: every form that SGLang's trainers send is read to the value, and
 * whatever else comes is refused with a reason. Allocations fail in turn (the linker wraps them).
 */
#include "tests/unit/failing_alloc.h"
#include "transport/ipc/torch_pickle.h"
#include "transport/ipc/torch_tensors.h"

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

#define FIELD "/serialized_named_tensors/0"

enum { BYTES_MAX = 8192 };

static json_t *load(const char *name)
{
    char path[512];
    json_error_t error;
    json_t *j;

    (void)snprintf(path, sizeof path, "%s/torch-ipc/%s", FIXTURES, name);
    j = json_load_file(path, 0, &error);
    if (j == NULL)
        fail_msg("%s: %s", path, error.text);
    return j;
}

static const char *text_of(const json_t *object, const char *member)
{
    return json_string_value(json_object_get(object, member));
}

static uint64_t count_of(const json_t *object, const char *member)
{
    const json_t *value = json_object_get(object, member);

    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static int read_case(struct torch_tensors *t, const json_t *c, struct err *e)
{
    const char *text = text_of(c, "pickle");

    return torch_tensors_read(t, text, strlen(text), (uint32_t)count_of(c, "rank"), FIELD, e);
}

static const json_t *case_named(const json_t *cases, const char *name)
{
    const json_t *c;
    size_t i;

    json_array_foreach(cases, i, c) if (strcmp(text_of(c, "name"), name) == 0) return c;
    fail_msg("there is no case %s", name);
    return NULL;
}

/* The byte of the storage at which a tensor begins, by the handle that holds it. */
static uint64_t at_of(const struct torch_tensors *t, uint32_t i)
{
    if (t->handles.packed)
        return t->handles.all[0].tensor_offset + t->tensor_list->tensors[i].offset;
    assert_int_equal(t->handles.all[i].nbytes, t->tensor_list->tensors[i].nbytes);
    return t->handles.all[i].tensor_offset;
}

static void assert_tensor(const struct torch_tensors *t, uint32_t i, const json_t *x)
{
    const struct tensor_spec *spec = &t->tensor_list->tensors[i];
    const json_t *shape = json_object_get(x, "shape");

    assert_string_equal(spec->name, text_of(x, "name"));
    assert_int_equal(spec->dtype, dtype_parse(text_of(x, "dtype")));
    assert_int_equal(spec->ndim, json_array_size(shape));
    for (uint32_t k = 0; k < spec->ndim; k++)
        assert_int_equal(spec->shape[k], json_integer_value(json_array_get(shape, k)));
    assert_int_equal(spec->nbytes, count_of(x, "nbytes"));
    assert_int_equal(at_of(t, i), count_of(x, "at"));
}

static void assert_handle(const struct ipc_handle *h, const char *hex)
{
    char found[2 * IPC_MEM_NBYTES + 1];

    if (!h->has_memory) /* of an empty tensor */
        return;
    for (size_t i = 0; i < IPC_MEM_NBYTES; i++)
        (void)snprintf(found + 2 * i, 3, "%02x", h->mem[i]);
    assert_string_equal(found, hex);
    assert_string_equal(h->ref_name, "/torch_4242_1234567890_0");
    assert_true(h->event_sync);
}

/* What any accepted string must be, whatever it says. */
static void assert_sound(const struct torch_tensors *t)
{
    const struct ipc_handles *h = &t->handles;
    char uuid[IPC_UUID_LEN + 1];

    if (t->tensor_list == NULL) {
        assert_null(h->all);
        return;
    }
    assert_int_equal(h->n_gpus, 1);
    assert_ptr_equal(h->gpus[0].handles, h->all);
    assert_string_equal(h->gpus[0].uuid, t->uuid);
    assert_true(t->uuid[0] == '\0' || ipc_uuid_parse(uuid, t->uuid, strlen(t->uuid)));
    assert_int_equal(h->n_handles, h->packed ? 1 : t->tensor_list->n_tensors);
    if (h->packed)
        assert_true(t->tensor_list->nbytes <= h->all[0].nbytes);
    for (uint32_t i = 0; i < h->n_handles; i++) {
        const struct ipc_handle *one = &h->all[i];
        assert_true(one->nbytes <= one->storage_nbytes);
        assert_true(one->tensor_offset <= one->storage_nbytes - one->nbytes);
        assert_true(one->storage_offset <= TENSOR_LIST_NBYTES_MAX - one->storage_nbytes);
        assert_true(one->has_memory || one->storage_nbytes == 0);
        if (!h->packed)
            assert_int_equal(one->nbytes, t->tensor_list->tensors[i].nbytes);
    }
}

static void assert_holds(const struct torch_tensors *t, const json_t *wanted)
{
    const json_t *tensors = json_object_get(wanted, "tensors");

    assert_sound(t);
    if (json_is_null(wanted)) {
        assert_null(t->tensor_list);
        return;
    }
    assert_string_equal(t->uuid, text_of(wanted, "uuid"));
    assert_int_equal(t->tensor_list->n_tensors, json_array_size(tensors));
    if (t->tensor_list->n_tensors > 1)
        assert_int_equal(t->handles.packed, json_is_true(json_object_get(wanted, "packed")));
    for (uint32_t i = 0; i < t->tensor_list->n_tensors; i++)
        assert_tensor(t, i, json_array_get(tensors, i));
    if (text_of(wanted, "handle") != NULL)
        assert_handle(&t->handles.all[0], text_of(wanted, "handle"));
}

static void test_every_form_is_read_to_the_value(void **state)
{
    json_t *file = load("sglang_pickles.json"), *cases = json_object_get(file, "valid"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(cases) > 15);
    json_array_foreach(cases, i, c)
    {
        struct torch_tensors t = {0};
        struct err e = {0};

        if (read_case(&t, c, &e) != 0)
            fail_msg("%s was refused: %s", text_of(c, "name"), e.msg);
        assert_int_equal(e.code, ERR_NONE);
        assert_holds(&t, json_object_get(c, "holds"));
        torch_tensors_fini(&t);
        assert_null(t.tensor_list);
    }
    json_decref(file);
}

/* What a trainer of SGLang sent, from another source than the stand-ins. */
static void test_the_recorded_bucket(void **state)
{
    json_t *file = load("sglang_flattened_bucket.json");
    const json_t *list = json_object_get(json_array_get(json_object_get(file, "requests"), 0),
                                         "serialized_named_tensors");
    const char *text = json_string_value(json_array_get(list, 0));
    struct torch_tensors t = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(torch_tensors_read(&t, text, strlen(text), 0, FIELD, &e), 0);
    assert_sound(&t);
    assert_string_equal(t.uuid, "11111111-2222-3333-4444-000000000000");
    assert_true(t.handles.packed);
    assert_int_equal(t.tensor_list->n_tensors, 2);
    assert_string_equal(t.tensor_list->tensors[0].name, "w1");
    assert_int_equal(t.tensor_list->tensors[0].dtype, DTYPE_BF16);
    assert_int_equal(t.tensor_list->tensors[1].offset, 2048);
    assert_int_equal(t.tensor_list->tensors[1].dtype, DTYPE_F32);
    assert_int_equal(t.handles.all[0].ref_slot, 3);
    torch_tensors_fini(&t);

    text = json_string_value(json_array_get(list, 1));
    assert_int_equal(torch_tensors_read(&t, text, strlen(text), 1, FIELD, &e), 0);
    assert_sound(&t);
    assert_null(t.tensor_list);
    torch_tensors_fini(&t);
    json_decref(file);
}

static void test_hostile_inputs_are_refused_with_the_reason(void **state)
{
    json_t *file = load("sglang_pickles.json"), *cases = json_object_get(file, "hostile"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(cases) > 80);
    json_array_foreach(cases, i, c)
    {
        const char *name = text_of(c, "name"), *says = text_of(c, "says");
        struct torch_tensors t = {0};
        struct err e = {0};

        alloc_nbytes_asked = 0;
        if (read_case(&t, c, &e) == 0)
            fail_msg("%s was accepted", name);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, FIELD);
        assert_null(t.tensor_list);
        assert_true(says[0] != '\0');
        if (strstr(e.msg, says) == NULL)
            fail_msg("%s: '%s' does not say '%s'", name, e.msg, says);
        assert_true(alloc_nbytes_asked <= 65536 + 100 * strlen(text_of(c, "pickle")));
    }
    json_decref(file);
}

/* A list of handles is another payload, and refused as such; the two readers share no mode. */
static void test_handles_are_no_tensors(void **state)
{
    json_t *file = load("handles.json");
    const char *text = text_of(file, "skyrl_packed_dict");
    struct torch_tensors t = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(torch_tensors_read(&t, text, strlen(text), 0, FIELD, &e), -1);
    assert_non_null(strstr(e.msg, "the bucket has a member '"));
    json_decref(file);
}

static size_t decode(uint8_t out[BYTES_MAX], const char *text)
{
    struct err e = {0};
    size_t n;

    assert_true(strlen(text) / 4 * 3 + 3 <= BYTES_MAX);
    assert_int_equal(ipc_base64(out, &n, text, strlen(text), "a test", FIELD, &e), 0);
    return n;
}

static int read_bytes(struct torch_tensors *t, const uint8_t *bytes, size_t n, struct err *e)
{
    static char text[BASE64_ENCODE_RAW_LENGTH(BYTES_MAX) + 1];

    base64_encode_raw(text, n, bytes);
    return torch_tensors_read(t, text, BASE64_ENCODE_RAW_LENGTH(n), 0, FIELD, e);
}

static const char *const changed[] = {"flattened_bytes", "list", "serialized_rank_0"};

static void test_truncation_at_every_byte_is_refused(void **state)
{
    json_t *file = load("sglang_pickles.json"), *cases = json_object_get(file, "valid");
    uint8_t bytes[BYTES_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        size_t n = decode(bytes, text_of(case_named(cases, changed[i]), "pickle"));
        for (size_t cut = 0; cut < n; cut++) {
            struct torch_tensors t = {0};
            struct err e = {0};

            assert_int_equal(read_bytes(&t, bytes, cut, &e), -1);
            assert_int_equal(e.code, ERR_BAD_REQUEST);
        }
    }
    json_decref(file);
}

/* Whatever a byte becomes, it is refused, or what is read is sound. */
static void change_byte(uint8_t *bytes, size_t n, size_t at, uint8_t value)
{
    struct torch_tensors t = {0};
    struct err e = {0};

    bytes[at] = value;
    if (read_bytes(&t, bytes, n, &e) == 0)
        assert_sound(&t);
    else
        assert_true(e.msg[0] != '\0' && t.tensor_list == NULL &&
                    (e.code == ERR_BAD_REQUEST || e.code == ERR_TOO_LARGE));
    torch_tensors_fini(&t);
}

static void test_every_byte_as_every_opcode(void **state)
{
    static const uint8_t ops[] = "()\x2e"
                                 "BCJKMNRX]abhjst}"
                                 "\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95"
                                 "0FGcioqr2\x8d\x8e\x92\xff\x01";
    json_t *file = load("sglang_pickles.json"), *cases = json_object_get(file, "valid");
    uint8_t bytes[BYTES_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        size_t n = decode(bytes, text_of(case_named(cases, changed[i]), "pickle"));
        for (size_t at = 0; at < n; at++) {
            uint8_t was = bytes[at];
            for (size_t k = 0; k < sizeof ops; k++) /* with the 0 at its end */
                change_byte(bytes, n, at, ops[k]);
            bytes[at] = was;
        }
    }
    json_decref(file);
}

/* Many handles that share one long value: each is read once, and it is short. */
static void test_shared_values_are_bounded(void **state)
{
    json_t *file = load("sglang_pickles.json"), *cases = json_object_get(file, "valid");
    const json_t *c = case_named(cases, "flattened_1001");
    struct torch_tensors t = {0};
    struct err e = {0};

    (void)state;
    alloc_nbytes_asked = 0;
    assert_int_equal(read_case(&t, c, &e), 0);
    assert_int_equal(t.tensor_list->n_tensors, 1001);
    assert_true(alloc_nbytes_asked <= 100 * strlen(text_of(c, "pickle")));
    torch_tensors_fini(&t);
    json_decref(file);
}

static void test_a_pickle_that_is_too_long_is_not_decoded(void **state)
{
    size_t len = ((size_t)PICKLE_NBYTES_MAX / 3 + 2) * 4;
    char *text = malloc(len);
    struct torch_tensors t = {0};
    struct err e = {0};

    (void)state;
    assert_non_null(text);
    memset(text, 'A', len);
    alloc_nbytes_asked = 0;
    assert_int_equal(torch_tensors_read(&t, text, len, 0, FIELD, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    assert_int_equal(alloc_nbytes_asked, 0);
    free(text);
}

static void test_every_allocation_fails_in_turn(void **state)
{
    json_t *file = load("sglang_pickles.json"), *cases = json_object_get(file, "valid");

    (void)state;
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        const json_t *c = case_named(cases, changed[i]);
        bool failed = true;
        long n = 0;

        for (; failed; n++) {
            struct torch_tensors t = {0};
            struct err e = {0};
            int rc;

            alloc_left = n;
            rc = read_case(&t, c, &e);
            failed = alloc_left < 0;
            alloc_left = -1;
            assert_true(rc == 0 ||
                        failed); /* a tensor list that cannot be made smaller stays large */
            assert_int_equal(e.code, rc != 0 ? ERR_NO_MEMORY : ERR_NONE);
            assert_true((t.tensor_list != NULL) == (rc == 0));
            torch_tensors_fini(&t);
        }
        assert_true(n > 8);
    }
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_is_read_to_the_value),
        cmocka_unit_test(test_the_recorded_bucket),
        cmocka_unit_test(test_hostile_inputs_are_refused_with_the_reason),
        cmocka_unit_test(test_handles_are_no_tensors),
        cmocka_unit_test(test_truncation_at_every_byte_is_refused),
        cmocka_unit_test(test_every_byte_as_every_opcode),
        cmocka_unit_test(test_shared_values_are_bounded),
        cmocka_unit_test(test_a_pickle_that_is_too_long_is_not_decoded),
        cmocka_unit_test(test_every_allocation_fails_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
