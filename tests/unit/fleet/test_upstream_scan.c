/* The versions that a reply names, in chunks of any size. */
#include "fleet/members/version_scan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *text, *names; /* each with a '|' behind */
} rows[] = {
    {"", ""},
    {"{\"text\":\"a\",\"meta_info\":{\"id\":\"x\",\"weight_version\":\"step-1\"}}", "step-1|"},
    {"{\"weight_version\": \"default\"}", "default|"},
    {"[{\"weight_version\":\"a\"},{\"weight_version\":\"b\"}]", "a|b|"},
    {"\"\"weight_version\":\"a\"", "a|"},
    {"{\"weight_versions\":[{\"version\":\"a\"}],\"weight_version\":\"b\"}", "b|"},
    {"{\"weight_version\":null,\"x\":\"y\"}", ""},
    {"{\"weight_version\":\"\"}", "|"},
    /* generated text is not a member */
    {"{\"text\":\"\\\"weight_version\\\":\\\"evil\\\"\",\"weight_version\":\"good\"}", "good|"},
    {"{\"weight_version\":\"a\\\"b\\\\c\\/d\"}", "a\"b\\c/d|"},
    {"{\"weight_version\":\"\\u00e4\",\"weight_version\":\"b\"}", "b|"},
};

/* @cut  bytes that come together */
static void scan(char *out, size_t cap, const char *text, size_t cut)
{
    struct version_scan s = {0};
    size_t n = strlen(text), used = 0;

    out[0] = '\0';
    for (size_t at = 0; at < n; at += cut) {
        size_t len = n - at < cut ? n - at : cut;
        const char *data = text + at;

        while (version_scan_next(&s, &data, &len))
            used += (size_t)snprintf(out + used, cap - used, "%s|", s.name);
        assert_int_equal(len, 0);
    }
}

static void test_version_scan_finds_each_name_in_any_chunks(void **state)
{
    char out[256];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t cut = 1; cut <= strlen(rows[i].text) + 1; cut++) {
            scan(out, sizeof out, rows[i].text, cut);
            assert_string_equal(out, rows[i].names);
        }
}

static void test_version_scan_cuts_a_long_name(void **state)
{
    char text[2 * FLEET_LABEL_MAX], out[2 * FLEET_LABEL_MAX];

    (void)state;
    (void)snprintf(text, sizeof text, "{\"weight_version\":\"%0*d\"}", FLEET_LABEL_MAX + 9, 0);
    scan(out, sizeof out, text, 7);
    assert_int_equal(strlen(out), FLEET_LABEL_MAX + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_scan_finds_each_name_in_any_chunks),
        cmocka_unit_test(test_version_scan_cuts_a_long_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
