/* SkyRL's manifests: faults at which its own receiver gets stuck. That they are applied,
 * test_pull.c tests. */
#include "tests/unit/weights/pull_fixture.h"

#define S1       "delta-00000001"
#define MANIFEST "manifest.json"
#define SFILE    "delta-rank00000-file000000.safetensors"

static void skyrl_no_manifest(void)
{
    assert_int_equal(unlink(in_scratch(S1, MANIFEST)), 0);
}
static void skyrl_no_file(void)
{
    assert_int_equal(unlink(in_scratch(S1, SFILE)), 0);
}
static void skyrl_version(void)
{
    replace(S1, MANIFEST, "\"version\": 1", "\"version\": 3");
}
static void skyrl_base(void)
{
    replace(S1, MANIFEST, "\"base_version\": 0", "\"base_version\": 5");
}
static void skyrl_algorithm(void)
{
    replace(S1, MANIFEST, "xxh3-128", "md5");
}
static void skyrl_sum(void)
{
    replace(S1, MANIFEST, "\"checksum\": \"", "\"checksum\": \"0");
}
static void skyrl_wrong_sum(void)
{
    replace(S1, MANIFEST, "\"checksum\": \"4", "\"checksum\": \"5");
}
static void skyrl_outside(void)
{
    replace(S1, MANIFEST, "\"payload_file\": \"", "\"payload_file\": \"../");
}
static void skyrl_dtype(void)
{
    replace(S1, MANIFEST, "\"dtype\": \"bfloat16\"", "\"dtype\": \"float16\"");
}
static void skyrl_shape(void)
{
    replace(S1, MANIFEST, "\"shape\": [1024, 128]", "\"shape\": [128, 1024]");
}
static void skyrl_name(void)
{
    replace(S1, MANIFEST, "\"name\": \"model.norm", "\"name\": \"model.other");
}
static void skyrl_size(void)
{
    replace(S1, MANIFEST, "\"uncompressed_num_bytes\": 2", "\"uncompressed_num_bytes\": 3");
}
static void skyrl_compressed(void)
{
    replace(S1, MANIFEST, "\"compressed_num_bytes\": ", "\"compressed_num_bytes\": 1");
}
static void skyrl_totals(void)
{
    replace(S1, MANIFEST,
            "\"total_uncompressed_num_bytes\": ", "\"total_uncompressed_num_bytes\": 1");
}
static void skyrl_files(void)
{
    replace(S1, MANIFEST, "\"payload_files\": [\"" SFILE "\", ", "\"payload_files\": [");
}
static void skyrl_more_files(void)
{
    replace(S1, MANIFEST, "\"payload_files\": [", "\"payload_files\": [\"other.safetensors\", ");
}
static void skyrl_member(void)
{
    replace(S1, MANIFEST, "\"payload_key\"", "\"payload_kex\"");
}
static void skyrl_flip(void)
{
    flip(S1, SFILE, 40);
}
static void skyrl_cut(void)
{
    assert_int_equal(truncate(in_scratch(S1, SFILE), 3000), 0);
}

static const struct refusal skyrl_refusals[] = {
    {"", skyrl_no_manifest, ERR_NOT_FOUND, MANIFEST},
    {"", skyrl_no_file, ERR_NOT_FOUND, SFILE},
    {"", skyrl_version, ERR_BAD_REQUEST, "its version is 3"},
    {"", skyrl_base, ERR_PRECONDITION, "it builds on version 5"},
    {"", skyrl_algorithm, ERR_BAD_REQUEST, "'md5'"},
    {"", skyrl_sum, ERR_BAD_REQUEST, "no checksum"},
    {"", skyrl_wrong_sum, ERR_CHECKSUM, "tensor '"},
    {"", skyrl_outside, ERR_BAD_REQUEST, "is not a plain name"},
    {"", skyrl_dtype, ERR_MISMATCH, "dtype 'float16'"},
    {"", skyrl_shape, ERR_MISMATCH, "another shape than [1024, 128]"},
    {"", skyrl_name, ERR_MISMATCH, "no tensor 'model.other"},
    {"", skyrl_size, ERR_MISMATCH, "bytes uncompressed"},
    {"", skyrl_compressed, ERR_BAD_REQUEST, ""},
    {"", skyrl_totals, ERR_BAD_REQUEST, "totals"},
    {"", skyrl_files, ERR_BAD_REQUEST, SFILE},
    {"", skyrl_more_files, ERR_NOT_FOUND, "other.safetensors"},
    {"", skyrl_member, ERR_BAD_REQUEST, "payload_key"},
    {"", skyrl_flip, ERR_BAD_REQUEST, ""},
    {"", skyrl_cut, ERR_BAD_REQUEST, SFILE},
};

static void test_what_skyrl_gets_stuck_at(void **state)
{
    struct bench b;

    (void)state;
    setup(&b);
    for (size_t i = 0; i < sizeof skyrl_refusals / sizeof skyrl_refusals[0]; i++) {
        const struct refusal *r = &skyrl_refusals[i];

        copy_set(DELTA "skyrl/many-files");
        r->spoil();
        print_message("skyrl: %s\n", r->says);
        check_refused(&b, PULL_SKYRL, DELTA "skyrl/many-files", r->code, r->says);
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_skyrl_gets_stuck_at)};

    return run_pull_tests(tests, 1);
}
