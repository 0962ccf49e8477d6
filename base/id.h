/* Random names for boots, requests and updates. */
#ifndef BATON_BASE_ID_H
#define BATON_BASE_ID_H

#include <stdint.h>

enum { ID_LEN = 32 }; /* 128 bits in hex */

/* id_make - write ID_LEN lower-case hex digits of kernel randomness and a NUL. Threads: any. */
void id_make(char out[ID_LEN + 1]);

/* id_random_u64 - 64 bits of kernel randomness. Threads: any. */
uint64_t id_random_u64(void);

#endif
