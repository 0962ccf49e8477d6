/* Hashes by which other programs name the bytes of a tensor, in the hexadecimal text that they
 * write. baton's own checksum is memory/checksum.h. */
#ifndef BATON_MEMORY_HASH_H
#define BATON_MEMORY_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hash_kind {
    HASH_XXH3_128, /* seed 0; its canonical form, the high half first */
    HASH_BLAKE3,   /* 256 bits, without a key */
    HASH_ADLER32,  /* beginning with 1 */
    HASH_SHA256,
    HASH_KIND_COUNT
};

enum { HASH_TEXT_MAX = 64 };

/* hash_kind_name - "xxh3-128", "blake3", "adler32", "sha256". */
const char *hash_kind_name(enum hash_kind kind);

/* hash_kind_parse - HASH_KIND_COUNT: it is no such name. */
enum hash_kind hash_kind_parse(const char *name);

/* hash_text_valid - has `text` the length of this kind, in lower-case hex? */
bool hash_text_valid(enum hash_kind kind, const char *text);

/* hash_of - the hash of bytes at any address. Threads: any. Blocks: no; xxh3-128 and adler32 run at
 * about memory speed, the others at a small part of it. */
void hash_of(enum hash_kind kind, const void *data, size_t nbytes, char out[HASH_TEXT_MAX + 1]);

struct hash;

/* hash_new - begin a hash whose bytes come in pieces. NULL: no memory.
 * hash_text - the hash of the bytes so far; more may follow. */
struct hash *hash_new(enum hash_kind kind);
void hash_add(struct hash *h, const void *data, size_t nbytes);
void hash_text(const struct hash *h, char out[HASH_TEXT_MAX + 1]);
void hash_free(struct hash *h); /* accepts NULL */

#endif
