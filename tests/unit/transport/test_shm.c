/* Shared memory as a source: real objects, and everything a sender can get wrong about them. */
#include "transport/shm.h"

#include "base/clock.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TENSORS = 4, OBJECT_NBYTES = 1000 };

static char name[64]; /* of the object of this process */
static uint8_t bytes[OBJECT_NBYTES];

/* Tensors of 8, 0, 12 and 20 bytes. */
static struct tensor_list *tensor_list_of_test(void)
{
    static const uint64_t dims[N_TENSORS] = {2, 0, 3, 5};
    static const char *const names[N_TENSORS] = {"a", "empty", "b", "c"};
    struct tensor_list_builder *b;
    struct err e = {0};
    struct tensor_list *p;

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (int i = 0; i < N_TENSORS; i++)
        assert_int_equal(
            tensor_list_builder_add(b, names[i], DTYPE_F32, &dims[i], 1, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static int make_object(void **state)
{
    int fd;

    (void)state;
    (void)snprintf(name, sizeof name, "/baton-test-%d", (int)getpid());
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + 3);
    fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    return fd < 0 || write(fd, bytes, sizeof bytes) != OBJECT_NBYTES || close(fd) != 0;
}

static int remove_object(void **state)
{
    (void)state;
    return shm_unlink(name);
}

static struct progress running(void)
{
    return (struct progress){.deadline_us = clock_after_us(60000000)};
}

static void test_shm_packed_bucket(void **state)
{
    const struct shm_range range = {name, 100, 40};
    struct tensor_list *p = tensor_list_of_test();
    struct progress progress = running();
    struct source *s;
    struct err e = {0};
    uint8_t dst[41];

    (void)state;
    if (shm_source_open(&s, &range, 1, true, p, &e) != 0)
        fail_msg("%s", e.msg);
    assert_string_equal(s->ops->name, "shm");
    dst[40] = 0xaa;
    assert_int_equal(s->ops->fill(s, p, 0, N_TENSORS, dst, &progress, &e), 0);
    assert_memory_equal(dst, bytes + 100, 40);
    assert_int_equal(dst[40], 0xaa);
    assert_int_equal(progress.nbytes_done, 40);
    assert_int_equal(s->ops->fill(s, p, 1, 2, dst, &progress, &e),
                     0); /* a part of the tensor list */
    assert_memory_equal(dst, bytes + 108, 12);
    assert_int_equal(s->ops->fill(s, p, 1, 1, dst, &progress, &e), 0);
    assert_int_equal(progress.nbytes_done, 52);
    source_close(s);
    source_close(NULL);
    tensor_list_unref(p);
}

/* One range each: apart, in another order, of two objects; the name also as Python tells it. */
static void test_shm_range_for_each_tensor(void **state)
{
    char other[80], want[40];
    const struct shm_range ranges[N_TENSORS] = {
        {name, 500, 8}, {name + 1, 999, 0}, {name + 1, 30, 12}, {other, 4, 20}};
    struct tensor_list *p = tensor_list_of_test();
    struct progress progress = running();
    struct source *s;
    struct err e = {0};
    uint8_t dst[40];
    int fd;

    (void)state;
    (void)snprintf(other, sizeof other, "%s-other", name);
    fd = shm_open(other, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, "0123456789abcdefghijklmn", 24), 24);
    if (shm_source_open(&s, ranges, N_TENSORS, false, p, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(shm_unlink(other), 0); /* what is open stays readable */
    assert_int_equal(s->ops->fill(s, p, 0, N_TENSORS, dst, &progress, &e), 0);
    memcpy(want, bytes + 500, 8);
    memcpy(want + 8, bytes + 30, 12);
    memcpy(want + 20, "456789abcdefghijklmn", 20);
    assert_memory_equal(dst, want, 40);
    assert_int_equal(progress.nbytes_done, 40);
    source_close(s);
    (void)close(fd);
    tensor_list_unref(p);
}

static char long_name[300];

static void test_shm_source_open_refusals(void **state)
{
    static char missing[80];
    const struct {
        const char *what, *name;
        uint64_t offset, nbytes;
        enum err_code code;
        const char *field, *says;
    } rows[] = {
        {"no such object", missing, 0, 40, ERR_NOT_FOUND, "/shm/name", "No such file"},
        {"empty name", "", 0, 40, ERR_BAD_REQUEST, "/shm/name", "1 to 254"},
        {"only a slash", "/", 0, 40, ERR_BAD_REQUEST, "/shm/name", "1 to 254"},
        {"long name", long_name, 0, 40, ERR_BAD_REQUEST, "/shm/name", "1 to 254"},
        {"dot", "/.", 0, 40, ERR_BAD_REQUEST, "/shm/name", "'/.'"},
        {"dot dot", "..", 0, 40, ERR_BAD_REQUEST, "/shm/name", "'..'"},
        {"a path", "/../etc/passwd", 0, 40, ERR_BAD_REQUEST, "/shm/name", "without '/'"},
        {"two slashes", "//x", 0, 40, ERR_BAD_REQUEST, "/shm/name", "without '/'"},
        {"control", "/x\ny", 0, 40, ERR_BAD_REQUEST, "/shm/name", "control character"},
        {"nbytes less", name, 0, 39, ERR_BAD_REQUEST, "/shm/nbytes", "is 39, but names"},
        {"nbytes more", name, 0, 41, ERR_BAD_REQUEST, "/shm/nbytes", "is 41, but names"},
        {"too short", name, 961, 40, ERR_UNREADABLE, "/shm/nbytes", "has 1000 bytes"},
        {"offset overflow", name, UINT64_MAX - 8, 40, ERR_BAD_REQUEST, "/shm/offset", "2^63"},
        {"offset beyond off_t", name, INT64_MAX, 40, ERR_BAD_REQUEST, "/shm/offset", "2^63"},
    };
    struct tensor_list *p = tensor_list_of_test();
    struct source *s = NULL;
    struct err e = {0};

    (void)state;
    memset(long_name, 'n', sizeof long_name - 1);
    (void)snprintf(missing, sizeof missing, "%s-missing", name);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct shm_range range = {rows[i].name, rows[i].offset, rows[i].nbytes};
        err_clear(&e);
        assert_int_equal(shm_source_open(&s, &range, 1, true, p, &e), -1);
        if (e.code != rows[i].code || strcmp(e.field, rows[i].field) != 0 ||
            strstr(e.msg, rows[i].says) == NULL)
            fail_msg("%s: %d %s: %s", rows[i].what, e.code, e.field, e.msg);
    }
    assert_null(s);
    tensor_list_unref(p);
}

static void test_shm_source_open_refuses_wrong_lists(void **state)
{
    const struct shm_range ranges[N_TENSORS + 1] = {
        {name, 0, 8}, {name, 0, 0}, {name, 8, 13}, {name, 20, 20}, {name, 0, 0}};
    struct tensor_list *p = tensor_list_of_test();
    struct source *s = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(shm_source_open(&s, ranges, N_TENSORS, true, p, &e), -1);
    assert_string_equal(e.field, "/shm");
    err_clear(&e);
    assert_int_equal(shm_source_open(&s, ranges, N_TENSORS + 1, false, p, &e), -1);
    assert_string_equal(e.field, "/shm");
    err_clear(&e);
    assert_int_equal(shm_source_open(&s, ranges, 0, false, p, &e), -1);
    err_clear(&e);
    assert_int_equal(shm_source_open(&s, ranges, N_TENSORS, false, p, &e), -1);
    assert_string_equal(e.field, "/shm/2/nbytes");
    assert_non_null(strstr(e.msg, "tensor 'b': nbytes is 13"));
    assert_null(s);
    tensor_list_unref(p);
}

/* A FIFO, a directory and a link where an object should be: refused, and not waited on. */
static void test_shm_source_open_refuses_other_kinds(void **state)
{
    struct tensor_list *p = tensor_list_of_test();
    struct source *s = NULL;
    char path[100], other[80];
    const struct shm_range range = {other, 0, 40};
    struct err e = {0};

    (void)state;
    (void)snprintf(other, sizeof other, "%s-kind", name);
    (void)snprintf(path, sizeof path, "/dev/shm%s", other);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(shm_source_open(&s, &range, 1, true, p, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_int_equal(unlink(path), 0);
    err_clear(&e);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(shm_source_open(&s, &range, 1, true, p, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_int_equal(rmdir(path), 0);
    err_clear(&e);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(shm_source_open(&s, &range, 1, true, p, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_int_equal(unlink(path), 0);
    tensor_list_unref(p);
}

static void test_shm_fill_survives_a_shrinking_object(void **state)
{
    const struct shm_range range = {name, 960, 40};
    struct tensor_list *p = tensor_list_of_test();
    struct progress progress = running();
    struct source *s;
    struct err e = {0};
    uint8_t dst[40];
    int fd = shm_open(name, O_RDWR, 0);

    (void)state;
    assert_int_equal(shm_source_open(&s, &range, 1, true, p, &e), 0);
    assert_int_equal(ftruncate(fd, 985), 0); /* 25 bytes left: inside c, which begins at 20 */
    assert_int_equal(s->ops->fill(s, p, 0, N_TENSORS, dst, &progress, &e), -1);
    assert_int_equal(pwrite(fd, bytes + 985, 15, 985), 15);
    (void)close(fd);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "tensor 'c'"));
    assert_non_null(strstr(e.msg, name));
    assert_non_null(strstr(e.msg, "985 bytes"));
    source_close(s);
    tensor_list_unref(p);
}

static void test_shm_fill_stops_when_asked(void **state)
{
    const struct shm_range range = {name, 0, 40};
    struct tensor_list *p = tensor_list_of_test();
    struct progress stopped = running(), late = {.deadline_us = clock_now_us()};
    struct source *s;
    struct err e = {0};
    uint8_t dst[40];

    (void)state;
    atomic_store(&stopped.stop, true);
    assert_int_equal(shm_source_open(&s, &range, 1, true, p, &e), 0);
    assert_int_equal(s->ops->fill(s, p, 0, N_TENSORS, dst, &stopped, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    assert_int_equal(s->ops->fill(s, p, 0, N_TENSORS, dst, &late, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_int_equal(stopped.nbytes_done + late.nbytes_done, 0);
    source_close(s);
    tensor_list_unref(p);
}

/* More than two pieces: every byte in its place, and the gauge tells them all. */
static void test_shm_fill_many_pieces(void **state)
{
    const uint64_t dims[] = {2 * (uint64_t)SOURCE_PIECE_NBYTES + 12345};
    const size_t n = dims[0] + 1;
    uint8_t *data = malloc(n), *dst = malloc(n);
    char other[80];
    const struct shm_range range = {other, 1, n - 1};
    struct progress progress = running();
    struct tensor_list_builder *b;
    struct source *s;
    struct err e = {0};
    struct tensor_list *p;
    int fd;

    (void)state;
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)(i * 31 + (i >> 13));
    (void)snprintf(other, sizeof other, "%s-large", name);
    fd = shm_open(other, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, data, n), (ssize_t)n);
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "large", DTYPE_U8, dims, 1, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    assert_int_equal(shm_source_open(&s, &range, 1, true, p, &e), 0);
    assert_int_equal(shm_unlink(other), 0);
    assert_int_equal(s->ops->fill(s, p, 0, 1, dst, &progress, &e), 0);
    assert_memory_equal(dst, data + 1, n - 1);
    assert_int_equal(progress.nbytes_done, n - 1);
    source_close(s);
    (void)close(fd);
    tensor_list_unref(p);
    free(data);
    free(dst);
}

enum { BIG_TENSORS = 5, BIG_NUMEL = (20 << 20) / 4 + 1 }; /* over 100 MiB: read by several */

static struct tensor_list *big_tensor_list(void)
{
    static const uint64_t dim = BIG_NUMEL;
    struct tensor_list_builder *b;
    struct err e = {0};
    struct tensor_list *p;
    char tensor[16];

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (int i = 0; i < BIG_TENSORS; i++) {
        (void)snprintf(tensor, sizeof tensor, "t%d", i);
        assert_int_equal(tensor_list_builder_add(b, tensor, DTYPE_U32, &dim, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

/* Every word is its own index, so that a piece in another's place shows. */
static int big_object(const char *big, uint32_t n_words)
{
    int fd = shm_open(big, O_RDWR | O_CREAT | O_EXCL, 0600);
    uint32_t *words;

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)n_words * 4), 0);
    words = mmap(NULL, (size_t)n_words * 4, PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(words != MAP_FAILED);
    for (uint32_t i = 0; i < n_words; i++)
        words[i] = i;
    assert_int_equal(munmap(words, (size_t)n_words * 4), 0);
    return fd;
}

static void test_shm_large_bucket_is_read_by_several(void **state)
{
    const uint32_t n_words = BIG_TENSORS * BIG_NUMEL;
    struct tensor_list *p = big_tensor_list();
    struct progress progress = running();
    uint32_t *dst = malloc((size_t)n_words * 4);
    struct shm_range range = {NULL, 0, (uint64_t)n_words * 4};
    struct source *s;
    struct err e = {0};
    char big[80];
    int fd;

    (void)state;
    (void)snprintf(big, sizeof big, "%s-big", name);
    range.name = big;
    fd = big_object(big, n_words);
    if (shm_source_open(&s, &range, 1, true, p, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(shm_unlink(big), 0);
    assert_int_equal(s->ops->fill(s, p, 0, BIG_TENSORS, dst, &progress, &e), 0);
    for (uint32_t i = 0; i < n_words; i++)
        if (dst[i] != i)
            fail_msg("word %u is %u", i, dst[i]);
    assert_int_equal(progress.nbytes_done, range.nbytes);

    /* It shrinks: whichever reader comes first, the tensor named is the first that is short. */
    assert_int_equal(ftruncate(fd, (off_t)(2 * BIG_NUMEL + 7) * 4), 0);
    assert_int_equal(s->ops->fill(s, p, 0, BIG_TENSORS, dst, &progress, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "'t2'"));

    err_clear(&e);
    progress.stop = true;
    assert_int_equal(s->ops->fill(s, p, 0, BIG_TENSORS, dst, &progress, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    source_close(s);
    (void)close(fd);
    free(dst);
    tensor_list_unref(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm_packed_bucket),
        cmocka_unit_test(test_shm_large_bucket_is_read_by_several),
        cmocka_unit_test(test_shm_range_for_each_tensor),
        cmocka_unit_test(test_shm_source_open_refusals),
        cmocka_unit_test(test_shm_source_open_refuses_wrong_lists),
        cmocka_unit_test(test_shm_source_open_refuses_other_kinds),
        cmocka_unit_test(test_shm_fill_survives_a_shrinking_object),
        cmocka_unit_test(test_shm_fill_stops_when_asked),
        cmocka_unit_test(test_shm_fill_many_pieces),
    };

    return cmocka_run_group_tests(tests, make_object, remove_object);
}
