/* The memory that this process can still allocate before the kernel kills it, from /proc/meminfo
 * and the limits of our control groups. */
#ifndef BATON_MEMORY_MEMORY_H
#define BATON_MEMORY_MEMORY_H

#include <stdint.h>

struct memory_room {
    uint64_t nbytes;   /* UINT64_MAX if no bound is known */
    const char *bound; /* static: the name of the tightest bound, for messages */
};

/* memory_room - the tightest of MemAvailable and the limits of our control group (v2 or v1) and of
 * all above it; a file that cannot be read is no bound.
 * @root  "" for this machine; a test passes a directory that contains proc/ and sys/
 * Threads: any; no lock held: it reads files. */
struct memory_room memory_room(const char *root);

#endif
