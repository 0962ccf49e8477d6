/* Mappings, exports and exporters of one update. Update worker only, so there is no lock.
 *
 * Entries of mappings are never removed: a mapping that was closed is opened again if its handle
 * is used again. An update has few handles, or one for each tensor; never more than its requests
 * have.
 *
 * Rejected: keeping mappings from one update to the next. A restarted trainer may get the same
 * handle bytes for other memory, and CUDA does not define what an importer sees of memory that
 * its exporter has freed. */
#include "transport/ipc/ipc_scope.h"

#include "base/hex.h"
#include "base/log.h"
#include "base/names.h"
#include "transport/ipc/ref_counter.h"

#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert((int)REF_COUNTER_SLOTS == (int)IPC_REF_SLOTS, "what is read can be counted down");

enum { CAP_MIN = 16, NO_EXPORTER = UINT8_MAX, KEY_CAP = 32 + IPC_HEX_LEN + 1 };
enum { PROCESS_EXITING = 0x4 }; /* PF_EXITING of linux/sched.h, which is internal to the kernel */

/* The idle mappings of one device, as a list, longest idle first. */
struct idle {
    uint32_t first, last, n;
};

struct mapping {
    struct device *device; /* borrowed */
    uint8_t mem[IPC_MEM_NBYTES];
    pid_t pid; /* of the exporter, 0 when unknown */
    bool open; /* the members down to the blank line are valid only if true */
    uint64_t addr, nbytes;
    uint32_t export;     /* the export for which it was opened */
    uint32_t n_uses;     /* 0: in its device's idle list, by the next two */
    uint32_t prev, next; /* IPC_NOTHING at the ends */
};

struct ipc_export {
    uint32_t n_uses; /* handles of sources that joined and have not released */
    bool done;       /* counted down, or tried to */
};

/* One of torch's counter objects. */
struct counter {
    struct ipc_export *exports; /* owned; [IPC_REF_SLOTS] */
    struct ref_counter object;  /* open from the first drop that needs it to ipc_scope_drop_end */
    bool failed;                /* could not be opened since the last ipc_scope_drop_end */
    uint8_t exporter;           /* NO_EXPORTER: not watched */
};

struct exporter {
    pid_t pid;
    int pidfd; /* owned */
};

struct ipc_scope {
    struct source_scope scope; /* first */
    enum ipc_reuse reuse;
    struct cuda_ipc_stats *stats;
    struct source_counts counts;

    struct names mapping_keys; /* device, process and bytes: numbers are of mappings */
    struct mapping *mappings;  /* owned; [mapping_keys.n], room for cap_mappings */
    uint32_t cap_mappings;
    uint32_t last_mapping; /* the last one found: handles of one segment are adjacent */
    struct idle idle[CUDA_DEVICES_MAX]; /* by the device's ordinal */

    struct names counter_names; /* numbers are of counters */
    struct counter counters[IPC_COUNTERS_MAX];
    uint32_t last_counter; /* the last one found */
    bool stuck_told;       /* it was logged */

    struct exporter exporters[IPC_EXPORTERS_MAX];
    uint32_t n_exporters;
};

static struct idle *idle_of(struct ipc_scope *c, const struct mapping *m)
{
    int ordinal = device_about(m->device)->ordinal;

    assert(ordinal >= 0 && ordinal < CUDA_DEVICES_MAX);
    return &c->idle[ordinal];
}

static void idle_add(struct ipc_scope *c, uint32_t number)
{
    struct mapping *m = &c->mappings[number];
    struct idle *idle = idle_of(c, m);

    m->next = IPC_NOTHING;
    m->prev = idle->n > 0 ? idle->last : IPC_NOTHING;
    if (idle->n++ == 0)
        idle->first = number;
    else
        c->mappings[idle->last].next = number;
    idle->last = number;
}

static void idle_remove(struct ipc_scope *c, uint32_t number)
{
    struct mapping *m = &c->mappings[number];
    struct idle *idle = idle_of(c, m);

    if (m->prev == IPC_NOTHING)
        idle->first = m->next;
    else
        c->mappings[m->prev].next = m->next;
    if (m->next == IPC_NOTHING)
        idle->last = m->prev;
    else
        c->mappings[m->next].prev = m->prev;
    idle->n--;
}

/* Opens a closed mapping, for its first use. */
static int mapping_open(struct ipc_scope *c, struct mapping *m, uint32_t export, struct err *e)
{
    if (device_import(m->device, m->mem, &m->addr, &m->nbytes, e) != 0)
        return -1;
    m->open = true;
    m->export = export;
    m->n_uses = 1;
    c->counts.n_opened++;
    c->counts.n_mapped++;
    (void)atomic_fetch_add_explicit(&c->stats->n_opened, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&c->stats->n_mapped, 1, memory_order_relaxed);
    return 0;
}

/* Closes an idle mapping. */
static void mapping_close(struct ipc_scope *c, uint32_t number)
{
    struct mapping *m = &c->mappings[number];

    assert(m->open && m->n_uses == 0);
    idle_remove(c, number);
    device_unimport(m->device, m->addr);
    m->open = false;
    c->counts.n_closed++;
    c->counts.n_mapped--;
    (void)atomic_fetch_add_explicit(&c->stats->n_closed, 1, memory_order_relaxed);
    (void)atomic_fetch_sub_explicit(&c->stats->n_mapped, 1, memory_order_relaxed);
}

void ipc_hex(char out[IPC_HEX_LEN + 1], const uint8_t bytes[IPC_MEM_NBYTES])
{
    hex_text(out, bytes, IPC_MEM_NBYTES);
}

static void mapping_key(char key[KEY_CAP], const struct device *d, pid_t pid,
                        const uint8_t mem[IPC_MEM_NBYTES])
{
    int len = snprintf(key, KEY_CAP, "%d %ld ", device_about(d)->ordinal, (long)pid);

    assert(len > 0 && len + IPC_HEX_LEN < KEY_CAP);
    ipc_hex(key + len, mem);
}

/* Allocates memory for one mapping more than there are keys. */
static int reserve_mapping(struct ipc_scope *c, struct err *e)
{
    uint32_t cap = c->cap_mappings == 0 ? CAP_MIN : 2 * c->cap_mappings;
    struct mapping *mappings;

    if (c->mapping_keys.n < c->cap_mappings)
        return 0;
    mappings = realloc(c->mappings, cap * sizeof *mappings);
    if (mappings == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u mappings", (unsigned)cap);
    c->mappings = mappings;
    c->cap_mappings = cap;
    return 0;
}

static bool mapping_is(const struct mapping *m, const struct device *d, pid_t pid,
                       const uint8_t mem[IPC_MEM_NBYTES])
{
    return m->device == d && m->pid == pid && memcmp(m->mem, mem, IPC_MEM_NBYTES) == 0;
}

/* Finds or adds the entry of a handle. */
static int mapping_find(struct ipc_scope *c, struct device *d, const struct ipc_handle *h,
                        uint32_t *number, struct err *e)
{
    pid_t pid = ref_counter_pid(h->ref_name);
    char key[KEY_CAP];

    if (c->last_mapping < c->mapping_keys.n &&
        mapping_is(&c->mappings[c->last_mapping], d, pid, h->mem)) {
        *number = c->last_mapping;
        return 0;
    }
    mapping_key(key, d, pid, h->mem);
    *number = names_find(&c->mapping_keys, key);
    if (*number == NAMES_NONE) {
        if (reserve_mapping(c, e) != 0 || names_add(&c->mapping_keys, key, e) != 0)
            return -1;
        *number = c->mapping_keys.n - 1;
        c->mappings[*number] = (struct mapping){.device = d, .pid = pid};
        memcpy(c->mappings[*number].mem, h->mem, IPC_MEM_NBYTES);
    }
    c->last_mapping = *number;
    return 0;
}

int ipc_scope_map(struct ipc_scope *c, struct device *d, const struct ipc_handle *h,
                  uint32_t export, uint32_t *mapping, struct err *e)
{
    struct mapping *m;
    uint32_t number;

    assert(h->has_memory);
    if (mapping_find(c, d, h, &number, e) != 0)
        return -1;
    m = &c->mappings[number];
    if (m->open && m->n_uses == 0 && c->reuse == IPC_REUSE_EXPORT &&
        (export == IPC_NOTHING || export != m->export))
        mapping_close(c, number);
    if (!m->open) {
        if (mapping_open(c, m, export, e) != 0)
            return -1;
    } else {
        if (m->n_uses == 0)
            idle_remove(c, number);
        m->n_uses++;
    }
    *mapping = number;
    return 0;
}

uint64_t ipc_scope_addr(const struct ipc_scope *c, uint32_t mapping)
{
    assert(c->mappings[mapping].n_uses > 0);
    return c->mappings[mapping].addr;
}

uint64_t ipc_scope_nbytes(const struct ipc_scope *c, uint32_t mapping)
{
    return c->mappings[mapping].nbytes;
}

void ipc_scope_unmap(struct ipc_scope *c, uint32_t mapping)
{
    struct mapping *m = &c->mappings[mapping];
    struct idle *idle = idle_of(c, m);

    assert(m->open && m->n_uses > 0);
    if (--m->n_uses > 0)
        return;
    idle_add(c, mapping);
    if (idle->n > IPC_MAPPINGS_KEPT)
        mapping_close(c, idle->first);
}

/* Has the process begun to exit? The driver ends its work, and its events pass, some time before
 * its pidfd becomes readable. False if it cannot be determined. */
static bool is_exiting(pid_t pid)
{
    char path[32], text[1024];
    const char *after;
    unsigned flags;
    ssize_t n = -1;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof text - 1);
        (void)close(fd);
    }
    if (n <= 0)
        return false;
    text[n] = '\0';
    after = strrchr(text, ')'); /* the end of the program's name, which may contain anything */
    return after != NULL && sscanf(after, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
           (flags & PROCESS_EXITING) != 0;
}

/* A pidfd of a process, also of one that is exiting or a zombie: its end is found when it is
 * polled. -1: the process is not visible from here, or no descriptor is available; then it is
 * not watched. */
static int process_watch(pid_t pid)
{
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* The number of a process among the watched ones. */
static uint8_t exporter_find(struct ipc_scope *c, pid_t pid)
{
    int pidfd;

    for (uint32_t i = 0; i < c->n_exporters; i++)
        if (c->exporters[i].pid == pid)
            return (uint8_t)i;
    pidfd = c->n_exporters < IPC_EXPORTERS_MAX ? process_watch(pid) : -1;
    if (pidfd < 0)
        return NO_EXPORTER;
    c->exporters[c->n_exporters] = (struct exporter){pid, pidfd};
    return (uint8_t)c->n_exporters++;
}

static int counter_find(struct ipc_scope *c, const char *name, uint32_t *number, struct err *e)
{
    struct ipc_export *exports;

    if (c->last_counter < c->counter_names.n &&
        strcmp(c->counter_names.items[c->last_counter], name) == 0) {
        *number = c->last_counter;
        return 0;
    }
    *number = names_find(&c->counter_names, name);
    if (*number == NAMES_NONE) {
        *number = c->counter_names.n;
        if (*number == IPC_COUNTERS_MAX)
            return err_set(e, ERR_TOO_LARGE, "", "more than %d counter objects in one update",
                           (int)IPC_COUNTERS_MAX);
        exports = calloc(IPC_REF_SLOTS, sizeof *exports);
        if (exports == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for %d exports", (int)IPC_REF_SLOTS);
        if (names_add(&c->counter_names, name, e) != 0) {
            free(exports);
            return -1;
        }
        c->counters[*number] = (struct counter){
            .exports = exports, .exporter = exporter_find(c, ref_counter_pid(name))};
    }
    c->last_counter = *number;
    return 0;
}

int ipc_scope_take_export(struct ipc_scope *c, const struct ipc_handle *h, uint32_t *export,
                          struct err *e)
{
    uint32_t counter;

    assert(h->ref_slot < IPC_REF_SLOTS);
    if (h->ref_name[0] == '\0') {
        *export = IPC_NOTHING;
        return 0;
    }
    if (counter_find(c, h->ref_name, &counter, e) != 0)
        return -1;
    c->counters[counter].exports[h->ref_slot].n_uses++;
    *export = counter * IPC_REF_SLOTS + h->ref_slot;
    return 0;
}

/* Logs once for an update: a hundred thousand exports may fail for the same reason. */
static void report_stuck(struct ipc_scope *c, const struct err *e)
{
    if (c->stuck_told)
        return;
    c->stuck_told = true;
    log_line(LOG_WARN, "ipc.export_stuck", "%s: the trainer will keep this memory until it exits",
             e->msg);
}

static void count_down(struct ipc_scope *c, uint32_t counter, uint32_t slot)
{
    struct counter *k = &c->counters[counter];
    struct err e = {0};

    if (k->object.base == NULL && !k->failed &&
        ref_counter_open(&k->object, c->counter_names.items[counter], &e) != 0) {
        k->failed = true;
        report_stuck(c, &e);
    }
    if (k->failed)
        (void)atomic_fetch_add_explicit(&c->stats->n_exports_stuck, 1, memory_order_relaxed);
    else if (ref_counter_down(&k->object, slot))
        (void)atomic_fetch_add_explicit(&c->stats->n_exports_released, 1, memory_order_relaxed);
}

void ipc_scope_drop_export(struct ipc_scope *c, uint32_t export, bool count)
{
    uint32_t counter = export / IPC_REF_SLOTS, slot = export % IPC_REF_SLOTS;
    struct ipc_export *x;

    if (export == IPC_NOTHING)
        return;
    x = &c->counters[counter].exports[slot];
    assert(x->n_uses > 0);
    if (--x->n_uses > 0 || !count || x->done)
        return;
    x->done = true;
    count_down(c, counter, slot);
}

void ipc_scope_drop_end(struct ipc_scope *c)
{
    for (uint32_t i = 0; i < c->counter_names.n; i++) {
        ref_counter_close(&c->counters[i].object);
        c->counters[i].failed = false;
    }
}

uint64_t ipc_scope_exporter(const struct ipc_scope *c, uint32_t export)
{
    uint8_t exporter;

    if (export == IPC_NOTHING)
        return 0;
    exporter = c->counters[export / IPC_REF_SLOTS].exporter;
    return exporter == NO_EXPORTER ? 0 : UINT64_C(1) << exporter;
}

int ipc_scope_check_exporters(const struct ipc_scope *c, uint64_t exporters, struct err *e)
{
    for (uint32_t i = 0; i < c->n_exporters; i++) {
        const struct exporter *x = &c->exporters[i];
        struct pollfd p = {.fd = x->pidfd, .events = POLLIN};

        /* Until its pidfd reports the end, no other process has its number. */
        if ((exporters >> i & 1) != 0 && (is_exiting(x->pid) || poll(&p, 1, 0) > 0))
            return err_set(e, ERR_GONE, "",
                           "process %ld, which exported the weights, has ended during the update",
                           (long)x->pid);
    }
    return 0;
}

static void scope_counts(const struct source_scope *scope, struct source_counts *out)
{
    *out = ((const struct ipc_scope *)(const void *)scope)->counts;
}

static void scope_close(struct source_scope *scope)
{
    struct ipc_scope *c = ipc_scope_of(scope);

    for (uint32_t i = 0; i < CUDA_DEVICES_MAX; i++)
        while (c->idle[i].n > 0)
            mapping_close(c, c->idle[i].first);
    assert(c->counts.n_mapped == 0);
    for (uint32_t i = 0; i < c->counter_names.n; i++)
        free(c->counters[i].exports);
    for (uint32_t i = 0; i < c->n_exporters; i++)
        (void)close(c->exporters[i].pidfd);
    names_fini(&c->mapping_keys);
    names_fini(&c->counter_names);
    free(c->mappings);
    free(c);
}

static const struct source_scope_ops scope_ops = {.counts = scope_counts, .close = scope_close};

int ipc_scope_new(struct ipc_scope **out, enum ipc_reuse reuse, struct cuda_ipc_stats *stats,
                  struct err *e)
{
    struct ipc_scope *c = calloc(1, sizeof *c);

    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for what an update's buckets share");
    c->scope.ops = &scope_ops;
    c->reuse = reuse;
    c->stats = stats;
    names_init(&c->mapping_keys);
    names_init(&c->counter_names);
    *out = c;
    return 0;
}

struct source_scope *ipc_scope_source(struct ipc_scope *c)
{
    return &c->scope;
}

struct ipc_scope *ipc_scope_of(struct source_scope *scope)
{
    assert(scope->ops == &scope_ops);
    return (struct ipc_scope *)(void *)scope;
}
