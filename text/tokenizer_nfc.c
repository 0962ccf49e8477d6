/* NFC in linear time.
 *
 * Decomposition and composition are utf8proc's; ordering is ours, because utf8proc orders a run of
 * combining marks by swapping neighbours, and a text of a million marks would take it hours. Long
 * runs are counted into place instead. */
#include "text/tokenizer_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    NFC_LEAD = 0xcc,        /* first byte of U+0300; a text of smaller bytes is in NFC */
    DECOMPOSED_MAX = 4,     /* code points that one decomposes to, canonically */
    CLASSES = 256,          /* canonical combining classes */
    INSERTION_RUN_MAX = 16, /* longer runs of marks are counted */
};

/* Marks younger than the tables with which Hugging Face's tokenizers normalises (Unicode 9): to it
 * they are plain characters that neither move nor compose, nor let others compose across them. Also
 * U+11930, the second half of the one pair that composes only since Unicode 13. Found by asking
 * tokenizers 0.23.3 about every code point to which utf8proc 2.8 gives a combining class. */
static const struct {
    uint32_t first, last;
} inert[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef},
};

/* U+11938 = U+11935 U+11930 stays as it is, for the same reason. */
enum { INERT_COMPOSITE = 0x11938 };

static bool is_inert(int32_t cp)
{
    for (size_t i = 0; i < sizeof inert / sizeof inert[0] && inert[i].first <= (uint32_t)cp; i++)
        if ((uint32_t)cp <= inert[i].last)
            return true;
    return false;
}

static unsigned class_of(int32_t cp)
{
    unsigned class = utf8proc_get_property(cp)->combining_class;

    return class != 0 && is_inert(cp) ? 0 : class;
}

/* Stable insertion sort by class; returns false, having done nothing, for a run that is too long.
 */
static bool order_short_run(int32_t *run, size_t n)
{
    if (n > INSERTION_RUN_MAX)
        return false;
    for (size_t i = 1; i < n; i++) {
        int32_t cp = run[i];
        unsigned class = class_of(cp);
        size_t at = i;

        for (; at > 0 && class_of(run[at - 1]) > class; at--)
            run[at] = run[at - 1];
        run[at] = cp;
    }
    return true;
}

/* Stable counting sort by class. */
static void order_long_run(int32_t *run, size_t n, int32_t *spare)
{
    size_t place[CLASSES + 1] = {0};

    for (size_t i = 0; i < n; i++)
        place[class_of(run[i]) + 1]++;
    for (size_t class = 1; class <= CLASSES; class ++)
        place[class] += place[class - 1];
    for (size_t i = 0; i < n; i++)
        spare[place[class_of(run[i])]++] = run[i];
    memcpy(run, spare, n * sizeof *run);
}

static void order_marks(int32_t *cps, size_t n, int32_t *spare)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;

        while (end < n && class_of(cps[end]) != 0)
            end++;
        if (end - i > 1 && !order_short_run(cps + i, end - i))
            order_long_run(cps + i, end - i, spare);
        i = end + 1;
    }
}

/* Canonical decomposition; returns the number of code points. */
static size_t nfc_decompose(int32_t *cps, size_t cap, const char *text, size_t len)
{
    size_t n = 0;
    uint32_t cp;

    for (size_t at = 0; at < len;) {
        int n_bytes = utf8_scan((const unsigned char *)text + at, len - at, &cp);
        utf8proc_ssize_t k = 1;
        int bound = 0;

        assert(n_bytes > 0);
        at += (size_t)n_bytes;
        if (cp < 0x80 || cp == INERT_COMPOSITE)
            cps[n] = (int32_t)cp;
        else
            k = utf8proc_decompose_char((int32_t)cp, cps + n, (utf8proc_ssize_t)(cap - n),
                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE, &bound);
        assert(k > 0 && (size_t)k <= cap - n);
        n += (size_t)k;
    }
    return n;
}

/* Composes between inert characters, which nothing composes with, and appends the result. */
static void nfc_compose(struct buf *out, int32_t *cps, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        utf8proc_ssize_t k;

        while (end < n && !is_inert(cps[end]))
            end++;
        k = utf8proc_normalize_utf32(cps + i, (utf8proc_ssize_t)(end - i),
                                     UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        for (utf8proc_ssize_t j = 0; j < k; j++) {
            char bytes[UTF8_MAX];

            buf_append(out, bytes, utf8_put(bytes, (uint32_t)cps[i + (size_t)j]));
        }
        i = end;
    }
}

static bool is_plain(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] >= NFC_LEAD)
            return false;
    return true;
}

int nfc_append(struct buf *out, const char *text, size_t len, struct err *e)
{
    size_t cap = 2 * len + DECOMPOSED_MAX; /* 2 bytes at least give 4 code points at most */
    int32_t *cps, *spare;
    size_t n;

    if (is_plain(text, len)) {
        buf_append(out, text, len);
        return out->failed ? err_set(e, ERR_NO_MEMORY, "", "no memory to normalise the text") : 0;
    }
    cps = malloc(cap * sizeof *cps);
    spare = malloc(cap * sizeof *spare);
    if (cps != NULL && spare != NULL) {
        n = nfc_decompose(cps, cap, text, len);
        order_marks(cps, n, spare);
        nfc_compose(out, cps, n);
    } else {
        out->failed = true;
    }
    free(spare);
    free(cps);
    return out->failed ? err_set(e, ERR_NO_MEMORY, "", "no memory to normalise the text") : 0;
}
