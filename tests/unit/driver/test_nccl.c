/* NCCL's table: what is loaded, what is refused, what is known of the library, how its results
 * become errors. */
#include "base/mtx.h"
#include "driver/nccl_info.h"
#include "tests/fakes/libnccl/fakenccl.h"

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

static struct nccl_api nccl;
static fakenccl_fail_fn *let_fail;

static int load(void **state)
{
    struct err e = {0};
    void *at;

    (void)state;
    if (nccl_load(&nccl, FAKENCCL, &e) != 0)
        return -1;
    at = dlsym(nccl.lib, "fakenccl_fail");
    memcpy(&let_fail, &at, sizeof at);
    return at != NULL ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    nccl_unload(&nccl);
    nccl_unload(&nccl); /* zeroed */
    nccl_unload(NULL);
    return nccl.lib == NULL && nccl.broadcast == NULL ? 0 : -1;
}

static void test_nccl_load_fills_the_whole_table(void **state)
{
    (void)state;
#define X(field, symbol, required, returns, args) assert_true(nccl.field != NULL);
    NCCL_SYMBOLS(X)
#undef X
}

static void test_nccl_load_refuses(void **state)
{
    static const struct {
        const char *path, *says;
    } rows[] = {
        {"/nowhere/libnccl.so.2", "libnccl.so.2 could not be loaded: cannot open shared object"},
        {"/dev/null", "null could not be loaded: "},
        {FAKENCCL_WITHOUT_ABORT, "has no symbol 'ncclCommAbort'; NCCL 2.14 or newer is needed"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct nccl_api api, before;
        struct err e = {0};

        memset(&api, 0x5a, sizeof api);
        before = api;
        assert_int_equal(nccl_load(&api, rows[i].path, &e), -1);
        assert_int_equal(e.code, ERR_NCCL);
        if (strstr(e.msg, rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", e.msg, rows[i].says);
        assert_null(strstr(e.msg, "/"));
        assert_memory_equal(&api, &before, sizeof api);
    }
}

static void test_nccl_try_translates(void **state)
{
    struct err e = {0};
    bool done = true;

    (void)state;
    assert_int_equal(nccl_try(&nccl, ncclSuccess, "ncclBroadcast", &e), 0);
    assert_int_equal(nccl_try(&nccl, ncclInProgress, "ncclBroadcast", &e), 0);
    assert_int_equal(e.code, ERR_NONE);

    /* the last error is empty, and then what a call left there */
    assert_int_equal(nccl_try(&nccl, ncclRemoteError, "ncclBroadcast", &e), -1);
    assert_int_equal(e.code, ERR_NCCL);
    assert_string_equal(e.msg, "ncclBroadcast: ncclRemoteError (6): "
                               "remote process exited or there was a network error");
    assert_string_equal(err_wire_name(e.code), "nccl_error");
    assert_int_equal(err_http_status(e.code), 500);
    assert_false(err_retryable(e.code));
    err_clear(&e);
    assert_int_equal(nccl_try(&nccl, nccl.get_version(NULL), "ncclGetVersion", &e), -1);
    assert_string_equal(e.msg, "ncclGetVersion: ncclInvalidArgument (4): invalid argument (run "
                               "with NCCL_DEBUG=WARN for details): GetVersion : version argument "
                               "is NULL");
    err_clear(&e);
    assert_int_equal(nccl_try(&nccl, 77, "ncclBroadcast", &e), -1);
    assert_non_null(strstr(e.msg, "a result without a name (77): unknown result code"));
    err_clear(&e);
    assert_int_equal(nccl_poll(&nccl, NULL, "ncclBroadcast", &done, &e), -1);
    assert_non_null(strstr(e.msg, "ncclCommGetAsyncError: ncclInvalidArgument (4)"));
    assert_true(done);
}

static const char *odd_text;

static const char *tell_odd_text(ncclComm_t comm)
{
    (void)comm;
    return odd_text;
}

static const char *tell_nothing(ncclResult_t result)
{
    (void)result;
    return NULL;
}

/* Whatever the library's last words are, the message is one line and fits. */
static void test_nccl_try_takes_any_text(void **state)
{
    static const struct {
        const char *text, *ends;
    } rows[] = {
        {"first\nsecond\t\x01third \n\n", "does not say more: first second  third"},
        {" \n", "does not say more"},
        {NULL, "does not say more"},
    };
    struct nccl_api odd = nccl;
    struct err e = {0};
    char big[4000];

    (void)state;
    odd.get_last_error = tell_odd_text;
    odd.get_error_string = tell_nothing;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t len = strlen(rows[i].ends);
        odd_text = rows[i].text;
        err_clear(&e);
        assert_int_equal(nccl_try(&odd, ncclSystemError, "ncclBroadcast", &e), -1);
        assert_true(strlen(e.msg) > len);
        assert_string_equal(e.msg + strlen(e.msg) - len, rows[i].ends);
    }
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    odd_text = big;
    err_clear(&e);
    assert_int_equal(nccl_try(&odd, ncclSystemError, "ncclBroadcast", &e), -1);
    assert_non_null(strstr(e.msg, "more: xxx"));
    assert_true(strlen(e.msg) < 400);
}

/* In a process of its own, which an assertion ends. */
static void test_nccl_try_asserts_that_no_lock_is_held(void **state)
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
        _exit(nccl_try(&nccl, ncclSuccess, "ncclGetVersion", &e));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void test_nccl_version_text(void **state)
{
    static const struct {
        int code;
        const char *text;
    } rows[] = {
        {22809, "2.28.9"}, {22803, "2.28.3"}, {21400, "2.14.0"}, {22612, "2.26.12"},
        {20902, "2.9.2"},  {2804, "2.8.4"},   {0, ""},           {-22809, ""},
        {999, ""},         {30105, "3.1.5"},
    };
    char text[NCCL_VERSION_TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nccl_version_text(text, rows[i].code);
        assert_string_equal(text, rows[i].text);
    }
}

static void test_nccl_probe_describes_the_library(void **state)
{
    static struct nccl_info info;

    (void)state;
    nccl_probe(&info, FAKENCCL);
    assert_true(info.available);
    assert_int_equal(info.version_code, 22809);
    assert_string_equal(info.version, "2.28.9");
    assert_string_equal(info.path, FAKENCCL);
    assert_string_equal(info.reason, "");
    assert_true(info.api.comm_abort != NULL);
    nccl_unload(&info.api);
}

static void test_nccl_probe_says_what_is_in_the_way(void **state)
{
    static const struct {
        const char *path, *version, *says, *tells;
        uint64_t fail_nth;
    } rows[] = {
        {"/nowhere/libnccl.so.2", "", "could not be loaded", "", 0},
        {FAKENCCL_WITHOUT_ABORT, "", "'ncclCommAbort'", "", 0},
        {FAKENCCL, "", "ncclGetVersion: ncclInternalError (3)", "", 1},
        {FAKENCCL, "21304", "NCCL 2.13.4 (21304) is not one of 2.14 and newer", "2.13.4", 0},
        {FAKENCCL, "30000", "NCCL 3.0.0 (30000) is not one of", "3.0.0", 0},
        {FAKENCCL, "0", "NCCL without a version (0) is not one of", "", 0},
    };
    static const struct nccl_api none;
    static struct nccl_info info;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)setenv("FAKENCCL_VERSION", rows[i].version, 1);
        let_fail("ncclGetVersion", rows[i].fail_nth);
        nccl_probe(&info, rows[i].path);
        assert_false(info.available);
        if (strstr(info.reason, rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", info.reason, rows[i].says);
        assert_string_equal(info.version, rows[i].tells);
        assert_true((info.path[0] != '\0') == (strcmp(rows[i].path, FAKENCCL) == 0));
        assert_memory_equal(&info.api, &none, sizeof none);
    }
    let_fail(NULL, 0);
    (void)unsetenv("FAKENCCL_VERSION");
}

static void test_nccl_config_init_is_the_initializer_without_blocking(void **state)
{
    ncclConfig_t c;

    (void)state;
    memset(&c, 0x5a, sizeof c);
    nccl_config_init(&c);
    assert_int_equal(c.size, sizeof c);
    assert_int_equal(c.magic, 0xcafebeef);
    assert_int_equal(c.version, 22800);
    assert_int_equal(c.blocking, 0);
    assert_int_equal(c.minCTAs, INT_MIN);
    assert_int_equal(c.nvlinkCentricSched, INT_MIN);
    assert_null(c.netName);
    assert_null(c.commName);
}

static void test_nccl_environment_overrides(void **state)
{
    (void)state;
    (void)setenv("NCCL_COMM_BLOCKING", "1", 1);
    nccl_environment();
    assert_string_equal(getenv("NCCL_COMM_BLOCKING"), "0");
    (void)unsetenv("NCCL_COMM_BLOCKING");
    nccl_environment();
    assert_string_equal(getenv("NCCL_COMM_BLOCKING"), "0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl_load_fills_the_whole_table),
        cmocka_unit_test(test_nccl_load_refuses),
        cmocka_unit_test(test_nccl_try_translates),
        cmocka_unit_test(test_nccl_try_takes_any_text),
        cmocka_unit_test(test_nccl_try_asserts_that_no_lock_is_held),
        cmocka_unit_test(test_nccl_version_text),
        cmocka_unit_test(test_nccl_probe_describes_the_library),
        cmocka_unit_test(test_nccl_probe_says_what_is_in_the_way),
        cmocka_unit_test(test_nccl_config_init_is_the_initializer_without_blocking),
        cmocka_unit_test(test_nccl_environment_overrides),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
