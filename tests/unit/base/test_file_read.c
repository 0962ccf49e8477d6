/* Files that are read whole: to their limit, and nothing that could keep the reader waiting. */
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/test_file_read_XXXXXX";
static char path[PATH_MAX];

static void write_bytes(size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    for (size_t i = 0; i < n; i++)
        assert_true(fputc('a' + (int)(i % 26), f) != EOF);
    assert_int_equal(fclose(f), 0);
}

static void expect(const struct file_cfg *f, enum err_code code, const char *field, const char *msg)
{
    char untouched, *out = &untouched;
    size_t len = 7;
    struct err e = {0};

    assert_int_equal(file_read(&out, &len, f, &e), -1);
    assert_int_equal(e.code, code);
    assert_string_equal(e.field, field);
    if (strstr(e.msg, msg) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, msg);
    assert_ptr_equal(out, &untouched);
    assert_int_equal(len, 7);
}

static void test_a_file_is_read_up_to_its_limit(void **state)
{
    static const size_t lens[] = {0, 1, 26, 99, 100};
    struct file_cfg f = {.dir = dir, .path = "f", .field = "--it", .nbytes_max = 100};

    (void)state;
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        struct err e = {0};
        char *out;
        size_t len;

        write_bytes(lens[i]);
        assert_int_equal(file_read(&out, &len, &f, &e), 0);
        assert_int_equal(len, lens[i]);
        assert_int_equal(out[len], '\0');
        for (size_t k = 0; k < len; k++)
            assert_int_equal(out[k], 'a' + (int)(k % 26));
        free(out);
    }
    write_bytes(101);
    expect(&f, ERR_BAD_REQUEST, "--it", "'f' is longer than 100 bytes");
    assert_int_equal(unlink(path), 0);
}

static void test_what_is_no_file_is_refused_at_once(void **state)
{
    struct file_cfg f = {.path = path, .nbytes_max = 100};
    char *out = path;
    size_t len = 1;
    struct err e = {0};

    (void)state;
    expect(&f, ERR_NOT_FOUND, "", "cannot be opened: No such file");
    f.optional = true;
    assert_int_equal(file_read(&out, &len, &f, &e), 0);
    assert_null(out);
    assert_int_equal(len, 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect(&f, ERR_UNREADABLE, "", "not a regular file");
    f.pipes = true;
    expect(&f, ERR_UNREADABLE, "", "cannot be read: Is a directory");
    assert_int_equal(rmdir(path), 0);
    f.pipes = false;
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes to it */
    expect(&f, ERR_UNREADABLE, "", "not a regular file");
    assert_int_equal(unlink(path), 0);
}

static void test_a_pipe_is_read_to_its_end_where_it_may_be_one(void **state)
{
    struct file_cfg f = {.nbytes_max = 100, .pipes = true};
    char name[64], *out;
    struct err e = {0};
    size_t len;
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "{\"a\": 1}", 8), 8);
    assert_int_equal(close(ends[1]), 0);
    (void)snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    f.path = name;
    assert_int_equal(file_read(&out, &len, &f, &e), 0);
    assert_int_equal(len, 8);
    assert_string_equal(out, "{\"a\": 1}");
    free(out);
    f.pipes = false;
    expect(&f, ERR_UNREADABLE, "", "not a regular file");
    assert_int_equal(close(ends[0]), 0);
}

/* One whose writer neither writes all nor ends, and one whose writer is late. */
static void test_a_pipe_is_awaited_for_a_limited_time(void **state)
{
    struct file_cfg f = {.path = path, .nbytes_max = 100, .pipes = true, .field = "--it"};
    struct err e = {0};
    uint64_t began_us;
    char *out;
    size_t len;
    int fd;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fd, "half", 4), 4);
    began_us = clock_now_us();
    expect(&f, ERR_UNREADABLE, "--it", "is a pipe whose writer did not end within 5 s");
    assert_in_range(clock_now_us() - began_us, FILE_PIPE_WAIT_US, 2 * FILE_PIPE_WAIT_US);
    assert_int_equal(close(fd), 0);
    if (fork() == 0) {
        (void)usleep(200000);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        _exit(write(fd, "late", 4) == 4 ? 0 : 1);
    }
    assert_int_equal(file_read(&out, &len, &f, &e), 0);
    assert_string_equal(out, "late");
    free(out);
    assert_true(wait(NULL) > 0);
    assert_int_equal(unlink(path), 0);
}

static void test_a_path_that_is_too_long_is_refused(void **state)
{
    static char long_path[PATH_MAX + 1];
    struct file_cfg f = {.dir = dir, .path = long_path, .nbytes_max = 100, .optional = true};

    (void)state;
    memset(long_path, 'p', sizeof long_path - 1);
    expect(&f, ERR_UNREADABLE, "", "cannot be opened: File name too long");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_read_up_to_its_limit),
        cmocka_unit_test(test_what_is_no_file_is_refused_at_once),
        cmocka_unit_test(test_a_pipe_is_read_to_its_end_where_it_may_be_one),
        cmocka_unit_test(test_a_pipe_is_awaited_for_a_limited_time),
        cmocka_unit_test(test_a_path_that_is_too_long_is_refused),
    };
    int rc;

    if (mkdtemp(dir) == NULL)
        return 1;
    (void)snprintf(path, sizeof path, "%s/f", dir);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(dir);
    return rc;
}
