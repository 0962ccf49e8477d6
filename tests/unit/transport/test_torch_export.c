/* What is written for torch is read back by the reader of torch's own pickles, field by field. That
 * torch reads it too is tested in tests/http/ (torch_export.py). */
#include "transport/ipc/torch_export.h"
#include "transport/ipc/torch_handle.h"
#include "transport/ipc/torch_tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UUID_0 "11111111-2222-3333-4444-000000000000"
#define UUID_1 "11111111-2222-3333-4444-000000000001"
#define REF    "/torch_4242_1234567890_0"

enum { N_MANY = 700 }; /* memo entries beyond one byte, lengths beyond one */

static const struct tensor_spec specs[] = {
    {.name = "a.weight",
     .dtype = DTYPE_BF16,
     .ndim = 2,
     .shape = {3, 5},
     .numel = 15,
     .nbytes = 30},
    {.name = "b.bias",
     .dtype = DTYPE_F32,
     .ndim = 1,
     .shape = {70000},
     .numel = 70000,
     .nbytes = 280000},
    {.name = "scalar", .dtype = DTYPE_F8_E4M3, .ndim = 0, .numel = 1, .nbytes = 1},
    {.name = "a.again",
     .dtype = DTYPE_BF16,
     .ndim = 3,
     .shape = {1, 2, 3},
     .numel = 6,
     .nbytes = 12},
};

static struct torch_slab slabs[] = {{.uuid = UUID_1, .nbytes = (uint64_t)5 << 32},
                                    {.uuid = UUID_1, .nbytes = 4096}};
static const struct torch_place places[] = {{&specs[0], 0, 256},
                                            {&specs[1], 0, (uint64_t)3 << 32},
                                            {&specs[2], 1, 255},
                                            {&specs[3], 1, 512}};
static const struct torch_exports all = {slabs, 2, 4, REF, 0};

static void check_one(const struct ipc_handle *h, const struct torch_place *p)
{
    assert_true(h->has_memory);
    assert_int_equal(h->version, 0);
    assert_int_equal(h->type, 'c');
    assert_false(h->event_sync);
    assert_memory_equal(h->mem, slabs[p->slab].mem, IPC_MEM_NBYTES);
    assert_int_equal(h->dtype, p->tensor->dtype);
    assert_int_equal(h->ndim, p->tensor->ndim);
    assert_memory_equal(h->shape, p->tensor->shape, p->tensor->ndim * sizeof h->shape[0]);
    assert_int_equal(h->nbytes, p->tensor->nbytes);
    assert_int_equal(h->tensor_offset, p->offset);
    assert_int_equal(h->storage_nbytes, slabs[p->slab].nbytes);
    assert_int_equal(h->storage_offset, 0);
    assert_string_equal(h->ref_name, REF);
    assert_int_equal(h->ref_slot, 0);
}

static void test_handles(void **state)
{
    const struct torch_gpu gpus[] = {{UUID_0, places}, {UUID_1, places}};
    struct ipc_handles h = {0};
    struct err e = {0};
    char *text = torch_export_handles(&all, gpus, 2, &e);

    (void)state;
    assert_non_null(text);
    if (torch_handles_read(&h, text, strlen(text), "/x", &e) != 0)
        fail_msg("%s", e.msg);
    assert_false(h.packed);
    assert_int_equal(h.n_gpus, 2);
    assert_int_equal(h.n_handles, 4);
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < 4; i++)
            check_one(&h.gpus[g].handles[i], &places[i]);
    ipc_handles_fini(&h);
    free(text);
}

static void test_packed(void **state)
{
    static const struct tensor_spec bytes = {
        .dtype = DTYPE_U8, .ndim = 1, .shape = {4000}, .numel = 4000, .nbytes = 4000};
    static const struct torch_place at = {&bytes, 0, (uint64_t)3 << 32};
    const struct torch_gpu gpus[] = {{UUID_0, &at}, {UUID_1, &at}};
    const struct torch_exports x = {slabs, 1, 1, REF, 0};
    struct ipc_handles h = {0};
    struct err e = {0};
    char *text = torch_export_packed(&x, gpus, 2, &e);

    (void)state;
    assert_non_null(text);
    if (torch_handles_read(&h, text, strlen(text), "/x", &e) != 0)
        fail_msg("%s", e.msg);
    assert_true(h.packed);
    assert_int_equal(h.n_gpus, 2);
    assert_int_equal(h.n_handles, 1);
    assert_string_equal(h.gpus[0].uuid, UUID_0);
    assert_string_equal(h.gpus[1].uuid, UUID_1);
    for (uint32_t g = 0; g < 2; g++)
        check_one(&h.gpus[g].handles[0], &at);
    ipc_handles_fini(&h);
    free(text);
}

static void test_named(void **state)
{
    struct torch_tensors t = {0};
    struct err e = {0};
    char *text = torch_export_named(&all, places, &e);

    (void)state;
    assert_non_null(text);
    if (torch_tensors_read(&t, text, strlen(text), 0, "/x", &e) != 0)
        fail_msg("%s", e.msg);
    assert_string_equal(t.uuid, UUID_1);
    assert_int_equal(t.tensor_list->n_tensors, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_string_equal(t.tensor_list->tensors[i].name, specs[i].name);
        check_one(&t.handles.gpus[0].handles[i], &places[i]);
    }
    torch_tensors_fini(&t);
    free(text);
}

/* One storage in the middle of an allocation, with a counter of its own; each tensor is a part. */
static void test_bucket(void **state)
{
    enum { BEGIN = 1 << 20, SLOT = 4711 };
    static const struct tensor_spec bytes = {
        .dtype = DTYPE_U8, .ndim = 1, .shape = {280100}, .numel = 280100, .nbytes = 280100};
    static const struct torch_place flat = {&bytes, 0, 512};
    static const struct torch_place parts[] = {
        {&specs[1], 0, 0},
        {&specs[0], 0, 280002},
        /* a gap: read back one by one */ {&specs[3], 0, 280032},
        {&specs[2], 0, 280044}};
    struct torch_slab slab = {.uuid = UUID_1, .begin = BEGIN, .nbytes = 512 + 280100};
    const struct torch_exports x = {&slab, 1, 4, REF, SLOT};
    struct torch_tensors t = {0};
    struct err e = {0};
    char *text = torch_export_bucket(&x, &flat, parts, &e);

    (void)state;
    assert_non_null(text);
    if (torch_tensors_read(&t, text, strlen(text), 0, "/x", &e) != 0)
        fail_msg("%s", e.msg);
    assert_string_equal(t.uuid, UUID_1);
    assert_int_equal(t.tensor_list->n_tensors, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const struct ipc_handle *h = &t.handles.gpus[0].handles[i];
        const struct tensor_spec *spec = parts[i].tensor;

        assert_string_equal(t.tensor_list->tensors[i].name, spec->name);
        assert_int_equal(h->dtype, spec->dtype);
        assert_int_equal(h->ndim, spec->ndim);
        assert_memory_equal(h->shape, spec->shape, spec->ndim * sizeof h->shape[0]);
        assert_int_equal(h->nbytes, spec->nbytes);
        assert_int_equal(h->storage_offset, BEGIN);
        assert_int_equal(h->storage_nbytes, slab.nbytes);
        assert_int_equal(h->tensor_offset, flat.offset + parts[i].offset);
        assert_string_equal(h->ref_name, REF);
        assert_int_equal(h->ref_slot, SLOT);
    }
    torch_tensors_fini(&t);
    free(text);
}

static void test_many_slabs(void **state)
{
    struct torch_slab *many = calloc(N_MANY, sizeof *many);
    struct torch_place *at = calloc(N_MANY, sizeof *at);
    struct torch_exports x = {many, N_MANY, N_MANY, REF, 0};
    const struct torch_gpu gpu = {UUID_0, at};
    struct ipc_handles h = {0};
    struct err e = {0};
    char *text;

    (void)state;
    assert_non_null(many);
    assert_non_null(at);
    for (uint32_t i = 0; i < N_MANY; i++) {
        (void)snprintf((char *)many[i].mem, sizeof many[i].mem, "slab %u", (unsigned)i);
        many[i].nbytes = 1024;
        at[i] = (struct torch_place){&specs[0], i, 512};
    }
    text = torch_export_handles(&x, &gpu, 1, &e);
    assert_non_null(text);
    if (torch_handles_read(&h, text, strlen(text), "/x", &e) != 0)
        fail_msg("%s", e.msg);
    for (uint32_t i = 0; i < N_MANY; i++)
        assert_memory_equal(h.gpus[0].handles[i].mem, many[i].mem, IPC_MEM_NBYTES);
    ipc_handles_fini(&h);
    free(text);
    free(many);
    free(at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handles),    cmocka_unit_test(test_packed),
        cmocka_unit_test(test_named),      cmocka_unit_test(test_bucket),
        cmocka_unit_test(test_many_slabs),
    };

    memset(slabs[0].mem, 0xa5, sizeof slabs[0].mem);
    memset(slabs[1].mem, 0x5a, sizeof slabs[1].mem);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
