/* A trainer in another process, over libfakecuda.so: this program run again with the argument
 * "exporter", spoken to through pipes; and torch's counter objects. */
#ifndef BATON_TESTS_IPC_TRAINER_H
#define BATON_TESTS_IPC_TRAINER_H

#include "driver/cuda.h"
#include "memory/device.h"
#include "tests/fakes/libcuda/fakecuda.h"
#include "transport/ipc/ipc_handle.h"
#include "transport/ipc/ref_counter.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { IFX_RANKS = 2, IFX_BLOCKS_MAX = 128, IFX_NAME_CAP = IPC_REF_NAME_MAX + 1 };

/* Byte i of a block that was filled with `seed`. */
static inline uint8_t ifx_byte(uint32_t seed, uint64_t i)
{
    return (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

/* The other process. */

enum ifx_what {
    IFX_ALLOC, /* nbytes on a device, filled; answers with its handle */
    IFX_EVENT, /* one recorded on the device's held stream; answers with its handle */
    IFX_FIRE,  /* lets the events pass, and those to come be held again */
    IFX_FREE,  /* the n-th block of IFX_ALLOC */
    IFX_LEAVE, /* the first thread leaves, another one stays */
};

struct ifx_command {
    enum ifx_what what;
    int32_t device;
    uint32_t seed, block;
    uint64_t nbytes;
};

struct ifx_answer {
    uint8_t handle[DEVICE_IPC_NBYTES];
};

struct ifx_lib {
    struct cu_api cu;
    fakecuda_fail_nth_fn *fail_nth;
    fakecuda_counts_fn *counts;
    fakecuda_hold_fn *hold;
};

static inline bool ifx_bind(struct ifx_lib *lib, void *to, const char *name)
{
    void *at = dlsym(lib->cu.lib, name);

    if (at != NULL)
        memcpy(to, &at, sizeof at);
    return at != NULL;
}

static inline bool ifx_lib_open(struct ifx_lib *lib)
{
    struct err e = {0};

    return cu_load(&lib->cu, FAKECUDA, &e) == 0 &&
           ifx_bind(lib, &lib->fail_nth, "fakecuda_fail_nth") &&
           ifx_bind(lib, &lib->counts, "fakecuda_counts") &&
           ifx_bind(lib, &lib->hold, "fakecuda_hold") && lib->cu.init(0) == CUDA_SUCCESS;
}

struct ifx_trainer {
    struct ifx_lib lib;
    CUcontext ctx[IFX_RANKS];
    CUstream streams[IFX_RANKS];
    CUdeviceptr blocks[IFX_BLOCKS_MAX];
    int32_t device[IFX_BLOCKS_MAX];
    uint32_t n_blocks;
    CUevent events[IFX_BLOCKS_MAX];
    uint32_t n_events;
};

static inline void ifx_need(bool good)
{
    if (!good)
        _exit(3);
}

static inline void ifx_do_alloc(struct ifx_trainer *t, const struct ifx_command *c,
                                struct ifx_answer *a)
{
    uint8_t *bytes = malloc(c->nbytes);
    CUipcMemHandle h;

    ifx_need(bytes != NULL && t->n_blocks < IFX_BLOCKS_MAX);
    for (uint64_t i = 0; i < c->nbytes; i++)
        bytes[i] = ifx_byte(c->seed, i);
    ifx_need(t->lib.cu.mem_alloc(&t->blocks[t->n_blocks], c->nbytes) == CUDA_SUCCESS &&
             t->lib.cu.memcpy_htod(t->blocks[t->n_blocks], bytes, c->nbytes) == CUDA_SUCCESS &&
             t->lib.cu.ipc_get_mem_handle(&h, t->blocks[t->n_blocks]) == CUDA_SUCCESS);
    free(bytes);
    memcpy(a->handle, &h, sizeof h);
    t->device[t->n_blocks++] = c->device;
}

static inline void ifx_do_event(struct ifx_trainer *t, const struct ifx_command *c,
                                struct ifx_answer *a)
{
    CUevent *ev = &t->events[t->n_events++];
    CUipcEventHandle h;

    ifx_need(t->n_events <= IFX_BLOCKS_MAX);
    ifx_need(t->lib.cu.event_create(ev, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) ==
                 CUDA_SUCCESS &&
             t->lib.cu.event_record(*ev, t->streams[c->device]) == CUDA_SUCCESS &&
             t->lib.cu.ipc_get_event_handle(&h, *ev) == CUDA_SUCCESS);
    memcpy(a->handle, &h, sizeof h);
}

static inline void ifx_serve(struct ifx_trainer *t);

/* Until the kernel has the process's first thread as a zombie; its end can not be waited for. */
static inline void ifx_await_leaving(void)
{
    char path[64], text[512] = "";
    const char *state;

    (void)snprintf(path, sizeof path, "/proc/self/task/%ld/stat", (long)getpid());
    do {
        FILE *stat = fopen(path, "re");
        ifx_need(stat != NULL && fgets(text, sizeof text, stat) != NULL && fclose(stat) == 0);
        state = strrchr(text, ')');
        ifx_need(state != NULL && sched_yield() == 0);
    } while (state[2] != 'Z');
}

static inline void *ifx_go_on(void *arg)
{
    struct ifx_answer a = {{0}};

    ifx_await_leaving();
    ifx_need(write(STDOUT_FILENO, &a, sizeof a) == (ssize_t)sizeof a);
    ifx_serve(arg);
    _exit(0);
}

static inline void ifx_do(struct ifx_trainer *t, const struct ifx_command *c, struct ifx_answer *a)
{
    struct cu_api *cu = &t->lib.cu;
    pthread_t second;

    ifx_need(cu->ctx_set_current(t->ctx[c->device]) == CUDA_SUCCESS);
    switch (c->what) {
    case IFX_ALLOC:
        ifx_do_alloc(t, c, a);
        break;
    case IFX_EVENT:
        ifx_do_event(t, c, a);
        break;
    case IFX_FIRE:
        t->lib.hold(false);
        for (int i = 0; i < IFX_RANKS; i++)
            ifx_need(cu->stream_synchronize(t->streams[i]) == CUDA_SUCCESS);
        t->lib.hold(true);
        break;
    case IFX_FREE:
        ifx_need(cu->mem_free(t->blocks[c->block]) == CUDA_SUCCESS);
        t->blocks[c->block] = 0;
        break;
    case IFX_LEAVE:
        ifx_need(pthread_create(&second, NULL, ifx_go_on, t) == 0);
        pthread_exit(NULL);
    }
}

static inline void ifx_serve(struct ifx_trainer *t)
{
    struct ifx_command c;

    while (read(STDIN_FILENO, &c, sizeof c) == (ssize_t)sizeof c) {
        struct ifx_answer a = {{0}};
        ifx_do(t, &c, &a);
        ifx_need(write(STDOUT_FILENO, &a, sizeof a) == (ssize_t)sizeof a);
    }
}

/* main of the other process: until its input ends. */
static inline int ifx_exporter(void)
{
    static struct ifx_trainer t;
    struct fakecuda_counts left;

    ifx_need(ifx_lib_open(&t.lib));
    for (int i = 0; i < IFX_RANKS; i++)
        ifx_need(t.lib.cu.primary_ctx_retain(&t.ctx[i], i) == CUDA_SUCCESS &&
                 t.lib.cu.ctx_set_current(t.ctx[i]) == CUDA_SUCCESS &&
                 t.lib.cu.stream_create(&t.streams[i], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    t.lib.hold(true);
    ifx_serve(&t);
    t.lib.hold(false);
    for (uint32_t i = 0; i < t.n_events; i++)
        ifx_need(t.lib.cu.event_destroy(t.events[i]) == CUDA_SUCCESS);
    for (uint32_t i = 0; i < t.n_blocks; i++)
        ifx_need(t.blocks[i] == 0 || t.lib.cu.mem_free(t.blocks[i]) == CUDA_SUCCESS);
    for (int i = 0; i < IFX_RANKS; i++)
        ifx_need(t.lib.cu.stream_destroy(t.streams[i]) == CUDA_SUCCESS);
    t.lib.counts(&left);
    return left.n_allocations + left.n_events + left.n_streams == 0 ? 0 : 4;
}

/* This process's end of it. */

struct ifx_peer {
    pid_t pid; /* 0: none */
    int to, from;
};

static inline void ifx_peer_start(struct ifx_peer *peer)
{
    int in[2], out[2];

    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    peer->pid = fork();
    assert_true(peer->pid >= 0);
    if (peer->pid == 0) {
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDOUT_FILENO);
        for (int fd = 3; fd < 256; fd++)
            (void)close(fd);
        (void)execl("/proc/self/exe", "exporter", "exporter", (char *)NULL);
        _exit(5);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    peer->to = in[1];
    peer->from = out[0];
}

static inline struct ifx_answer ifx_ask(const struct ifx_peer *peer, struct ifx_command c)
{
    struct ifx_answer a;

    assert_int_equal(write(peer->to, &c, sizeof c), sizeof c);
    assert_int_equal(read(peer->from, &a, sizeof a), sizeof a);
    return a;
}

/* How it ended: its exit status, or the negative of its signal. */
static inline int ifx_peer_end(struct ifx_peer *peer)
{
    int status;

    (void)close(peer->to);
    (void)close(peer->from);
    assert_int_equal(waitpid(peer->pid, &status, 0), peer->pid);
    peer->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline void ifx_peer_kill(struct ifx_peer *peer)
{
    assert_int_equal(kill(peer->pid, SIGKILL), 0);
    assert_int_equal(ifx_peer_end(peer), -SIGKILL);
}

/* One of torch's counter objects, mapped. */
struct ifx_counter {
    char name[IFX_NAME_CAP];
    uint64_t *words;
};

static inline void ifx_counter_make(struct ifx_counter *c, pid_t pid, int number)
{
    char *name = c->name;
    int fd;

    (void)snprintf(name, IFX_NAME_CAP, "/torch_%ld_%ld_%d", (long)pid, (long)getpid(), number);
    fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, REF_COUNTER_NBYTES), 0);
    c->words = mmap(NULL, REF_COUNTER_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(c->words != MAP_FAILED);
    (void)close(fd);
}

static inline uint64_t *ifx_slot(const struct ifx_counter *c, uint32_t slot)
{
    return c->words + REF_COUNTER_HEAD / 8 + slot;
}

static inline void ifx_counter_drop(struct ifx_counter *c)
{
    if (c->words == NULL)
        return;
    (void)munmap(c->words, REF_COUNTER_NBYTES);
    (void)shm_unlink(c->name);
    c->words = NULL;
}

#endif
