/* The fake itself: it refuses what the driver refuses, orders what the driver orders, and hands
 * memory and events from one process to another. The other process is this program again, run with
 * the argument "exporter" and spoken to through its standard input and output, a byte a word. */
#include "driver/cuda.h"
#include "tests/fakes/libcuda/fakecuda.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NBYTES = 100000 };

static struct cu_api cu;
static fakecuda_fail_nth_fn *fail_nth;
static fakecuda_counts_fn *read_counts;
static fakecuda_hold_fn *hold;
static CUcontext ctx;

static void bind_symbol(void *to, const char *name)
{
    void *at = dlsym(cu.lib, name);

    if (at == NULL)
        abort();
    memcpy(to, &at, sizeof at);
}

static int open_fake(void **state)
{
    struct err e = {0};

    (void)state;
    if (cu_load(&cu, FAKECUDA, &e) != 0)
        return -1;
    bind_symbol(&fail_nth, "fakecuda_fail_nth");
    bind_symbol(&read_counts, "fakecuda_counts");
    bind_symbol(&hold, "fakecuda_hold");
    return 0;
}

static int close_fake(void **state)
{
    (void)state;
    cu_unload(&cu);
    return 0;
}

static int begin(void **state)
{
    (void)state;
    return cu.init(0) == CUDA_SUCCESS && cu.primary_ctx_retain(&ctx, 0) == CUDA_SUCCESS &&
                   cu.ctx_set_current(ctx) == CUDA_SUCCESS
               ? 0
               : -1;
}

/* After each test nothing is left. */
static int end(void **state)
{
    struct fakecuda_counts c;

    (void)state;
    (void)cu.ctx_set_current(NULL);
    (void)cu.primary_ctx_release(0);
    read_counts(&c);
    return c.n_allocations + c.n_mappings + c.n_host_blocks + c.n_streams + c.n_events +
                       c.n_contexts + c.n_modules + c.nbytes ==
                   0
               ? 0
               : -1;
}

static void ok(CUresult result)
{
    assert_int_equal(result, CUDA_SUCCESS);
}

static void test_calls_need_a_context(void **state)
{
    CUdeviceptr p;
    CUcontext popped;

    (void)state;
    ok(cu.ctx_push_current(ctx));
    ok(cu.ctx_pop_current(&popped));
    assert_ptr_equal(popped, ctx);
    ok(cu.ctx_set_current(NULL));
    assert_int_equal(cu.mem_alloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
    ok(cu.ctx_set_current(ctx));
    ok(cu.primary_ctx_release(0));
    assert_int_equal(cu.mem_alloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
    ok(cu.primary_ctx_retain(&ctx, 0));
}

static void test_memory_is_bounded_and_counted(void **state)
{
    size_t nbytes_free, total, nbytes;
    CUdeviceptr p, q, base;

    (void)state;
    ok(cu.mem_get_info(&nbytes_free, &total));
    assert_int_equal(nbytes_free, total);
    assert_int_equal(cu.mem_alloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.mem_alloc(&p, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cu.mem_alloc(&p, total - 10));
    assert_int_equal(cu.mem_alloc(&q, 11), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cu.mem_get_info(&nbytes_free, &total));
    assert_int_equal(nbytes_free, 10);
    ok(cu.mem_get_address_range(&base, &nbytes, p + 7));
    assert_true(base == p && nbytes == total - 10);
    assert_int_equal(cu.mem_free(p + 7), CUDA_ERROR_INVALID_VALUE);
    ok(cu.mem_free(p));
    assert_int_equal(cu.mem_free(p), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.mem_get_address_range(&base, &nbytes, p), CUDA_ERROR_NOT_FOUND);
}

static void test_device_memory_is_not_the_cpus(void **state)
{
    CUdeviceptr p;
    int status;
    pid_t pid;

    (void)state;
    ok(cu.mem_alloc(&p, NBYTES));
    pid = fork();
    if (pid == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)(uintptr_t)p);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ok(cu.mem_free(p));
}

static void test_copies_move_bytes_within_bounds(void **state)
{
    char out[64] = {0}, in[64];
    CUdeviceptr p, q;

    (void)state;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)i;
    ok(cu.mem_alloc(&p, 64));
    ok(cu.mem_alloc(&q, 64));
    ok(cu.memcpy_htod(p, in, 64));
    ok(cu.memcpy_dtod(q + 1, p, 63));
    ok(cu.memcpy_dtoh(out, q, 64));
    assert_memory_equal(out + 1, in, 63);
    assert_int_equal(cu.memcpy_dtod(q + 2, p, 63), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.memcpy_htod(p + 60, in, 5), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.memcpy_dtoh(out, 4096, 1), CUDA_ERROR_INVALID_VALUE);
    ok(cu.mem_free(p));
    ok(cu.mem_free(q));
}

/* Held back, a stream's copy has not happened and its event is not ready; then both are. */
static void test_streams_work_behind_the_caller(void **state)
{
    CUdeviceptr p, q;
    CUstream s, t;
    CUevent e, start;
    float ms = -1;
    void *host;

    (void)state;
    ok(cu.mem_host_alloc(&host, NBYTES, CU_MEMHOSTALLOC_PORTABLE));
    ok(cu.mem_alloc(&p, NBYTES));
    ok(cu.mem_alloc(&q, NBYTES));
    ok(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(cu.stream_create(&t, CU_STREAM_NON_BLOCKING));
    ok(cu.event_create(&e, CU_EVENT_DEFAULT));
    ok(cu.event_create(&start, CU_EVENT_DEFAULT));
    ok(cu.event_query(e)); /* never recorded: nothing to wait for */
    assert_int_equal(cu.event_elapsed_time(&ms, start, e), CUDA_ERROR_INVALID_HANDLE);
    hold(true);
    memset(host, 0x41, NBYTES);
    ok(cu.event_record(start, s));
    ok(cu.memcpy_htod_async(p, host, NBYTES, s));
    ok(cu.event_record(e, s));
    assert_int_equal(cu.stream_query(s), CUDA_ERROR_NOT_READY);
    assert_int_equal(cu.event_query(e), CUDA_ERROR_NOT_READY);
    ok(cu.stream_wait_event(t, e, 0));
    ok(cu.memcpy_dtod_async(q, p, NBYTES, t));
    ok(cu.memcpy_dtoh_async(host, q, 1, t));
    hold(false);
    ok(cu.event_synchronize(e));
    ok(cu.stream_synchronize(t));
    ok(cu.stream_query(t));
    ok(cu.event_elapsed_time(&ms, start, e));
    assert_true(ms >= 0);
    memset(host, 0, NBYTES);
    ok(cu.memcpy_dtoh(host, q, NBYTES));
    for (size_t i = 0; i < NBYTES; i++)
        assert_int_equal(((char *)host)[i], 0x41);
    ok(cu.event_destroy(e));
    ok(cu.event_destroy(start));
    ok(cu.stream_destroy(s));
    ok(cu.stream_destroy(t));
    ok(cu.mem_free(p));
    ok(cu.mem_free(q));
    ok(cu.mem_free_host(host));
}

/* As CUDA 13.0 on an H100: every copy takes page-locked memory for a device's, none takes other
 * memory, and there is no handle to it. */
static void test_page_locked_memory_is_a_devices_too(void **state)
{
    static char plain[64];
    char out[64] = {0};
    CUdeviceptr p, at, base = 0;
    CUipcMemHandle handle;
    size_t nbytes = 0;
    void *host;

    (void)state;
    ok(cu.mem_host_alloc(&host, NBYTES, CU_MEMHOSTALLOC_PORTABLE));
    ok(cu.mem_alloc(&p, 64));
    at = (uintptr_t)host;
    memset(plain, 0x17, sizeof plain);
    ok(cu.memcpy_htod(at, plain, 64));
    ok(cu.memcpy_dtod(at + 64, at, 64));
    ok(cu.memcpy_dtod(p, at + 64, 64));
    ok(cu.memcpy_dtod(at + 128, p, 64));
    ok(cu.memcpy_dtoh(out, at + 128, 64));
    assert_memory_equal(out, plain, 64);
    assert_memory_equal((char *)host + 128, plain, 64);
    ok(cu.mem_get_address_range(&base, &nbytes, at + 1));
    assert_int_equal(base, at);
    assert_int_equal(nbytes, NBYTES);
    assert_int_equal(cu.ipc_get_mem_handle(&handle, at), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.memcpy_dtod(p, (uintptr_t)plain, 64), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.memcpy_htod((uintptr_t)plain, host, 64), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.memcpy_dtoh(out, (uintptr_t)plain, 64), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cu.memcpy_htod(at + NBYTES - 1, plain, 2), CUDA_ERROR_INVALID_VALUE);
    ok(cu.mem_free(p));
    ok(cu.mem_free_host(host));
    assert_int_equal(cu.memcpy_htod(at, plain, 64), CUDA_ERROR_INVALID_VALUE);
}

static void test_host_memory_is_registered_once(void **state)
{
    static char block[8192];

    (void)state;
    ok(cu.mem_host_register(block, sizeof block, CU_MEMHOSTREGISTER_PORTABLE));
    assert_int_equal(cu.mem_host_register(block, sizeof block, 0),
                     CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ok(cu.mem_host_unregister(block));
    assert_int_equal(cu.mem_host_unregister(block), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static void test_peers_are_enabled_once(void **state)
{
    CUcontext other;
    int can = 0;

    (void)state;
    ok(cu.device_can_access_peer(&can, 0, 1));
    assert_int_equal(can, 1);
    ok(cu.primary_ctx_retain(&other, 1));
    ok(cu.ctx_enable_peer_access(other, 0));
    assert_int_equal(cu.ctx_enable_peer_access(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    ok(cu.primary_ctx_release(1));
}

static void test_kernels_run_on_their_stream(void **state)
{
    unsigned char value = 7, out[16] = {0};
    size_t nbytes = sizeof out;
    void *params[3];
    CUfunction f;
    CUmodule m;
    CUstream s;
    CUdeviceptr p;

    (void)state;
    ok(cu.mem_alloc(&p, nbytes));
    ok(cu.stream_create(&s, CU_STREAM_DEFAULT));
    assert_int_equal(cu.module_load_data(&m, NULL), CUDA_ERROR_INVALID_IMAGE);
    ok(cu.module_load_data(&m, "image"));
    assert_int_equal(cu.module_get_function(&f, m, "nobody"), CUDA_ERROR_NOT_FOUND);
    ok(cu.module_get_function(&f, m, "fake_fill"));
    params[0] = &p;
    params[1] = &nbytes;
    params[2] = &value;
    ok(cu.launch_kernel(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
    ok(cu.memcpy_dtoh(out, p, nbytes)); /* the default stream waits for `s` */
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(out[i], 7);
    ok(cu.module_unload(m));
    ok(cu.stream_destroy(s));
    ok(cu.mem_free(p));
}

static void test_handles_of_our_own_are_refused(void **state)
{
    CUipcEventHandle eh;
    CUipcMemHandle mh;
    CUdeviceptr p, again;
    CUevent e, other;

    (void)state;
    ok(cu.mem_alloc(&p, NBYTES));
    ok(cu.ipc_get_mem_handle(&mh, p + 5));
    assert_int_equal(cu.ipc_open_mem_handle(&again, mh, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                     CUDA_ERROR_INVALID_CONTEXT);
    ok(cu.event_create(&e, CU_EVENT_DISABLE_TIMING));
    assert_int_equal(cu.ipc_get_event_handle(&eh, e), CUDA_ERROR_INVALID_HANDLE);
    ok(cu.event_destroy(e));
    assert_int_equal(cu.event_create(&e, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    ok(cu.event_create(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    ok(cu.ipc_get_event_handle(&eh, e));
    assert_int_equal(cu.ipc_open_event_handle(&other, eh), CUDA_ERROR_INVALID_CONTEXT);
    ok(cu.event_destroy(e));
    ok(cu.mem_free(p));
}

/* A call that is made to fail acquires nothing; a release that fails releases all the same. */
static void test_the_nth_call_fails(void **state)
{
    CUdeviceptr p;

    (void)state;
    fail_nth(2);
    ok(cu.mem_alloc(&p, 1));
    assert_int_equal(cu.mem_free(p), CUDA_ERROR_UNKNOWN);
    fail_nth(1);
    assert_int_equal(cu.mem_alloc(&p, 1), CUDA_ERROR_UNKNOWN);
    ok(cu.mem_alloc(&p, 1));
    ok(cu.mem_free(p));
}

/* The other process. */
struct peer {
    pid_t pid;
    int to, from;
};

struct handles {
    CUipcMemHandle mem;
    CUipcEventHandle event;
};

static void need(bool good)
{
    if (!good)
        _exit(3);
}

/* Exports a bucket whose bytes are still on their way, held back until a byte comes in; frees it
 * at the second byte. */
static int exporter(void)
{
    unsigned char *host;
    struct handles h = {0};
    CUdeviceptr p = 0;
    CUstream s = NULL;
    CUevent e = NULL;
    void *block = NULL;
    char word = 'r';

    need(open_fake(NULL) == 0 && begin(NULL) == 0);
    need(cu.mem_alloc(&p, NBYTES) == 0 && cu.mem_host_alloc(&block, NBYTES, 0) == 0 &&
         cu.stream_create(&s, CU_STREAM_NON_BLOCKING) == 0 &&
         cu.event_create(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == 0);
    host = block;
    for (size_t i = 0; i < NBYTES; i++)
        host[i] = (unsigned char)(i * 7);
    hold(true);
    need(cu.memcpy_htod_async(p, host, NBYTES, s) == 0 && cu.event_record(e, s) == 0 &&
         cu.ipc_get_mem_handle(&h.mem, p) == 0 && cu.ipc_get_event_handle(&h.event, e) == 0);
    need(write(STDOUT_FILENO, &h, sizeof h) == (ssize_t)sizeof h);
    need(read(STDIN_FILENO, &word, 1) == 1);
    hold(false);
    need(cu.stream_synchronize(s) == 0 && read(STDIN_FILENO, &word, 1) == 1);
    need(cu.event_destroy(e) == 0 && cu.stream_destroy(s) == 0 && cu.mem_free_host(host) == 0 &&
         cu.mem_free(p) == 0);
    need(write(STDOUT_FILENO, &word, 1) == 1 && read(STDIN_FILENO, &word, 1) == 0);
    return end(NULL) == 0 ? 0 : 4;
}

/* FAKECUDA_STREAMS=at_once: done when the call returns, also while streams are held. */
static int at_once(void)
{
    char value = 0x33, back = 0;
    CUdeviceptr p = 0;
    CUstream s = NULL;
    CUevent e = NULL;

    need(open_fake(NULL) == 0 && begin(NULL) == 0 && cu.mem_alloc(&p, 1) == 0 &&
         cu.stream_create(&s, CU_STREAM_NON_BLOCKING) == 0 && cu.event_create(&e, 0) == 0);
    hold(true);
    need(cu.memcpy_htod_async(p, &value, 1, s) == 0 && cu.event_record(e, s) == 0);
    need(cu.event_query(e) == 0 && cu.stream_query(s) == 0);
    need(cu.memcpy_dtoh_async(&back, p, 1, s) == 0 && back == value);
    need(cu.event_destroy(e) == 0 && cu.stream_destroy(s) == 0 && cu.mem_free(p) == 0);
    return end(NULL) == 0 ? 0 : 4;
}

static void test_streams_work_at_once_when_told(void **state)
{
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setenv("FAKECUDA_STREAMS", "at_once", 1);
        (void)execl("/proc/self/exe", "at_once", "at_once", (char *)NULL);
        _exit(5);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
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
        for (int fd = 3; fd < 64; fd++)
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

static int peer_end(struct peer *peer)
{
    int status;

    (void)close(peer->to);
    (void)close(peer->from);
    assert_int_equal(waitpid(peer->pid, &status, 0), peer->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static CUresult open_mem(CUdeviceptr *p, const struct handles *h)
{
    return cu.ipc_open_mem_handle(p, h->mem, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void test_two_processes_share_memory_and_an_event(void **state)
{
    static unsigned char bytes[NBYTES];
    struct fakecuda_counts c;
    CUdeviceptr p, again, slab;
    CUipcMemHandle onward;
    struct handles h;
    struct peer peer;
    CUstream s;
    CUevent e;
    char word;

    (void)state;
    peer_start(&peer, &h);
    assert_int_equal(cu.ipc_open_mem_handle(&p, h.mem, 0), CUDA_ERROR_INVALID_VALUE);
    ok(open_mem(&p, &h));
    ok(open_mem(&again, &h));
    assert_true(p == again);
    assert_int_equal(cu.ipc_get_mem_handle(&onward, p), CUDA_ERROR_INVALID_VALUE);
    ok(cu.ipc_open_event_handle(&e, h.event));
    assert_int_equal(cu.event_query(e), CUDA_ERROR_NOT_READY);
    ok(cu.mem_alloc(&slab, NBYTES));
    ok(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(cu.stream_wait_event(s, e, 0));
    ok(cu.memcpy_dtod_async(slab, p, NBYTES, s));
    assert_int_equal(cu.stream_query(s), CUDA_ERROR_NOT_READY);
    peer_say(&peer); /* now its copy may go, and with it ours */
    ok(cu.stream_synchronize(s));
    ok(cu.event_query(e));
    ok(cu.memcpy_dtoh(bytes, slab, NBYTES));
    for (size_t i = 0; i < NBYTES; i++)
        assert_int_equal(bytes[i], (unsigned char)(i * 7));
    ok(cu.ipc_close_mem_handle(p));
    read_counts(&c);
    assert_int_equal(c.n_mappings, 1); /* opened twice, closed once */
    ok(cu.ipc_close_mem_handle(p));
    assert_int_equal(cu.ipc_close_mem_handle(p), CUDA_ERROR_INVALID_VALUE);
    ok(cu.event_destroy(e));
    peer_say(&peer);
    assert_int_equal(read(peer.from, &word, 1), 1);
    assert_int_equal(open_mem(&p, &h), CUDA_ERROR_INVALID_VALUE); /* freed by its exporter */
    ok(cu.ipc_open_event_handle(&e, h.event));                    /* destroyed by it: over */
    ok(cu.event_query(e));
    ok(cu.event_destroy(e));
    assert_int_equal(peer_end(&peer), 0);
    ok(cu.stream_destroy(s));
    ok(cu.mem_free(slab));
}

static void test_a_dead_exporters_handles_are_refused(void **state)
{
    struct handles h;
    struct peer peer;
    CUdeviceptr p;
    CUstream s;
    CUevent e, other;

    (void)state;
    peer_start(&peer, &h);
    ok(cu.ipc_open_event_handle(&e, h.event));
    ok(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(cu.stream_wait_event(s, e, 0));
    assert_int_equal(kill(peer.pid, SIGKILL), 0);
    assert_int_equal(peer_end(&peer), -SIGKILL);
    assert_int_equal(open_mem(&p, &h), CUDA_ERROR_INVALID_HANDLE);
    ok(cu.ipc_open_event_handle(&other, h.event)); /* the driver does not refuse it: it is over */
    ok(cu.event_query(other));
    ok(cu.event_destroy(other));
    ok(cu.stream_synchronize(s)); /* who waits for it is not left waiting */
    ok(cu.stream_destroy(s));
    ok(cu.event_destroy(e));
    memset(&h.mem, 0x11, sizeof h.mem);
    assert_int_equal(open_mem(&p, &h), CUDA_ERROR_INVALID_VALUE);
    memset(&h.event, 0x11, sizeof h.event);
    assert_int_equal(cu.ipc_open_event_handle(&other, h.event), CUDA_ERROR_MAP_FAILED);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls_need_a_context, begin, end),
        cmocka_unit_test_setup_teardown(test_memory_is_bounded_and_counted, begin, end),
        cmocka_unit_test_setup_teardown(test_device_memory_is_not_the_cpus, begin, end),
        cmocka_unit_test_setup_teardown(test_copies_move_bytes_within_bounds, begin, end),
        cmocka_unit_test_setup_teardown(test_streams_work_behind_the_caller, begin, end),
        cmocka_unit_test_setup_teardown(test_streams_work_at_once_when_told, begin, end),
        cmocka_unit_test_setup_teardown(test_page_locked_memory_is_a_devices_too, begin, end),
        cmocka_unit_test_setup_teardown(test_host_memory_is_registered_once, begin, end),
        cmocka_unit_test_setup_teardown(test_peers_are_enabled_once, begin, end),
        cmocka_unit_test_setup_teardown(test_kernels_run_on_their_stream, begin, end),
        cmocka_unit_test_setup_teardown(test_handles_of_our_own_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_the_nth_call_fails, begin, end),
        cmocka_unit_test_setup_teardown(test_two_processes_share_memory_and_an_event, begin, end),
        cmocka_unit_test_setup_teardown(test_a_dead_exporters_handles_are_refused, begin, end),
    };

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    if (argc == 2 && strcmp(argv[1], "exporter") == 0)
        return exporter();
    if (argc == 2 && strcmp(argv[1], "at_once") == 0)
        return at_once();
    return cmocka_run_group_tests(tests, open_fake, close_fake);
}
