/* What checkpoint-engine sends over its socket: what torch and its own code wrote is read to the
 * value, whatever else comes is refused with a reason, and no tensor is read outside of the buffer
 * or out of another. Allocations fail in turn (the linker wraps them). */
#include "tests/unit/failing_alloc.h"
#include "transport/ipc/torch_pickle.h"
#include "transport/zmq/zmq_messages.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES_MAX = 128 << 10, CHANGED_MAX = 1024 };

static json_t *load(void)
{
    json_error_t error;
    json_t *j = json_load_file(FIXTURES "/torch-ipc/checkpoint_engine.json", 0, &error);

    if (j == NULL)
        fail_msg("%s", error.text);
    return j;
}

static const char *text_of(const json_t *object, const char *member)
{
    return json_string_value(json_object_get(object, member));
}

/* Of a copy that ends where the message does, so that a read beyond it is seen. */
static int read_copy(struct zmq_message *m, const uint8_t *bytes, size_t n, struct err *e)
{
    uint8_t *copy = __real_malloc(n > 0 ? n : 1);
    int rc;

    assert_non_null(copy);
    memcpy(copy, bytes, n);
    rc = zmq_message_read(m, copy, n, e);
    free(copy); /* nothing of the message points there */
    return rc;
}

static size_t bytes_of(uint8_t out[BYTES_MAX], const json_t *c)
{
    const char *text = text_of(c, "pickle");
    struct err e = {0};
    size_t n = 0;

    assert_true(strlen(text) / 4 * 3 + 3 <= BYTES_MAX);
    if (*text != '\0')
        assert_int_equal(ipc_base64(out, &n, text, strlen(text), "a test", "", &e), 0);
    return n;
}

static const json_t *case_named(const json_t *cases, const char *name)
{
    const json_t *c;
    size_t i;

    json_array_foreach(cases, i, c) if (strcmp(text_of(c, "name"), name) == 0) return c;
    fail_msg("there is no case %s", name);
    return NULL;
}

static void assert_tensors(const struct zmq_message *m, const json_t *tensors)
{
    assert_int_equal(m->tensor_list->n_tensors, json_array_size(tensors));
    for (uint32_t i = 0; i < m->tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &m->tensor_list->tensors[i];
        const json_t *x = json_array_get(tensors, i), *shape = json_array_get(x, 2);

        assert_string_equal(t->name, json_string_value(json_array_get(x, 0)));
        assert_int_equal(t->dtype, dtype_parse(json_string_value(json_array_get(x, 1))));
        assert_int_equal(t->ndim, json_array_size(shape));
        for (uint32_t k = 0; k < t->ndim; k++)
            assert_int_equal(t->shape[k], json_integer_value(json_array_get(shape, k)));
        assert_int_equal(m->offsets[i], json_integer_value(json_array_get(x, 3)));
    }
}

static void assert_sound(const struct zmq_message *m)
{
    assert_true((m->tensor_list != NULL) == (m->kind == ZMQ_MESSAGE_TENSORS));
    if (m->kind != ZMQ_MESSAGE_BUFFER)
        return;
    assert_true(m->buffer.has_memory && m->buffer.dtype == DTYPE_U8 && m->buffer.ndim == 1);
    assert_true(m->buffer.nbytes <= m->buffer.storage_nbytes);
    assert_true(m->buffer.tensor_offset <= m->buffer.storage_nbytes - m->buffer.nbytes);
}

static void test_what_real_torch_wrote_is_read_to_the_value(void **state)
{
    static const char *const kinds[] = {[ZMQ_MESSAGE_BUFFER] = "buffer",
                                        [ZMQ_MESSAGE_TENSORS] = "tensors",
                                        [ZMQ_MESSAGE_NONE] = "none",
                                        [ZMQ_MESSAGE_ERROR] = "error"};
    static uint8_t bytes[BYTES_MAX];
    json_t *file = load(), *cases = json_object_get(file, "valid"), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(cases), 11);
    json_array_foreach(cases, i, c)
    {
        size_t n = bytes_of(bytes, c);
        struct zmq_message m = {0};
        struct err e = {0};

        if (read_copy(&m, bytes, n, &e) != 0)
            fail_msg("%s was refused: %s", text_of(c, "name"), e.msg);
        assert_string_equal(kinds[m.kind], text_of(c, "kind"));
        assert_sound(&m);
        if (m.kind == ZMQ_MESSAGE_TENSORS)
            assert_tensors(&m, json_object_get(c, "tensors"));
        if (m.kind == ZMQ_MESSAGE_BUFFER) {
            assert_int_equal(m.buffer.nbytes, 4096);
            assert_int_equal(m.buffer.storage_offset, 2 << 20);
            assert_int_equal(m.buffer.ref_slot, 7);
            assert_string_equal(m.buffer.ref_name, "/torch_4242_1234567890_0");
            assert_true(m.buffer.event_sync);
            assert_string_equal(m.uuid, "");
        }
        zmq_message_fini(&m);
        assert_null(m.tensor_list);
    }
    json_decref(file);
}

static void test_hostile_messages_are_refused_with_the_reason(void **state)
{
    static uint8_t bytes[BYTES_MAX];
    json_t *file = load(), *cases = json_object_get(file, "hostile"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(cases) > 40);
    json_array_foreach(cases, i, c)
    {
        size_t n = bytes_of(bytes, c);
        struct zmq_message m = {0};
        struct err e = {0};

        alloc_nbytes_asked = 0;
        if (read_copy(&m, bytes, n, &e) == 0)
            fail_msg("%s was accepted", text_of(c, "name"));
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, "");
        assert_null(m.tensor_list);
        if (strstr(e.msg, text_of(c, "says")) == NULL)
            fail_msg("%s: '%s' does not say '%s'", text_of(c, "name"), e.msg, text_of(c, "says"));
        assert_true(alloc_nbytes_asked <= 65536 + 100 * n);
    }
    json_decref(file);
}

/* An error is one of messages, and of no other pickle. */
static void test_an_error_is_no_handle_and_no_tensor(void **state)
{
    static uint8_t bytes[BYTES_MAX];
    json_t *file = load();
    size_t n = bytes_of(bytes, case_named(json_object_get(file, "valid"), "error_4"));
    struct pickle p = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(pickle_read(&p, bytes, n, "", &e), -1);
    assert_non_null(strstr(e.msg, "builtins.RuntimeError"));
    err_clear(&e);
    assert_int_equal(pickle_read_tensors(&p, bytes, n, "", &e), -1);
    assert_non_null(strstr(e.msg, "builtins.RuntimeError"));
    json_decref(file);
}

static const char *const changed[] = {"buffer_4", "list_5", "none_4", "error_4"};

static void test_truncation_at_every_byte_is_refused(void **state)
{
    static uint8_t bytes[BYTES_MAX];
    json_t *file = load();

    (void)state;
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        size_t n = bytes_of(bytes, case_named(json_object_get(file, "valid"), changed[i]));

        for (size_t cut = 0; cut < n; cut++) {
            struct zmq_message m = {0};
            struct err e = {0};

            assert_int_equal(read_copy(&m, bytes, cut, &e), -1);
            assert_int_equal(e.code, ERR_BAD_REQUEST);
        }
    }
    json_decref(file);
}

/* Whatever a byte becomes, it is refused, or what is read is sound. */
static void change_byte(uint8_t *bytes, size_t n, size_t at, uint8_t value)
{
    struct zmq_message m = {0};
    struct err e = {0};

    bytes[at] = value;
    if (read_copy(&m, bytes, n, &e) == 0)
        assert_sound(&m);
    else
        assert_true(e.msg[0] != '\0' && m.tensor_list == NULL && m.offsets == NULL &&
                    (e.code == ERR_BAD_REQUEST || e.code == ERR_TOO_LARGE));
    zmq_message_fini(&m);
}

static void test_every_byte_as_every_opcode(void **state)
{
    static const uint8_t ops[] = "()\x2e"
                                 "BCJKMNRX]abhjst}"
                                 "\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95"
                                 "0FGcioqr2\x8d\x8e\x92\xff\x01";
    static uint8_t bytes[BYTES_MAX];
    json_t *file = load();

    (void)state;
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        size_t n = bytes_of(bytes, case_named(json_object_get(file, "valid"), changed[i]));

        assert_true(n <= CHANGED_MAX);
        for (size_t at = 0; at < n; at++) {
            uint8_t was = bytes[at];
            for (size_t k = 0; k < sizeof ops; k++) /* with the 0 at its end */
                change_byte(bytes, n, at, ops[k]);
            bytes[at] = was;
        }
    }
    json_decref(file);
}

/* Where tensors lie */

struct place_row {
    const char *what;
    uint64_t offsets[3];
    const char *says; /* NULL: it is placed */
};

/* Of 10 bytes of U8, 4 of F32 with 4 elements, and none of BF16. */
static void make_list(struct zmq_message *m, const uint64_t offsets[3])
{
    static const uint64_t ten[] = {10}, four[] = {2, 2}, none[] = {0, 7};
    struct tensor_list_builder *b;
    struct err e = {0};

    *m = (struct zmq_message){.kind = ZMQ_MESSAGE_TENSORS};
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "ten", DTYPE_U8, ten, 1, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "four", DTYPE_F32, four, 2, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "none", DTYPE_BF16, none, 2, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(b, &m->tensor_list, &e), 0);
    m->offsets = calloc(3, sizeof m->offsets[0]);
    assert_non_null(m->offsets);
    memcpy(m->offsets, offsets, 3 * sizeof offsets[0]);
}

static void test_tensors_lie_in_the_buffer_and_in_no_other(void **state)
{
    static const struct place_row rows[] = {
        {"gaps", {0, 16, 40}, NULL},
        {"another order", {90, 0, 90}, NULL},
        {"back to back", {2, 12, 0}, NULL},
        {"the last bytes", {90, 72, 100}, NULL},
        {"the empty one within another", {0, 16, 4}, NULL},
        {"one byte beyond",
         {91, 0, 0},
         "'ten' has 10 bytes from byte 91 on, and the buffer has 100"},
        {"far beyond", {UINT64_MAX, 0, 0}, "'ten' has"},
        {"the sum wraps", {0, UINT64_MAX - 3, 0}, "'four' has"},
        {"the empty one beyond", {0, 16, 102}, "'none' has"},
        {"not aligned", {0, 18, 33}, NULL},
        {"the same place", {16, 16, 0}, "overlap"},
        {"by one byte", {0, 8, 40}, "'four' begins at byte 8 of the buffer, and 'ten' ends at 10"},
        {"the empty one between", {0, 8, 2}, "overlap"},
    };
    struct ipc_handle buffer = {.has_memory = true,
                                .type = 'c',
                                .dtype = DTYPE_U8,
                                .ndim = 1,
                                .shape = {100},
                                .nbytes = 100,
                                .tensor_offset = 1000,
                                .storage_nbytes = 1100};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ipc_handle *handles = NULL;
        struct zmq_message m;
        struct err e = {0};
        int rc;

        make_list(&m, rows[i].offsets);
        rc = zmq_message_place(&handles, &m, &buffer, &e);
        if ((rc == 0) != (rows[i].says == NULL))
            fail_msg("%s: %s", rows[i].what, rc == 0 ? "was placed" : e.msg);
        if (rc != 0 && strstr(e.msg, rows[i].says) == NULL)
            fail_msg("%s: '%s' does not say '%s'", rows[i].what, e.msg, rows[i].says);
        for (uint32_t k = 0; rc == 0 && k < 3; k++) {
            assert_int_equal(handles[k].tensor_offset, 1000 + rows[i].offsets[k]);
            assert_int_equal(handles[k].nbytes, m.tensor_list->tensors[k].nbytes);
            assert_int_equal(handles[k].dtype, m.tensor_list->tensors[k].dtype);
            assert_true(handles[k].tensor_offset + handles[k].nbytes <= 1100);
        }
        free(handles);
        zmq_message_fini(&m);
    }
}

static void test_every_allocation_fails_in_turn(void **state)
{
    static uint8_t bytes[BYTES_MAX];
    json_t *file = load();
    size_t n_bytes = bytes_of(bytes, case_named(json_object_get(file, "valid"), "list_4"));
    struct ipc_handle buffer = {.nbytes = 1 << 20, .storage_nbytes = 1 << 20};
    bool failed = true;
    long n = 0;

    (void)state;
    for (; failed; n++) {
        struct ipc_handle *handles = NULL;
        struct zmq_message m = {0};
        struct err e = {0};
        int rc;

        alloc_left = n;
        rc = zmq_message_read(&m, bytes, n_bytes, &e);
        if (rc == 0)
            rc = zmq_message_place(&handles, &m, &buffer, &e);
        failed = alloc_left < 0;
        alloc_left = -1;
        assert_true(rc == 0 || failed); /* a tensor list that cannot be made smaller stays large */
        assert_int_equal(e.code, rc != 0 ? ERR_NO_MEMORY : ERR_NONE);
        assert_true((handles != NULL) == (rc == 0));
        free(handles);
        zmq_message_fini(&m);
    }
    assert_true(n > 8);
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_real_torch_wrote_is_read_to_the_value),
        cmocka_unit_test(test_hostile_messages_are_refused_with_the_reason),
        cmocka_unit_test(test_an_error_is_no_handle_and_no_tensor),
        cmocka_unit_test(test_truncation_at_every_byte_is_refused),
        cmocka_unit_test(test_every_byte_as_every_opcode),
        cmocka_unit_test(test_tensors_lie_in_the_buffer_and_in_no_other),
        cmocka_unit_test(test_every_allocation_fails_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
