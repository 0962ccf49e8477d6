/* What a request with pickled tensors becomes: which string feeds which rank, and where its tensors
 * stood. Over two of the fake's GPUs; nothing is opened. Allocations fail when a test says so. */
#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/source/ipc_request.h"
#include "handlers/source/source_json.h"
#include "handlers/update_members.h"
#include "memory/device.h"
#include "tests/unit/failing_alloc.h"
#include "transport/ipc/cuda_ipc.h"

#include <nettle/base64.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FIELD "/serialized_named_tensors"
#define OTHER "deadbeef-0000-4000-8000-000000000000"

enum { BYTES_MAX = 8192, UUID_LEN = 36 };

static const char *const uuids[] = {"fa6ec0da-0000-4000-8000-000000000000",
                                    "fa6ec0da-0000-4000-8000-000000000001", OTHER};
static struct cuda_info cuda;
static struct device *devices[2];
static struct cuda_ipc_stats stats;
static struct app_weights weights;
static json_t *fixture;

static int set_up(void **state)
{
    struct err e = {0};

    (void)state;
    fixture = json_load_file(FIXTURES "/torch-ipc/sglang_pickles.json", 0, NULL);
    if (fixture == NULL || setenv("FAKECUDA_DEVICES", "2", 1) != 0)
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
    json_decref(fixture);
    return 0;
}

static const char *pickle_named(const char *name)
{
    const json_t *cases = json_object_get(fixture, "valid"), *c;
    size_t i;

    json_array_foreach(cases, i, c)
    {
        if (strcmp(json_string_value(json_object_get(c, "name")), name) == 0)
            return json_string_value(json_object_get(c, "pickle"));
    }
    fail_msg("there is no case %s", name);
    return NULL;
}

/* Every GPU that the pickle names becomes this one. */
static void put_uuid(uint8_t *bytes, size_t n, const char *uuid)
{
    for (size_t i = 0; i + UUID_LEN <= n; i++)
        if (memcmp(bytes + i, "11111111-2222-3333-4444-", 24) == 0)
            memcpy(bytes + i, uuid, UUID_LEN);
}

/* A string of the request: a case of the fixture, on GPU `gpu` of ours, or a stranger's. */
static void add(json_t *body, const char *name, int gpu)
{
    static char text[BASE64_ENCODE_RAW_LENGTH(BYTES_MAX) + 1];
    const char *from = pickle_named(name);
    uint8_t bytes[BYTES_MAX];
    struct err e = {0};
    size_t n;

    assert_true(strlen(from) / 4 * 3 + 3 <= BYTES_MAX);
    assert_int_equal(ipc_base64(bytes, &n, from, strlen(from), "a test", "", &e), 0);
    put_uuid(bytes, n, uuids[gpu]);
    base64_encode_raw(text, n, bytes);
    text[BASE64_ENCODE_RAW_LENGTH(n)] = '\0';
    assert_int_equal(json_array_append_new(json_object_get(body, FIELD + 1), json_string(text)), 0);
}

static json_t *request(void)
{
    json_t *body = json_pack("{s:[]}", FIELD + 1);

    assert_non_null(body);
    return body;
}

/* Steals the body. */
static int take(struct update_chunk **out, json_t *body, bool sharded, struct err *e)
{
    struct update_chunk *c = __real_calloc(1, sizeof *c);
    int rc;

    assert_non_null(c);
    rc = source_members_check(update_members, FIELD + 1, body, e);
    if (rc == 0)
        rc = named_tensors_from_body(c, &weights, body, sharded, e);
    json_decref(body);
    if (rc != 0)
        update_chunk_free(c);
    else
        *out = c;
    return rc;
}

static struct update_chunk *must_take(json_t *body, bool sharded)
{
    struct update_chunk *c = NULL;
    struct err e = {0};

    if (take(&c, body, sharded, &e) != 0)
        fail_msg("%s at %s", e.msg, e.field);
    return c;
}

static void must_refuse(json_t *body, bool sharded, const char *field, const char *says)
{
    struct update_chunk *c = NULL;
    struct err e = {0};

    assert_int_equal(take(&c, body, sharded, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, field);
    if (strstr(e.msg, says) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, says);
}

static void assert_origin(const struct update_chunk *c, uint32_t i, uint32_t rank, uint32_t string)
{
    char at[64];

    (void)snprintf(at, sizeof at, FIELD "/%u", string);
    assert_true(i < c->n_origins);
    assert_int_equal(c->origins[i].rank, rank);
    assert_int_equal(c->origins[i].first, 0);
    assert_string_equal(c->origins[i].at, at);
}

static void test_each_rank_takes_its_own_gpus_string(void **state)
{
    json_t *body = request();
    struct update_chunk *c;

    (void)state;
    add(body, "flattened_protocol_5", 1);
    add(body, "flattened_protocol_5", 0);
    c = must_take(body, false);
    assert_null(c->ranks); /* the same tensors in the same order */
    assert_int_equal(c->tensor_list->n_tensors, 2);
    assert_int_equal(c->n_origins, 1);
    assert_origin(c, 0, 0, 1);
    update_chunk_free(c);

    body = request();
    add(body, "flattened_bytes", 1);
    add(body, "flattened_protocol_5", 2); /* nobody's here */
    add(body, "flattened_protocol_5", 0);
    c = must_take(body, false);
    assert_int_equal(c->n_ranks, 2);
    assert_int_equal(c->ranks[0].tensor_list->n_tensors, 2);
    assert_int_equal(c->ranks[1].tensor_list->n_tensors, 6);
    assert_int_equal(c->n_origins, 2);
    assert_origin(c, 0, 0, 2);
    assert_origin(c, 1, 1, 0);
    update_chunk_free(c);
}

static void test_one_gpus_string_feeds_its_peers(void **state)
{
    json_t *body = request();
    struct update_chunk *c;

    (void)state;
    add(body, "list", 1);
    c = must_take(body, false);
    assert_null(c->ranks);
    assert_origin(c, 0, 0, 0);
    update_chunk_free(c);

    body = request(); /* an export for each rank: each counts its own down */
    add(body, "flattened_protocol_5", 0);
    add(body, "flattened_bytes", 0);
    c = must_take(body, false);
    assert_int_equal(c->ranks[1].tensor_list->n_tensors, 6);
    assert_origin(c, 1, 1, 1);
    update_chunk_free(c);

    body = request();
    add(body, "list", 2);
    must_refuse(body, false, FIELD, "there is no handle for GPU");
}

static void test_empty_strings_are_for_nobody(void **state)
{
    json_t *body = request();
    struct update_chunk *c;

    (void)state;
    add(body, "flattened_nothing", 1); /* made by whoever gathers */
    add(body, "flattened_bytes", 1);
    c = must_take(body, false);
    assert_int_equal(c->n_ranks, 2);
    assert_null(c->ranks[0].tensor_list);
    assert_int_equal(c->ranks[1].tensor_list->n_tensors, 6);
    assert_ptr_equal(c->tensor_list, c->ranks[1].tensor_list);
    assert_int_equal(c->n_origins, 1);
    assert_origin(c, 0, 1, 1);
    update_chunk_free(c);

    body = request();
    add(body, "flattened_nothing", 0);
    add(body, "list_of_nothing", 0);
    c = must_take(body, false);
    assert_null(c->source);
    assert_null(c->tensor_list);
    assert_null(c->ranks);
    update_chunk_free(c);
}

/* Received, but by nobody: that would be a success without an update. */
static void test_tensors_that_are_all_for_others_are_refused(void **state)
{
    json_t *body = request();

    (void)state;
    add(body, "flattened_nothing", 0);
    add(body, "list_of_nothing", 0);
    add(body, "flattened_bytes", 2);
    must_refuse(body, false, FIELD "/2", "no string has tensors on a GPU of this server");
}

static void test_indexes_stand_in_the_order_of_the_ranks(void **state)
{
    json_t *body = request();
    struct update_chunk *c;

    (void)state;
    add(body, "list_by_index", 0);
    add(body, "list_by_index", 0);
    c = must_take(body, false);
    assert_null(c->ranks);
    assert_origin(c, 0, 0, 0);
    update_chunk_free(c);

    body = request();
    add(body, "list_by_index", 0);
    must_refuse(body, false, FIELD "/0", "1 strings are not one for each of the server's 2 GPUs");
}

static void test_a_shard_is_its_addressees(void **state)
{
    json_t *body = request();
    struct update_chunk *c;

    (void)state;
    add(body, "list", 1);
    c = must_take(body, true);
    assert_int_equal(c->n_ranks, 2);
    assert_null(c->ranks[0].tensor_list);
    assert_non_null(c->ranks[1].tensor_list);
    update_chunk_free(c);
}

static void test_what_stands_beside_is_refused(void **state)
{
    static const char *const members[] = {"names", "shapes", "plan_id", "checksums", "per_gpu"};

    (void)state;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        json_t *body = request();
        char field[32];

        add(body, "list", 0);
        assert_int_equal(json_object_set_new(body, members[i], json_array()), 0);
        (void)snprintf(field, sizeof field, "/%s", members[i]);
        must_refuse(body, false, field, "does not go with serialized_named_tensors");
    }
    must_refuse(request(), false, FIELD, "there are 0 strings");
}

/* Whichever allocation fails, the request does, and keeps nothing (a sanitizer sees to that). */
static void test_every_failed_allocation_unwinds(void **state)
{
    json_t *body = request();
    int rc = -1, n;

    (void)state;
    add(body, "flattened_bytes", 1);
    add(body, "list", 0);
    for (n = 0; rc != 0 && n < 1000; n++) {
        struct update_chunk *c = NULL;
        struct err e = {0};

        alloc_left = n;
        rc = take(&c, json_incref(body), false, &e);
        rc = alloc_left < 0 && rc == 0 ? 1
                                       : rc; /* a tensor list that stays larger than it must be */
        alloc_left = -1;
        if (rc < 0)
            assert_int_equal(e.code, ERR_NO_MEMORY);
        else
            update_chunk_free(c);
    }
    assert_true(n > 25 && n < 1000);
    json_decref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rank_takes_its_own_gpus_string),
        cmocka_unit_test(test_one_gpus_string_feeds_its_peers),
        cmocka_unit_test(test_empty_strings_are_for_nobody),
        cmocka_unit_test(test_tensors_that_are_all_for_others_are_refused),
        cmocka_unit_test(test_indexes_stand_in_the_order_of_the_ranks),
        cmocka_unit_test(test_a_shard_is_its_addressees),
        cmocka_unit_test(test_what_stands_beside_is_refused),
        cmocka_unit_test(test_every_failed_allocation_unwinds),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
