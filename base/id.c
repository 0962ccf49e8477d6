/* Random names, from getrandom(2). */
#include "base/id.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/types.h>

uint64_t id_random_u64(void)
{
    uint64_t word = 0;
    ssize_t got;

    do {
        got = getrandom(&word, sizeof word, 0);
    } while (got < 0 && errno == EINTR);
    assert(got == (ssize_t)sizeof word); /* never short below 256 bytes */
    return word;
}

void id_make(char out[ID_LEN + 1])
{
    (void)snprintf(out, ID_LEN + 1, "%016llx%016llx", (unsigned long long)id_random_u64(),
                   (unsigned long long)id_random_u64());
}
