/* Files as a source: beneath the allowed root and nowhere else, shards, and files that change. */
#include "transport/file.h"

#include "base/buf.h"
#include "base/clock.h"

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define CHECKPOINTS FIXTURES "/kjv-qwen3-1m/checkpoints"
#define A           "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define B           "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}"
#define C           "\"c\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}"
#define INDEX       "model.safetensors.index.json"

static char top[] = "/tmp/baton-file-XXXXXX"; /* top/in is allowed, top/out is not */
static char in[64];
static const char *roots[1];

static const char *path_of(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof paths[0], "%s/%s", top, name);
    return path;
}

static void write_bytes(const char *name, const void *data, size_t len)
{
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_int_equal(write(fd, data, len), (ssize_t)len);
    assert_int_equal(close(fd), 0);
}

static void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

static void write_safetensors(const char *name, const char *json, const char *data)
{
    struct buf b = {0};
    const uint64_t n = strlen(json);

    for (int i = 0; i < 8; i++)
        buf_append(&b, &(char){(char)(n >> (8 * i))}, 1);
    buf_puts(&b, json);
    buf_puts(&b, data);
    write_bytes(name, b.data, b.len);
    buf_fini(&b);
}

static int make_tree(void **state)
{
    (void)state;
    if (mkdtemp(top) == NULL)
        return -1;
    (void)snprintf(in, sizeof in, "%s", path_of("in"));
    roots[0] = in;
    if (mkdir(in, 0700) != 0 || mkdir(path_of("out"), 0700) != 0)
        return -1;
    write_safetensors("in/one.safetensors", "{" B "," A "}", "aaaabbbbBBBB");
    write_safetensors("out/secret.safetensors", "{" A "}", "aaaa");
    write_safetensors("in-secret.safetensors", "{" A "}", "aaaa");
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static int remove_tree(void **state)
{
    (void)state;
    return nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static struct progress running(void)
{
    return (struct progress){.deadline_us = clock_after_us(60000000)};
}

static struct tensor_list *tensor_list_of(size_t n, const char *const *names,
                                          const enum dtype *dtypes, const uint64_t *dims)
{
    struct tensor_list_builder *b;
    struct err e = {0};
    struct tensor_list *p;

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(
            tensor_list_builder_add(b, names[i], dtypes[i], &dims[i], 1, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static void open_ok(struct source **s, struct file_weights *w, const char *path,
                    struct tensor_list *tensor_list)
{
    struct err e = {0};

    if (file_source_open(s, w, roots, 1, path, tensor_list, &e) != 0)
        fail_msg("%s: %s", path, e.msg);
}

/* Opens `path`, which must be refused with `code` and words. */
static void refused(const char *path, struct tensor_list *tensor_list, enum err_code code,
                    const char *field, const char *says)
{
    struct file_weights w = {.weight_version = in};
    struct source *s = NULL;
    struct err e = {0};

    if (file_source_open(&s, &w, roots, 1, path, tensor_list, &e) == 0)
        fail_msg("%s: accepted", path);
    if (e.code != code || strstr(e.msg, says) == NULL ||
        (field != NULL && strcmp(e.field, field) != 0))
        fail_msg("%s: %d %s: %s", path, e.code, e.field, e.msg);
    assert_null(s);
    assert_ptr_equal(w.weight_version, in);
}

static void test_file_source_open_takes_what_the_file_says(void **state)
{
    struct progress progress = running();
    struct file_weights w;
    struct source *s;
    struct err e = {0};
    char dst[12];

    (void)state;
    open_ok(&s, &w, "one.safetensors", NULL);
    assert_string_equal(s->ops->name, "path");
    assert_int_equal(w.tensor_list->n_tensors, 2);
    assert_string_equal(w.tensor_list->tensors[0].name, "a");
    assert_null(w.weight_version);
    assert_false(w.has_checksum[0]);
    assert_int_equal(s->ops->fill(s, w.tensor_list, 0, 2, dst, &progress, &e), 0);
    assert_memory_equal(dst, "aaaabbbbBBBB", 12);
    assert_int_equal(s->ops->finish(s, &progress, &e), 0);
    assert_int_equal(progress.nbytes_done, 12);
    source_close(s);
    file_weights_fini(&w);
    file_weights_fini(&w);
}

static void test_file_source_open_fills_a_given_tensor_list(void **state)
{
    static const char *const names[] = {"b", "a"};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_U8};
    static const uint64_t dims[] = {2, 4};
    struct tensor_list *p = tensor_list_of(2, names, dtypes, dims),
                       *part = tensor_list_of(1, names, dtypes, dims);
    struct progress progress = running();
    struct file_weights w;
    struct source *s;
    struct err e = {0};
    char dst[12];

    (void)state;
    open_ok(&s, &w, "one.safetensors", p);
    assert_ptr_equal(w.tensor_list, p);
    assert_int_equal(s->ops->fill(s, p, 0, 2, dst, &progress, &e), 0);
    assert_memory_equal(dst, "bbbbBBBBaaaa", 12);
    source_close(s);
    file_weights_fini(&w);
    open_ok(&s, &w, "one.safetensors", part);
    assert_int_equal(s->ops->fill(s, part, 0, 1, dst, &progress, &e), 0);
    assert_memory_equal(dst, "bbbbBBBB", 8);
    source_close(s);
    file_weights_fini(&w);
    tensor_list_unref(p);
    tensor_list_unref(part);
}

static void test_file_source_open_refuses_another_tensor_list(void **state)
{
    static const char *const names[] = {"a", "z"};
    static const enum dtype u8[] = {DTYPE_U8, DTYPE_U8}, i8[] = {DTYPE_I8, DTYPE_U8};
    static const uint64_t four[] = {4, 1}, five[] = {5, 1};
    struct tensor_list *unknown = tensor_list_of(2, names, u8, four),
                       *other = tensor_list_of(1, names, i8, four);
    struct tensor_list *longer = tensor_list_of(1, names, u8, five);

    (void)state;
    refused("one.safetensors", unknown, ERR_MISMATCH, "/names/1", "'z' is not in the file");
    refused("one.safetensors", other, ERR_MISMATCH, "/dtypes/0", "'a' is U8 in the file, not I8");
    refused("one.safetensors", longer, ERR_MISMATCH, "/shapes/0", "[4] in the file, not [5]");
    tensor_list_unref(unknown);
    tensor_list_unref(other);
    tensor_list_unref(longer);
}

static void test_file_source_open_stays_beneath_the_root(void **state)
{
    struct file_weights w;
    struct source *s = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(symlink("../out", path_of("in/link")), 0);
    assert_int_equal(symlink("one.safetensors", path_of("in/one-link")), 0);
    assert_int_equal(symlink(path_of("out/secret.safetensors"), path_of("in/abs-link")), 0);
    refused("../out/secret.safetensors", NULL, ERR_FORBIDDEN, "/path", "outside");
    refused("x/../../out/secret.safetensors", NULL, ERR_NOT_FOUND, "/path", "no file");
    refused("./../out/secret.safetensors", NULL, ERR_FORBIDDEN, "/path", "outside");
    refused("link/secret.safetensors", NULL, ERR_FORBIDDEN, "/path", "outside");
    open_ok(&s, &w, "one-link", NULL);
    source_close(s);
    file_weights_fini(&w);
    s = NULL;
    refused("abs-link", NULL, ERR_FORBIDDEN, "/path", "symbolic link");
    refused(path_of("out/secret.safetensors"), NULL, ERR_FORBIDDEN, "/path", "not below");
    refused(path_of("in/../out/secret.safetensors"), NULL, ERR_FORBIDDEN, "/path", "outside");
    refused(path_of("in-secret.safetensors"), NULL, ERR_FORBIDDEN, "/path", "not below");
    refused("/etc/passwd", NULL, ERR_FORBIDDEN, "/path", "not below");
    refused("/proc/self/cwd/../etc/passwd", NULL, ERR_FORBIDDEN, "/path", "not below");
    refused("", NULL, ERR_BAD_REQUEST, "/path", "empty");
    assert_int_equal(file_source_open(&s, &w, NULL, 0, "one.safetensors", NULL, &e), -1);
    assert_int_equal(e.code, ERR_FORBIDDEN);
    err_clear(&e);
    open_ok(&s, &w, path_of("in//one.safetensors"), NULL); /* absolute, beneath */
    source_close(s);
    file_weights_fini(&w);
    assert_int_equal(file_source_open_local(&s, &w, path_of("in/abs-link"), &e), 0);
    source_close(s);
    file_weights_fini(&w);
}

static void test_file_source_open_several_roots(void **state)
{
    const char *const two[] = {path_of("in/"), path_of("out")}, *const slash[] = {"/"};
    struct file_weights w;
    struct source *s;
    struct err e = {0};

    (void)state;
    assert_int_equal(file_source_open(&s, &w, two, 2, path_of("out/secret.safetensors"), NULL, &e),
                     0);
    source_close(s);
    file_weights_fini(&w);
    assert_int_equal(file_source_open(&s, &w, two, 2, "secret.safetensors", NULL, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND); /* relative: the first root only */
    err_clear(&e);
    assert_int_equal(
        file_source_open(&s, &w, slash, 1, path_of("out/secret.safetensors"), NULL, &e), 0);
    source_close(s);
    file_weights_fini(&w);
}

static void test_file_source_open_refuses_other_kinds(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char long_path[5000];

    (void)state;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of("in/socket"));
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(mkfifo(path_of("in/fifo"), 0600), 0);
    assert_int_equal(mkdir(path_of("in/empty"), 0700), 0);
    write_text("in/short", "1234567");
    write_text("in/text", "this is not a safetensors file");
    write_safetensors("in/cut.safetensors", "{" A "}", "aaa");
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    refused("fifo", NULL, ERR_UNREADABLE, NULL, "not a regular file");
    refused("socket", NULL, ERR_UNREADABLE, NULL, "socket");
    refused("empty", NULL, ERR_NOT_FOUND, "/path", "neither model.safetensors nor");
    refused("nothing", NULL, ERR_NOT_FOUND, "/path", "'nothing'");
    refused("one.safetensors/x", NULL, ERR_NOT_FOUND, "/path", "no file");
    refused("short", NULL, ERR_BAD_REQUEST, NULL, "'short': it has 7 bytes");
    refused("text", NULL, ERR_BAD_REQUEST, NULL, "'text': the first 8 bytes");
    refused("cut.safetensors", NULL, ERR_BAD_REQUEST, NULL, "in all, but there are");
    refused(long_path, NULL, ERR_BAD_REQUEST, "/path", "too long");
    (void)close(fd);
}

static void test_file_source_open_directory_with_one_file(void **state)
{
    struct file_weights w;
    struct source *s;

    (void)state;
    assert_int_equal(mkdir(path_of("in/single"), 0700), 0);
    write_safetensors("in/single/model.safetensors",
                      "{\"__metadata__\":{\"baton.weight_version\":\"step-3\",\"baton.checksum.a\":"
                      "\"0000000000000001000000000000000f\"}," A "," B "}",
                      "aaaabbbbBBBB");
    open_ok(&s, &w, "single", NULL);
    assert_string_equal(w.weight_version, "step-3");
    assert_true(w.has_checksum[0] && !w.has_checksum[1]);
    assert_int_equal(w.checksums[0].b, 15);
    source_close(s);
    file_weights_fini(&w);
    write_text("in/single/" INDEX, "{\"weight_map\":{\"a\":\"model.safetensors\"}}");
    open_ok(&s, &w, "single", NULL);
    assert_int_equal(w.tensor_list->n_tensors, 2);
    source_close(s);
    file_weights_fini(&w);
}

/* transformers reads the single file, vLLM those of the index: one of the two is stale. */
static void test_file_source_open_refuses_two_checkpoints(void **state)
{
    static const char *const indexes[] = {
        "{\"weight_map\":{\"a\":\"1.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"gone.safetensors\"}}",
    };
    struct file_weights w;
    struct source *s;
    struct err e = {0};

    (void)state;
    assert_int_equal(mkdir(path_of("in/two"), 0700), 0);
    write_safetensors("in/two/model.safetensors", "{" A "}", "aaaa");
    write_safetensors("in/two/1.safetensors", "{" A "}", "AAAA");
    for (size_t i = 0; i < sizeof indexes / sizeof indexes[0]; i++) {
        write_text("in/two/" INDEX, indexes[i]);
        refused("two", NULL, ERR_BAD_REQUEST, "/path",
                "has model.safetensors beside an index (model");
        assert_int_equal(file_source_open_local(&s, &w, path_of("in/two"), &e), -1);
        assert_non_null(strstr(e.msg, "has model.safetensors beside"));
        err_clear(&e);
    }
}

/* blobs/<hash>, and snapshots/<revision>/<name> -> ../../blobs/<hash>. */
static void test_file_source_open_follows_the_links_of_a_cache(void **state)
{
    static const char *const dirs[] = {"in/hub", "in/hub/blobs", "in/hub/snapshots",
                                       "in/hub/snapshots/rev"};
    char hub_path[256], snapshots_path[256];
    const char *const hub[] = {hub_path}, *const snapshots[] = {snapshots_path};
    struct file_weights w;
    struct source *s;
    struct err e = {0};

    (void)state;
    (void)snprintf(hub_path, sizeof hub_path, "%s", path_of("in/hub/"));
    (void)snprintf(snapshots_path, sizeof snapshots_path, "%s", path_of("in/hub/snapshots"));
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        assert_int_equal(mkdir(path_of(dirs[i]), 0700), 0);
    write_safetensors("in/hub/blobs/aa", "{" A "}", "aaaa");
    write_text("in/hub/blobs/bb", "{\"weight_map\":{\"a\":\"1.safetensors\"}}");
    assert_int_equal(symlink("../../blobs/aa", path_of("in/hub/snapshots/rev/1.safetensors")), 0);
    assert_int_equal(symlink("../../blobs/bb", path_of("in/hub/snapshots/rev/" INDEX)), 0);
    assert_int_equal(symlink("snapshots/rev", path_of("in/hub/latest")), 0);
    open_ok(&s, &w, "hub/snapshots/rev", NULL);
    assert_string_equal(w.tensor_list->tensors[0].name, "a");
    source_close(s);
    file_weights_fini(&w);
    open_ok(&s, &w, "hub/latest/", NULL);
    source_close(s);
    file_weights_fini(&w);
    assert_int_equal(file_source_open(&s, &w, hub, 1, "snapshots/rev", NULL, &e), 0);
    source_close(s);
    file_weights_fini(&w);
    assert_int_equal(file_source_open(&s, &w, snapshots, 1, "rev", NULL, &e), -1);
    assert_int_equal(e.code, ERR_FORBIDDEN);
    assert_non_null(strstr(e.msg, INDEX "' leads outside its allowed path"));
    assert_int_equal(unlink(path_of("in/hub/snapshots/rev/" INDEX)), 0);
    assert_int_equal(symlink("../../../../out/secret.safetensors",
                             path_of("in/hub/snapshots/rev/model.safetensors")),
                     0);
    refused("hub/snapshots/rev", NULL, ERR_FORBIDDEN, "/path", "'model.safetensors' leads outside");
}

static void write_shards(const char *index)
{
    (void)mkdir(path_of("in/shards"), 0700);
    write_safetensors("in/shards/2.safetensors", "{" A "," B "}", "aaaabbbbBBBB");
    write_safetensors("in/shards/1.safetensors", "{" C "}", "ccc");
    write_text("in/shards/" INDEX, index);
}

static void test_file_source_open_shards(void **state)
{
    static const char *const names[] = {"a", "c", "b"};
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_U8, DTYPE_F32};
    static const uint64_t dims[] = {4, 3, 2};
    struct tensor_list *p = tensor_list_of(3, names, dtypes, dims);
    struct progress progress = running();
    struct file_weights w;
    struct source *s;
    struct err e = {0};
    char dst[15];

    (void)state;
    write_shards("{\"metadata\":{\"total_size\":1e3,\"x\":[{}]},\"weight_map\":{"
                 "\"a\":\"2.safetensors\",\"c\":\"1.safetensors\",\"b\":\"2.safetensors\"}}\n");
    open_ok(&s, &w, "shards/", NULL);
    assert_string_equal(w.tensor_list->tensors[0].name,
                        "c"); /* files by name, each in its own order */
    assert_int_equal(s->ops->fill(s, w.tensor_list, 0, 1, dst, &progress, &e), 0);
    assert_int_equal(s->ops->fill(s, w.tensor_list, 1, 2, dst + 3, &progress, &e), 0);
    assert_memory_equal(dst, "cccaaaabbbbBBBB", 15);
    assert_int_equal(s->ops->finish(s, &progress, &e), 0);
    source_close(s);
    file_weights_fini(&w);
    open_ok(&s, &w, path_of("in/shards"), p);
    assert_int_equal(s->ops->fill(s, p, 0, 3, dst, &progress, &e), 0);
    assert_memory_equal(dst, "aaaacccbbbbBBBB", 15);
    source_close(s);
    file_weights_fini(&w);
    tensor_list_unref(p);
}

static void test_file_source_open_shard_refusals(void **state)
{
    static const struct {
        const char *index;
        enum err_code code;
        const char *says;
    } rows[] = {
        {"", ERR_BAD_REQUEST, "object was expected"},
        {"{}", ERR_BAD_REQUEST, "'weight_map' is missing"},
        {"{\"weight_map\":{}}", ERR_BAD_REQUEST, "names no tensors"},
        {"{\"weight_map\":[]}", ERR_BAD_REQUEST, "object was expected"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\"},\"weight_map\":{}}", ERR_BAD_REQUEST, "repeat"},
        {"{\"weight_map\":{\"a\":1}}", ERR_BAD_REQUEST, "string was expected"},
        {"{\"weight_map\":{\"a\":\"1\",\"a\":\"2\"}}", ERR_BAD_REQUEST, "'a' is named twice"},
        {"{\"weight_map\":{\"a\":\"../../out/secret.safetensors\"}}", ERR_BAD_REQUEST,
         "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", ERR_BAD_REQUEST, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", ERR_BAD_REQUEST, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"x\\\\y\"}}", ERR_BAD_REQUEST, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"x\\u0000y\"}}", ERR_BAD_REQUEST, "NUL"},
        {"{\"weight_map\":{\"a\":\"3.safetensors\"}}", ERR_NOT_FOUND, "'3.safetensors'"},
        {"{\"weight_map\":{\"a\":\"link\"}}", ERR_FORBIDDEN, "'link' leads outside"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", ERR_BAD_REQUEST,
         "tensor 'a' is in '2.safetensors', but the index says '1.safetensors'"},
        {"{\"weight_map\":{\"z\":\"1.safetensors\"}}", ERR_BAD_REQUEST,
         "'z' is in '1.safetensors', but it is not"},
        {"{\"weight_map\":{\"c\":\"1.safetensors\",\"d\":\"copy.safetensors\"}}", ERR_BAD_REQUEST,
         "'c' is both in '1.safetensors' and in 'copy.safetensors'"},
        {"{\"weight_map\":{\"c\":\"1.safetensors\",\"old\":\"old.safetensors\",\"new\":"
         "\"new.safetensors\"}}",
         ERR_BAD_REQUEST, "file 'old.safetensors' has weight version 'v1'"},
        {"{\"x\":[[[[[[[[[]]]]]]]]]}", ERR_BAD_REQUEST, "too deep"},
        {"{\"weight_map\":{\"c\":\"1.safetensors\"}} x", ERR_BAD_REQUEST, "more after"},
    };

    (void)state;
    write_shards("");
    write_safetensors("in/shards/copy.safetensors", "{" C "}", "ccc");
    write_safetensors("in/shards/new.safetensors",
                      "{\"__metadata__\":{\"baton.weight_version\":\"v2\"},"
                      "\"new\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}",
                      "n");
    write_safetensors("in/shards/old.safetensors",
                      "{\"__metadata__\":{\"baton.weight_version\":\"v1\"},"
                      "\"old\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}",
                      "o");
    assert_int_equal(symlink("../../out/secret.safetensors", path_of("in/shards/link")), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_text("in/shards/" INDEX, rows[i].index);
        refused("shards", NULL, rows[i].code, "/path", rows[i].says);
    }
}

static void test_file_index_bounds_the_number_of_files(void **state)
{
    struct buf b = {0};

    (void)state;
    write_shards("");
    buf_puts(&b, "{\"weight_map\":{\"t\":\"f\"");
    for (int i = 0; i < 4096; i++)
        buf_printf(&b, ",\"t%d\":\"f%d\"", i, i);
    buf_puts(&b, "}}");
    write_bytes("in/shards/" INDEX, b.data, b.len);
    refused("shards", NULL, ERR_TOO_LARGE, "/path", "more than 4096 files");
    buf_fini(&b);
}

static void test_file_fill_survives_a_shrinking_file(void **state)
{
    struct progress progress = running();
    struct file_weights w;
    struct source *s;
    struct err e = {0};
    char dst[12];

    (void)state;
    write_safetensors("in/shrinks", "{" A "," B "}", "aaaabbbbBBBB");
    open_ok(&s, &w, "shrinks", NULL);
    assert_int_equal(truncate(path_of("in/shrinks"), (off_t)(8 + strlen("{" A "," B "}") + 6)), 0);
    assert_int_equal(s->ops->fill(s, w.tensor_list, 0, 2, dst, &progress, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "tensor 'b'"));
    assert_non_null(strstr(e.msg, "'shrinks' shrank"));
    source_close(s);
    file_weights_fini(&w);
}

/* Grown, or overwritten at its old length: the bytes read are not one version's. */
/* A change within the tick of the one before has the same times. */
static void wait_for_tick_after(const struct timespec *t)
{
    struct timespec now;

    do
        (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
    while (now.tv_sec < t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec <= t->tv_nsec));
}

static void test_file_finish_notices_a_changed_file(void **state)
{
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct progress progress = running();
    struct file_weights w;
    struct source *s;
    struct err e = {0};
    struct timespec before[2];
    struct stat st;
    char dst[12];
    int fd;

    (void)state;
    write_safetensors("in/changes", "{" A "," B "}", "aaaabbbbBBBB");
    assert_int_equal(utimensat(AT_FDCWD, path_of("in/changes"), times, 0), 0);
    for (int how = 0; how < 3; how++) { /* in place, so that the time is set back, and longer */
        open_ok(&s, &w, "changes", NULL);
        fd = open(path_of("in/changes"), O_WRONLY);
        assert_int_equal(fstat(fd, &st), 0);
        before[0] = st.st_atim;
        before[1] = st.st_mtim;
        wait_for_tick_after(&st.st_ctim);
        assert_int_equal(s->ops->fill(s, w.tensor_list, 0, 2, dst, &progress, &e), 0);
        assert_int_equal(s->ops->finish(s, &progress, &e), 0);
        assert_int_equal(pwrite(fd, "B", 1, lseek(fd, 0, SEEK_END) - (how < 2)), 1);
        if (how == 1)
            assert_int_equal(futimens(fd, before), 0);
        assert_int_equal(s->ops->finish(s, &progress, &e), -1);
        assert_int_equal(e.code, ERR_UNREADABLE);
        assert_non_null(strstr(e.msg, "'changes' was changed"));
        err_clear(&e);
        (void)close(fd);
        source_close(s);
        file_weights_fini(&w);
    }
}

static void test_file_source_open_local_fixture(void **state)
{
    struct progress progress = running();
    struct file_weights w;
    struct source *s;
    struct err e = {0};
    void *dst;

    (void)state;
    if (file_source_open_local(&s, &w, CHECKPOINTS "/step-00100.safetensors", &e) != 0)
        fail_msg("%s", e.msg);
    dst = malloc(w.tensor_list->nbytes);
    assert_int_equal(
        s->ops->fill(s, w.tensor_list, 0, w.tensor_list->n_tensors, dst, &progress, &e), 0);
    assert_int_equal(s->ops->finish(s, &progress, &e), 0);
    assert_int_equal(progress.nbytes_done, w.tensor_list->nbytes);
    free(dst);
    source_close(s);
    file_weights_fini(&w);
    assert_int_equal(file_source_open_local(&s, &w, "/nowhere", &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_source_open_takes_what_the_file_says),
        cmocka_unit_test(test_file_source_open_fills_a_given_tensor_list),
        cmocka_unit_test(test_file_source_open_refuses_another_tensor_list),
        cmocka_unit_test(test_file_source_open_stays_beneath_the_root),
        cmocka_unit_test(test_file_source_open_several_roots),
        cmocka_unit_test(test_file_source_open_refuses_other_kinds),
        cmocka_unit_test(test_file_source_open_directory_with_one_file),
        cmocka_unit_test(test_file_source_open_refuses_two_checkpoints),
        cmocka_unit_test(test_file_source_open_follows_the_links_of_a_cache),
        cmocka_unit_test(test_file_source_open_shards),
        cmocka_unit_test(test_file_source_open_shard_refusals),
        cmocka_unit_test(test_file_index_bounds_the_number_of_files),
        cmocka_unit_test(test_file_fill_survives_a_shrinking_file),
        cmocka_unit_test(test_file_finish_notices_a_changed_file),
        cmocka_unit_test(test_file_source_open_local_fixture),
    };

    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
