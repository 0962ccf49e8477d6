/* Every allocation of the parsers and sources fails in turn: each failure must say that memory ran
 * out, leave the outputs alone, and leave neither memory nor an open file behind. The linker wraps
 * the allocator (CMakeLists.txt), so that a call added later is covered unedited. */
#include "base/clock.h"
#include "memory/checksum.h"
#include "transport/file.h"
#include "transport/shm.h"
#include "weights/model_spec.h"
#include "weights/safetensors.h"

#include <dirent.h>
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

void *__real_malloc(size_t nbytes);
void *__real_calloc(size_t n, size_t nbytes);
void *__real_realloc(void *p, size_t nbytes);
void __real_free(void *p);
void *__wrap_malloc(size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
void *__wrap_realloc(void *p, size_t nbytes);
char *__wrap_strdup(const char *text);
void __wrap_free(void *p);

static long left = -1; /* allocations until the one that fails; -1 = none does */
static long live;      /* blocks that our code holds */

static bool fails(void)
{
    return left >= 0 && left-- == 0;
}

void *__wrap_malloc(size_t nbytes)
{
    void *p = fails() ? NULL : __real_malloc(nbytes);

    live += p != NULL;
    return p;
}

void *__wrap_calloc(size_t n, size_t nbytes)
{
    void *p = fails() ? NULL : __real_calloc(n, nbytes);

    live += p != NULL;
    return p;
}

void *__wrap_realloc(void *p, size_t nbytes)
{
    void *q = fails() ? NULL : __real_realloc(p, nbytes);

    live += p == NULL && q != NULL;
    return q;
}

char *__wrap_strdup(const char *text)
{
    char *p = __wrap_malloc(strlen(text) + 1);

    return p != NULL ? strcpy(p, text) : NULL;
}

void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}

static int n_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

/* `run` does everything once, undoes it, and returns what the tortured call returned. */
static void torture(int (*run)(struct err *e))
{
    int was_files = n_files(), rc;
    long was_live = live, n = 0;
    bool failed = true;

    for (; failed; n++) {
        struct err e = {0};
        left = n;
        rc = run(&e);
        failed = left <
                 0; /* and perhaps was survived: a tensor list that cannot shrink stays large */
        left = -1;
        assert_true(failed || rc == 0);
        if (rc != 0 && e.code != ERR_NO_MEMORY)
            fail_msg("allocation %ld: %s", n, e.msg);
        assert_true((rc == 0) == (e.code == ERR_NONE));
        assert_int_equal(live, was_live);
        assert_int_equal(n_files(), was_files);
    }
    assert_true(n > 2); /* something was allocated at all */
}

static char dir[] = "/tmp/baton-torture-XXXXXX";
static char path[64];
static char object[64];

#define A "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define META                                                                                       \
    "\"__metadata__\":{\"baton.weight_version\":\"v\",\"baton.checksum.a\":"                       \
    "\"00000000000000000000000000000000\"}"
static const char head[] = "\x9b\0\0\0\0\0\0\0{" META "," A "}    "
                           "dddd";

static void write_file(const char *name, const void *data, size_t len)
{
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
    (void)close(fd);
}

static int run_parse(struct err *e)
{
    struct safetensors s;
    const uint64_t nbytes = 8 + (uint8_t)head[0];
    int rc = safetensors_parse(&s, head, nbytes, UINT64_MAX, e);

    if (rc == 0)
        safetensors_fini(&s);
    return rc;
}

static int run_tensor_list(struct err *e)
{
    const uint64_t shape[] = {3};
    struct tensor_list_builder *b;
    struct tensor_list *p;
    char name[16];

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (int i = 0; i < 200; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        if (tensor_list_builder_add(b, name, DTYPE_U8, shape, 1, UINT64_MAX, e) == 0)
            continue;
        tensor_list_builder_free(b);
        return -1;
    }
    if (tensor_list_builder_finish(b, &p, e) != 0)
        return -1;
    tensor_list_unref(p);
    return 0;
}

static int run_model_spec_load(struct err *e)
{
    struct model_spec *m = NULL;
    int rc;

    (void)snprintf(path, sizeof path, "%s/manifest.json", dir);
    rc = model_spec_load(&m, path, e);
    assert_true((rc == 0) == (m != NULL));
    model_spec_free(m);
    return rc;
}

static int run_shm(struct err *e)
{
    const struct shm_range range = {object, 0, 4};
    const uint64_t shape[] = {4};
    struct source *s = NULL;
    struct tensor_list_builder *b;
    struct tensor_list *p;
    int rc;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    if (tensor_list_builder_add(b, "a", DTYPE_U8, shape, 1, UINT64_MAX, e) != 0) {
        tensor_list_builder_free(b);
        return -1;
    }
    if (tensor_list_builder_finish(b, &p, e) != 0)
        return -1;
    rc = shm_source_open(&s, &range, 1, true, p, e);
    assert_true((rc == 0) == (s != NULL));
    source_close(s);
    tensor_list_unref(p);
    return rc;
}

static int run_file(struct err *e)
{
    const char *const roots[] = {dir};
    struct file_weights w = {0};
    struct source *s = NULL;
    int rc = file_source_open(&s, &w, roots, 1, ".", NULL, e);

    assert_true((rc == 0) == (s != NULL && w.tensor_list != NULL));
    source_close(s);
    file_weights_fini(&w);
    return rc;
}

static void test_safetensors_parse_unwinds_every_failure(void **state)
{
    (void)state;
    torture(run_parse);
}

static void test_tensor_list_builder_unwinds_every_failure(void **state)
{
    (void)state;
    torture(run_tensor_list);
}

static void test_model_spec_load_unwinds_every_failure(void **state)
{
    (void)state;
    torture(run_model_spec_load);
}

static void test_shm_source_open_unwinds_every_failure(void **state)
{
    (void)state;
    torture(run_shm);
}

static void test_file_source_open_unwinds_every_failure(void **state)
{
    (void)state;
    torture(run_file);
}

static int make_files(void **state)
{
    static const char model_spec[] = "{\"names\":[\"a\",\"b\"],\"dtypes\":[\"F32\",\"F32\"],"
                                     "\"shapes\":[[2],[]],\"aliases\":{\"x\":\"a\"}}";
    static const char index[] = "{\"weight_map\":{\"a\":\"1.safetensors\"}}";
    int fd;

    (void)state;
    (void)snprintf(object, sizeof object, "/baton-torture-%d", (int)getpid());
    fd = shm_open(object, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (mkdtemp(dir) == NULL || ftruncate(fd, 4) != 0 || close(fd) != 0)
        return -1;
    write_file("manifest.json", model_spec, sizeof model_spec - 1);
    write_file("model.safetensors.index.json", index, sizeof index - 1);
    write_file("1.safetensors", head, 8 + (uint8_t)head[0] + 4);
    return 0;
}

static int remove_files(void **state)
{
    static const char *const names[] = {"manifest.json", "model.safetensors.index.json",
                                        "1.safetensors"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    return rmdir(dir) != 0 || shm_unlink(object) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_parse_unwinds_every_failure),
        cmocka_unit_test(test_tensor_list_builder_unwinds_every_failure),
        cmocka_unit_test(test_model_spec_load_unwinds_every_failure),
        cmocka_unit_test(test_shm_source_open_unwinds_every_failure),
        cmocka_unit_test(test_file_source_open_unwinds_every_failure),
    };

    return cmocka_run_group_tests(tests, make_files, remove_files);
}
