/* torch's counter objects, mapped only while they are decremented.
 *
 * They are mapped, not written with pwrite, because the exporter and other receivers change the
 * same word: only a compare-and-swap neither loses a decrement nor goes below zero. */
#include "transport/ipc/ref_counter.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PID_DIGITS_MAX = 10, NUMBER_DIGITS_MAX = 20, NAME_CUT = 64 };

/* The number of digits at `text`; 0 if there are none or more than `max`. */
static size_t ref_counter_digits(const char *text, size_t max)
{
    size_t n = strspn(text, "0123456789");

    return n <= max ? n : 0;
}

/* Parses "/torch_<pid>_<number>[_<number>]"; *pid is 0 if it is not a valid process number. */
static bool name_parse(const char *name, pid_t *pid)
{
    static const char head[] = "/torch_";
    int64_t number = 0;
    size_t n;

    if (strncmp(name, head, sizeof head - 1) != 0)
        return false;
    name += sizeof head - 1;
    n = ref_counter_digits(name, PID_DIGITS_MAX);
    for (size_t i = 0; i < n; i++)
        number = number * 10 + (name[i] - '0');
    if (n == 0 || name[n] != '_')
        return false;
    name += n + 1;
    n = ref_counter_digits(name, NUMBER_DIGITS_MAX);
    if (n > 0 && name[n] == '_') {
        name += n + 1;
        n = ref_counter_digits(name, NUMBER_DIGITS_MAX);
    }
    if (n == 0 || name[n] != '\0')
        return false;
    *pid = number <= INT32_MAX ? (pid_t)number : 0;
    return true;
}

pid_t ref_counter_pid(const char *name)
{
    pid_t pid;

    return name_parse(name, &pid) ? pid : 0;
}

/* Checks the object before it is written to. */
static int ref_counter_check_object(int fd, const char *name, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "cannot get the status of counter '%s'",
                             name);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_UNREADABLE, "", "counter '%s' is not a shared memory object", name);
    if (st.st_uid != geteuid() && geteuid() != 0)
        return err_set(e, ERR_UNREADABLE, "", "counter '%s' belongs to user %u, we are user %u",
                       name, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_size < REF_COUNTER_NBYTES)
        return err_set(e, ERR_UNREADABLE, "", "counter '%s' has %lld bytes, expected %d", name,
                       (long long)st.st_size, (int)REF_COUNTER_NBYTES);
    return 0;
}

int ref_counter_open(struct ref_counter *out, const char *name, struct err *e)
{
    void *base = MAP_FAILED;
    pid_t pid;
    int fd;

    if (!name_parse(name, &pid))
        return err_set(e, ERR_UNREADABLE, "", "'%.*s' is not the name of a torch counter",
                       (int)NAME_CUT, name);
    /* O_NONBLOCK: opening a FIFO must not block. */
    fd = shm_open(name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "counter '%s' cannot be opened", name);
    if (ref_counter_check_object(fd, name, e) == 0) {
        base = mmap(NULL, REF_COUNTER_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
            (void)err_set_errno(e, ERR_UNREADABLE, "", errno, "counter '%s' cannot be mapped",
                                name);
    }
    (void)close(fd);
    if (base == MAP_FAILED)
        return -1;
    out->base = base;
    return 0;
}

void ref_counter_close(struct ref_counter *c)
{
    if (c->base != NULL)
        (void)munmap(c->base, REF_COUNTER_NBYTES);
    c->base = NULL;
}

static _Atomic uint64_t *ref_counter_slot_of(const struct ref_counter *c, uint32_t slot)
{
    assert(c->base != NULL && slot < REF_COUNTER_SLOTS);
    return (_Atomic uint64_t *)(void *)((char *)c->base + REF_COUNTER_HEAD) + slot;
}

bool ref_counter_down(struct ref_counter *c, uint32_t slot)
{
    _Atomic uint64_t *count = ref_counter_slot_of(c, slot);
    uint64_t was = atomic_load(count);

    /* seq_cst, thus also a release: all reads of that memory precede the owner's view of the
     * count. */
    while (was > 0 && !atomic_compare_exchange_weak(count, &was, was - 1))
        continue;
    return was > 0;
}

int ref_counter_release(const char *name, uint32_t slot, struct err *e)
{
    struct ref_counter c = {0};

    if (slot >= REF_COUNTER_SLOTS)
        return err_set(e, ERR_UNREADABLE, "", "counter slot %u is not one of %d", (unsigned)slot,
                       (int)REF_COUNTER_SLOTS);
    if (ref_counter_open(&c, name, e) != 0)
        return -1;
    (void)ref_counter_down(&c, slot);
    ref_counter_close(&c);
    return 0;
}

/* Maps it with its memory taken, so that a full /dev/shm is an error here and not a SIGBUS. */
static void *map_new(int fd, const char *name, struct err *e)
{
    void *base;
    int rc;

    while ((rc = posix_fallocate(fd, 0, REF_COUNTER_NBYTES)) == EINTR)
        continue;
    if (rc != 0) {
        (void)err_set_errno(e, ERR_INTERNAL, "", rc, "counter '%s' gets no %d bytes of /dev/shm",
                            name, (int)REF_COUNTER_NBYTES);
        return MAP_FAILED;
    }
    base = mmap(NULL, REF_COUNTER_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        (void)err_set_errno(e, ERR_INTERNAL, "", errno, "counter '%s' cannot be mapped", name);
    return base;
}

int ref_counter_create(struct ref_counter *out, const char *name, struct err *e)
{
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    void *base;

    if (fd < 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "counter '%s' cannot be made", name);
    base = map_new(fd, name, e);
    (void)close(fd);
    if (base == MAP_FAILED) {
        (void)shm_unlink(name);
        return -1;
    }
    atomic_store((_Atomic int32_t *)base, 1); /* this process maps it; torch unlinks it at 0 */
    out->base = base;
    return 0;
}

void ref_counter_remove(struct ref_counter *c, const char *name)
{
    if (c->base == NULL)
        return;
    ref_counter_close(c);
    (void)shm_unlink(name);
}

void ref_counter_expect(struct ref_counter *c, uint32_t slot)
{
    atomic_store(ref_counter_slot_of(c, slot), 1);
}

bool ref_counter_is_down(const struct ref_counter *c, uint32_t slot)
{
    return (int64_t)atomic_load(ref_counter_slot_of(c, slot)) <= 0;
}
