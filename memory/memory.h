/* How much more memory this process can take before the kernel kills it: what /proc/meminfo and
 * the control groups above us say. */
#ifndef BATON_MEMORY_MEMORY_H
#define BATON_MEMORY_MEMORY_H

#include <stdint.h>

struct memory_room {
    uint64_t nbytes;   /* UINT64_MAX when nothing says a bound */
    const char *bound; /* static: what bounds it, for messages */
};

/* memory_room - the tightest of MemAvailable and the limits of our control group (v2 or v1) and of
 * all above it; what is not readable does not bound.
 * @root  "" for this machine; a test names a directory that holds proc/ and sys/
 * Threads: any; no lock held: it reads files. */
struct memory_room memory_room(const char *root);

#endif
