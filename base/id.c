/* Random names, from getrandom(2). */
#include "base/id.h"

#include <assert.h>
#include <errno.h>
#include <sys/random.h>
#include <sys/types.h>

static void fill_random(void *out, size_t n)
{
    ssize_t got;

    do {
        got = getrandom(out, n, 0);
    } while (got < 0 && errno == EINTR);
    assert(got == (ssize_t)n); /* never short below 256 bytes */
}

uint64_t id_random_u64(void)
{
    uint64_t word = 0;

    fill_random(&word, sizeof word);
    return word;
}

void id_make(char out[ID_LEN + 1])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[ID_LEN / 2];

    fill_random(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 0xf];
    }
    out[ID_LEN] = '\0';
}
