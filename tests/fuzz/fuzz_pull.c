/* Directories of deltas from a stranger: slime's index and SkyRL's manifest, each with one payload
 * file. The input is the index, and after the first NUL byte the head (JSON) of the file, after the
 * second its bytes. A refusal explains itself and names the version; what is accepted changes
 * tensors of the model only, each once, in the model's order. Then they are made of a served
 * version, which stays as it is. */
#include "tests/fuzz/fuzz.h"

#include "base/clock.h"
#include "memory/slab.h"
#include "weights/delta/pull.h"
#include "weights/store/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const files[PULL_FORM_COUNT] = {
    [PULL_SLIME] = "model-00000-of-00001.safetensors",
    [PULL_SKYRL] = "delta-rank00000-file000000.safetensors"};
static const char *const indexes[PULL_FORM_COUNT] = {
    [PULL_SLIME] = "model.safetensors.index.json", [PULL_SKYRL] = "manifest.json"};

static const enum err_code codes[] = {ERR_NOT_FOUND,  ERR_PRECONDITION, ERR_BAD_REQUEST,
                                      ERR_MISMATCH,   ERR_INCOMPLETE,   ERR_TOO_LARGE,
                                      ERR_UNREADABLE, ERR_FORBIDDEN,    ERR_NONE};
static const enum err_code fill_codes[] = {ERR_CHECKSUM, ERR_BAD_REQUEST, ERR_NO_STAGING, ERR_NONE};
static const char base_bytes[] = "abcdefghijk";

/* In memory if it can be: a disk would take most of the time. */
static const char *directory(void)
{
    static char path[64];

    if (path[0] == '\0') {
        (void)snprintf(path, sizeof path, "/dev/shm/fuzz-pull-XXXXXX");
        if (mkdtemp(path) == NULL) {
            (void)snprintf(path, sizeof path, "/tmp/fuzz-pull-XXXXXX");
            CHECK(mkdtemp(path) != NULL);
        }
    }
    return path;
}

static void path_of(char out[256], enum pull_form form, const char *name)
{
    char version[32];

    pull_directory(version, form, 1);
    (void)snprintf(out, 256, "%s/%s%s%s", directory(), version, name[0] != '\0' ? "/" : "", name);
}

static void remove_all(void)
{
    char path[256];

    for (int form = 0; form < PULL_FORM_COUNT; form++) {
        path_of(path, (enum pull_form)form, files[form]);
        (void)unlink(path);
        path_of(path, (enum pull_form)form, indexes[form]);
        (void)unlink(path);
        path_of(path, (enum pull_form)form, "");
        (void)rmdir(path);
    }
    (void)rmdir(directory());
}

/* One file, under the name that it has in the directory of each form. Stays open. */
static int make_file(const char *const names[PULL_FORM_COUNT])
{
    char path[PULL_FORM_COUNT][256];
    int fd = -1;

    for (int form = 0; form < PULL_FORM_COUNT; form++) {
        path_of(path[form], (enum pull_form)form, names[form]);
        if (form == 0)
            fd = open(path[0], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        CHECK(fd >= 0 && (form == 0 || link(path[0], path[form]) == 0));
    }
    return fd;
}

struct piece {
    const void *data;
    size_t nbytes;
};

static void write_file(int fd, const struct piece *pieces, int n)
{
    size_t at = 0;

    for (int i = 0; i < n; at += pieces[i].nbytes, i++)
        CHECK(pwrite(fd, pieces[i].data, pieces[i].nbytes, (off_t)at) == (ssize_t)pieces[i].nbytes);
    CHECK(ftruncate(fd, (off_t)at) == 0);
}

static void make_directories(void)
{
    for (int form = 0; form < PULL_FORM_COUNT; form++) {
        char path[256];

        path_of(path, (enum pull_form)form, "");
        CHECK(mkdir(path, 0700) == 0);
    }
}

/* What an input has of the payload file; NULL: it is not there. */
static void put_payload(const struct piece *pieces, int n)
{
    static int fd = -1;

    if (pieces == NULL && fd >= 0) {
        (void)close(fd);
        fd = -1;
        for (int form = 0; form < PULL_FORM_COUNT; form++) {
            char path[256];

            path_of(path, (enum pull_form)form, files[form]);
            CHECK(unlink(path) == 0);
        }
    }
    if (pieces == NULL)
        return;
    if (fd < 0)
        fd = make_file(files);
    write_file(fd, pieces, n);
}

/* "x" of 8 bytes, "y" of 3, "tied" to x, "gone". */
static struct model_spec *spec_new(void)
{
    struct model_spec *m;
    static const char *const x[] = {"x", NULL};
    const struct alias_spec aliases[] = {{.name = "tied", .kind = ALIAS_TIED, .targets = x},
                                         {.name = "gone", .kind = ALIAS_IGNORED}};
    struct tensor_list_builder *b;
    struct tensor_list *list;
    const uint64_t two[] = {2}, three[] = {3};
    struct err e = {0};

    CHECK(tensor_list_builder_new(&b, &e) == 0 &&
          tensor_list_builder_add(b, "x", DTYPE_F32, two, 1, UINT64_MAX, &e) == 0 &&
          tensor_list_builder_add(b, "y", DTYPE_U8, three, 1, UINT64_MAX, &e) == 0 &&
          tensor_list_builder_finish(b, &list, &e) == 0 &&
          model_spec_new(&m, list, aliases, 2, &e) == 0);
    return m;
}

/* Serves "abcdefgh" as x, "ijk" as y. */
static struct store *store(void)
{
    static struct store *s;
    struct store_cfg cfg = {.n_versions_max = 2, .nbytes_max = 64 << 20};
    struct staging_cfg whole = {0};
    struct store_stats stats;
    struct staging *g;
    struct slab *slab;
    struct err e = {0};

    if (s != NULL)
        return s;
    cfg.model_spec = spec_new();
    CHECK(store_new(&s, &cfg, &e) == 0 && store_stage(s, &whole, 0, NULL, &g, &e) == 0 &&
          staging_slab(g, sizeof base_bytes, &slab, &e) == 0);
    memcpy(slab->base, base_bytes, sizeof base_bytes);
    CHECK(staging_view(g, 0, 0, slab, slab->addr, &e) == 0 &&
          staging_view(g, 0, 1, slab, slab->addr + 8, &e) == 0 &&
          store_commit(s, g, "base", &stats, &e) == 0 && stats.serial == 1);
    slab_unref(slab);
    return s;
}

static const struct model_spec *spec(void)
{
    return store_model_spec(store());
}

static void free_store(void)
{
    store_free(store());
}

static void check_accepted(const struct pull *p)
{
    const struct tensor_list *list = pull_tensors(p), *all = spec()->tensor_list;
    uint32_t last = 0;

    CHECK(pull_n_versions(p) == 1);
    for (uint32_t i = 0; list != NULL && i < list->n_tensors; i++) {
        uint32_t k = tensor_list_find(all, list->tensors[i].name);

        CHECK(k != TENSOR_LIST_NO_TENSOR && (i == 0 || k > last));
        CHECK(list->tensors[i].nbytes == all->tensors[k].nbytes);
        last = k;
    }
    CHECK(!pull_is_whole(p) || (list != NULL && list->n_tensors == all->n_tensors));
}

/* @p  is consumed */
static void make_tensors(struct pull *p)
{
    struct tensor_list *list = pull_tensors(p);
    struct progress progress = {.deadline_us = CLOCK_NEVER};
    const struct version *v;
    struct source *source;
    struct err e = {0};
    char *bytes;

    if (list == NULL) {
        pull_close(p);
        return;
    }
    list = tensor_list_ref(list);
    bytes = malloc(list->nbytes); /* exactly: a write beyond it is seen */
    CHECK(bytes != NULL && pull_source(&source, p, store(), 1, &e) == 0);
    if (source->ops->fill(source, list, 0, list->n_tensors, bytes, &progress, &e) != 0)
        check_refusal(&e, fill_codes, "");
    else
        CHECK(atomic_load(&progress.nbytes_done) == list->nbytes);
    source->ops->close(source);
    CHECK(store_pin(store(), &v, &e) == 0);
    CHECK(memcmp(v->views[0].data, base_bytes, 8) == 0 &&
          memcmp(v->views[1].data, &base_bytes[8], 3) == 0);
    store_unpin(store(), v);
    tensor_list_unref(list);
    free(bytes);
}

static void open_version(enum pull_form form)
{
    struct pull_cfg cfg = {.form = form,
                           .spec = spec(),
                           .rootfd = AT_FDCWD,
                           .source = directory(),
                           .served = 0,
                           .target = 1};
    struct pull *p = NULL;
    struct err e = {0};

    if (pull_open(&p, &cfg, &e) == 0) {
        check_accepted(p);
        make_tensors(p);
        return;
    }
    check_refusal(&e, codes, "");
    CHECK(p == NULL && strstr(e.msg, "version 1") != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static int index = -1;
    const uint8_t *end = data + len, *head = memchr(data, '\0', len), *bytes;
    struct piece text = {data, head != NULL ? (size_t)(head - data) : len};
    uint64_t n_head;

    if (index < 0) {
        make_directories();
        index = make_file(indexes);
        CHECK(atexit(free_store) == 0 && atexit(remove_all) == 0);
    }
    write_file(index, &text, 1);
    if (head != NULL) {
        head++;
        bytes = memchr(head, '\0', (size_t)(end - head));
        n_head = (size_t)((bytes != NULL ? bytes : end) - head);
        bytes = bytes != NULL ? bytes + 1 : end;
        put_payload((struct piece[]){{&n_head, sizeof n_head},
                                     {head, n_head},
                                     {bytes, (size_t)(end - bytes)}},
                    3);
    } else {
        put_payload(NULL, 0);
    }
    for (int form = 0; form < PULL_FORM_COUNT; form++)
        open_version((enum pull_form)form);
    return 0;
}
