/* The checks of a preflight. */
#include "handlers/update/preflight_checks.h"

#include "base/utf8.h"
#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/source/gpu_match.h"
#include "memory/device.h"
#include "transport/ipc/ref_counter.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    PREFLIGHT_TEXT_MAX = 1024,
    PREFLIGHT_LIST_MAX = 400, /* of GPUs, in a sentence */
    PREFLIGHT_PATH_MAX = 128
};

enum check_result { CHECK_FAILED, CHECK_PASSED, CHECK_SKIPPED };

/* A rank, and the GPU whose memory it would read. */
struct gpu_pair {
    struct device *device;
    const struct cuda_device *own, *theirs; /* GPUs of this host; theirs NULL: not found */
    const struct ipc_gpu *gpu;              /* in the request; NULL: none for this rank */
};

__attribute__((format(printf, 5, 6))) static void add_check(struct preflight_report *r,
                                                            const char *check, enum check_result v,
                                                            const char *place, const char *fmt, ...)
{
    char text[PREFLIGHT_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)utf8_clean(text);
    r->failed = r->failed || v == CHECK_FAILED;
    if (json_array_append_new(
            r->checks, json_pack("{s:s, s:o, s:s, s:s?}", "check", check, "ok",
                                 v == CHECK_SKIPPED ? json_null() : json_boolean(v == CHECK_PASSED),
                                 "message", text, "place", place)) != 0)
        r->no_memory = true;
}

static const struct cuda_device *gpu_of_host(const struct cuda_info *cuda, const char *uuid)
{
    char bare[IPC_UUID_LEN + 1];

    for (size_t i = 0; i < cuda->n_devices; i++) {
        const char *ours = cuda->devices[i].uuid;

        if (ipc_uuid_parse(bare, ours, strlen(ours)) && strcmp(bare, uuid) == 0)
            return &cuda->devices[i];
    }
    return NULL;
}

static const char *device_at(const void *arg, uint32_t i)
{
    return device_name(((const struct app *)arg)->weights->devices[i]);
}

void preflight_check_host(struct preflight_report *r, const struct app *app)
{
    const struct cuda_info *cuda = app->weights->cuda;
    char list[PREFLIGHT_LIST_MAX];

    if (cuda->available)
        add_check(r, "cuda", CHECK_PASSED, NULL, "the driver runs CUDA %s and shows %zu GPU%s",
                  cuda->driver_version, cuda->n_devices, cuda->n_devices == 1 ? "" : "s");
    else
        add_check(r, "cuda", CHECK_FAILED, NULL, "CUDA is not available to this server: %s",
                  cuda->reason);
    if (app->weights->n_devices > 0)
        add_check(r, "device", CHECK_PASSED, NULL, "the weights of this server are on %s",
                  gpu_list_text(list, sizeof list, app->weights->n_devices, device_at, app));
    else
        add_check(r, "device", CHECK_FAILED, NULL,
                  "the weights of this server are in host memory (--device cpu); start it with "
                  "--device cuda:0 to accept handles");
}

void preflight_check_allocator(struct preflight_report *r, const struct preflight_req *req)
{
    if (req->expandable)
        add_check(r, "allocator", CHECK_FAILED, NULL, "%s", req->why);
    else if (!req->pickled)
        add_check(
            r, "allocator", CHECK_SKIPPED, NULL,
            "plain handles do not show how their memory was allocated: it must be by cudaMalloc");
    else
        add_check(r, "allocator", CHECK_PASSED, NULL, "the memory was allocated by cudaMalloc");
}

static bool process_visible(pid_t pid)
{
    return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

/* Is the exporter's process visible here, and its counter's object? */
static void check_pid_namespace(struct preflight_report *r, const struct ipc_handle *h,
                                const char *place)
{
    pid_t pid = ref_counter_pid(h->ref_name);
    char path[PREFLIGHT_PATH_MAX];
    bool process, object;

    (void)snprintf(path, sizeof path, "/dev/shm%s", h->ref_name);
    process = process_visible(pid);
    object = access(path, F_OK) == 0;
    if (process && object)
        add_check(r, "pid_namespace", CHECK_PASSED, place,
                  "process %d and its counter are visible here", (int)pid);
    else if (object)
        add_check(
            r, "pid_namespace", CHECK_FAILED, place,
            "the counter of process %d is visible here, but the process is not: it has exited, or "
            "it runs in another pid namespace; share the pid namespace of its container",
            (int)pid);
    else
        add_check(
            r, "pid_namespace", CHECK_FAILED, place,
            "%s: the trainer runs in another container or IPC namespace, or has exited; share "
            "/dev/shm and the pid namespace",
            process ? "its counter is not in /dev/shm here, and the process with its number here "
                      "is another one"
                    : "neither its process nor its counter is visible here");
}

static void check_ref_counter(struct preflight_report *r, const struct ipc_handle *h,
                              const char *place)
{
    struct ref_counter counter;
    struct err e = {0};

    if (ref_counter_open(&counter, h->ref_name, &e) == 0) {
        ref_counter_close(&counter);
        add_check(r, "ref_counter", CHECK_PASSED, place, "counter '%s' can be decremented",
                  h->ref_name);
    } else {
        add_check(r, "ref_counter", CHECK_FAILED, place,
                  "%s; the trainer would keep every bucket that it sends until it exits", e.msg);
    }
}

static void check_exporter(struct preflight_report *r, const struct ipc_handle *h,
                           const char *place)
{
    static const char *const checks[] = {"pid_namespace", "ref_counter"};

    if (h->ref_name[0] != '\0') {
        check_pid_namespace(r, h, place);
        check_ref_counter(r, h, place);
        return;
    }
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        add_check(r, checks[i], CHECK_SKIPPED, place,
                  "the handle names no counter, so its exporter is not known");
}

/* Peer access is a check of its own. */
static enum gpu_reach gpu_visible(void *arg, uint32_t rank, const char *uuid)
{
    (void)rank;
    return gpu_of_host(arg, uuid) != NULL ? GPU_REACHABLE : GPU_NOT_VISIBLE;
}

/* Finds the handles that an update would open on this rank. */
static void check_uuid(struct preflight_report *r, const struct app_weights *weights,
                       const struct ipc_handles *h, struct gpu_pair *p)
{
    const char *uuid = p->own->uuid, *place = device_name(p->device);
    struct cuda_info *cuda = (struct cuda_info *)(uintptr_t)
                                 weights->cuda; /* gpu_visible only reads it */
    struct gpu_match_ranks ranks = {.n = 1, .uuids = &uuid, .reach = gpu_visible, .arg = cuda};
    struct err e = {0};

    if (gpu_match(&p->gpu, &ranks, h, false, "", &e) != 0) {
        add_check(r, "uuid", CHECK_FAILED, place,
                  "%s; are they on one host, and does CUDA_VISIBLE_DEVICES show it to both?",
                  e.msg);
        return;
    }
    p->theirs = gpu_of_host(weights->cuda, p->gpu->uuid);
    if (p->theirs == NULL || strcmp(p->theirs->uuid, uuid) == 0)
        p->theirs = p->own;
    if (p->theirs == p->own)
        add_check(r, "uuid", CHECK_PASSED, place, "the handles name this GPU, %s", uuid);
    else
        add_check(r, "uuid", CHECK_PASSED, place,
                  "the handles name only %s, which is cuda:%d here, not %s", p->theirs->uuid,
                  p->theirs->ordinal, uuid);
}

static void check_mig(struct preflight_report *r, const struct gpu_pair *p)
{
    const char *place = device_name(p->device);

    if (!p->own->mig && (p->theirs == NULL || !p->theirs->mig))
        add_check(r, "mig", CHECK_PASSED, place, "no MIG slice is involved");
    else if (p->theirs == p->own)
        add_check(r, "mig", CHECK_PASSED, place, "trainer and server are in the same MIG slice");
    else
        add_check(r, "mig", CHECK_FAILED, place,
                  "a MIG slice is involved: CUDA IPC works within one slice only, and the UUID "
                  "must be the slice's, which begins with MIG-");
}

/* Can our GPU read the memory of theirs? */
static bool check_peer_access(struct preflight_report *r, const struct gpu_pair *p)
{
    const char *place = device_name(p->device);
    bool can = p->theirs == p->own || device_can_reach(p->device, p->theirs);

    if (p->theirs == p->own)
        add_check(r, "peer_access", CHECK_PASSED, place, "it is the same GPU");
    else if (can)
        add_check(r, "peer_access", CHECK_PASSED, place, "this GPU can read the memory of cuda:%d",
                  p->theirs->ordinal);
    else
        add_check(
            r, "peer_access", CHECK_FAILED, place,
            "this GPU cannot read the memory of cuda:%d: no NVLink, and no PCIe path that the "
            "driver allows",
            p->theirs->ordinal);
    return can;
}

static bool check_open(struct preflight_report *r, const struct gpu_pair *p,
                       const struct ipc_handle *h)
{
    const char *place = device_name(p->device);
    uint64_t addr, nbytes, end = h->storage_offset + h->tensor_offset + h->nbytes;
    struct err e = {0};

    if (device_import(p->device, h->mem, &addr, &nbytes, &e) != 0) {
        add_check(r, "open", CHECK_FAILED, place, "%s", e.msg);
        return false;
    }
    device_unimport(p->device, addr);
    if (end > nbytes)
        add_check(r, "open", CHECK_FAILED, place,
                  "the handle opens, but the bucket ends at byte %llu and the allocation has %llu",
                  (unsigned long long)end, (unsigned long long)nbytes);
    else
        add_check(r, "open", CHECK_PASSED, place, "the handle opens: an allocation of %llu bytes",
                  (unsigned long long)nbytes);
    return true;
}

static void check_event(struct preflight_report *r, const struct gpu_pair *p,
                        const struct ipc_handle *h)
{
    const char *place = device_name(p->device);
    struct device_event *event;
    struct err e = {0};
    int passed;

    if (!h->event_sync) {
        add_check(r, "event", CHECK_PASSED, place, "there is no event to wait for");
        return;
    }
    if (device_event_open(p->device, h->event, &event, &e) != 0) {
        add_check(r, "event", CHECK_FAILED, place, "%s", e.msg);
        return;
    }
    passed = device_event_passed(p->device, event, &e);
    device_event_close(p->device, event);
    if (passed < 0)
        add_check(r, "event", CHECK_FAILED, place, "%s", e.msg);
    else
        add_check(r, "event", CHECK_PASSED, place,
                  passed > 0
                      ? "the event opens, and has passed"
                      : "the event opens, and has not passed yet: an update would wait for it");
}

/* The first handle with memory; handles of empty tensors have none. */
static const struct ipc_handle *first_handle(const struct ipc_handles *h, const struct ipc_gpu *gpu)
{
    for (uint32_t i = 0; i < h->n_handles; i++)
        if (gpu->handles[i].has_memory)
            return &gpu->handles[i];
    return NULL;
}

static void add_skipped(struct preflight_report *r, const char *const *checks, const char *place,
                        const char *why)
{
    for (; *checks != NULL; checks++)
        add_check(r, *checks, CHECK_SKIPPED, place, "skipped: %s", why);
}

static const char *const checks_of_open[] = {"open", "event", NULL};
static const char *const checks_of_handle[] = {"pid_namespace", "ref_counter", "open", "event",
                                               NULL};
static const char *const checks_of_exporter[] = {"pid_namespace", "ref_counter", "event", NULL};
static const char *const checks_of_gpu[] = {"peer_access", "open", "event", NULL};

void preflight_check_rank(struct preflight_report *r, const struct app *app,
                          const struct ipc_handles *h, uint32_t rank)
{
    const char *place = device_name(app->weights->devices[rank]);
    struct gpu_pair p = {.device = app->weights->devices[rank],
                         .own = device_about(app->weights->devices[rank])};
    const struct ipc_handle *first;

    check_uuid(r, app->weights, h, &p);
    check_mig(r, &p);
    if (p.gpu == NULL) {
        first = first_handle(h, &h->gpus[0]);
        if (first != NULL)
            check_exporter(r, first, place);
        add_skipped(r, checks_of_gpu, place, "no handle is for a GPU of this host");
        return;
    }
    first = first_handle(h, p.gpu);
    if (first == NULL) {
        (void)check_peer_access(r, &p);
        add_skipped(r, checks_of_exporter, place, "the tensors are empty, no memory was shared");
        add_check(r, "open", CHECK_FAILED, place,
                  "the tensors are empty, no memory was shared: nothing shows that a handle could "
                  "be opened; send one of a tensor with elements");
        return;
    }
    check_exporter(r, first, place);
    if (!check_peer_access(r, &p))
        add_skipped(r, checks_of_open, place, "there is no peer access");
    else if (check_open(r, &p, first))
        check_event(r, &p, first);
    else
        add_check(r, "event", CHECK_SKIPPED, place, "skipped: the handle does not open");
}

void preflight_check_without_gpu(struct preflight_report *r, const struct preflight_req *req)
{
    static const char *const checks[] = {"uuid", "mig", NULL};
    const struct ipc_handle *first = NULL;
    const char *why = "the server holds no weights on a GPU";

    if (req->expandable)
        why = "handles of expandable segments cannot be opened";
    else
        first = first_handle(&req->handles, &req->handles.gpus[0]);
    add_skipped(r, checks, NULL, why);
    if (first != NULL) {
        check_exporter(r, first, NULL);
        add_skipped(r, checks_of_gpu, NULL, why);
    } else {
        add_check(r, "peer_access", CHECK_SKIPPED, NULL, "skipped: %s", why);
        add_skipped(r, checks_of_handle, NULL, why);
    }
}
