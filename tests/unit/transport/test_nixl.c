/* The server's side of the process that reads by NIXL, over processes that a peer has overwritten:
 * this program again, which does what its "library" says. Whatever they send or write, each call
 * ends by its deadline, and nothing foreign gets into a message. */
#include "base/clock.h"
#include "base/utf8.h"
#include "transport/nixl/nixl.h"
#include "transport/nixl/nixl_child.h"
#include "transport/nixl/nixl_wire.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { DEADLINE_US = 300000, LATE_US = 3000000, PATH_LEN = 3000, DEVICES_LEN = 600 };

static uint64_t ahead_us; /* how far the clock is ahead */
uint64_t __real_clock_now_us(void);
uint64_t __wrap_clock_now_us(void);

uint64_t __wrap_clock_now_us(void)
{
    return __real_clock_now_us() + ahead_us;
}

/* ---- the process ---- */

static void answer(const struct nixl_reply *r)
{
    if (send(NIXL_FD_SOCKET, r, sizeof *r, MSG_NOSIGNAL) != (ssize_t)sizeof *r)
        _exit(0);
}

static void take_command(void)
{
    struct nixl_command c;
    char data[4096];

    if (recv(NIXL_FD_SOCKET, &c, sizeof c, MSG_WAITALL) != (ssize_t)sizeof c)
        _exit(0);
    for (uint64_t n; c.nbytes > 0; c.nbytes -= n) {
        n = c.nbytes < sizeof data ? c.nbytes : sizeof data;
        if (recv(NIXL_FD_SOCKET, data, n, MSG_WAITALL) != (ssize_t)n)
            _exit(0);
    }
}

/* Writes faster than it is read. */
static void flood(void)
{
    static const char noise[4096];

    (void)!fork();
    (void)!fork();
    for (;;)
        (void)!write(STDOUT_FILENO, noise, sizeof noise);
}

_Noreturn static void be_process(const char *what)
{
    static const char words[] = "E1 \xff\xfe of the library\n";
    struct nixl_reply r = {.code = ERR_NONE};

    if (strcmp(what, "words") == 0) {
        (void)!write(STDERR_FILENO, words, sizeof words - 1);
        _exit(9);
    }
    if (strcmp(what, "version") == 0)
        (void)strcpy(r.version, "1.2\xff\xfe");
    if (strcmp(what, "environment") == 0)
        (void)snprintf(r.version, sizeof r.version, "%hu %hu %s",
                       (unsigned short)strlen(getenv("LD_LIBRARY_PATH")),
                       (unsigned short)strlen(getenv("UCX_NET_DEVICES")),
                       getenv("BATON_API_KEY") != NULL ? "a key" : "no key");
    if (strcmp(what, "heir") == 0 && fork() == 0)
        flood();
    answer(&r);
    for (;;) {
        take_command();
        if (strcmp(what, "flood") == 0)
            flood();
        for (size_t i = 0; strcmp(what, "drip") == 0; i = (i + 1) % sizeof r) {
            (void)usleep(10000);
            (void)send(NIXL_FD_SOCKET, (char *)&r + i, 1, MSG_NOSIGNAL);
        }
        if (strcmp(what, "failure") == 0) {
            r.code = 77777;
            (void)strcpy(r.msg, "a failure \xff of its own");
        }
        answer(&r);
    }
}

/* ---- the tests ---- */

static char devices[DEVICES_LEN + 1];

static struct nixl *started(const char *what)
{
    struct nixl_cfg cfg = {.library = what, .devices = devices};
    struct nixl *n = NULL;
    struct err e = {0};

    memset(devices, 'd', DEVICES_LEN);
    if (nixl_new(&n, &cfg, &e) != 0)
        fail_msg("%s: %s", what, e.msg);
    return n;
}

static int begin(struct nixl *n, struct err *e)
{
    struct progress p = {.deadline_us = clock_now_us() + DEADLINE_US};
    char name[] = "trainer";
    struct nixl_agent agent = {name, (uint8_t *)name, sizeof name};

    return nixl_begin(n, &agent, 1, &p, e);
}

static void test_an_end_by_the_deadline(void **state)
{
    static const char *const all[] = {"flood", "drip"};

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct nixl *n = started(all[i]);
        uint64_t began = __real_clock_now_us();
        struct nixl_info info;
        struct err e = {0};

        assert_int_equal(begin(n, &e), -1);
        assert_int_equal(e.code, ERR_TIMEOUT);
        assert_true(__real_clock_now_us() - began < LATE_US);
        nixl_info(n, &info);
        assert_false(info.running);
        nixl_free(n);
    }
}

/* One that it left behind has its output. */
static void test_an_heir_of_its_output(void **state)
{
    struct nixl *n = started("heir");
    struct err e = {0};

    (void)state;
    assert_int_equal(begin(n, &e), 0);
    nixl_end(n, false);
    nixl_free(n);
}

static bool is_text(const char *text)
{
    return utf8_valid_prefix(text, strlen(text)) == strlen(text);
}

static void test_foreign_text(void **state)
{
    struct nixl_cfg cfg = {.library = "words", .devices = "lo"};
    struct nixl *n = started("version");
    struct nixl_info info;
    struct err e = {0};

    (void)state;
    nixl_info(n, &info);
    assert_string_equal(info.version, "1.2??");
    nixl_free(n);

    assert_int_equal(nixl_new(&n, &cfg, &e), -1);
    assert_int_equal(e.code, ERR_NIXL);
    assert_true(is_text(e.msg));
    assert_non_null(strstr(e.msg, "it wrote: E1 ?? of the library"));

    n = started("failure");
    err_clear(&e);
    assert_int_equal(begin(n, &e), -1);
    assert_int_equal(e.code, ERR_NIXL);
    assert_string_equal(e.msg, "a failure ? of its own");
    nixl_free(n);
}

static void test_its_environment_is_whole(void **state)
{
    char path[PATH_LEN + 1], wanted[64];
    struct nixl_info info;
    struct nixl *n;

    (void)state;
    memset(path, 'p', PATH_LEN);
    path[PATH_LEN] = '\0';
    assert_int_equal(setenv("LD_LIBRARY_PATH", path, 1), 0);
    assert_int_equal(setenv("BATON_API_KEY", "secret", 1), 0);
    n = started("environment");
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
    nixl_info(n, &info);
    (void)snprintf(wanted, sizeof wanted, "%d %d no key", PATH_LEN, DEVICES_LEN);
    assert_string_equal(info.version, wanted);
    nixl_free(n);
}

/* It ends by itself when it was idle: shortly before, it is not used any more. */
static void test_one_that_is_about_to_end(void **state)
{
    struct nixl *n = started("well");
    struct nixl_info info;
    struct err e = {0};

    (void)state;
    for (uint64_t k = 0; k < 3; k++) {
        assert_int_equal(begin(n, &e), 0);
        nixl_end(n, true);
        nixl_info(n, &info);
        assert_int_equal(info.n_started, k < 2 ? 2 : 3);
        ahead_us += NIXL_IDLE_MS * UINT64_C(1000) * (k == 0 ? 50 : 99) / 100;
    }
    ahead_us = 0;
    nixl_free(n);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_end_by_the_deadline),
        cmocka_unit_test(test_an_heir_of_its_output),
        cmocka_unit_test(test_foreign_text),
        cmocka_unit_test(test_its_environment_is_whole),
        cmocka_unit_test(test_one_that_is_about_to_end),
    };

    if (argc == NIXL_CHILD_ARGC && strcmp(argv[1], NIXL_CHILD_COMMAND) == 0)
        be_process(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
