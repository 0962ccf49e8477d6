/* CUDA IPC handles in plain JSON, GPUs' UUIDs, strict base64. calloc fails when a test says so. */
#include "transport/ipc/ipc_handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UUID_0 "11111111-2222-3333-4444-000000000000"

void *__real_calloc(size_t n, size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);

static bool calloc_fails;

void *__wrap_calloc(size_t n, size_t nbytes)
{
    return calloc_fails ? NULL : __real_calloc(n, nbytes);
}

static json_t *json_handle(void)
{
    static const char b64[] = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEy"
                              "MzQ1Njc4OTo7PD0+Pw==";
    json_t *j = json_pack("{s:s, s:i, s:i, s:s}", "handle", b64, "offset", 4096, "nbytes", 5184,
                          "event", b64);

    assert_non_null(j);
    return j;
}

static void test_uuids_are_one_with_and_without_prefix(void **state)
{
    static const char *const same[] = {
        "d7611478-ee26-342e-b23d-e059171b7686", "GPU-d7611478-ee26-342e-b23d-e059171b7686",
        "MIG-d7611478-ee26-342e-b23d-e059171b7686", "D7611478-EE26-342E-B23D-E059171B7686"};
    static const char *const wrong[] = {"",
                                        "GPU-",
                                        "d7611478-ee26-342e-b23d-e059171b768",
                                        "d7611478-ee26-342e-b23d-e059171b76866",
                                        "d7611478xee26-342e-b23d-e059171b7686",
                                        "d7611478-ee26-342e-b23d-e059171b768-",
                                        "CPU-d7611478-ee26-342e-b23d-e059171b7686"};
    char uuid[IPC_UUID_LEN + 1];

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        assert_true(ipc_uuid_parse(uuid, same[i], strlen(same[i])));
        assert_string_equal(uuid, same[0]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(ipc_uuid_parse(uuid, wrong[i], strlen(wrong[i])));
}

static void test_json_form_is_read(void **state)
{
    json_t *object = json_pack("{s:o}", "GPU-" UUID_0, json_handle());
    struct ipc_handles h = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(ipc_handles_from_json(&h, object, "/ipc_handles", &e), 0);
    assert_true(h.packed);
    assert_int_equal(h.n_gpus, 1);
    assert_string_equal(h.gpus[0].uuid, UUID_0);
    assert_true(h.all[0].has_memory && h.all[0].event_sync);
    for (int i = 0; i < IPC_MEM_NBYTES; i++)
        assert_true(h.all[0].mem[i] == i && h.all[0].event[i] == i);
    assert_int_equal(h.all[0].storage_offset, 4096);
    assert_int_equal(h.all[0].storage_nbytes, 5184);
    assert_int_equal(h.all[0].nbytes, 5184);
    assert_int_equal(h.all[0].dtype, DTYPE_U8);
    assert_string_equal(h.all[0].ref_name, "");
    ipc_handles_fini(&h);
    json_decref(object);
}

/* @value is put at @member of a good handle (NULL: taken away). */
static void refuse_member(const char *member, json_t *value, const char *field)
{
    json_t *handle = json_handle(), *object;
    struct ipc_handles h = {0};
    struct err e = {0};

    if (value != NULL)
        (void)json_object_set_new(handle, member, value);
    else
        (void)json_object_del(handle, member);
    object = json_pack("{s:o}", UUID_0, handle);
    assert_int_equal(ipc_handles_from_json(&h, object, "/h", &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, field);
    assert_null(h.all);
    json_decref(object);
}

static void test_json_form_is_refused_at_the_member(void **state)
{
    static const char padded[] =
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMD"
        "EyMzQ1Njc4OTo7PD0+P===";
    struct ipc_handles h = {0};
    struct err e = {0};
    json_t *object;

    (void)state;
    refuse_member("handle", NULL, "/h/" UUID_0 "/handle");
    refuse_member("offset", NULL, "/h/" UUID_0 "/offset");
    refuse_member("nbytes", NULL, "/h/" UUID_0 "/nbytes");
    refuse_member("handle", json_integer(1), "/h/" UUID_0 "/handle");
    refuse_member("handle", json_string("AAAA"), "/h/" UUID_0 "/handle");
    refuse_member("handle", json_string(padded), "/h/" UUID_0 "/handle");
    refuse_member("event", json_string("AA=="), "/h/" UUID_0 "/event");
    refuse_member("nbytes", json_integer(-1), "/h/" UUID_0 "/nbytes");
    refuse_member("offset", json_real(1.5), "/h/" UUID_0 "/offset");
    refuse_member("offset", json_integer(INT64_MAX), "/h/" UUID_0 "/offset");
    refuse_member("evnet", json_null(), "/h/" UUID_0 "/evnet");
    object = json_pack("{s:o, s:o}", UUID_0, json_handle(), "MIG-" UUID_0, json_handle());
    assert_int_equal(ipc_handles_from_json(&h, object, "/h", &e), -1);
    assert_non_null(strstr(e.msg, "named twice"));
    json_decref(object);
    err_clear(&e);
    object = json_object();
    assert_int_equal(ipc_handles_from_json(&h, object, "/h", &e), -1);
    assert_string_equal(e.field, "/h");
    json_decref(object);
}

static void test_no_memory_leaves_nothing(void **state)
{
    json_t *object = json_pack("{s:o}", UUID_0, json_handle());
    struct ipc_handles h = {0};
    struct err e = {0};
    int rc;

    (void)state;
    calloc_fails = true;
    rc = ipc_handles_from_json(&h, object, "/h", &e);
    calloc_fails = false;
    assert_int_equal(rc, -1);
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_null(h.all);
    json_decref(object);
}

static void test_base64_is_strict(void **state)
{
    static const struct {
        const char *text;
        int nbytes; /* -1: refused */
    } rows[] = {
        {"AAEC", 3},   {"AAE=", 2},  {"AA==", 1},  {"", -1},         {"A===", -1},
        {"====", -1},  {"AAE", -1},  {"AA=A", -1}, {"AAF=", -1},     {"AB==", -1},
        {"AA\nA", -1}, {"AA A", -1}, {"AA-_", -1}, {"AA==AAAA", -1}, {"AAAA\n\n\n\n", -1},
    };
    uint8_t out[16];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        size_t n = 99;
        int rc = ipc_base64(out, &n, rows[i].text, strlen(rows[i].text), "a text", "/t", &e);
        assert_int_equal(rc, rows[i].nbytes < 0 ? -1 : 0);
        assert_int_equal(n, rows[i].nbytes < 0 ? 99 : rows[i].nbytes);
        assert_int_equal(e.code, rows[i].nbytes < 0 ? ERR_BAD_REQUEST : ERR_NONE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uuids_are_one_with_and_without_prefix),
        cmocka_unit_test(test_json_form_is_read),
        cmocka_unit_test(test_json_form_is_refused_at_the_member),
        cmocka_unit_test(test_no_memory_leaves_nothing),
        cmocka_unit_test(test_base64_is_strict),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
