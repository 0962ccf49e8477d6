/* The error table and its formatting. */
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_table_is_whole(void **state)
{
    (void)state;
    for (int c = ERR_NONE + 1; c < ERR_CODE_COUNT; c++) {
        int status = err_http_status((enum err_code)c);
        const char *name = err_wire_name((enum err_code)c);

        assert_true(status >= 400 && status <= 599);
        assert_true(strspn(name, "abcdefghijklmnopqrstuvwxyz_") == strlen(name) && name[0] != '\0');
        for (int d = c + 1; d < ERR_CODE_COUNT; d++)
            assert_string_not_equal(name, err_wire_name((enum err_code)d));
        if (status == 503 || status == 507)
            assert_true(err_retryable((enum err_code)c));
    }
    assert_string_equal(err_wire_name(ERR_NONE), "none");
}

static void test_set_fills_and_cuts(void **state)
{
    char long_text[2000];
    struct err e = {0};

    (void)state;
    assert_int_equal(err_set(&e, ERR_MISMATCH, "/names/3", "got %d", 7), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_string_equal(e.field, "/names/3");
    assert_string_equal(e.msg, "got 7");
    err_clear(&e);
    assert_int_equal(e.code, ERR_NONE);
    assert_string_equal(e.msg, "");
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    (void)err_set(&e, ERR_BAD_REQUEST, long_text, "%s", long_text);
    assert_int_equal(strlen(e.msg), ERR_MSG_MAX - 1);
    assert_int_equal(strlen(e.field), ERR_FIELD_MAX - 1);
    err_clear(&e);
    (void)err_set_errno(&e, ERR_INTERNAL, "", ENOENT, "cannot open %s", "it");
    assert_non_null(strstr(e.msg, "cannot open it: No such file or directory"));
    assert_non_null(strstr(e.msg, "2"));
    assert_int_equal(e.code, ERR_INTERNAL);
}

static void test_what_is_quoted_stays_on_one_line(void **state)
{
    struct err e = {0};

    (void)state;
    (void)err_set(&e, ERR_BAD_REQUEST, "", "unknown member '%s'", "a\nb\r\x1b[2J\x7f\tc\xc3\xa9");
    assert_string_equal(e.msg, "unknown member 'a b  [2J  c\xc3\xa9'");
}

static void test_what_we_lack_is_no_mistake_of_the_client(void **state)
{
    static const int ours[] = {EMFILE, ENFILE, ENOMEM, ENOBUFS};

    (void)state;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        struct err e = {0};

        (void)err_set_errno(&e, ERR_UNREADABLE, "/path", ours[i], "cannot open it");
        assert_int_equal(e.code, ERR_NO_MEMORY);
        assert_string_equal(e.field, "/path");
    }
}

static void test_second_report_is_a_bug(void **state)
{
    pid_t pid;
    int status;

    (void)state;
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct err e = {0};

        (void)close(2); /* its complaint is expected */
        (void)err_set(&e, ERR_BAD_REQUEST, "", "first");
        (void)err_set(&e, ERR_BAD_REQUEST, "", "second");
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_whole),
        cmocka_unit_test(test_set_fills_and_cuts),
        cmocka_unit_test(test_what_is_quoted_stays_on_one_line),
        cmocka_unit_test(test_what_we_lack_is_no_mistake_of_the_client),
        cmocka_unit_test(test_second_report_is_a_bug),
    };

    return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
