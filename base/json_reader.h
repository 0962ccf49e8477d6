/* Reading JSON from bytes, member by member, without building a tree.
 *
 * For headers and indexes that strangers send: what is read is bounded by the caller's own limits,
 * while a tree of 100 MB of text would take gigabytes before the first check. Strict: RFC 8259,
 * valid UTF-8, no lone surrogates. Every function returns false after an error and leaves it in
 * `wrong`, which stays; `at` is then where. */
#ifndef BATON_BASE_JSON_READER_H
#define BATON_BASE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_reader {
    const uint8_t *start, *at, *end; /* borrowed */
    const char *wrong;               /* static; NULL while all is well */
};

void json_reader_init(struct json_reader *r, const void *data, size_t len);

/* json_reader_offset - bytes before the current place, for messages. */
size_t json_reader_offset(const struct json_reader *r);

/* json_reader_open - take `bracket`, '{' or '['. */
bool json_reader_open(struct json_reader *r, char bracket);

/* json_reader_next - is there another member before `close` ('}' or ']')? Takes the comma before
 * it, or `close`. @n counts the members so far; starts at 0. False at the end and on an error. */
bool json_reader_next(struct json_reader *r, char close, uint32_t *n);

/* json_reader_string - one string, decoded and NUL-terminated into out[cap]; an error when it does
 * not fit or holds a NUL. With out NULL: only checked. */
bool json_reader_string(struct json_reader *r, char *out, size_t cap);

/* json_reader_key - a string as above, and the colon after it. */
bool json_reader_key(struct json_reader *r, char *out, size_t cap);

/* json_reader_u64 - a non-negative integer without fraction or exponent. */
bool json_reader_u64(struct json_reader *r, uint64_t *out);

/* json_reader_skip - any value, checked, nested at most `depth` deep (0: a plain value). */
bool json_reader_skip(struct json_reader *r, unsigned depth);

/* json_reader_end - nothing but white space is left. */
bool json_reader_end(struct json_reader *r);

#endif
