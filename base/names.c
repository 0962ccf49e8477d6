/* A set of strings: text in blocks that never move, numbers in a table with open addressing. */
#include "base/names.h"

#include "base/id.h"

#include <assert.h>
#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_NBYTES_MIN = 4096, BLOCK_NBYTES_MAX = 1 << 20, CAP_MIN = 16 };

struct names_block {
    struct names_block *next;
    size_t used, cap;
    char text[];
};

struct names_slot {
    uint32_t hash;   /* low half; spares most string compares */
    uint32_t number; /* plus one; 0 = free */
};

static uint64_t rotl(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 (Aumasson and Bernstein 2012). */
static uint64_t names_hash_of(const uint64_t key[2], const char *text, size_t len)
{
    uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                     key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};
    uint64_t last = (uint64_t)len << 56;
    uint64_t word;

    for (; len >= 8; len -= 8, text += 8) {
        memcpy(&word, text, 8);
        word = le64toh(word);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, text, len);
    last |= le64toh(word);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void names_init(struct names *s)
{
    *s = (struct names){.key = {id_random_u64(), id_random_u64()}};
}

void names_fini(struct names *s)
{
    struct names_block *next;

    for (struct names_block *b = s->blocks; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    free(s->items);
    free(s->slots);
    memset(s, 0, sizeof *s);
}

struct names_key names_key(const struct names *s, const char *text, size_t len)
{
    return (struct names_key){text, len, (uint32_t)names_hash_of(s->key, text, len)};
}

uint32_t names_find_key(const struct names *s, const struct names_key *key)
{
    uint32_t mask = s->n_slots - 1;

    if (s->n == 0)
        return NAMES_NONE;
    for (uint32_t i = key->hash & mask; s->slots[i].number != 0; i = (i + 1) & mask)
        if (s->slots[i].hash == key->hash &&
            strcmp(s->items[s->slots[i].number - 1], key->text) == 0)
            return s->slots[i].number - 1;
    return NAMES_NONE;
}

uint32_t names_find(const struct names *s, const char *text)
{
    struct names_key key;

    if (s->n == 0)
        return NAMES_NONE;
    key = names_key(s, text, strlen(text));
    return names_find_key(s, &key);
}

static void slot_put(struct names_slot *slots, uint32_t n_slots, struct names_slot slot)
{
    uint32_t i = slot.hash & (n_slots - 1);

    while (slots[i].number != 0)
        i = (i + 1) & (n_slots - 1);
    slots[i] = slot;
}

/* Room for `n` more items and their slots. */
static bool reserve_items(struct names *s, uint32_t n)
{
    uint32_t cap = s->cap == 0 ? CAP_MIN : s->cap;
    struct names_slot *slots;
    const char **items;

    if (s->cap - s->n >= n)
        return true;
    while (cap - s->n < n)
        cap *= 2;
    items = realloc(s->items, cap * sizeof *items);
    if (items == NULL)
        return false;
    s->items = items;
    slots = calloc(2 * (size_t)cap, sizeof *slots);
    if (slots == NULL)
        return false;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].number != 0)
            slot_put(slots, 2 * cap, s->slots[i]);
    free(s->slots);
    s->slots = slots;
    s->n_slots = 2 * cap;
    s->cap = cap;
    return true;
}

/* `len` bytes that stay where they are until names_fini. */
static char *reserve_text(struct names *s, size_t len)
{
    struct names_block *b = s->blocks;
    size_t cap = b == NULL ? BLOCK_NBYTES_MIN : 2 * b->cap;

    if (b != NULL && b->cap - b->used >= len)
        return b->text + b->used;
    if (cap > BLOCK_NBYTES_MAX)
        cap = BLOCK_NBYTES_MAX;
    if (cap < len)
        cap = len;
    b = malloc(sizeof *b + cap);
    if (b == NULL)
        return NULL;
    *b = (struct names_block){.next = s->blocks, .cap = cap};
    s->blocks = b;
    return b->text;
}

int names_reserve(struct names *s, uint32_t n, struct err *e)
{
    if (n > NAMES_MAX - s->n) /* reported when one more is added */
        n = NAMES_MAX - s->n;
    if (!reserve_items(s, n))
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u names", (unsigned)(s->n + n));
    return 0;
}

int names_add_key(struct names *s, const struct names_key *key, struct err *e)
{
    size_t len = key->len;
    char *copy;

    if (s->n >= NAMES_MAX)
        return err_set(e, ERR_TOO_LARGE, "", "more than %d names", (int)NAMES_MAX);
    if (!reserve_items(s, 1) || (copy = reserve_text(s, len + 1)) == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u names", (unsigned)s->n + 1);
    memcpy(copy, key->text, len + 1);
    s->blocks->used += len + 1;
    s->items[s->n++] = copy;
    slot_put(s->slots, s->n_slots, (struct names_slot){.hash = key->hash, .number = s->n});
    return 0;
}

int names_add(struct names *s, const char *text, struct err *e)
{
    struct names_key key = names_key(s, text, strlen(text));

    return names_add_key(s, &key, e);
}
