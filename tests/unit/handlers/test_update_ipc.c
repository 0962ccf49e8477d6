/* What a request with CUDA IPC handles becomes: which tensor list each rank gets, and where its
 * tensors stood. Over two of the fake's GPUs; nothing is opened. Allocations fail when a test says
 * so. */
#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/source/source_json.h"
#include "memory/device.h"
#include "tests/unit/failing_alloc.h"
#include "transport/ipc/cuda_ipc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UUID_0 "fa6ec0da-0000-4000-8000-000000000000"
#define UUID_1 "fa6ec0da-0000-4000-8000-000000000001"
#define HANDLE                                                                                     \
    "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\""
#define ON(uuid, nbytes)                                                                           \
    "\"" uuid "\": {\"handle\": " HANDLE ", \"offset\": 0, \"nbytes\": " #nbytes "}"
#define LIST(a, b)                                                                                 \
    "\"names\": [\"" a "\", \"" b "\"], \"dtypes\": [\"U8\", \"BF16\"], \"shapes\": [[3], [2]]"
#define SUM "\"0123456789abcdef0123456789abcdef\""

static struct cuda_info cuda;
static struct device *devices[2];
static struct cuda_ipc_stats stats;
static struct app_weights weights;

static int set_up(void **state)
{
    struct err e = {0};

    (void)state;
    if (setenv("FAKECUDA_DEVICES", "2", 1) != 0)
        return -1;
    cuda_probe(&cuda, FAKECUDA);
    for (int i = 0; i < 2; i++)
        if (!cuda.available || device_new(&devices[i], &cuda.api, &cuda.devices[i], &e) != 0)
            return -1;
    weights = (struct app_weights){
        .cuda = &cuda, .devices = devices, .n_devices = 2, .ipc_stats = &stats};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    device_free(devices[1]);
    device_free(devices[0]);
    return 0;
}

static int take(struct update_chunk **out, const char *text, bool sharded, struct err *e)
{
    struct update_chunk *c = __real_calloc(1, sizeof *c);
    json_t *body = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    int rc;

    assert_non_null(c);
    assert_non_null(body);
    rc = ipc_from_body(c, &weights, body, NULL, sharded, e);
    json_decref(body);
    if (rc != 0) {
        assert_null(c->tensor_list);
        assert_null(c->ranks);
        assert_null(c->origins);
        assert_null(c->source);
        assert_null(c->checksums);
        update_chunk_free(c);
        return -1;
    }
    assert_non_null(c->source);
    *out = c;
    return 0;
}

static struct update_chunk *must_take(const char *text, bool sharded)
{
    struct update_chunk *c = NULL;
    struct err e = {0};

    if (take(&c, text, sharded, &e) != 0)
        fail_msg("%s at %s", e.msg, e.field);
    return c;
}

static void assert_names(const struct tensor_list *tensor_list, const char *names)
{
    char text[256] = "";

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i > 0 ? " " : "",
                       tensor_list->tensors[i].name);
    assert_string_equal(text, names);
}

static void assert_origin(const struct update_chunk *c, uint32_t i, uint32_t rank, uint32_t first,
                          const char *at)
{
    assert_true(i < c->n_origins);
    assert_int_equal(c->origins[i].rank, rank);
    assert_int_equal(c->origins[i].first, first);
    assert_string_equal(c->origins[i].at, at);
}

static void test_ipc_from_body_one_list_for_all_ranks(void **state)
{
    struct update_chunk *c = must_take(
        "{" LIST("a", "b") ", \"checksums\": [null, " SUM "], "
                           "\"ipc_handles\": {" ON(UUID_1, 7) "," ON(UUID_0, 7) "}}",
        false);

    (void)state;
    assert_null(c->ranks);
    assert_null(c->origins); /* every pointer is right as it is */
    assert_names(c->tensor_list, "a b");
    assert_false(c->has_checksum[0]);
    assert_true(c->has_checksum[1]);
    update_chunk_free(c);

    c = must_take("{" LIST("a", "b") ", \"ipc_handles\": {" ON(UUID_1, 7) "}}",
                  false); /* a peer's */
    assert_null(c->ranks);
    assert_names(c->tensor_list, "a b");
    update_chunk_free(c);
}

static void test_ipc_from_body_joins_buckets(void **state)
{
    struct update_chunk *c = must_take(
        "{\"buckets\": ["
        "{" LIST("a", "b") ", \"ipc_handles\": {" ON(UUID_0, 7) "," ON(
            UUID_1, 7) "}},"
                       "{" LIST("c", "d") ", \"checksums\": [" SUM ", null], "
                                          "\"ipc_handles\": {" ON(UUID_0, 7) "," ON(UUID_1,
                                                                                    7) "}}]}",
        false);

    (void)state;
    assert_null(c->ranks);
    assert_names(c->tensor_list, "a b c d");
    assert_int_equal(c->tensor_list->nbytes, 14);
    assert_int_equal(c->n_origins, 2);
    assert_origin(c, 0, 0, 0, "/buckets/0");
    assert_origin(c, 1, 0, 2, "/buckets/1");
    for (int i = 0; i < 4; i++)
        assert_int_equal(c->has_checksum[i], i == 2);
    update_chunk_free(c);
}

static void test_ipc_from_body_slices_each_gpu_by_its_own_list(void **state)
{
    struct update_chunk *c = must_take(
        "{" LIST("of", "nobody") ", \"per_gpu\": {"
                                 "\"GPU-" UUID_1 "\": {" LIST(
                                     "c", "d") ", \"checksums\": [" SUM ", null]},"
                                               "\"" UUID_0 "\": {" LIST(
                                                   "b", "a") "}},"
                                                             "\"ipc_handles\": {" ON(
                                                                 UUID_0, 7) "," ON(UUID_1, 7) "}}",
        false);

    (void)state;
    assert_non_null(c->ranks);
    assert_int_equal(c->n_ranks, 2);
    assert_names(c->ranks[0].tensor_list, "b a");
    assert_names(c->ranks[1].tensor_list, "c d");
    assert_null(c->ranks[0].checksums);
    assert_true(c->ranks[1].has_checksum[0]);
    assert_ptr_equal(c->tensor_list, c->ranks[0].tensor_list);
    assert_int_equal(c->n_origins, 2);
    assert_origin(c, 0, 0, 0, "/per_gpu/" UUID_0);
    assert_origin(c, 1, 1, 0, "/per_gpu/GPU-" UUID_1);
    update_chunk_free(c);
}

static void test_ipc_from_body_gives_shards_to_whom_they_are_addressed(void **state)
{
    struct update_chunk *c = must_take(
        "{\"buckets\": [{" LIST("a", "b") ", \"ipc_handles\": {" ON(
            UUID_1, 7) "}},"
                       "{" LIST("c", "d") ", \"ipc_handles\": {" ON(UUID_1, 7) "}}]}",
        true);

    (void)state;
    assert_null(c->ranks[0].tensor_list);
    assert_names(c->ranks[1].tensor_list, "a b c d");
    assert_ptr_equal(c->tensor_list, c->ranks[1].tensor_list);
    assert_origin(c, 0, 1, 0, "/buckets/0");
    assert_origin(c, 1, 1, 2, "/buckets/1");
    update_chunk_free(c);

    c = must_take("{" LIST("a", "b") ", \"ipc_handles\": {" ON(UUID_0, 7) "}}", true);
    assert_names(c->ranks[0].tensor_list, "a b");
    assert_null(c->ranks[1].tensor_list);
    assert_null(c->origins);
    update_chunk_free(c);
}

struct refusal {
    const char *body, *field, *says;
};

static const struct refusal refusals[] = {
    {"{" LIST("a", "b") ", \"per_gpu\": {\"" UUID_0 "\": {" LIST(
         "a", "b") "}},"
                   "\"ipc_handles\": {" ON(UUID_0, 7) "," ON(UUID_1, 7) "}}",
     "/per_gpu", "GPU " UUID_1 " is in the handles, but per_gpu has no list"},
    {"{\"per_gpu\": {\"" UUID_0 "\": {" LIST("a", "b") "}, \"" UUID_1 "\": {" LIST(
         "c", "d") "}},"
                   "\"ipc_handles\": {" ON(UUID_0, 7) "}}",
     "/per_gpu/" UUID_1, "there is no handle for that GPU"},
    {"{\"per_gpu\": {\"" UUID_0 "\": {" LIST("a", "b") "}, \"" UUID_1 "\": {" LIST(
         "c", "d") "}},"
                   "\"ipc_handles\": {" ON(UUID_0, 7) "," ON(UUID_1, 8) "}}",
     "/ipc_handles", "GPU " UUID_1 ": the bucket has 8 bytes"},
    {"{" LIST("a", "b") ", \"ipc_handles\": {" ON(UUID_0, 7) "," ON(UUID_1, 8) "}}", "/ipc_handles",
     "list them in per_gpu"},
    {"{\"buckets\": [{" LIST("a", "b") ", \"ipc_handles\": {" ON(
         UUID_0, 7) "}},"
                    "{" LIST("c", "a") ", \"ipc_handles\": {" ON(UUID_0, 7) "}}]}",
     "/buckets/1/names/1", "named twice, at /buckets/0/names/0 and at /buckets/1/names/1"},
};

static void test_ipc_from_body_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct update_chunk *c = NULL;
        struct err e = {0};

        if (take(&c, refusals[i].body, false, &e) == 0)
            fail_msg("taken: %s", refusals[i].body);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, refusals[i].field);
        if (strstr(e.msg, refusals[i].says) == NULL)
            fail_msg("%s", e.msg);
    }
}

/* Whichever allocation fails, the request does, and keeps nothing (a sanitizer sees to that). */
static void test_ipc_from_body_unwinds_every_failed_allocation(void **state)
{
    static const char body[] = "{\"buckets\": [{\"per_gpu\": {\"" UUID_0 "\": {" LIST(
        "a", "b") ", \"checksums\": [" SUM ", null]}, \"" UUID_1
                  "\": {" LIST("b", "a") "}},"
                                         "\"ipc_handles\": {" ON(UUID_0, 7) "," ON(
                                             UUID_1,
                                             7) "}},"
                                                "{" LIST("c", "d") ", \"ipc_handles\": {" ON(
                                                    UUID_0, 7) "," ON(UUID_1, 7) "}}]}";
    int rc = -1, n;

    (void)state;
    for (n = 0; rc != 0 && n < 1000; n++) {
        struct update_chunk *c = NULL;
        struct err e = {0};

        alloc_left = n;
        rc = take(&c, body, false, &e);
        alloc_left = -1;
        if (rc != 0)
            assert_int_equal(e.code, ERR_NO_MEMORY);
        else
            update_chunk_free(c);
    }
    assert_true(n > 15 && n < 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ipc_from_body_one_list_for_all_ranks),
        cmocka_unit_test(test_ipc_from_body_joins_buckets),
        cmocka_unit_test(test_ipc_from_body_slices_each_gpu_by_its_own_list),
        cmocka_unit_test(test_ipc_from_body_gives_shards_to_whom_they_are_addressed),
        cmocka_unit_test(test_ipc_from_body_refuses),
        cmocka_unit_test(test_ipc_from_body_unwinds_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
