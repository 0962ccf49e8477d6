/* weights/device over the fake, when things go wrong or come from elsewhere: handles between two
 * processes; every driver call and every allocation failed in turn; other threads. The other
 * process is this program again, run with the argument "exporter". */
#include "tests/unit/memory/device_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { CHILD_FDS = 64 };

void *__real_malloc(size_t nbytes);
void *__real_calloc(size_t n, size_t nbytes);
void *__wrap_malloc(size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);

static long left = -1; /* allocations until the one that fails; -1: none does */

void *__wrap_malloc(size_t nbytes)
{
    return left >= 0 && left-- == 0 ? NULL : __real_malloc(nbytes);
}

void *__wrap_calloc(size_t n, size_t nbytes)
{
    return left >= 0 && left-- == 0 ? NULL : __real_calloc(n, nbytes);
}

/* The other process. */
struct peer {
    pid_t pid;
    int to, from;
};

struct handles {
    uint8_t mem[DEVICE_IPC_NBYTES], event[DEVICE_IPC_NBYTES];
    uint64_t offset, nbytes;
};

static void need(bool good)
{
    if (!good)
        _exit(3);
}

static void exporter_event(struct device *d, CUcontext *ctx, CUstream *s, CUevent *ev,
                           struct handles *h)
{
    struct cu_api *cu = &whole.cu;
    CUipcEventHandle eh;

    (void)d;
    need(cu->primary_ctx_retain(ctx, 0) == 0 && cu->ctx_set_current(*ctx) == 0);
    need(cu->stream_create(s, CU_STREAM_NON_BLOCKING) == 0 &&
         cu->event_create(ev, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == 0);
    need(cu->event_record(*ev, *s) == 0 && cu->ipc_get_event_handle(&eh, *ev) == 0);
    memcpy(h->event, &eh, sizeof eh);
}

/* Exports a slab, and an event that happens at the first byte it is sent; ends at the second. */
static int exporter(void)
{
    static unsigned char bytes[100000];
    struct slab_pool *pool = NULL;
    struct slab_memory memory;
    struct device *d = NULL;
    struct slab *s = NULL;
    struct handles h = {0};
    struct err e = {0};
    CUcontext ctx = NULL;
    CUstream stream = NULL;
    CUevent ev = NULL;
    char word;

    need(open_fake(&whole, FAKECUDA) == 0);
    need(device_new(&d, &whole.cu, &whole.devices[0], &e) == 0);
    memory = device_memory(d);
    need(slab_pool_new(&pool, &memory, UINT64_MAX, 0, &e) == 0 &&
         slab_new(&s, pool, sizeof bytes, &e) == 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7);
    need(device_write(d, s->addr, bytes, sizeof bytes, &e) == 0);
    need(device_export(d, s->addr + 5, h.mem, &h.offset, &e) == 0 && h.offset == 5);
    h.nbytes = 2 << 20; /* a whole granule */
    whole.hold(true);
    exporter_event(d, &ctx, &stream, &ev, &h);
    need(write(STDOUT_FILENO, &h, sizeof h) == (ssize_t)sizeof h);
    need(read(STDIN_FILENO, &word, 1) == 1);
    whole.hold(false);
    need(whole.cu.stream_synchronize(stream) == 0 && write(STDOUT_FILENO, "d", 1) == 1);
    need(read(STDIN_FILENO, &word, 1) == 1);
    need(whole.cu.event_destroy(ev) == 0 && whole.cu.stream_destroy(stream) == 0);
    need(whole.cu.primary_ctx_release(0) == 0);
    slab_unref(s);
    slab_pool_free(pool);
    device_free(d);
    return nothing_left(&whole) ? 0 : 4;
}

static void peer_start(struct peer *peer, struct handles *h)
{
    int in[2], out[2];

    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    peer->pid = fork();
    assert_true(peer->pid >= 0);
    if (peer->pid == 0) {
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDOUT_FILENO);
        for (int fd = 3; fd < CHILD_FDS; fd++)
            (void)close(fd);
        (void)execl("/proc/self/exe", "exporter", "exporter", (char *)NULL);
        _exit(5);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    peer->to = in[1];
    peer->from = out[0];
    assert_int_equal(read(peer->from, h, sizeof *h), sizeof *h);
}

static void peer_say(const struct peer *peer)
{
    assert_int_equal(write(peer->to, "g", 1), 1);
}

static void peer_hear(const struct peer *peer)
{
    char word;

    assert_int_equal(read(peer->from, &word, 1), 1);
}

static int peer_end(struct peer *peer)
{
    int status;

    (void)close(peer->to);
    (void)close(peer->from);
    assert_int_equal(waitpid(peer->pid, &status, 0), peer->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_device_import_reads_another_process(void **state)
{
    unsigned char back[1000];
    struct device_event *ev = NULL;
    uint64_t addr = 0, nbytes = 0;
    struct err e = {0};
    struct handles h;
    struct device *d;
    struct peer peer;

    (void)state;
    peer_start(&peer, &h);
    d = device_of(&whole);
    ok(device_import(d, h.mem, &addr, &nbytes, &e), &e);
    assert_int_equal(nbytes, h.nbytes);
    ok(device_event_open(d, h.event, &ev, &e), &e);
    assert_int_equal(device_event_passed(d, ev, &e), 0);
    peer_say(&peer);
    peer_hear(&peer);
    assert_int_equal(device_event_passed(d, ev, &e), 1);
    device_event_close(d, ev);
    device_event_close(d, NULL);
    ok(device_read(d, back, addr + h.offset, sizeof back, &e), &e);
    for (size_t i = 0; i < sizeof back; i++)
        assert_int_equal(back[i], (unsigned char)((i + 5) * 7));
    assert_int_equal(counts_of(&whole).n_mappings, 1);
    device_unimport(d, addr);
    assert_int_equal(counts_of(&whole).n_mappings, 0);
    peer_say(&peer);
    assert_int_equal(peer_end(&peer), 0);
    device_free(d);
}

static void refused(struct device *d, const uint8_t handle[DEVICE_IPC_NBYTES], const char *says)
{
    uint64_t addr = 77, nbytes = 78;
    struct err e = {0};

    assert_int_equal(device_import(d, handle, &addr, &nbytes, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_true(addr == 77 && nbytes == 78);
    if (strstr(e.msg, says) == NULL || strstr(e.msg, "cuIpcOpenMemHandle: CUDA_ERROR_") == NULL)
        fail_msg("%s", e.msg);
}

static void test_device_import_says_what_usually_is_wrong(void **state)
{
    uint8_t own[DEVICE_IPC_NBYTES], garbage[DEVICE_IPC_NBYTES];
    struct device_event *ev = NULL;
    struct err e = {0};
    struct handles h;
    struct arena a;
    struct peer peer;

    (void)state;
    peer_start(&peer, &h);
    arena_open(&a, &whole, 51);
    ok(device_export(a.d, a.w.src, own, NULL, &e), &e);
    refused(a.d, own, "exported itself");
    memset(garbage, 0x11, sizeof garbage);
    refused(a.d, garbage, "CUDA_ERROR_INVALID_VALUE (1)");
    assert_int_equal(device_event_open(a.d, garbage, &ev, &e), -1);
    assert_non_null(strstr(e.msg, "cuIpcOpenEventHandle"));
    assert_null(ev);
    err_clear(&e);
    assert_int_equal(kill(peer.pid, SIGKILL), 0);
    assert_int_equal(peer_end(&peer), -SIGKILL);
    refused(a.d, h.mem, "its exporter has exited");
    assert_int_equal(device_export(a.d, 4096, own, NULL, &e), -1); /* not an allocation */
    assert_int_equal(e.code, ERR_CUDA);
    arena_close(&a);
}

/* Everything once, small; what succeeds must be right. */
struct story {
    struct fake_lib *f;
    struct handles *h; /* of another process; NULL: leave that out */
    struct device *d;
    struct slab_pool *pool, *pinned;
    struct slab *src, *dst, *host;
    struct device_batch *b;
    struct device_event *ev;
    uint64_t mapped, nbytes_mapped;
};

enum { STORY_NBYTES = 70001, STORY_PIECES = 20 };

static int story_open(struct story *s, const unsigned char *bytes, struct err *e)
{
    struct slab_memory memory;

    if (device_new(&s->d, &s->f->cu, &s->f->devices[0], e) != 0)
        return -1;
    memory = device_memory(s->d);
    if (slab_pool_new(&s->pool, &memory, UINT64_MAX, UINT64_MAX, e) != 0)
        return -1;
    memory = device_pinned_memory(s->d);
    if (slab_pool_new(&s->pinned, &memory, UINT64_MAX, 0, e) != 0 ||
        slab_pool_check(s->pool, STORY_NBYTES, e) != 0 ||
        slab_new(&s->src, s->pool, STORY_NBYTES, e) != 0 ||
        slab_new(&s->dst, s->pool, STORY_NBYTES, e) != 0 ||
        slab_new(&s->host, s->pinned, STORY_NBYTES, e) != 0)
        return -1;
    return device_write(s->d, s->src->addr, bytes, STORY_NBYTES, e);
}

static int story_foreign(struct story *s, struct err *e)
{
    if (s->h == NULL)
        return 0;
    if (device_import(s->d, s->h->mem, &s->mapped, &s->nbytes_mapped, e) != 0 ||
        device_event_open(s->d, s->h->event, &s->ev, e) != 0)
        return -1;
    return device_event_passed(s->d, s->ev, e) < 0 ? -1 : 0;
}

static int story_copy(struct story *s, const unsigned char *bytes, struct err *e)
{
    struct device_piece pieces[STORY_PIECES], whole_piece;
    struct device_made sums[STORY_PIECES];
    struct checksum sum;
    uint8_t handle[DEVICE_IPC_NBYTES];
    uint64_t each = STORY_NBYTES / STORY_PIECES, now, total;
    struct progress p = patient();

    for (uint64_t i = 0; i < STORY_PIECES; i++)
        pieces[i] = (struct device_piece){s->src->addr + i * each, s->dst->addr + i * each, each,
                                          DTYPE_NONE};
    whole_piece = (struct device_piece){s->src->addr, s->dst->addr, STORY_NBYTES, DTYPE_NONE};
    if (device_batch_new(s->d, &s->b, e) != 0 ||
        device_batch_copy(s->b, &whole_piece, 1, NULL, e) != 0 ||
        device_batch_copy(s->b, pieces, STORY_PIECES, sums, e) != 0 ||
        device_batch_to_host(s->b, s->host->base, s->dst->addr, STORY_NBYTES, e) != 0 ||
        device_batch_wait(s->b, &p, e) != 0 ||
        device_batch_from_host(s->b, s->dst->addr, s->host->base, 1, e) != 0 ||
        device_batch_wait(s->b, &p, e) != 0 ||
        device_sum(s->d, s->dst->addr, STORY_NBYTES, &sum, e) != 0 ||
        device_room(s->d, &now, &total, e) != 0 ||
        device_export(s->d, s->dst->addr, handle, NULL, e) != 0)
        return -1;
    assert_memory_equal(s->host->base, bytes, STORY_NBYTES);
    assert_true(checksum_equal(sum, checksum_of(bytes, STORY_NBYTES)));
    for (uint64_t i = 0; i < STORY_PIECES; i++)
        assert_true(checksum_equal(sums[i].sum, checksum_of(bytes + i * each, each)));
    return 0;
}

static int story_tell(struct fake_lib *f, struct handles *h, struct err *e)
{
    static unsigned char bytes[STORY_NBYTES];
    struct story s = {.f = f, .h = h};
    int rc;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 31 + i / 251);
    rc = story_open(&s, bytes, e);
    if (rc == 0)
        rc = story_foreign(&s, e);
    if (rc == 0)
        rc = story_copy(&s, bytes, e);
    device_batch_free(s.b);
    if (s.ev != NULL)
        device_event_close(s.d, s.ev);
    if (s.mapped != 0)
        device_unimport(s.d, s.mapped);
    slab_unref(s.src);
    slab_unref(s.dst);
    slab_unref(s.host);
    slab_pool_free(s.pool);
    slab_pool_free(s.pinned);
    device_free(s.d);
    return rc;
}

/* The thread has no context left on its stack. */
static bool context_left(const struct fake_lib *f)
{
    CUcontext ctx;

    return f->cu.ctx_pop_current(&ctx) != CUDA_ERROR_INVALID_CONTEXT;
}

/* A call added later is covered unedited. Some failures are survived: a release that says it
 * failed, an image that is refused. */
static void each_call_fails(struct fake_lib *f, struct handles *h)
{
    int n_failed = 0;

    for (uint64_t nth = 1;; nth++) {
        uint64_t made = counts_of(f).n_calls;
        struct err e = {0};
        int rc;

        f->fail_nth(nth);
        rc = story_tell(f, h, &e);
        f->fail_nth(0);
        made = counts_of(f).n_calls - made;
        assert_true((rc == 0) == (e.code == ERR_NONE));
        assert_true(rc == 0 || (e.code == ERR_CUDA && strstr(e.msg, "(999)") != NULL));
        assert_true(nothing_left(f));
        assert_false(context_left(f));
        n_failed += rc != 0;
        if (made < nth) {
            assert_int_equal(rc, 0);
            break;
        }
    }
    assert_true(n_failed >= 40);
}

static void test_each_driver_call_fails_cleanly(void **state)
{
    struct handles h;
    struct peer peer;

    (void)state;
    peer_start(&peer, &h);
    each_call_fails(&whole, &h);
    each_call_fails(&plain, NULL);
    peer_say(&peer);
    peer_hear(&peer);
    peer_say(&peer);
    assert_int_equal(peer_end(&peer), 0);
}

static void test_each_allocation_fails_cleanly(void **state)
{
    struct fake_lib *const fakes[] = {&whole, &plain};
    struct handles h;
    struct peer peer;

    (void)state;
    peer_start(&peer, &h);
    for (size_t i = 0; i < 2; i++) {
        int n_failed = 0, rc = -1;

        for (long n = 0; rc != 0; n++) {
            struct err e = {0};

            left = n;
            rc = story_tell(fakes[i], i == 0 ? &h : NULL, &e);
            left = -1;
            assert_true((rc == 0) == (e.code == ERR_NONE));
            assert_true(rc == 0 || e.code == ERR_NO_MEMORY || e.code == ERR_NO_STAGING);
            assert_true(nothing_left(fakes[i]));
            n_failed += rc != 0;
        }
        assert_true(n_failed >= 9);
    }
    peer_say(&peer);
    peer_hear(&peer);
    peer_say(&peer);
    assert_int_equal(peer_end(&peer), 0);
}

/* Blocking calls of others, while batches run. */
static void *others(void *arg)
{
    struct arena *a = arg;
    unsigned char word[256];
    struct checksum sum, expected = checksum_of(a->w.host_src, 100001);
    struct err e = {0};
    uint8_t handle[DEVICE_IPC_NBYTES];
    uint64_t now, total;

    for (int i = 0; i < 50; i++) {
        if (device_sum(a->d, a->w.src, 100001, &sum, &e) != 0 || !checksum_equal(sum, expected) ||
            device_read(a->d, word, a->w.src + 7, sizeof word, &e) != 0 ||
            memcmp(word, a->w.host_src + 7, sizeof word) != 0 ||
            device_room(a->d, &now, &total, &e) != 0 ||
            device_export(a->d, a->w.src, handle, NULL, &e) != 0)
            return a;
    }
    return NULL;
}

static void test_any_thread_may_call_beside_a_batch(void **state)
{
    static struct device_piece pieces[PIECES_MAX];
    static struct device_made sums[PIECES_MAX];
    pthread_t threads[3];
    struct err e = {0};
    struct arena a;

    (void)state;
    arena_open(&a, &whole, 61);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, others, &a), 0);
    for (int round = 0; round < 5; round++) {
        struct device_batch *b = batch_of(a.d);
        uint32_t n = pieces_make(&a.w, pieces, PIECES_MAX);

        ok(device_batch_copy(b, pieces, n, sums, &e), &e);
        wait_for(b);
        for (uint32_t i = 0; i < n; i++)
            assert_true(checksum_equal(sums[i].sum, pieces_sum(&a.w, &pieces[i])));
        device_batch_free(b);
    }
    for (size_t i = 0; i < 3; i++) {
        void *wrong = &a;

        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    arena_assert(&a);
    arena_close(&a);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        DEVICE_TEST(test_device_import_reads_another_process),
        DEVICE_TEST(test_device_import_says_what_usually_is_wrong),
        DEVICE_TEST(test_each_driver_call_fails_cleanly),
        DEVICE_TEST(test_each_allocation_fails_cleanly),
        DEVICE_TEST(test_any_thread_may_call_beside_a_batch),
    };

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    (void)setenv("FAKECUDA_MEMORY", "67108864", 1);
    if (argc == 2 && strcmp(argv[1], "exporter") == 0)
        return exporter();
    return run_device_tests(tests, sizeof tests / sizeof tests[0]);
}
