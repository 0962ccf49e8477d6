/* What every target asserts of a refusal. Included by fuzz_<parser>.c alone. */
#ifndef BATON_TESTS_FUZZ_FUZZ_H
#define BATON_TESTS_FUZZ_FUZZ_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* As assert, whatever NDEBUG says; the message is on the line that a fuzzer reports. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* check_refusal - a code of `codes` (up to ERR_NONE), one line of text, and a field below `at`. */
static inline void check_refusal(const struct err *e, const enum err_code *codes, const char *at)
{
    bool ends = strnlen(e->msg, sizeof e->msg) < sizeof e->msg &&
                strnlen(e->field, sizeof e->field) < sizeof e->field;
    bool explains = ends && e->msg[0] != '\0' && strpbrk(e->msg, "\r\n") == NULL &&
                    strncmp(e->field, at, strlen(at)) == 0;
    bool known = false;

    for (; *codes != ERR_NONE; codes++)
        known = known || e->code == *codes;
    if (!known || !explains)
        (void)fprintf(stderr, "code %d at '%.*s': %.*s\n", (int)e->code, (int)sizeof e->field,
                      e->field, (int)sizeof e->msg, e->msg);
    CHECK(known);
    CHECK(explains);
}

/* Bytes of the input, one after the other; 0 when there are no more. */
struct taker {
    const uint8_t *at, *end;
};

static inline uint8_t take_byte(struct taker *t)
{
    return t->at < t->end ? *t->at++ : 0;
}

/* take_below - a number below n, which is at most 256. */
static inline uint32_t take_below(struct taker *t, uint32_t n)
{
    return take_byte(t) % n;
}

#endif
