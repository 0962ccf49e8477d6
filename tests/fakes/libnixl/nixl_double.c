/* A double of libnixl_capi.so for the side that reads, with the faults of the real one and worse.
 *
 * An agent's metadata is text, one line each: NIXLDOUBLE, the agent's name, the process that has
 * the memory, then for each range its kind, device, address, length, and a file that is mapped
 * there. A read copies from the file in steps by a thread of its own, as UCX's does: it goes on
 * when its request is released, and stops while that process is stopped.
 *
 * Faults are words in the file `faults` beside this library, read at each call: the child has an
 * environment of its own.
 *   fail:CALL=STATUS   CALL answers STATUS (create_agent, load_remote_md, create_xfer_req, …)
 *   segv:CALL abort:CALL exit:CALL sleep:CALL (30 s)
 *   forever            a read stays in progress, and writes nothing
 *   slow               a read takes 100 ms for each MiB
 *   wrong_byte torn unread_last   status 0, and the bytes are not right
 *   late               after status 0 the window is overwritten for as long as the process lives
 *   stub slow_open noise error_line */
#include "driver/nixl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANGES_MAX = 4096, DESCS_MAX = 65536, STEP = 1 << 20, PEERS_MAX = 300, NAME_MAX_LEN = 256 };

struct range {
    int mem;
    uint64_t device, addr, nbytes;
    char path[128];
};

struct peer {
    char name[NAME_MAX_LEN];
    char *blob;
    pid_t pid;
    struct range *ranges;
    uint32_t n;
};

struct desc {
    uint64_t addr, nbytes, device;
};

struct list {
    int mem;
    uint32_t n, cap;
    struct desc *items;
};

struct request {
    struct desc *local, *remote;
    uint32_t n;
    int mem;
    struct peer *peer;
    atomic_int status;
    bool released;
};

static struct {
    struct peer peers[PEERS_MAX];
    struct range own[16];
    uint32_t n_own;
    bool has_backend;
} agent;

/* Is the fault set? @value  what follows its '=' */
static bool fault(const char *word, int *value)
{
    char path[512], text[512], *slash, *save = NULL;
    Dl_info info;
    ssize_t len;
    int fd;

    if (dladdr((void *)&agent, &info) == 0)
        return false;
    (void)snprintf(path, sizeof path - 8, "%s", info.dli_fname);
    slash = strrchr(path, '/');
    (void)strcpy(slash != NULL ? slash + 1 : path, "faults");
    fd = open(path, O_RDONLY | O_CLOEXEC);
    len = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        (void)close(fd);
    text[len > 0 ? len : 0] = '\0';
    for (char *w = strtok_r(text, " \n", &save); w != NULL; w = strtok_r(NULL, " \n", &save)) {
        char *equals = strchr(w, '=');

        if (equals != NULL)
            *equals = '\0';
        if (strcmp(w, word) != 0)
            continue;
        if (value != NULL)
            *value = equals != NULL ? atoi(equals + 1) : 0;
        return true;
    }
    return false;
}

static bool fault_of(const char *kind, const char *call, int *value)
{
    char word[64];

    (void)snprintf(word, sizeof word, "%s:%s", kind, call);
    return fault(word, value);
}

/* What each call may do besides. Returns the status that it is to answer, or 0. */
static int enter(const char *call)
{
    int status = 0;

    if (fault("noise", NULL))
        (void)printf("stdout of %s\n", call), (void)fprintf(stderr, "stderr of %s\n", call);
    if (fault("error_line", NULL))
        (void)fprintf(stderr, "E0101 00:00:00.000000 1 double.c:1] the double is in %s\n", call);
    (void)fflush(stdout);
    if (fault_of("segv", call, NULL))
        (void)raise(SIGSEGV);
    if (fault_of("abort", call, NULL))
        abort();
    if (fault_of("exit", call, NULL))
        exit(7);
    if (fault_of("sleep", call, NULL))
        (void)sleep(30);
    (void)fault_of("fail", call, &status);
    return status;
}
#define ENTER(call)                                                                                \
    do {                                                                                           \
        int status_ = enter(call);                                                                 \
        if (status_ != 0)                                                                          \
            return status_;                                                                        \
    } while (0)

static void crash_at_exit(void)
{
    if (agent.has_backend)
        (void)raise(SIGSEGV);
}

__attribute__((constructor)) static void opened(void)
{
    if (fault("slow_open", NULL))
        (void)usleep(500000);
}

#define X(field, symbol, returns, args) returns symbol args;
NIXL_SYMBOLS(X)
#undef X

bool nixl_capi_is_stub(void)
{
    return fault("stub", NULL);
}

int nixl_capi_create_configured_agent(const char *name, const struct nixl_agent_config *config,
                                      nixl_handle *out)
{
    ENTER("create_agent");
    if (!config->progress_thread || config->progress_delay_us == 0 || strlen(name) < 16)
        return -1;
    *out = &agent;
    return 0;
}

int nixl_capi_get_plugin_params(nixl_handle a, const char *plugin, nixl_handle *mems,
                                nixl_handle *params)
{
    (void)a;
    ENTER("get_plugin_params");
    *mems = *params = &agent;
    return strcmp(plugin, "UCX") == 0 ? 0 : -6;
}

int nixl_capi_create_backend(nixl_handle a, const char *plugin, nixl_handle params,
                             nixl_handle *backend)
{
    const char *devices = getenv("UCX_NET_DEVICES"), *segment = getenv("UCX_TCP_RX_SEG_SIZE");

    (void)a;
    (void)params;
    ENTER("create_backend");
    if (strcmp(plugin, "UCX") != 0 || devices == NULL || strcmp(devices, "nosuch0") == 0 ||
        segment == NULL || strcmp(segment, "512k") != 0)
        return -2;
    if (!agent.has_backend)
        (void)atexit(crash_at_exit);
    agent.has_backend = true;
    *backend = &agent;
    return 0;
}

int nixl_capi_create_opt_args(nixl_handle *options)
{
    *options = &agent;
    return 0;
}

int nixl_capi_opt_args_add_backend(nixl_handle options, nixl_handle backend)
{
    (void)options;
    return backend == &agent ? 0 : -1;
}

static int new_list(int mem, nixl_handle *out)
{
    struct list *l = calloc(1, sizeof *l);

    l->mem = mem;
    *out = l;
    return 0;
}

static int add_desc(struct list *l, uint64_t addr, uint64_t nbytes, uint64_t device)
{
    if (l->n == l->cap) {
        l->cap = l->cap > 0 ? 2 * l->cap : 16;
        l->items = realloc(l->items, l->cap * sizeof *l->items);
    }
    l->items[l->n++] = (struct desc){addr, nbytes, device};
    return 0;
}

static int free_list(struct list *l)
{
    free(l->items);
    free(l);
    return 0;
}

int nixl_capi_create_reg_dlist(int mem, nixl_handle *list)
{
    return new_list(mem, list);
}

int nixl_capi_reg_dlist_add_desc(nixl_handle list, uintptr_t addr, size_t nbytes, uint64_t device,
                                 const void *meta, size_t meta_nbytes)
{
    (void)meta;
    (void)meta_nbytes;
    return add_desc(list, addr, nbytes, device);
}

int nixl_capi_destroy_reg_dlist(nixl_handle list)
{
    return free_list(list);
}

int nixl_capi_register_mem(nixl_handle a, nixl_handle list, nixl_handle options)
{
    struct list *l = list;

    (void)a;
    (void)options;
    ENTER("register_mem");
    for (uint32_t i = 0; i < l->n && agent.n_own < 16; i++)
        agent.own[agent.n_own++] = (struct range){
            .mem = l->mem, .addr = l->items[i].addr, .nbytes = l->items[i].nbytes};
    return 0;
}

int nixl_capi_create_xfer_dlist(int mem, nixl_handle *list)
{
    return new_list(mem, list);
}

int nixl_capi_xfer_dlist_add_desc(nixl_handle list, uintptr_t addr, size_t nbytes, uint64_t device)
{
    return add_desc(list, addr, nbytes, device);
}

int nixl_capi_destroy_xfer_dlist(nixl_handle list)
{
    return free_list(list);
}

static struct peer *find_peer(const char *name)
{
    for (int i = 0; i < PEERS_MAX; i++)
        if (agent.peers[i].blob != NULL && strcmp(agent.peers[i].name, name) == 0)
            return &agent.peers[i];
    return NULL;
}

static int parse_peer(struct peer *p, const char *data, size_t nbytes)
{
    char *save = NULL, *text, *line;
    int pid = 0;

    p->blob = strndup(data, nbytes);
    text = strdup(p->blob);
    p->ranges = calloc(RANGES_MAX, sizeof *p->ranges);
    line = strtok_r(text, "\n", &save);
    if (line == NULL || strcmp(line, "NIXLDOUBLE") != 0)
        goto bad;
    line = strtok_r(NULL, "\n", &save);
    if (line == NULL || strlen(line) >= sizeof p->name)
        goto bad;
    (void)strcpy(p->name, line);
    line = strtok_r(NULL, "\n", &save);
    if (line == NULL || sscanf(line, "%d", &pid) != 1)
        goto bad;
    p->pid = pid;
    while ((line = strtok_r(NULL, "\n", &save)) != NULL && p->n < RANGES_MAX) {
        struct range *r = &p->ranges[p->n++];
        unsigned long long device, addr, len;

        if (sscanf(line, "%d %llu %llu %llu %127s", &r->mem, &device, &addr, &len, r->path) != 5)
            goto bad;
        r->device = device;
        r->addr = addr;
        r->nbytes = len;
    }
    free(text);
    return 0;
bad:
    free(text);
    return -2;
}

static void free_peer(struct peer *p)
{
    free(p->blob);
    free(p->ranges);
    *p = (struct peer){0};
}

int nixl_capi_load_remote_md(nixl_handle a, const void *data, size_t nbytes, char **name)
{
    struct peer p = {0}, *there;
    int i = 0;

    (void)a;
    ENTER("load_remote_md");
    if (parse_peer(&p, data, nbytes) != 0) {
        free_peer(&p);
        return -2;
    }
    there = find_peer(p.name);
    if (there != NULL && strcmp(there->blob, p.blob) != 0) {
        free_peer(&p);
        return -2; /* under its old name, until it is invalidated */
    }
    while (i < PEERS_MAX - 1 && agent.peers[i].blob != NULL)
        i++;
    agent.peers[i] = p;
    *name = strdup(p.name);
    return 0;
}

#ifndef DOUBLE_LACKS_INVALIDATE
int nixl_capi_invalidate_remote_md(nixl_handle a, const char *name)
{
    struct peer *p = find_peer(name);

    (void)a;
    ENTER("invalidate_remote_md");
    if (p == NULL)
        return -6;
    free_peer(p);
    return 0;
}
#endif

static const struct range *find_range(const struct range *ranges, uint32_t n, int mem,
                                      const struct desc *d)
{
    for (uint32_t i = 0; i < n; i++)
        if (ranges[i].mem == mem && ranges[i].device == d->device && d->addr >= ranges[i].addr &&
            d->nbytes <= ranges[i].nbytes &&
            d->addr - ranges[i].addr <= ranges[i].nbytes - d->nbytes)
            return &ranges[i];
    return NULL;
}

int nixl_capi_check_remote_md(nixl_handle a, const char *name, nixl_handle list)
{
    struct peer *p = find_peer(name);
    struct list *l = list;

    (void)a;
    ENTER("check_remote_md");
    if (p == NULL)
        return -6;
    for (uint32_t i = 0; l != NULL && i < l->n; i++)
        if (find_range(p->ranges, p->n, l->mem, &l->items[i]) == NULL)
            return -6;
    return 0;
}

int nixl_capi_create_xfer_req(nixl_handle a, int operation, nixl_handle local, nixl_handle remote,
                              const char *remote_agent, nixl_handle *request, nixl_handle options)
{
    struct list *l = local, *r = remote;
    struct peer *p = find_peer(remote_agent);
    struct request *q;

    (void)a;
    (void)options;
    ENTER("create_xfer_req");
    if (operation != NIXL_READ || p == NULL || l->n != r->n || l->n == 0)
        return p == NULL ? -6 : -1;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].nbytes != r->items[i].nbytes ||
            find_range(agent.own, agent.n_own, l->mem, &l->items[i]) == NULL ||
            find_range(p->ranges, p->n, r->mem, &r->items[i]) == NULL)
            return -2;
    q = calloc(1, sizeof *q);
    *q = (struct request){.n = l->n, .mem = r->mem, .peer = p, .status = 1};
    q->local = l->items;
    q->remote = r->items;
    l->items = r->items = NULL;
    *request = q;
    return 0;
}

/* 'R', 'S', 'T' (stopped), 'Z'; 0 if there is no such process. */
static char state_of(pid_t pid)
{
    char path[64], text[256], *paren;
    int fd;
    ssize_t len;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    len = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[len > 0 ? len : 0] = '\0';
    paren = strrchr(text, ')');
    return paren != NULL ? paren[2] : 0;
}

/* Copies in steps. Returns false if the process has gone. */
static bool copy_desc(const struct request *q, uint32_t i)
{
    const struct desc *to = &q->local[i], *from = &q->remote[i];
    const struct range *r = find_range(q->peer->ranges, q->peer->n, q->mem, from);
    uint64_t base = strncmp(r->path, "/proc/", 6) == 0 ? from->addr : from->addr - r->addr;
    int fd = open(r->path, O_RDONLY | O_CLOEXEC);
    char state = 'R';

    for (uint64_t at = 0; fd >= 0 && at < to->nbytes && state != 0 && state != 'Z';) {
        uint64_t n = to->nbytes - at < STEP ? to->nbytes - at : STEP;

        if (fault("slow", NULL))
            (void)usleep(100000);
        while ((state = state_of(q->peer->pid)) == 'T' || state == 't')
            (void)usleep(10000);
        if (state == 0 || state == 'Z' ||
            pread(fd, (char *)(uintptr_t)to->addr + at, n, (off_t)(base + at)) != (ssize_t)n)
            break;
        at += n;
        if (at == to->nbytes) {
            (void)close(fd);
            return true;
        }
    }
    if (fd >= 0)
        (void)close(fd);
    return false;
}

static void *transfer(void *arg)
{
    struct request *q = arg;
    uint32_t n = q->n - (fault("unread_last", NULL) ? 1 : 0);
    struct desc *last = &q->local[q->n - 1];
    bool late = fault("late", NULL);

    for (uint32_t i = 0; i < n; i++)
        if (!copy_desc(q, i)) {
            atomic_store(&q->status, -2);
            return NULL;
        }
    if (fault("wrong_byte", NULL))
        ((char *)(uintptr_t)last->addr)[last->nbytes / 2] ^= 1;
    if (fault("torn", NULL)) /* the next version from here on */
        memset((char *)(uintptr_t)last->addr + last->nbytes / 2, 0x3e,
               last->nbytes - last->nbytes / 2);
    atomic_store(&q->status, 0);
    while (late) { /* the address is kept: nothing is freed */
        (void)usleep(20000);
        for (uint32_t i = 0; i < q->n; i++)
            memset((char *)(uintptr_t)q->local[i].addr, 0x2a, q->local[i].nbytes);
    }
    return NULL;
}

int nixl_capi_post_xfer_req(nixl_handle a, nixl_handle request, nixl_handle options)
{
    struct request *q = request;
    pthread_t thread;

    (void)a;
    (void)options;
    ENTER("post_xfer_req");
    if (fault("forever", NULL))
        return 1;
    if (pthread_create(&thread, NULL, transfer, q) != 0)
        return -2;
    (void)pthread_detach(thread);
    return 1;
}

int nixl_capi_get_xfer_status(nixl_handle a, nixl_handle request)
{
    (void)a;
    ENTER("get_xfer_status");
    return atomic_load(&((struct request *)request)->status);
}

/* Nothing is cancelled by it. */
int nixl_capi_release_xfer_req(nixl_handle a, nixl_handle request)
{
    (void)a;
    ENTER("release_xfer_req");
    ((struct request *)request)->released = true;
    return 0;
}

int nixl_capi_destroy_xfer_req(nixl_handle request)
{
    struct request *q = request;

    if (!q->released)
        return -3;
    if (atomic_load(&q->status) == 1 || fault("late", NULL))
        return 0; /* its thread still has it */
    free(q->local);
    free(q->remote);
    free(q);
    return 0;
}
