/* The driver's table: what is loaded, what is refused, how a driver's result becomes an error. */
#include "base/mtx.h"
#include "driver/cuda_info.h"
#include "tests/fakes/libcuda/fakecuda.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct cu_api cu;
static fakecuda_fail_nth_fn *fail_nth;
static fakecuda_counts_fn *read_counts;

static void *find(const char *name)
{
    void *at = dlsym(cu.lib, name);

    assert_non_null(at);
    return at;
}

static int load(void **state)
{
    struct err e = {0};
    void *at;

    (void)state;
    if (cu_load(&cu, FAKECUDA, &e) != 0)
        return -1;
    at = find("fakecuda_fail_nth");
    memcpy(&fail_nth, &at, sizeof at);
    at = find("fakecuda_counts");
    memcpy(&read_counts, &at, sizeof at);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    cu_unload(&cu);
    return cu.lib == NULL && cu.init == NULL ? 0 : -1;
}

static void test_cu_load_fills_the_whole_table(void **state)
{
    (void)state;
#define X(field, symbol, required, args) assert_true(cu.field != NULL);
    CU_SYMBOLS(X)
#undef X
    assert_true(cu_can_launch(&cu));
}

static void test_cu_load_refuses(void **state)
{
    static const struct {
        const char *path, *says;
    } rows[] = {
        {"/nowhere/libcuda.so.1", "libcuda.so.1 could not be loaded: cannot open shared object"},
        {"/dev/null", "null could not be loaded: "},
        {FAKECUDA_WITHOUT_IPC, "has no symbol 'cuIpcOpenMemHandle_v2'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct cu_api api, before;
        struct err e = {0};

        memset(&api, 0x5a, sizeof api);
        before = api;
        assert_int_equal(cu_load(&api, rows[i].path, &e), -1);
        assert_int_equal(e.code, ERR_CUDA);
        if (strstr(e.msg, rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", e.msg, rows[i].says);
        assert_null(strstr(e.msg, "/"));
        assert_memory_equal(&api, &before, sizeof api);
    }
}

static void test_cu_load_leaves_optional_symbols_null(void **state)
{
    struct cu_api api = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(cu_load(&api, FAKECUDA_WITHOUT_KERNELS, &e), 0);
    assert_null(api.launch_kernel);
    assert_non_null(api.ipc_open_mem_handle);
    assert_false(cu_can_launch(&api));
    cu_unload(&api);
    cu_unload(&api); /* zeroed */
    cu_unload(NULL);
}

static void test_cu_try_translates(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(cu_try(&cu, CUDA_SUCCESS, "cuInit", &e), 0);
    assert_int_equal(e.code, ERR_NONE);
    assert_int_equal(cu_try(&cu, CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc", &e), -1);
    assert_int_equal(e.code, ERR_CUDA);
    assert_non_null(strstr(e.msg, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): "));
    assert_string_equal(err_wire_name(e.code), "cuda_error");
    assert_int_equal(err_http_status(e.code), 500);

    err_clear(&e);
    assert_int_equal(cu_try(&cu, 123456, "cuInit", &e), -1);
    assert_non_null(strstr(e.msg, "(123456)"));
}

/* In a process of its own, which an assertion ends. */
static void test_cu_try_asserts_that_no_lock_is_held(void **state)
{
    struct mtx m;
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        struct err e = {0};

        (void)signal(SIGABRT, SIG_DFL);
        (void)close(STDERR_FILENO);
        mtx_init(&m, MTX_LEAF);
        mtx_lock(&m);
        _exit(cu_try(&cu, CUDA_SUCCESS, "cuInit", &e));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void test_cuda_devices_describes_each(void **state)
{
    static struct cuda_device devices[CUDA_DEVICES_MAX];
    struct err e = {0};
    size_t n = 0;

    (void)state;
    assert_int_equal(cu.init(0), CUDA_SUCCESS);
    assert_int_equal(cuda_devices(&cu, devices, &n, &e), 0);
    assert_int_equal(n, 2);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(devices[i].ordinal, (int)i);
        assert_string_equal(devices[i].name, "Fake GPU");
        assert_int_equal(devices[i].nbytes_total, 1000000);
        assert_int_equal(devices[i].major, 9);
        assert_int_equal(devices[i].minor, 0);
        assert_false(devices[i].mig);
    }
    assert_string_equal(devices[0].uuid, "GPU-fa6ec0da-0000-4000-8000-000000000000");
    assert_string_equal(devices[1].uuid, "GPU-fa6ec0da-0000-4000-8000-000000000001");
}

/* A call added to the description later is covered unedited. */
static void test_cuda_devices_fails_with_each_call(void **state)
{
    static struct cuda_device devices[CUDA_DEVICES_MAX];
    int rc = -1, n_failed = 0;

    (void)state;
    assert_int_equal(cu.init(0), CUDA_SUCCESS);
    for (uint64_t nth = 1; rc != 0; nth++) {
        struct err e = {0};
        size_t n = 77;

        fail_nth(nth);
        rc = cuda_devices(&cu, devices, &n, &e);
        assert_true((rc == 0) == (e.code == ERR_NONE));
        assert_true((rc == 0) == (n != 77));
        assert_true(rc == 0 || strstr(e.msg, "CUDA_ERROR_UNKNOWN (999)") != NULL);
        n_failed += rc != 0;
    }
    fail_nth(0);
    assert_true(n_failed >= 2 * 6);
}

static void test_cuda_probe_says_what_is_in_the_way(void **state)
{
    static struct cuda_info info;
    struct fakecuda_counts c;
    int n_failed = 0;

    (void)state;
    cuda_probe(&info, "/nowhere/libcuda.so.1");
    assert_false(info.available);
    assert_non_null(strstr(info.reason, "could not be loaded"));
    assert_string_equal(info.driver_version, "");
    assert_int_equal(info.n_devices, 0);

    for (uint64_t nth = 1; !info.available; nth++) {
        fail_nth(nth);
        cuda_probe(&info, FAKECUDA);
        assert_true(info.available == (info.reason[0] == '\0'));
        assert_true(info.available == (info.n_devices == 2));
        assert_true(info.available == (info.api.mem_alloc != NULL));
        n_failed += !info.available;
    }
    fail_nth(0);
    assert_true(n_failed >= 2 + 2 * 6);
    assert_string_equal(info.driver_version, "13.0");
    read_counts(&c);
    assert_int_equal(c.n_contexts_made, 0);
}

static void test_cuda_uuid_text_is_nvidia_smis(void **state)
{
    CUuuid uuid;
    char text[CUDA_UUID_MAX];

    (void)state;
    for (int i = 0; i < 16; i++)
        uuid.bytes[i] = (char)(i * 17);
    cuda_uuid_text(text, "MIG-", &uuid);
    assert_string_equal(text, "MIG-00112233-4455-6677-8899-aabbccddeeff");
    cuda_uuid_text(text, "", &uuid);
    assert_string_equal(text, "00112233-4455-6677-8899-aabbccddeeff");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cu_load_fills_the_whole_table),
        cmocka_unit_test(test_cu_load_refuses),
        cmocka_unit_test(test_cu_load_leaves_optional_symbols_null),
        cmocka_unit_test(test_cu_try_translates),
        cmocka_unit_test(test_cu_try_asserts_that_no_lock_is_held),
        cmocka_unit_test(test_cuda_devices_describes_each),
        cmocka_unit_test(test_cuda_devices_fails_with_each_call),
        cmocka_unit_test(test_cuda_probe_says_what_is_in_the_way),
        cmocka_unit_test(test_cuda_uuid_text_is_nvidia_smis),
    };

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    (void)setenv("FAKECUDA_MEMORY", "1000000", 1);
    return cmocka_run_group_tests(tests, load, unload);
}
