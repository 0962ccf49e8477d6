/* Directories of deltas as tests read and spoil them, and the model that they belong to. */
#ifndef BATON_TESTS_PULL_FIXTURE_H
#define BATON_TESTS_PULL_FIXTURE_H

#include "tests/unit/update_fixture.h"
#include "tests/unit/weights/all_threads.h"

#include "memory/hash.h"
#include "weights/delta/pull.h"
#include "weights/safetensors.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define BASE  FIXTURES "/kjv-qwen3-1m/checkpoints/step-00000.safetensors"
#define DELTA FIXTURES "/delta/"

enum { PATH_MAX_ = 512, TEXT_MAX = 1 << 16 };

/* ---- the model and its first version ---- */

static inline struct model_spec *kjv_spec(void)
{
    struct model_spec *m = NULL;
    struct err e = {0};

    assert_int_equal(model_spec_load(&m, BASE, &e), 0);
    return m;
}

/* A safetensors file as a source. */
struct file_bytes {
    struct source source; /* first */
    struct safetensors head;
    int fd;
};

static inline int file_bytes_fill(struct source *s, const struct tensor_list *list, uint32_t first,
                                  uint32_t n, void *dst, struct progress *p, struct err *e)
{
    const struct file_bytes *f = (struct file_bytes *)s;
    char *at = dst;

    (void)e;
    for (uint32_t i = first; i < first + n; i++) {
        const struct tensor_spec *t = &list->tensors[i];

        assert_int_equal(pread(f->fd, at, t->nbytes, (off_t)(f->head.nbytes_head + t->offset)),
                         t->nbytes);
        at += t->nbytes;
        (void)atomic_fetch_add(&p->nbytes_done, t->nbytes);
    }
    return 0;
}

static inline void file_bytes_close(struct source *s)
{
    struct file_bytes *f = (struct file_bytes *)s;

    safetensors_fini(&f->head);
    (void)close(f->fd);
    free(f);
}

static inline struct file_bytes *file_bytes_open(const char *path)
{
    static const struct source_ops ops = {
        .name = "file", .fill = file_bytes_fill, .close = file_bytes_close};
    struct file_bytes *f = calloc(1, sizeof *f);
    struct err e = {0};

    assert_non_null(f);
    f->source.ops = &ops;
    assert_int_equal(safetensors_open(&f->head, &f->fd, AT_FDCWD, path, &e), 0);
    return f;
}

static inline struct update_chunk *chunk_from(struct bench *b, struct tensor_list *list,
                                              struct source *source, bool partial,
                                              const char *label)
{
    struct update_chunk *c = calloc(1, sizeof *c);

    assert_non_null(c);
    c->partial = partial;
    c->tensor_list = tensor_list_ref(list);
    c->source = source;
    c->done = fx_done;
    c->done_arg = &b->answer;
    (void)snprintf(c->label, sizeof c->label, "%s", label);
    return c;
}

static inline void serve_base(struct bench *b)
{
    struct file_bytes *f = file_bytes_open(BASE);
    struct err e = {0};

    assert_int_equal(updates_submit(b->updates,
                                    chunk_from(b, f->head.tensor_list, &f->source, false, "base"),
                                    &e),
                     0);
    assert_int_equal(fx_await(&b->answer), ERR_NONE);
}

static inline void setup(struct bench *b)
{
    bench_model_spec = kjv_spec;
    bench_open(b);
    serve_base(b);
}

static uint64_t serial_of(struct bench *b)
{
    struct store_info info;

    store_info(b->store, &info);
    return info.serial;
}

/* ---- pulls ---- */

static inline int open_at(struct pull **out, struct bench *b, enum pull_form form,
                          const char *source, uint64_t served, uint64_t target, struct err *e)
{
    struct pull_cfg cfg = {.form = form,
                           .spec = store_model_spec(b->store),
                           .rootfd = AT_FDCWD,
                           .source = source,
                           .served = served,
                           .target = target};

    return pull_open(out, &cfg, e);
}

/* Pulls and commits. Returns how that ended, and *e says why. */
static inline enum err_code pull_to(struct bench *b, enum pull_form form, const char *source,
                                    uint64_t served, uint64_t target, struct err *e)
{
    struct pull *p = NULL;
    struct tensor_list *list;
    struct update_chunk *c;
    struct source *s = NULL;
    bool partial;

    err_clear(e);
    if (open_at(&p, b, form, source, served, target, e) != 0)
        return e->code;
    list = pull_tensors(p);
    if (list == NULL) { /* nothing changes */
        pull_close(p);
        return ERR_NONE;
    }
    partial = !pull_is_whole(p);
    assert_int_equal(pull_source(&s, p, b->store, serial_of(b), e), 0);
    c = chunk_from(b, list, s, partial, "pulled");
    assert_int_equal(updates_submit(b->updates, c, e), 0);
    (void)fx_await(&b->answer);
    *e = b->answer.e;
    return e->code;
}

static json_t *expected;

/* Are exactly the bytes of this version served? 0: the base. */
static inline void assert_version(struct bench *b, unsigned version)
{
    const struct tensor_list *list = store_model_spec(b->store)->tensor_list;
    const struct version *v = NULL;
    struct file_bytes *f = version == 0 ? file_bytes_open(BASE) : NULL;
    char number[8], text[HASH_TEXT_MAX + 1], want[HASH_TEXT_MAX + 1];
    struct err e = {0};

    (void)snprintf(number, sizeof number, "%u", version);
    assert_int_equal(store_pin(b->store, &v, &e), 0);
    for (uint32_t i = 0; i < list->n_tensors; i++) {
        const struct tensor_spec *t = &list->tensors[i];
        char *bytes = malloc(t->nbytes);
        struct progress p = {.deadline_us = CLOCK_NEVER};

        assert_non_null(bytes);
        if (f != NULL) {
            uint32_t k = tensor_list_find(f->head.tensor_list, t->name);

            assert_int_equal(file_bytes_fill(&f->source, f->head.tensor_list, k, 1, bytes, &p, &e),
                             0);
            hash_of(HASH_SHA256, bytes, t->nbytes, want);
        } else {
            const char *sum = json_string_value(
                json_object_get(json_object_get(expected, number), t->name));

            assert_non_null(sum);
            (void)snprintf(want, sizeof want, "%s", sum);
        }
        assert_int_equal(store_read(b->store, v, i, 0, t->nbytes, bytes, &e), 0);
        hash_of(HASH_SHA256, bytes, t->nbytes, text);
        assert_string_equal(text, want);
        free(bytes);
    }
    store_unpin(b->store, v);
    if (f != NULL)
        file_bytes_close(&f->source);
}

/* ---- changed copies ---- */

static char scratch[PATH_MAX_];

static inline int remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
    (void)st;
    (void)kind;
    (void)f;
    return remove(path);
}

static inline void read_all(const char *path, char **out, size_t *n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    *n = (size_t)st.st_size;
    *out = malloc(*n + 1);
    assert_non_null(*out);
    assert_int_equal(read(fd, *out, *n), *n);
    (*out)[*n] = '\0';
    (void)close(fd);
}

static inline void write_all(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    (void)close(fd);
}

/* "scratch/name", or "scratch/version/name" */
static inline const char *in_scratch(const char *dir, const char *name)
{
    static char path[3 * PATH_MAX_];

    (void)snprintf(path, sizeof path, "%s/%s%s%s", scratch, dir, name[0] != '\0' ? "/" : "", name);
    return path;
}

/* A copy of a set's version directories, in `scratch`. */
static inline void copy_set(const char *set)
{
    DIR *d, *inner;
    const struct dirent *x, *y;

    (void)nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(scratch, 0700), 0);
    d = opendir(set);
    assert_non_null(d);
    while ((x = readdir(d)) != NULL) {
        char from[PATH_MAX_];

        if (x->d_name[0] == '.')
            continue;
        (void)snprintf(from, sizeof from, "%s/%s", set, x->d_name);
        assert_int_equal(mkdir(in_scratch(x->d_name, ""), 0700), 0);
        inner = opendir(from);
        assert_non_null(inner);
        while ((y = readdir(inner)) != NULL) {
            char file[2 * PATH_MAX_], *data;
            size_t n;

            if (y->d_name[0] == '.')
                continue;
            (void)snprintf(file, sizeof file, "%s/%s", from, y->d_name);
            read_all(file, &data, &n);
            write_all(in_scratch(x->d_name, y->d_name), data, n);
            free(data);
        }
        (void)closedir(inner);
    }
    (void)closedir(d);
}

/* Replaces text once; the lengths may differ. */
static inline void replace(const char *dir, const char *name, const char *from, const char *to)
{
    char *data, *at, *out;
    size_t n;

    read_all(in_scratch(dir, name), &data, &n);
    at = memmem(data, n, from, strlen(from));
    assert_non_null(at);
    out = malloc(n + strlen(to) + 1);
    assert_non_null(out);
    memcpy(out, data, (size_t)(at - data));
    memcpy(out + (at - data), to, strlen(to));
    memcpy(out + (at - data) + strlen(to), at + strlen(from),
           n - (size_t)(at - data) - strlen(from));
    write_all(in_scratch(dir, name), out, n - strlen(from) + strlen(to));
    free(out);
    free(data);
}

/* Flips a bit of the last byte but `back`. */
static inline void flip(const char *dir, const char *name, size_t back)
{
    char *data;
    size_t n;

    read_all(in_scratch(dir, name), &data, &n);
    data[n - 1 - back] ^= 1;
    write_all(in_scratch(dir, name), data, n);
    free(data);
}

/* ---- what is refused ---- */

struct refusal {
    const char *set;
    void (*spoil)(void);
    enum err_code code;
    const char *says;
};

/* After a refusal: the base is served, and the right version is taken. */
static inline void check_refused(struct bench *b, enum pull_form form, const char *set,
                                 enum err_code code, const char *says)
{
    struct err e = {0};

    assert_int_equal(pull_to(b, form, scratch, 0, 1, &e), code);
    if (strstr(e.msg, says) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, says);
    assert_non_null(strstr(e.msg, "version 1"));
    assert_version(b, 0);
    copy_set(set);
    assert_int_equal(pull_to(b, form, scratch, 0, 1, &e), ERR_NONE);
    assert_version(b, 1);
    serve_base(b);
}

static inline int run_pull_tests(const struct CMUnitTest *tests, size_t n)
{
    int rc;

    expected = json_load_file(DELTA "expected.json", 0, NULL);
    (void)snprintf(scratch, sizeof scratch, "/tmp/test-pull-%d", (int)getpid());
    rc = _cmocka_run_group_tests("pull", tests, n, NULL, NULL);
    (void)nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    json_decref(expected);
    return rc;
}

#endif
