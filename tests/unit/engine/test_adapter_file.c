/* Reading a directory that someone may be writing to. What happens meanwhile is done by the `gone`
 * callback, which every look at the directory and every piece of a file asks: no test waits for a
 * moment that may not come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/engine/adapter_fixture.h"

#include "base/clock.h"
#include "engine/lora/adapter_file.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>

enum { PATH_LEN = 256, LONG_MS = 120000, JSON_LEN = 300 };

static char root[PATH_LEN];
static char dir[PATH_LEN + 8]; /* root/lora */

/* Of the loads that follow; 0: as usual. Short where nobody is at work on the files. */
static uint32_t settle_ms;

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int set_up(void **state)
{
    (void)state;
    settle_ms = 0;
    (void)snprintf(root, sizeof root, "/tmp/baton-adapter-XXXXXX");
    if (mkdtemp(root) == NULL)
        return -1;
    (void)snprintf(dir, sizeof dir, "%s/lora", root);
    return mkdir(dir, 0700);
}

static int tear_down(void **state)
{
    (void)state;
    (void)chmod(dir, 0700);
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *in_dir(const char *name)
{
    static char path[2][PATH_LEN + 64];
    static unsigned at;
    char *out = path[at++ % 2];

    (void)snprintf(out, sizeof path[0], "%s/%s", dir, name);
    return out;
}

/* Overwrites in place, as trainers do. */
static void put(const char *name, const void *data, size_t len, int flags)
{
    int fd = open(in_dir(name), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
    (void)close(fd);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text), O_TRUNC);
}

#define CONFIG  "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"

/* One step of a training: everything that it writes, and the digest that must come of it. */
struct step {
    struct blob weights; /* owned */
    char config[JSON_LEN];
    char digest[ADAPTER_DIGEST_LEN + 1];
};

static struct step step_new(uint32_t r, uint64_t seed)
{
    struct model_config m = small_model();
    struct tensors t = tensors_of(&m, ALL_MODULES, r, DTYPE_BF16, PEFT);
    struct tensor_list *tensor_list = tensor_list_of(&t);
    struct adapter *a = adapter_made(&m, ALL_MODULES, r, DTYPE_BF16, seed);
    struct step s = {.weights = safetensors_blob(tensor_list, seed)};

    (void)snprintf(s.config, sizeof s.config,
                   "{\"peft_type\": \"LORA\", \"r\": %2u, \"lora_alpha\": %2u, "
                   "\"target_modules\": \"all-linear\", \"bias\": \"none\"}",
                   r, 2 * r);
    (void)snprintf(s.digest, sizeof s.digest, "%s", adapter_digest(a));
    adapter_free(a);
    tensor_list_unref(tensor_list);
    return s;
}

static void step_write(const struct step *s)
{
    put(WEIGHTS, s->weights.data, s->weights.len, O_TRUNC);
    put_text(CONFIG, s->config);
}

static void step_free(struct step *s)
{
    free(s->weights.data);
}

struct loading {
    struct adapter *a;
    struct adapter_report report;
    struct err e;
    int rc;
};

/* Look after look, as often as its header says: what happens at the k-th is to find it reading. */
static int load_whole(struct adapter **out, struct adapter_report *report,
                      const struct adapter_spec *spec, const struct adapter_dir *d,
                      const struct adapter_room *room, const struct adapter_wait *w, struct err *e)
{
    static const struct timespec poll = {.tv_nsec = ADAPTER_POLL_MS * 1000000L};
    struct adapter_sight sight = {0};
    int rc;

    while ((rc = adapter_file_look(&sight, out, report, spec, d, room, w, e)) == 1) {
        assert_int_equal(e->code, ERR_NONE);
        (void)nanosleep(&poll, NULL);
    }
    return rc;
}

static struct loading load_from(const struct adapter_dir *d, uint64_t ms,
                                const struct adapter_room *room, bool (*gone)(void *), void *arg)
{
    struct model_config m = small_model();
    struct adapter_spec spec = spec_of(&m, NULL);
    struct adapter_wait w = {.deadline_us = clock_after_us(ms * 1000),
                             .gone = gone,
                             .gone_arg = arg,
                             .settle_ms = settle_ms};
    struct loading l = {0};

    l.rc = load_whole(&l.a, &l.report, &spec, d, room, &w, &l.e);
    assert_true((l.rc == 0) == (l.a != NULL) && (l.rc == 0) == (l.e.code == ERR_NONE));
    assert_true((l.rc == 0) == (l.report.matched.n > 0));
    return l;
}

static struct loading load(uint64_t ms, bool (*gone)(void *), void *arg)
{
    struct adapter_dir d = {.rootfd = AT_FDCWD, .path = dir};

    return load_from(&d, ms, NULL, gone, arg);
}

static void loading_fini(struct loading *l)
{
    adapter_report_fini(&l->report);
    adapter_free(l->a);
    l->a = NULL;
}

static void expect(struct loading *l, const struct step *s)
{
    if (l->rc != 0)
        fail_msg("%s: %s", err_wire_name(l->e.code), l->e.msg);
    assert_string_equal(adapter_digest(l->a), s->digest);
    loading_fini(l);
}

static void expect_error(struct loading *l, enum err_code code, const char *says)
{
    if (l->rc == 0 || l->e.code != code || strstr(l->e.msg, says) == NULL)
        fail_msg("%s: %s (not '%s')", err_wire_name(l->e.code), l->e.msg, says);
    loading_fini(l);
}

static unsigned n_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n;
}

/* What was never there is given up early; what is replaced, or has no files yet, is not. */
static void test_load_gives_up_a_directory_that_never_appears(void **state)
{
    enum { APPEAR_MS = 100 };
    struct model_config m = small_model();
    struct adapter_spec spec = spec_of(&m, NULL);
    struct adapter_wait w = {.deadline_us = clock_after_us(LONG_MS * 1000ULL),
                             .appear_us = clock_after_us(APPEAR_MS * 1000ULL)};
    struct adapter_dir d = {.rootfd = AT_FDCWD, .path = "/nonexistent/adapter"};
    struct adapter_sight sight = {0};
    struct adapter *a = NULL;
    struct err e = {0};
    uint64_t began = clock_now_us();

    (void)state;
    assert_int_equal(load_whole(&a, NULL, &spec, &d, NULL, &w, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_true(clock_now_us() - began >= APPEAR_MS * 1000ULL);
    assert_false(clock_passed(w.deadline_us));
    memset(&e, 0, sizeof e);
    d.path = "/"; /* it has no files of an adapter */
    assert_int_equal(adapter_file_look(&sight, &a, NULL, &spec, &d, NULL, &w, &e), 1);
    d.path = "/nonexistent/adapter"; /* and then it is away for a moment */
    assert_int_equal(adapter_file_look(&sight, &a, NULL, &spec, &d, NULL, &w, &e), 1);
}

static void test_load_reads_a_peft_directory(void **state)
{
    static const char *const dirs[] = {SHOUT, RSLORA};
    struct model_config m = kjv_model();
    struct adapter_spec spec = spec_of(&m, NULL);
    unsigned before = n_fds();

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct adapter_dir d = {.rootfd = AT_FDCWD, .path = dirs[i]};
        struct adapter_wait w = {.deadline_us = clock_after_us(LONG_MS * 1000ULL)};
        struct adapter_report report;
        struct adapter *a = NULL;
        struct err e = {0};

        if (load_whole(&a, &report, &spec, &d, NULL, &w, &e) != 0)
            fail_msg("%s", e.msg);
        assert_int_equal(report.matched.n, i == 0 ? 56 : 16);
        assert_int_equal(adapter_rank(a), i == 0 ? 16 : 4);
        adapter_report_fini(&report);
        adapter_free(a);
    }
    assert_int_equal(n_fds(), before);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

/* A trainer on another machine: each look finds one thing more. */
struct arrival {
    const struct step *step;
    unsigned n_looks;
};

static bool arrive(void *arg)
{
    struct arrival *a = arg;
    const struct blob *w = &a->step->weights;
    char *zeros = calloc(1, w->len);

    assert_non_null(zeros);
    switch (a->n_looks++) {
    case 2:
        assert_int_equal(mkdir(dir, 0700), 0);
        break;
    case 4:
        put(WEIGHTS, "", 0, O_TRUNC);
        break;
    case 6:
        put(WEIGHTS, w->data, 5, O_TRUNC);
        break;
    case 8:
        put(WEIGHTS, w->data, 100, O_TRUNC);
        break;
    case 10:
        put(WEIGHTS, w->data, w->len - 1, O_TRUNC);
        break;
    case 12: /* laid out in full, nothing in it */
        put(WEIGHTS, zeros, w->len, O_TRUNC);
        break;
    case 14:
        put(WEIGHTS, w->data, w->len, O_TRUNC);
        break;
    case 16:
        put_text(CONFIG, "");
        break;
    case 18:
        put(CONFIG, a->step->config, strlen(a->step->config) - 1, O_TRUNC);
        break;
    case 20:
        put_text(CONFIG, a->step->config);
        break;
    default:
        break;
    }
    free(zeros);
    return false;
}

static void test_load_waits_for_what_is_not_there_yet(void **state)
{
    struct step s = step_new(4, 1);
    struct arrival a = {.step = &s};
    struct loading l;
    unsigned before = n_fds();

    (void)state;
    assert_int_equal(rmdir(dir), 0);
    l = load(LONG_MS, arrive, &a);
    assert_true(a.n_looks > 20);
    expect(&l, &s);
    assert_int_equal(n_fds(), before);
    step_free(&s);
}

/* What was not there at the deadline is named. */
static void test_load_names_what_was_missing(void **state)
{
    char other[PATH_LEN + 16];
    struct step s = step_new(4, 1);
    struct loading l;

    (void)state;
    l = load(50, NULL, NULL);
    expect_error(&l, ERR_NOT_FOUND, WEIGHTS);
    put(WEIGHTS, s.weights.data, s.weights.len, 0);
    l = load(50, NULL, NULL);
    expect_error(&l, ERR_NOT_FOUND, CONFIG);
    put_text(CONFIG, "{\"r\": 4");
    l = load(400, NULL, NULL);
    expect_error(&l, ERR_UNREADABLE, CONFIG);
    put_text(CONFIG, s.config);
    put(WEIGHTS, s.weights.data, s.weights.len - 1, O_TRUNC);
    l = load(400, NULL, NULL);
    expect_error(&l, ERR_UNREADABLE, "bytes of");
    put(WEIGHTS, s.weights.data, s.weights.len, O_TRUNC);
    l = load(0, NULL, NULL); /* just written: too fresh to be believed */
    expect_error(&l, ERR_UNREADABLE, "still being written");
    (void)snprintf(other, sizeof other, "%s/elsewhere", root);
    assert_int_equal(rename(dir, other), 0);
    l = load(0, NULL, NULL);
    expect_error(&l, ERR_NOT_FOUND, "directory");
    assert_int_equal(rename(other, dir), 0);
    step_free(&s);
}

/* At the k-th question everything is overwritten by another step, in one of several ways. */
struct overwrite {
    const struct step *old, *young;
    unsigned at, n;
    int how;
};

enum { IN_PLACE, TRUNCATED, RENAMED, DIRECTORY_RENAMED, ONE_FILE, N_HOWS };

static void replace(const struct overwrite *o)
{
    static unsigned n_renamed;
    char other[PATH_LEN + 32], kept[PATH_LEN];

    if (o->how == DIRECTORY_RENAMED) {
        (void)snprintf(other, sizeof other, "%s/old-%u", root, n_renamed++);
        assert_int_equal(rename(dir, other), 0);
        assert_int_equal(mkdir(dir, 0700), 0);
        step_write(o->young);
    } else if (o->how == RENAMED) {
        put("new", o->young->weights.data, o->young->weights.len, O_TRUNC);
        (void)snprintf(kept, sizeof kept, "%.200s/new", dir);
        assert_int_equal(rename(kept, in_dir(WEIGHTS)), 0);
        put("new", o->young->config, strlen(o->young->config), O_TRUNC);
        assert_int_equal(rename(kept, in_dir(CONFIG)), 0);
    } else {
        put(WEIGHTS, o->young->weights.data, o->young->weights.len,
            o->how == IN_PLACE ? 0 : O_TRUNC);
        if (o->how != ONE_FILE)
            put(CONFIG, o->young->config, strlen(o->young->config),
                o->how == IN_PLACE ? 0 : O_TRUNC);
    }
}

static bool overwrite_then(void *arg)
{
    struct overwrite *o = arg;

    if (o->n++ == o->at)
        replace(o);
    return false;
}

/* Wherever in the reading it happens, what is loaded is one step or the other, never a mixture. */
static void test_load_is_one_step_whenever_it_is_overwritten(void **state)
{
    /* The same sizes (nothing but times tells), the same config, and another rank. */
    const uint32_t ranks[][2] = {{4, 4}, {4, 6}};
    unsigned n_old = 0, n_young = 0;

    (void)state;
    for (int k = 0; k < 2 * N_HOWS; k++) {
        struct step old = step_new(ranks[k % 2][0], 1), young = step_new(ranks[k % 2][1], 2);
        bool reached = true;

        for (unsigned at = 0; reached; at += at < 8 ? 1 : 5) {
            struct overwrite o = {&old, &young, at, 0, k / 2};
            struct loading l;
            bool is_old;

            if (o.how == ONE_FILE && k % 2 == 1)
                break; /* the config stays the old one: never whole again */
            step_write(&old);
            l = load(LONG_MS, overwrite_then, &o);
            reached = o.n > at;
            if (l.rc != 0)
                fail_msg("how %d, at %u: %s", o.how, at, l.e.msg);
            is_old = strcmp(adapter_digest(l.a), old.digest) == 0;
            assert_true(is_old || strcmp(adapter_digest(l.a), young.digest) == 0);
            n_old += is_old;
            n_young += !is_old;
            loading_fini(&l);
        }
        step_free(&old);
        step_free(&young);
    }
    assert_true(n_old > 0 && n_young > 20);
}

/* A writer of its own that never looks at the reader: every load is whole, or says why not. */
struct writer {
    const struct step *steps[2];
    atomic_uint n_asked;
    atomic_bool done;
};

/* Piece by piece where the size tells that more is to come; a writer that rests longer than files
 * have to be old, in the middle of one that keeps its size, is not to be seen. */
static void write_slowly(const char *name, const char *data, size_t len, int flags)
{
    int fd = open(in_dir(name), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    size_t piece = (flags & O_TRUNC) != 0 ? 700 : len;

    for (size_t at = 0; at < len; at += piece) {
        size_t n = len - at < piece ? len - at : piece;

        if (pwrite(fd, data + at, n, (off_t)at) != (ssize_t)n)
            abort();
        (void)sched_yield();
    }
    (void)close(fd);
}

static void *write_on_and_on(void *arg)
{
    struct writer *w = arg;

    for (unsigned i = 1; !atomic_load(&w->done); i++) {
        const struct step *s = w->steps[i % 2];

        while (atomic_load(&w->n_asked) < i && !atomic_load(&w->done))
            (void)sched_yield();
        write_slowly(WEIGHTS, s->weights.data, s->weights.len, i % 3 == 0 ? O_TRUNC : 0);
        write_slowly(CONFIG, s->config, strlen(s->config), i % 3 == 0 ? O_TRUNC : 0);
    }
    return NULL;
}

static void test_load_against_a_writer_in_place(void **state)
{
    struct step a = step_new(4, 1), b = step_new(4, 2);
    struct writer w = {.steps = {&a, &b}};
    pthread_t thread;
    unsigned n[2] = {0};

    (void)state;
    step_write(&a);
    assert_int_equal(pthread_create(&thread, NULL, write_on_and_on, &w), 0);
    for (unsigned i = 0; i < 40 || n[0] == 0 || n[1] == 0; i++) { /* the writer may come late */
        struct loading l;

        atomic_store(&w.n_asked, i + 1); /* it writes while we read */
        l = load(LONG_MS, NULL, NULL);
        if (l.rc != 0)
            fail_msg("%s", l.e.msg);
        n[strcmp(adapter_digest(l.a), b.digest) == 0]++;
        assert_true(strcmp(adapter_digest(l.a), a.digest) == 0 ||
                    strcmp(adapter_digest(l.a), b.digest) == 0);
        loading_fini(&l);
    }
    atomic_store(&w.done, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    step_free(&a);
    step_free(&b);
}

/* ---- what is refused ---- */

static void write_head(const char *json, uint64_t n, size_t n_data)
{
    size_t len = strlen(json);
    char *file = calloc(1, 8 + len + n_data);

    assert_non_null(file);
    memcpy(file, &n, sizeof n);
    memcpy(file + 8, json, len);
    put(WEIGHTS, file, 8 + len + n_data, O_TRUNC);
    free(file);
}

#define T                                                                                          \
    "\"model.layers.0.self_attn.q_proj.lora_A.weight\":"                                           \
    "{\"dtype\":\"BF16\",\"shape\":[4,20],\"data_offsets\":"

static void test_load_refuses_hostile_files(void **state)
{
    static const struct {
        const char *head;
        uint64_t n; /* what the prefix says; 0: the truth */
        size_t n_data;
        const char *says;
        enum err_code code;
    } rows[] = {
        {"{}", 0, 0, "no tensors", ERR_BAD_REQUEST},
        {"[]", 0, 0, "begins with byte", ERR_BAD_REQUEST},
        {"{" T "[0,160]}}", 0, 161, "but its header describes", ERR_BAD_REQUEST},
        {"{" T "[0,159]}}", 0, 160, "159 bytes by data_offsets", ERR_BAD_REQUEST},
        {"{" T "[1,161]}}", 0, 161, "hole", ERR_BAD_REQUEST},
        {"{" T "[160,0]}}", 0, 160, "before it begins", ERR_BAD_REQUEST},
        {"{" T "[0,160]}," T "[0,160]}}", 0, 160, "twice", ERR_BAD_REQUEST},
        {"{" T "[0,160]}", 0, 160, "", ERR_BAD_REQUEST},
        {"{}", UINT64_MAX, 0, "", ERR_BAD_REQUEST},
        {"{}", ADAPTER_HEAD_NBYTES_MAX + 1U, 0, "header of", ERR_TOO_LARGE},
        {"{" T "[0,160]}}", 0, 160, "no lora_B", ERR_MISMATCH},
    };
    struct step s = step_new(4, 1);

    (void)state;
    settle_ms = 40;
    put_text(CONFIG, "{\"r\":4}");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct loading l;

        write_head(rows[i].head, rows[i].n != 0 ? rows[i].n : strlen(rows[i].head), rows[i].n_data);
        l = load(LONG_MS, NULL,
                 NULL); /* not waited for until the deadline: left alone, it is final */
        expect_error(&l, rows[i].code, rows[i].says);
    }
    step_write(&s);
    put_text(CONFIG, "{\"r\":4, \"use_dora\":true}");
    {
        struct loading l = load(LONG_MS, NULL, NULL);

        expect_error(&l, ERR_BAD_REQUEST, "use_dora");
        put_text(CONFIG, "{\"r\": 4");
        l = load(LONG_MS, NULL, NULL);
        expect_error(&l, ERR_UNREADABLE, CONFIG);
    }
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
    step_free(&s);
}

/* A config that is wrong only because the next one is on its way is not blamed at once. */
static bool correct_at_third(void *arg)
{
    struct arrival *a = arg;

    if (a->n_looks++ == 3)
        put_text(CONFIG, a->step->config);
    return false;
}

static void test_load_gives_a_fresh_mistake_time_to_be_mended(void **state)
{
    static const char *const mistakes[] = {"{\"r\":6}", "{\"r\":", "no JSON", ""};
    struct step s = step_new(4, 1);
    struct arrival a;
    struct loading l;

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        do { /* again where the machine slept before the mistake could be mended */
            a = (struct arrival){.step = &s};
            step_write(&s);
            put_text(CONFIG, mistakes[i]);
            l = load(LONG_MS, correct_at_third, &a);
        } while (l.rc != 0 && a.n_looks <= 3);
        expect(&l, &s);
    }
    step_free(&s);
}

static void test_load_refuses_pickles_fifos_and_links(void **state)
{
    struct step s = step_new(4, 1);
    struct adapter_dir inside = {.path = "lora"};
    struct loading l;
    int rootfd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char path_in_root[512];

    (void)state;
    assert_true(rootfd >= 0);
    (void)snprintf(path_in_root, sizeof path_in_root, "%s/real", root);
    inside.rootfd = rootfd;
    put_text("adapter_model.bin", "x");
    l = load(LONG_MS, NULL, NULL);
    expect_error(&l, ERR_BAD_REQUEST, "adapter_model.bin");
    step_write(&s); /* beside the real one it is nobody's business */
    l = load_from(&inside, LONG_MS, NULL, NULL, NULL);
    expect(&l, &s);
    assert_int_equal(rename(in_dir(WEIGHTS), in_dir("real")), 0);
    assert_int_equal(rename(in_dir("real"), path_in_root), 0);
    assert_int_equal(symlink("../real", in_dir(WEIGHTS)), 0);
    l = load_from(&inside, LONG_MS, NULL, NULL, NULL); /* as in the cache of huggingface_hub */
    expect(&l, &s);
    assert_int_equal(unlink(in_dir(WEIGHTS)), 0);
    assert_int_equal(symlink(path_in_root, in_dir(WEIGHTS)), 0);
    l = load_from(&inside, LONG_MS, NULL, NULL, NULL);
    expect_error(&l, ERR_FORBIDDEN, "symbolic link that is absolute");
    l = load(LONG_MS, NULL, NULL); /* from the command line links are followed */
    expect(&l, &s);
    inside.path = "lora/../../..";
    l = load_from(&inside, LONG_MS, NULL, NULL, NULL);
    expect_error(&l, ERR_FORBIDDEN, "outside");
    inside.path = "real";
    l = load_from(&inside, LONG_MS, NULL, NULL, NULL);
    expect_error(&l, ERR_BAD_REQUEST, "not a directory");
    assert_int_equal(unlink(in_dir(WEIGHTS)), 0);
    assert_int_equal(mkfifo(in_dir(WEIGHTS), 0600), 0);
    l = load(LONG_MS, NULL, NULL);
    expect_error(&l, ERR_UNREADABLE, "not a regular file");
    (void)close(rootfd);
    step_free(&s);
}

/* ---- who may end it, and who is asked for room ---- */

static bool gone_at_fifth(void *arg)
{
    return ++*(unsigned *)arg >= 5;
}

static void test_load_ends_when_told(void **state)
{
    struct model_config m = small_model();
    struct adapter_spec spec = spec_of(&m, NULL);
    struct adapter_dir d = {.rootfd = AT_FDCWD, .path = dir};
    atomic_bool stop = true;
    struct adapter_wait w = {.deadline_us = clock_after_us(LONG_MS * 1000ULL), .stop = &stop};
    struct adapter *a = NULL;
    struct err e = {0};
    unsigned n = 0;
    struct loading l = load(LONG_MS, gone_at_fifth, &n);

    (void)state;
    expect_error(&l, ERR_GONE, "went away");
    assert_int_equal(n, 5);
    assert_int_equal(load_whole(&a, NULL, &spec, &d, NULL, &w, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
}

struct room {
    uint64_t nbytes, limit;
};

static int take_room(void *arg, uint64_t nbytes, struct err *e)
{
    struct room *r = arg;

    r->nbytes = nbytes;
    return nbytes <= r->limit ? 0 : err_set(e, ERR_NO_STAGING, "", "no room");
}

static void test_load_asks_for_room_before_it_takes_any(void **state)
{
    struct step s = step_new(4, 1);
    struct room r = {.limit = 0};
    struct adapter_room room = {take_room, &r};
    struct adapter_dir d = {.rootfd = AT_FDCWD, .path = dir};
    struct loading l;

    (void)state;
    step_write(&s);
    l = load_from(&d, LONG_MS, &room, NULL, NULL);
    expect_error(&l, ERR_NO_STAGING, "no room");
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
    r.limit = r.nbytes;
    l = load_from(&d, LONG_MS, &room, NULL, NULL);
    assert_int_equal(adapter_nbytes(l.a), r.nbytes);
    expect(&l, &s);
    step_free(&s);
}

static void test_load_unwinds_every_failed_allocation(void **state)
{
    struct step s = step_new(4, 1);
    unsigned before = n_fds();
    struct loading l = {.rc = -1};

    (void)state;
    step_write(&s);
    l = load(LONG_MS, NULL, NULL); /* no longer fresh after this */
    loading_fini(&l);
    l.rc = -1;
    for (long n = 0; l.rc != 0; n++) {
        assert_true(n < 2000);
        fail_nth(n);
        l = load(LONG_MS, NULL, NULL);
        fail_nth(-1);
        assert_true(l.rc == 0 || l.e.code == ERR_NO_MEMORY);
        loading_fini(&l);
        assert_int_equal(atomic_load(&nbytes_mapped), 0);
        assert_int_equal(n_fds(), before);
    }
    step_free(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_load_gives_up_a_directory_that_never_appears),
        TEST(test_load_reads_a_peft_directory),
        TEST(test_load_waits_for_what_is_not_there_yet),
        TEST(test_load_names_what_was_missing),
        TEST(test_load_is_one_step_whenever_it_is_overwritten),
        TEST(test_load_against_a_writer_in_place),
        TEST(test_load_refuses_hostile_files),
        TEST(test_load_gives_a_fresh_mistake_time_to_be_mended),
        TEST(test_load_refuses_pickles_fifos_and_links),
        TEST(test_load_ends_when_told),
        TEST(test_load_asks_for_room_before_it_takes_any),
        TEST(test_load_unwinds_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
