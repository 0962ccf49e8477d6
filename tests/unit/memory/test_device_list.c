/* --device: what is read, what is refused, and in which words. */
#include "memory/device_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define UUID_0 "fa6ec0da-0000-4000-8000-000000000000"
#define UUID_1 "fa6ec0da-0000-4000-8000-0000000000a1"
#define UUID_2 "fa6ec0da-0000-4000-8000-0000000000b2"

static struct cuda_info three(void)
{
    struct cuda_info cuda = {
        .available = true,
        .n_devices = 3,
        .devices = {{.ordinal = 0, .name = "NVIDIA H200", .uuid = "GPU-" UUID_0},
                    {.ordinal = 1, .name = "NVIDIA H200", .uuid = "GPU-" UUID_1},
                    {.ordinal = 2, .name = "NVIDIA H200 MIG", .uuid = "MIG-" UUID_2, .mig = true}},
    };

    return cuda;
}

static void test_device_list_parse_takes(void **state)
{
    static const struct {
        const char *text;
        uint32_t n, index[3];
    } rows[] = {
        {"cpu", 0, {0}},
        {"cuda:0", 1, {0}},
        {"cuda:2", 1, {2}},
        {"cuda:01", 1, {1}},
        {"cuda:1,cuda:0", 2, {1, 0}},
        {"GPU-" UUID_1, 1, {1}},
        {UUID_1, 1, {1}},
        {"gpu-FA6EC0DA-0000-4000-8000-0000000000A1", 1, {1}},
        {"MIG-" UUID_2, 1, {2}},
        {"cuda:2," UUID_0 ",cuda:1", 3, {2, 0, 1}},
    };
    struct cuda_info cuda = three();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct device_list list = {.n = 77};
        struct err e = {0};

        if (device_list_parse(&list, rows[i].text, &cuda, DEVICE_LIST_EXPECTED, &e) != 0)
            fail_msg("%s: %s", rows[i].text, e.msg);
        assert_int_equal(list.n, rows[i].n);
        for (uint32_t k = 0; k < list.n; k++)
            assert_int_equal(list.index[k], rows[i].index[k]);
    }
}

static void test_device_list_parse_refuses(void **state)
{
    static const struct {
        const char *text;
        enum err_code code;
        const char *says;
    } rows[] = {
        {"gpu", ERR_BAD_REQUEST, "'gpu' is not a device"},
        {"cuda", ERR_BAD_REQUEST, "expected cpu, cuda:<number>"},
        {"CPU", ERR_BAD_REQUEST, "'CPU'"},
        {"cuda:", ERR_BAD_REQUEST, "'cuda:'"},
        {"cuda:-1", ERR_BAD_REQUEST, "'cuda:-1'"},
        {"cuda:1x", ERR_BAD_REQUEST, "'cuda:1x'"},
        {"cuda:99999", ERR_BAD_REQUEST, "'cuda:99999'"},
        {"cuda:0,", ERR_BAD_REQUEST, "''"},
        {",cuda:0", ERR_BAD_REQUEST, "''"},
        {"cuda:0, cuda:1", ERR_BAD_REQUEST, "' cuda:1'"},
        {"GPU-", ERR_BAD_REQUEST, "'GPU-'"},
        {"GPU-fa6ec0da-0000-4000-8000-00000000000", ERR_BAD_REQUEST, "is not a device"},
        {"fa6ec0da-0000-4000-8000-00000000000g", ERR_BAD_REQUEST, "is not a device"},
        {"fa6ec0da00000-4000-8000-000000000000", ERR_BAD_REQUEST, "is not a device"},
        {"cuda:0,cpu", ERR_BAD_REQUEST, "cpu stands alone"},
        {"cpu,cpu", ERR_BAD_REQUEST, "cpu stands alone"},
        {"cuda:0,cuda:0", ERR_BAD_REQUEST, "cuda:0 is given twice"},
        {"cuda:1,cuda:01", ERR_BAD_REQUEST, "cuda:1 is given twice: each rank"},
        {"cuda:1,GPU-" UUID_1, ERR_BAD_REQUEST, "is cuda:1, which is given already"},
        {"cuda:3", ERR_NO_GPU,
         "there is no cuda:3; there is cuda:0 (GPU-" UUID_0 ", NVIDIA H200), cuda:1 (GPU-" UUID_1
         ", NVIDIA H200), cuda:2 (MIG-" UUID_2},
        {"GPU-00000000-0000-4000-8000-000000000000", ERR_NO_GPU, "there is cuda:0 (GPU-" UUID_0},
    };
    struct cuda_info cuda = three();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct device_list list = {.n = 77};
        struct err e = {0};

        assert_int_equal(device_list_parse(&list, rows[i].text, &cuda, DEVICE_LIST_EXPECTED, &e),
                         -1);
        assert_int_equal(list.n, 77);
        assert_string_equal(e.field, "--device");
        if (e.code != rows[i].code || strstr(e.msg, rows[i].says) == NULL)
            fail_msg("%s: %s: %s", rows[i].text, err_wire_name(e.code), e.msg);
    }
}

/* A mistake in the text is told first, whatever there is. */
static void test_device_list_parse_without_cuda(void **state)
{
    struct cuda_info cuda = {.reason = "libcuda.so.1 could not be loaded: no such file"};
    struct device_list list = {.n = 77};
    struct err e = {0};

    (void)state;
    assert_int_equal(device_list_parse(&list, "cpu", &cuda, DEVICE_LIST_EXPECTED, &e), 0);
    assert_int_equal(list.n, 0);
    assert_int_equal(device_list_parse(&list, "cuda:0", &cuda, DEVICE_LIST_EXPECTED, &e), -1);
    assert_int_equal(e.code, ERR_NO_GPU);
    assert_non_null(strstr(e.msg, "not available: libcuda.so.1 could not be loaded"));
    err_clear(&e);
    assert_int_equal(device_list_parse(&list, "cuda:0,cudax", &cuda, DEVICE_LIST_EXPECTED, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
}

/* As many as a host may have: the list of what there is is cut, and says so. */
static void test_device_list_parse_full_host(void **state)
{
    struct cuda_info cuda = {.available = true, .n_devices = CUDA_DEVICES_MAX};
    struct device_list list;
    struct err e = {0};
    char text[1024] = "";
    size_t len = 0;

    (void)state;
    for (int i = 0; i < CUDA_DEVICES_MAX; i++) {
        struct cuda_device *d = &cuda.devices[i];

        d->ordinal = i;
        (void)snprintf(d->name, sizeof d->name, "NVIDIA H200");
        (void)snprintf(d->uuid, sizeof d->uuid, "GPU-fa6ec0da-0000-4000-8000-0000000000%02x", i);
        len += (size_t)snprintf(text + len, sizeof text - len, "%scuda:%d", i > 0 ? "," : "",
                                CUDA_DEVICES_MAX - 1 - i);
    }
    assert_int_equal(device_list_parse(&list, text, &cuda, DEVICE_LIST_EXPECTED, &e), 0);
    assert_int_equal(list.n, CUDA_DEVICES_MAX);
    for (uint32_t i = 0; i < list.n; i++)
        assert_int_equal(list.index[i], CUDA_DEVICES_MAX - 1 - i);
    assert_int_equal(device_list_parse(&list, "cuda:64", &cuda, DEVICE_LIST_EXPECTED, &e), -1);
    assert_non_null(strstr(e.msg, " more"));
    assert_non_null(strstr(e.msg, "cuda:0 ("));
    assert_true(strlen(e.msg) < ERR_MSG_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_list_parse_takes),
        cmocka_unit_test(test_device_list_parse_refuses),
        cmocka_unit_test(test_device_list_parse_without_cuda),
        cmocka_unit_test(test_device_list_parse_full_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
