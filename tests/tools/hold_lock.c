/* A thread that hangs with a lock of the program: for a server, by LD_PRELOAD.
 * HOLD_LOCK=FILE HOLD_LOCK_THREAD=NAME HOLD_LOCK_RANK=NUMBER: while FILE exists, the thread of that
 * name does not release the lock of that rank (base/mtx.h) that it has. */
#include "base/mtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_chosen(const pthread_mutex_t *m)
{
    const char *thread = getenv("HOLD_LOCK_THREAD"), *rank = getenv("HOLD_LOCK_RANK");
    char name[MTX_THREAD_NAME_MAX] = "";

    return thread != NULL && rank != NULL &&
           pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
           strcmp(name, thread) == 0 &&
           (int)((const struct mtx *)(const void *)m)->rank == atoi(rank);
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
    static int (*real)(pthread_mutex_t * m);
    const char *file = getenv("HOLD_LOCK");

    if (real == NULL)
        *(void **)(void *)&real = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    while (file != NULL && access(file, F_OK) == 0 && is_chosen(m))
        (void)usleep(10000);
    return real(m);
}
