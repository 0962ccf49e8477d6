/* The hashes of peers' files. xxh3-128 is libxxhash's, which is only a header here. */
#include "memory/hash.h"

#include "base/hex.h"
#include "memory/blake3.h"

#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { ADLER_MOD = 65521, ADLER_RUN = 5552 /* bytes after which 32 bits could overflow */ };

struct hash {
    enum hash_kind kind;
    union {
        XXH3_state_t *xxh; /* owned */
        struct blake3 blake3;
        struct sha256_ctx sha256;
        struct {
            uint32_t a, b;
        } adler;
    };
};

static const struct {
    const char *name;
    size_t nbytes;
} kinds[HASH_KIND_COUNT] = {[HASH_XXH3_128] = {"xxh3-128", 16},
                            [HASH_BLAKE3] = {"blake3", BLAKE3_NBYTES},
                            [HASH_ADLER32] = {"adler32", 4},
                            [HASH_SHA256] = {"sha256", SHA256_DIGEST_SIZE}};

const char *hash_kind_name(enum hash_kind kind)
{
    return kinds[kind].name;
}

enum hash_kind hash_kind_parse(const char *name)
{
    int kind = 0;

    while (kind < HASH_KIND_COUNT && strcmp(kinds[kind].name, name) != 0)
        kind++;
    return (enum hash_kind)kind;
}

bool hash_text_valid(enum hash_kind kind, const char *text)
{
    size_t len = 2 * kinds[kind].nbytes;

    return strlen(text) == len && strspn(text, "0123456789abcdef") == len;
}

static void adler_add(struct hash *h, const uint8_t *from, size_t nbytes)
{
    uint32_t a = h->adler.a, b = h->adler.b;

    while (nbytes > 0) {
        size_t n = nbytes < ADLER_RUN ? nbytes : ADLER_RUN;

        for (size_t i = 0; i < n; i++) {
            a += from[i];
            b += a;
        }
        a %= ADLER_MOD;
        b %= ADLER_MOD;
        from += n;
        nbytes -= n;
    }
    h->adler.a = a;
    h->adler.b = b;
}

/* Returns false without memory. */
static bool hash_begin(struct hash *h, enum hash_kind kind)
{
    h->kind = kind;
    if (kind == HASH_XXH3_128) {
        h->xxh = XXH3_createState();
        return h->xxh != NULL && XXH3_128bits_reset(h->xxh) == XXH_OK;
    }
    if (kind == HASH_BLAKE3)
        blake3_init(&h->blake3);
    else if (kind == HASH_SHA256)
        sha256_init(&h->sha256);
    else {
        h->adler.a = 1;
        h->adler.b = 0;
    }
    return true;
}

struct hash *hash_new(enum hash_kind kind)
{
    struct hash *h = calloc(1, sizeof *h);

    if (h != NULL && !hash_begin(h, kind)) {
        hash_free(h);
        h = NULL;
    }
    return h;
}

void hash_free(struct hash *h)
{
    if (h == NULL)
        return;
    if (h->kind == HASH_XXH3_128)
        (void)XXH3_freeState(h->xxh);
    free(h);
}

void hash_add(struct hash *h, const void *data, size_t nbytes)
{
    if (nbytes == 0)
        return;
    if (h->kind == HASH_XXH3_128)
        (void)XXH3_128bits_update(h->xxh, data, nbytes);
    else if (h->kind == HASH_BLAKE3)
        blake3_add(&h->blake3, data, nbytes);
    else if (h->kind == HASH_SHA256)
        sha256_update(&h->sha256, nbytes, data);
    else
        adler_add(h, data, nbytes);
}

static void xxh_text(XXH128_hash_t sum, char *out)
{
    XXH128_canonical_t bytes;

    XXH128_canonicalFromHash(&bytes, sum);
    hex_text(out, bytes.digest, sizeof bytes.digest);
}

void hash_text(const struct hash *h, char out[HASH_TEXT_MAX + 1])
{
    uint8_t bytes[HASH_TEXT_MAX / 2];
    struct sha256_ctx sha256;

    if (h->kind == HASH_XXH3_128) {
        xxh_text(XXH3_128bits_digest(h->xxh), out);
        return;
    }
    if (h->kind == HASH_BLAKE3) {
        blake3_digest(&h->blake3, bytes);
    } else if (h->kind == HASH_SHA256) {
        sha256 = h->sha256; /* the digest begins the next one */
        sha256_digest(&sha256, SHA256_DIGEST_SIZE, bytes);
    } else {
        uint32_t sum = h->adler.b << 16 | h->adler.a;

        for (int i = 0; i < 4; i++)
            bytes[i] = (uint8_t)(sum >> (24 - 8 * i));
    }
    hex_text(out, bytes, kinds[h->kind].nbytes);
}

void hash_of(enum hash_kind kind, const void *data, size_t nbytes, char out[HASH_TEXT_MAX + 1])
{
    struct hash h;

    if (kind == HASH_XXH3_128) {
        xxh_text(XXH3_128bits(data, nbytes), out); /* allocates nothing */
        return;
    }
    (void)hash_begin(&h, kind);
    hash_add(&h, data, nbytes);
    hash_text(&h, out);
}
