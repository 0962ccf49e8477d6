/* LD_PRELOAD: allocations of a running program fail on demand.
 *
 * The file named by FAIL_MALLOC is shared with whoever decides: a test writes there which
 * allocation is to fail, counted from then on over all threads, and reads how many were asked for.
 * So one server can be driven through every failure of a request, not only of its start. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct control {
    _Atomic int64_t first; /* the number of the first to fail, from 1; 0: nothing is counted */
    _Atomic int64_t n_to_fail;
    _Atomic int64_t n_asked;
    _Atomic int64_t n_failed;
};

static struct control *control; /* NULL without FAIL_MALLOC; set before main */

/* glibc's own, which need no dlsym: that would allocate. */
extern void *__libc_malloc(size_t nbytes);
extern void *__libc_calloc(size_t n, size_t nbytes);
extern void *__libc_realloc(void *p, size_t nbytes);
extern void *__libc_memalign(size_t alignment, size_t nbytes);

void *memalign(size_t alignment, size_t nbytes);

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("FAIL_MALLOC");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p;

    if (fd < 0)
        return;
    p = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (p != MAP_FAILED)
        control = p;
}

static int starved(void)
{
    int64_t first, number;

    if (control == NULL)
        return 0;
    first = atomic_load(&control->first);
    if (first == 0)
        return 0;
    number = atomic_fetch_add(&control->n_asked, 1) + 1;
    if (number < first || number - first >= atomic_load(&control->n_to_fail))
        return 0;
    (void)atomic_fetch_add(&control->n_failed, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t nbytes)
{
    return starved() ? NULL : __libc_malloc(nbytes);
}

void *calloc(size_t n, size_t nbytes)
{
    return starved() ? NULL : __libc_calloc(n, nbytes);
}

void *realloc(void *p, size_t nbytes)
{
    return nbytes > 0 && starved() ? NULL : __libc_realloc(p, nbytes);
}

void *memalign(size_t alignment, size_t nbytes)
{
    return starved() ? NULL : __libc_memalign(alignment, nbytes);
}

void *aligned_alloc(size_t alignment, size_t nbytes)
{
    return memalign(alignment, nbytes);
}

int posix_memalign(void **out, size_t alignment, size_t nbytes)
{
    void *p = memalign(alignment, nbytes);

    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}

/* Only what has no file behind it is memory. */
void *mmap(void *at, size_t nbytes, int prot, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) != 0 && starved())
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, nbytes, prot, flags, fd, offset);
}
