/* Keys: which files are read, which are refused without saying what was in them, and which request
 * may do what. */
#include "control/auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define VIEWER_KEY   "watch-0123456789"
#define GENERATE_KEY "generate-0123456789"
#define CONTROL_KEY  "control-0123456789!#$%&'*+-.^_`|~()<>@,;:/[]?={}"
#define WEIGHTS_KEY  "weights-0123456789"
#define ALL_KEYS                                                                                   \
    "viewer " VIEWER_KEY "\ngenerate " GENERATE_KEY "\ncontrol " CONTROL_KEY                       \
    "\nweights " WEIGHTS_KEY "\n"

static char path[] = "/tmp/test_auth.XXXXXX";

static void put(const void *data, size_t len)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void put_text(const char *text)
{
    put(text, strlen(text));
}

static struct auth *keys(const char *text)
{
    struct auth_cfg cfg = {.key_file = path};
    struct auth *a = NULL;
    struct err e = {0};

    put_text(text);
    if (auth_new(&a, &cfg, &e) != 0)
        fail_msg("%s: %s", e.field, e.msg);
    return a;
}

static enum err_code check(struct auth *a, const char *authorization, enum auth_role need)
{
    struct err e = {0};
    char name[ACTOR_KEY_MAX + 1];
    int rc = auth_check(a, authorization, false, need, name, &e);

    assert_int_equal(rc == 0, e.code == ERR_NONE);
    assert_null(strstr(e.msg, "0123456789")); /* no byte of any key */
    return e.code;
}

static void test_auth_check_roles(void **state)
{
#define U ERR_UNAUTHORIZED
#define F ERR_FORBIDDEN
    static const struct {
        const char *authorization;
        enum err_code codes[AUTH_ROLE_COUNT]; /* for a route that takes each role */
    } rows[] = {
        {"", {0, U, U, U, U}},
        {"Bearer " VIEWER_KEY, {0, 0, F, F, F}},
        {"Bearer " GENERATE_KEY, {0, 0, 0, F, F}},
        {"Bearer " CONTROL_KEY, {0, 0, 0, 0, F}},
        {"bearer   " CONTROL_KEY " \t", {0, 0, 0, 0, F}},
        {"Bearer " WEIGHTS_KEY, {0, F, F, F, 0}},
        {"Bearer " CONTROL_KEY "x", {0, U, U, U, U}},
        {"Bearer control-0123456789", {0, U, U, U, U}},
    };
    struct auth *a = keys(ALL_KEYS);

    (void)state;
    assert_true(auth_asks(a));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (unsigned need = 0; need < AUTH_ROLE_COUNT; need++)
            assert_int_equal(check(a, rows[i].authorization, (enum auth_role)need),
                             rows[i].codes[need]);
    auth_free(a);
}

static void test_auth_check_refuses_other_forms(void **state)
{
    static const char *const rows[] = {
        "Bearer",
        "Bearer ",
        "Bearer  \t ",
        "Bearer" CONTROL_KEY,
        CONTROL_KEY,
        "Basic " CONTROL_KEY,
        " Bearer " CONTROL_KEY,
        "Bearer " CONTROL_KEY " x",
        "Bearer x " CONTROL_KEY,
        "Bearer " CONTROL_KEY "," CONTROL_KEY,
        "Bearer control " CONTROL_KEY,
    };
    struct auth *a = keys(ALL_KEYS);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (check(a, rows[i], AUTH_VIEWER) != ERR_UNAUTHORIZED)
            fail_msg("'%s' was let in", rows[i]);
    auth_free(a);
}

/* Lines that are read, in one file: blanks, comments, ends of lines, the last one without an end.
 */
static void test_auth_new_reads_lines(void **state)
{
    struct auth *a = keys("# generate " VIEWER_KEY "0\n"
                          "\n"
                          "   \t \r\n"
                          "\tcontrol \t " CONTROL_KEY " \r\n"
                          "  # a comment\n"
                          "generate " GENERATE_KEY "1\n"
                          "generate " GENERATE_KEY "2");

    (void)state;
    assert_int_equal(auth_n_keys(a, AUTH_VIEWER), 0);
    assert_int_equal(auth_n_keys(a, AUTH_GENERATE), 2);
    assert_int_equal(auth_n_keys(a, AUTH_CONTROL), 1);
    assert_int_equal(check(a, "Bearer " CONTROL_KEY, AUTH_CONTROL), ERR_NONE);
    assert_int_equal(check(a, "Bearer " GENERATE_KEY "2", AUTH_GENERATE), ERR_NONE);
    assert_int_equal(check(a, "Bearer " VIEWER_KEY "0", AUTH_VIEWER), ERR_UNAUTHORIZED);
    auth_free(a);
}

static void expect_code(enum err_code code, const char *what, const char *says)
{
    struct auth_cfg cfg = {.key_file = path};
    struct auth *a = NULL;
    struct err e = {0};

    if (auth_new(&a, &cfg, &e) == 0)
        fail_msg("%s: it was read", what);
    assert_null(a);
    assert_int_equal(e.code, code);
    assert_string_equal(e.field, "--api-key-file");
    if (strstr(e.msg, says) == NULL)
        fail_msg("%s: '%s' does not say '%s'", what, e.msg, says);
    if (strstr(e.msg, "0123456789") != NULL || strstr(e.msg, "contrl") != NULL)
        fail_msg("%s: '%s' says what was in the file", what, e.msg);
}

static void expect_refused(const char *what, const char *says)
{
    expect_code(ERR_BAD_REQUEST, what, says);
}

static void test_auth_new_refuses_lines(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "is empty"},
        {"# nothing but this\n", "has no key"},
        {CONTROL_KEY "\n", "line 1: its first word is not one of viewer, generate, control, "
                           "weights"},
        {"\ncontrl " CONTROL_KEY "\n", "line 2: its first word"},
        {"Control " CONTROL_KEY "\n", "line 1: its first word"},
        {"anyone " CONTROL_KEY "\n", "line 1: its first word"},
        {"viewer " VIEWER_KEY "\ncontrol\n", "line 2: there is no key after the role"},
        {"control 0123456789 abcdef\n",
         "line 1: after the role and the key only name=NAME may follow"},
        {"control " CONTROL_KEY " name=\n", "line 1: its name has 0 characters, expected 1 to 32"},
        {"control " CONTROL_KEY " name=a/b\n", "line 1: its name may have letters, digits"},
        {"control " CONTROL_KEY " name=a b\n",
         "line 1: there is more than a role, a key and a name"},
        {"control 0123456789abcde\n", "line 1: its key has 15 characters, expected 16 to 256"},
        {"control 0123456789abcdef\x7f\n", "line 1: character 17 of its key is not visible"},
        {"control 0123456789\xc3\xa9xxxxxx\n", "line 1: character 11 of its key is not visible"},
        {"viewer " VIEWER_KEY "\n\ncontrol " VIEWER_KEY "\n",
         "line 3: its key is also that of line 1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put_text(rows[i].text);
        expect_refused(rows[i].text, rows[i].says);
    }
    put("control 0123456789abcdef\n\0\n", 27);
    expect_refused("a NUL", "NUL byte");
    assert_int_equal(unlink(path), 0);
    expect_code(ERR_NOT_FOUND, "no file", "cannot be opened");
    assert_int_equal(mkdir(path, 0700), 0);
    expect_code(ERR_UNREADABLE, "a directory", "cannot be read");
    assert_int_equal(rmdir(path), 0);
}

/* The longest key is read, a longer one is not; so for the number of keys, and the file. */
static void test_auth_new_bounds(void **state)
{
    char key[AUTH_KEY_LEN_MAX + 2], line[AUTH_KEY_LEN_MAX + 32];
    char *many = malloc(2 << 20);
    struct auth *a;
    size_t len = 0;

    (void)state;
    assert_non_null(many);
    memset(key, 'k', sizeof key);
    key[AUTH_KEY_LEN_MAX] = '\0';
    (void)snprintf(line, sizeof line, "viewer %s\n", key);
    a = keys(line);
    (void)snprintf(line, sizeof line, "Bearer %s", key);
    assert_int_equal(check(a, line, AUTH_VIEWER), ERR_NONE);
    auth_free(a);
    (void)snprintf(line, sizeof line, "viewer %sk\n", key);
    put_text(line);
    expect_refused("a long key", "257 characters");

    for (int i = 0; i < AUTH_KEYS_MAX; i++)
        len += (size_t)sprintf(many + len, "viewer %016d\n", i);
    a = keys(many);
    assert_int_equal(auth_n_keys(a, AUTH_VIEWER), AUTH_KEYS_MAX);
    assert_int_equal(check(a, "Bearer 0000000000000255", AUTH_VIEWER), ERR_NONE);
    auth_free(a);
    (void)sprintf(many + len, "viewer %016d\n", AUTH_KEYS_MAX);
    put_text(many);
    expect_refused("many keys", "more than 256 keys");

    memset(many, '\n', 2 << 20);
    put(many, (1 << 20) + 1);
    expect_refused("a long file", "longer than 1048576 bytes");
    free(many);
}

static void test_auth_reload_all_or_nothing(void **state)
{
    struct auth *a = keys(ALL_KEYS);
    struct err e = {0};
    bool changed = true;

    (void)state;
    assert_int_equal(auth_reload(a, &changed, &e), 0);
    assert_false(changed);
    put_text("control 0123456789-second\ncontrl 0123456789-third\n");
    assert_int_equal(auth_reload(a, &changed, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_int_equal(check(a, "Bearer " CONTROL_KEY, AUTH_CONTROL), ERR_NONE);
    assert_int_equal(check(a, "Bearer 0123456789-second", AUTH_VIEWER), ERR_UNAUTHORIZED);

    err_clear(&e);
    put_text("control 0123456789-second\n");
    assert_int_equal(auth_reload(a, &changed, &e), 0);
    assert_true(changed);
    assert_int_equal(check(a, "Bearer " CONTROL_KEY, AUTH_VIEWER), ERR_UNAUTHORIZED);
    assert_int_equal(check(a, "Bearer " VIEWER_KEY, AUTH_VIEWER), ERR_UNAUTHORIZED);
    assert_int_equal(check(a, "Bearer 0123456789-second", AUTH_CONTROL), ERR_NONE);
    auth_free(a);
}

static bool trusts(const struct auth *a, const char *ip)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(4711)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(4711)};

    if (inet_pton(AF_INET, ip, &v4.sin_addr) == 1)
        return auth_trusts(a, (const struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, ip, &v6.sin6_addr), 1);
    return auth_trusts(a, (const struct sockaddr *)&v6);
}

static void test_auth_trusts(void **state)
{
    static const char *const list[] = {"10.1.0.0/16", "fd00::/8", "192.0.2.7"};
    struct auth_cfg cfg = {NULL, list, 3};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct auth *a = NULL;
    struct err e = {0};
    char name[ACTOR_KEY_MAX + 1];

    (void)state;
    assert_int_equal(auth_new(&a, &cfg, &e), 0);
    assert_true(auth_asks(a));
    assert_true(trusts(a, "10.1.255.255"));
    assert_true(trusts(a, "::ffff:10.1.2.3")); /* the same peer on an IPv6 socket */
    assert_true(trusts(a, "fd12::1"));
    assert_true(trusts(a, "192.0.2.7"));
    assert_false(trusts(a, "192.0.2.8"));
    assert_false(trusts(a, "10.2.0.1"));
    assert_false(trusts(a, "127.0.0.1"));
    assert_false(trusts(a, "::1"));
    assert_false(auth_trusts(a, (const struct sockaddr *)&un));
    /* Trusted, everything; from elsewhere nothing but health, and no key would help. */
    assert_int_equal(auth_check(a, "", true, AUTH_CONTROL, name, &e), 0);
    assert_string_equal(name, "");
    assert_int_equal(check(a, "", AUTH_ANYONE), ERR_NONE);
    assert_int_equal(check(a, "", AUTH_VIEWER), ERR_FORBIDDEN);
    assert_int_equal(check(a, "Bearer " CONTROL_KEY, AUTH_VIEWER), ERR_FORBIDDEN);
    auth_free(a);
}

static void test_auth_trusts_unix(void **state)
{
    static const char *const list[] = {"unix"};
    struct auth_cfg cfg = {path, list, 1};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct auth *a = NULL;
    struct err e = {0};

    (void)state;
    put_text(ALL_KEYS);
    assert_int_equal(auth_new(&a, &cfg, &e), 0);
    assert_true(auth_trusts(a, (const struct sockaddr *)&un));
    assert_false(trusts(a, "127.0.0.1"));
    assert_int_equal(check(a, "", AUTH_VIEWER), ERR_UNAUTHORIZED);
    auth_free(a);
}

static void test_auth_new_refuses_trust(void **state)
{
    static const char *const rows[] = {"10.1.2.3/8", "Unix", "", "localhost"};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct auth_cfg cfg = {NULL, &rows[i], 1};
        struct auth *a = NULL;
        struct err e = {0};

        assert_int_equal(auth_new(&a, &cfg, &e), -1);
        assert_string_equal(e.field, "--no-auth-cidr");
        assert_null(a);
    }
}

static void test_auth_asks_nobody_without_keys(void **state)
{
    struct auth_cfg cfg = {0};
    struct auth *a = NULL;
    struct err e = {0};
    bool changed = false;

    (void)state;
    assert_int_equal(auth_new(&a, &cfg, &e), 0);
    assert_false(auth_asks(a));
    assert_int_equal(check(a, "", AUTH_CONTROL), ERR_NONE);
    assert_int_equal(check(a, "Bearer " VIEWER_KEY, AUTH_CONTROL), ERR_NONE);
    assert_int_equal(auth_reload(a, &changed, &e), 0);
    auth_free(a);
    auth_free(NULL);
}

static int start(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd >= 0 ? close(fd) : -1;
}

static int stop(void **state)
{
    (void)state;
    (void)unlink(path);
    memset(path + strlen(path) - 6, 'X', 6);
    return 0;
}

#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_auth_check_roles),
        T(test_auth_check_refuses_other_forms),
        T(test_auth_new_reads_lines),
        T(test_auth_new_refuses_lines),
        T(test_auth_new_bounds),
        T(test_auth_reload_all_or_nothing),
        T(test_auth_trusts),
        T(test_auth_trusts_unix),
        T(test_auth_new_refuses_trust),
        T(test_auth_asks_nobody_without_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
