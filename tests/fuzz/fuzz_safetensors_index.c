/* model.safetensors.index.json from a stranger, alone and beside two shards. The input is the
 * index, and after each of the first two NUL bytes the head (JSON) of a shard, "a" and "b"; without
 * them they hold two tensors. A refusal explains itself; what is accepted says what the JSON says,
 * and of a directory has every tensor once, with the bytes of the shard that holds it. */
#include "tests/fuzz/fuzz.h"

#include "base/clock.h"
#include "transport/file.h"
#include "transport/file_index.h"
#include "weights/safetensors.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SHARDS = 2, TENSORS_NBYTES_MAX = 1 << 16 };

static const char *const shard_names[SHARDS] = {"a", "b"};
static const char *const shard_heads[SHARDS] = {
    "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
    "\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}",
    "{\"__metadata__\":{\"weight_version\":\"v\"},"
    "\"z\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[0,4]}}"};

static struct safetensors
    shards[SHARDS]; /* as they were written; no tensor list: what is no head */

static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_UNREADABLE, ERR_TOO_LARGE, ERR_NONE};
static const enum err_code dir_codes[] = {ERR_BAD_REQUEST, ERR_UNREADABLE, ERR_TOO_LARGE,
                                          ERR_NOT_FOUND,   ERR_FORBIDDEN,  ERR_NONE};

/* A directory of this process, in memory; it goes with it. */
static const char *directory(void)
{
    static char path[64];

    if (path[0] == '\0') {
        (void)snprintf(path, sizeof path, "/tmp/fuzz-index-XXXXXX");
        CHECK(mkdtemp(path) != NULL);
    }
    return path;
}

static void path_of(char out[128], const char *name)
{
    (void)snprintf(out, 128, "%s/%s", directory(), name);
}

static void remove_all(void)
{
    char path[128];

    for (int i = 0; i < SHARDS; i++) {
        path_of(path, shard_names[i]);
        (void)unlink(path);
    }
    path_of(path, "model.safetensors.index.json");
    (void)unlink(path);
    (void)rmdir(directory());
    for (int i = 0; i < SHARDS; i++)
        safetensors_fini(&shards[i]);
}

static void write_file(const char *name, const void *head, size_t n_head, const void *data,
                       size_t n_data)
{
    char path[128];
    int fd;

    path_of(path, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, head, n_head) == (ssize_t)n_head);
    CHECK(n_data == 0 || write(fd, data, n_data) == (ssize_t)n_data);
    (void)close(fd);
}

/* The byte of a shard's tensors at `at`. */
static unsigned char byte_of(int shard, uint64_t at)
{
    return (unsigned char)(at * 7 + (uint64_t)shard * 101 + 3);
}

/* As long as its head says, if that is not much. */
static void write_shard(int shard, const char *head, size_t len)
{
    static unsigned char data[TENSORS_NBYTES_MAX];
    uint64_t nbytes = len;
    char *text = malloc(8 + len);
    struct safetensors *s = &shards[shard];
    struct err e = {0};
    size_t n = 0;

    CHECK(text != NULL);
    memcpy(text, &nbytes, 8);
    memcpy(text + 8, head, len);
    safetensors_fini(s);
    if (safetensors_parse(s, text, 8 + len, UINT64_MAX, &e) == 0)
        n = s->tensor_list->nbytes < sizeof data ? (size_t)s->tensor_list->nbytes : sizeof data;
    for (size_t i = 0; i < n; i++)
        data[i] = byte_of(shard, i);
    write_file(shard_names[shard], text, 8 + len, data, n);
    free(text);
}

/* ---- the index alone ---- */

static void check_index(const struct file_index *x, const char *text, size_t len)
{
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *map = json_object_get(o, "weight_map");

    CHECK(x->tensors.n >= 1 && x->tensors.n <= TENSOR_LIST_TENSORS_MAX);
    CHECK(x->files.n >= 1 && x->files.n <= FILE_INDEX_FILES_MAX);
    for (uint32_t i = 0; i < x->files.n; i++) {
        const char *name = x->files.items[i];

        CHECK(name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, "..") != 0);
        CHECK(strcmp(name, ".") != 0 && names_find(&x->files, name) == i);
    }
    for (uint32_t i = 0; i < x->tensors.n; i++) {
        const char *name = x->tensors.items[i];
        const char *file = x->files.items[x->file[i]];

        CHECK(x->file[i] < x->files.n && names_find(&x->tensors, name) == i);
        CHECK(map == NULL || strcmp(json_string_value(json_object_get(map, name)), file) == 0);
    }
    CHECK(map == NULL || json_object_size(map) == x->tensors.n);
    json_decref(o);
}

static void read_index(const char *text, size_t len)
{
    int fd = memfd_create("index", MFD_CLOEXEC);
    struct file_index x = {0};
    struct err e = {0};

    CHECK(fd >= 0 && write(fd, text, len) == (ssize_t)len);
    if (file_index_read(&x, fd, &e) != 0) {
        check_refusal(&e, codes, "/path");
        CHECK(x.file == NULL && x.tensors.n == 0);
    } else {
        check_index(&x, text, len);
        file_index_fini(&x);
    }
    (void)close(fd);
}

/* ---- and beside its shards ---- */

/* The one shard that has it. */
static int shard_of(const char *name)
{
    int found = -1;

    for (int i = 0; i < SHARDS; i++) {
        if (shards[i].tensor_list == NULL ||
            tensor_list_find(shards[i].tensor_list, name) == TENSOR_LIST_NO_TENSOR)
            continue;
        CHECK(found < 0);
        found = i;
    }
    CHECK(found >= 0);
    return found;
}

static void check_tensor(const struct tensor_spec *t, const unsigned char *bytes,
                         const json_t *weight_map)
{
    int shard = shard_of(t->name);
    const struct tensor_list *tensor_list = shards[shard].tensor_list;
    const struct tensor_spec *wanted =
        &tensor_list->tensors[tensor_list_find(tensor_list, t->name)];
    const char *mapped = json_string_value(json_object_get(weight_map, t->name));

    CHECK(t->dtype == wanted->dtype && t->ndim == wanted->ndim && t->nbytes == wanted->nbytes);
    CHECK(memcmp(t->shape, wanted->shape, t->ndim * sizeof t->shape[0]) == 0);
    CHECK(mapped == NULL || strcmp(mapped, shard_names[shard]) == 0);
    for (uint64_t k = 0; k < t->nbytes; k++)
        CHECK(bytes[k] == byte_of(shard, wanted->offset + k));
}

static void check_tensors(struct source *source, const struct file_weights *w,
                          const json_t *weight_map)
{
    unsigned char *got = malloc(w->tensor_list->nbytes + 1);
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct err e = {0};

    CHECK(got != NULL);
    CHECK(source->ops->fill(source, w->tensor_list, 0, w->tensor_list->n_tensors, got, &p, &e) ==
          0);
    for (uint32_t i = 0; i < w->tensor_list->n_tensors; i++)
        check_tensor(&w->tensor_list->tensors[i], got + w->tensor_list->tensors[i].offset,
                     weight_map);
    CHECK(source->ops->finish(source, &p, &e) == 0);
    free(got);
}

static void check_directory(const char *text, size_t len)
{
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    struct source *source = NULL;
    struct file_weights w = {0};
    struct err e = {0};
    const char *name;
    json_t *file;

    if (file_source_open_local(&source, &w, directory(), &e) != 0) {
        check_refusal(&e, dir_codes, "");
        CHECK(source == NULL && w.tensor_list == NULL && w.checksums == NULL);
        json_decref(o);
        return;
    }
    json_object_foreach(json_object_get(o, "weight_map"), name, file)
    {
        CHECK(json_is_string(file) &&
              tensor_list_find(w.tensor_list, name) != TENSOR_LIST_NO_TENSOR);
    }
    if (w.tensor_list->nbytes <= (uint64_t)SHARDS * TENSORS_NBYTES_MAX)
        check_tensors(source, &w, json_object_get(o, "weight_map"));
    source->ops->close(source);
    file_weights_fini(&w);
    json_decref(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static bool ready;
    const char *text = (const char *)data, *end = text + len, *nul;
    const char *heads[SHARDS];
    size_t n_heads[SHARDS], n_index;

    nul = len > 0 ? memchr(text, '\0', len) : NULL;
    n_index = nul != NULL ? (size_t)(nul - text) : len;
    for (int i = 0; i < SHARDS; i++) {
        const char *from = nul != NULL ? nul + 1 : NULL;

        nul = from != NULL && from < end ? memchr(from, '\0', (size_t)(end - from)) : NULL;
        heads[i] = from != NULL && from < end ? from : shard_heads[i];
        n_heads[i] = heads[i] == shard_heads[i] ? strlen(shard_heads[i])
                                                : (size_t)((nul != NULL ? nul : end) - from);
    }
    if (!ready)
        CHECK(atexit(remove_all) == 0);
    ready = true;
    read_index(text, n_index);
    write_file("model.safetensors.index.json", text, n_index, NULL, 0);
    for (int i = 0; i < SHARDS; i++)
        write_shard(i, heads[i], n_heads[i]);
    check_directory(text, n_index);
    return 0;
}
