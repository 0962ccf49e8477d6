/* The directory of adapters: what is written, what is removed, and what is never touched. */
#include "fleet/ask/adapter_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { NBYTES_MAX = 100 };

static char top[] = "/tmp/test_adapter_dir.XXXXXX";

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static int make_top(void **state)
{
    (void)state;
    return mkdtemp(top) != NULL ? 0 : -1;
}

static int remove_top(void **state)
{
    (void)state;
    return nftw(top, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct adapter_dir *new_dir(const char *name)
{
    struct adapter_dir *d = NULL;
    struct err e = {0};
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", top, name);
    assert_int_equal(adapter_dir_new(&d, path, NBYTES_MAX, NULL, &e), 0);
    return d;
}

static char *written(struct adapter_dir *d, const char *name, const char *tensors)
{
    struct adapter_content c = {
        .name = name, .config = "{}", .tensors = tensors, .nbytes = strlen(tensors)};
    struct err e = {0};
    char *path = NULL;

    assert_int_equal(adapter_dir_write(d, &c, &path, &e), 0);
    return path;
}

static void assert_file(const char *dir, const char *name, const char *expected)
{
    char path[512], text[64] = "";
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "r");
    assert_non_null(f);
    (void)fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    assert_string_equal(text, expected);
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void test_each_load_has_a_path_of_its_own(void **state)
{
    struct adapter_dir *d = new_dir("loads");
    char *first = written(d, "policy", "one"), *second = written(d, "policy", "second");
    char *other = written(d, "../etc", "x"), *third;

    (void)state;
    assert_string_not_equal(first, second);
    assert_file(first, "adapter_model.safetensors", "one");
    assert_file(second, "adapter_model.safetensors", "second");
    assert_file(second, "adapter_config.json", "{}");
    assert_non_null(strstr(other, "/loads/%2E%2E%2Fetc/baton-"));
    assert_int_equal(adapter_dir_nbytes(d), 3 + 6 + 1 + 3 * 2);
    third = written(d, "policy", "3");
    adapter_dir_remove(d, "policy", other);
    adapter_dir_remove(d, "policy", "/another/path");
    assert_true(exists(first) && exists(second) && exists(other));
    adapter_dir_remove(d, "policy", third);
    assert_false(exists(third));
    assert_true(exists(first) && exists(second));
    adapter_dir_keep_only(d, "policy", second);
    assert_false(exists(first));
    assert_true(exists(second) && exists(other));
    adapter_dir_keep_only(d, "policy", NULL);
    adapter_dir_keep_only(d, "../etc", "/another/path");
    assert_false(exists(second) || exists(other));
    assert_int_equal(adapter_dir_nbytes(d), 0);
    free(first);
    free(second);
    free(other);
    free(third);
    adapter_dir_free(d);
}

/* Files of the operator, beside a load, in one, and in place of one. */
static void test_nothing_else_is_removed(void **state)
{
    struct adapter_dir *d = new_dir("theirs");
    char *path = written(d, "policy", "one"), mine[600], in[600], parent[512];

    (void)state;
    (void)snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
    (void)snprintf(mine, sizeof mine, "%s/adapter_model.safetensors", parent);
    (void)snprintf(in, sizeof in, "%s/notes", path);
    assert_int_equal(close(open(mine, O_WRONLY | O_CREAT, 0600)), 0);
    assert_int_equal(close(open(in, O_WRONLY | O_CREAT, 0600)), 0);
    adapter_dir_keep_only(d, "policy", NULL);
    assert_true(exists(mine) && exists(in));
    assert_int_equal(adapter_dir_nbytes(d), 0);
    free(path);
    adapter_dir_free(d);
}

static void test_limit_counts_what_is_there(void **state)
{
    struct adapter_dir *d = new_dir("limit");
    struct adapter_content c = {.name = "b", .config = "{}", .tensors = top, .nbytes = 10};
    char big[NBYTES_MAX - 2 + 1], *path;
    struct err e = {0};

    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    path = written(d, "a", big);
    free(path);
    adapter_dir_free(d);
    d = new_dir("limit"); /* the next server */
    assert_int_equal(adapter_dir_write(d, &c, &path, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_non_null(strstr(e.msg, "--max-lora-bytes"));
    assert_null(path);
    adapter_dir_keep_only(d, "a", NULL);
    free(written(d, "b", big));
    c.nbytes = NBYTES_MAX + 1;
    err_clear(&e);
    assert_int_equal(adapter_dir_write(d, &c, &path, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    adapter_dir_free(d);
}

static void test_failed_write_leaves_no_file(void **state)
{
    struct adapter_dir *d = new_dir("fails");
    struct adapter_content c = {.name = "a", .config = "{}", .tensors = top, .nbytes = 1};
    char name[300], path[128], *made = NULL;
    struct err e = {0};

    (void)state;
    (void)snprintf(path, sizeof path, "%s/fails/a", top);
    assert_int_equal(close(open(path, O_WRONLY | O_CREAT, 0600)), 0); /* no directory */
    assert_int_equal(adapter_dir_write(d, &c, &made, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_null(made);
    memset(name, '.', sizeof name - 1);
    name[100] = '\0';
    c.name = name;
    err_clear(&e);
    assert_int_equal(adapter_dir_write(d, &c, &made, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/lora_name");
    adapter_dir_free(d);
}

static void test_new_refuses_what_is_no_directory(void **state)
{
    struct adapter_dir *d = NULL;
    struct err e = {0};
    char path[128];

    (void)state;
    (void)snprintf(path, sizeof path, "%s/file", top);
    assert_int_equal(close(open(path, O_WRONLY | O_CREAT, 0700)), 0);
    assert_int_equal(adapter_dir_new(&d, path, NBYTES_MAX, NULL, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    err_clear(&e);
    assert_int_equal(adapter_dir_check(path, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    err_clear(&e);
    (void)snprintf(path, sizeof path, "%s/none", top);
    assert_int_equal(adapter_dir_check(path, &e), 0);
    (void)snprintf(path, sizeof path, "%s/none/below", top);
    assert_int_equal(adapter_dir_check(path, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    err_clear(&e);
    assert_int_equal(adapter_dir_new(&d, path, NBYTES_MAX, NULL, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_null(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_load_has_a_path_of_its_own),
        cmocka_unit_test(test_nothing_else_is_removed),
        cmocka_unit_test(test_limit_counts_what_is_there),
        cmocka_unit_test(test_failed_write_leaves_no_file),
        cmocka_unit_test(test_new_refuses_what_is_no_directory),
    };

    return cmocka_run_group_tests(tests, make_top, remove_top);
}
