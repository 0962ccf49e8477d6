/* What Python's str does, in code points over UTF-8. Letters whose case is not one letter for one
 * letter, or depends on its neighbours, are refused rather than guessed. */
#include "text/jinja/run.h"

#include <string.h>
#include <utf8proc.h>

bool text_eq(struct text a, struct text b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

int text_cmp(struct text a, struct text b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n > 0 ? memcmp(a.p, b.p, n) : 0;

    return c != 0 ? c : (a.len > b.len) - (a.len < b.len);
}

size_t text_char_len(const char *p, const char *end)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n;

    if (p < end && (*p & 0x80) == 0)
        return 1;
    n = utf8proc_iterate((const utf8proc_uint8_t *)p, end - p, &c);
    return n > 0 ? (size_t)n : 0;
}

uint32_t text_char(const char *p, size_t len)
{
    utf8proc_int32_t c = 0;

    (void)utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)len, &c);
    return (uint32_t)c;
}

size_t text_chars(struct text s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += (s.p[i] & 0xc0) != 0x80;
    return n;
}

size_t text_offset(struct text s, size_t n_chars)
{
    size_t i = 0;

    for (; i < s.len; i++) {
        if ((s.p[i] & 0xc0) != 0x80 && n_chars-- == 0)
            break;
    }
    return i;
}

bool char_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool ends_line(uint32_t c)
{
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

bool text_line(struct text *rest, struct text *line)
{
    struct text s = *rest;
    size_t len;

    for (size_t i = 0; i < s.len; i += len) {
        len = text_char_len(s.p + i, s.p + s.len);
        len = len > 0 ? len : 1;
        if (!ends_line(text_char(s.p + i, len)))
            continue;
        if (s.p[i] == '\r' && i + 1 < s.len && s.p[i + 1] == '\n')
            len = 2;
        *line = (struct text){s.p, i};
        *rest = (struct text){s.p + i + len, s.len - i - len};
        return true;
    }
    *line = s;
    *rest = (struct text){s.p + s.len, 0};
    return false;
}

/* Bytes of the last character. */
static size_t last_len(struct text s)
{
    size_t n = 1;

    while (n < s.len && (s.p[s.len - n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* Is the character one of `set`? NULL: white space. */
static bool in_set(const char *p, size_t len, const struct text *set)
{
    if (set == NULL)
        return char_is_space(text_char(p, len));
    return set->len >= len && memmem(set->p, set->len, p, len) != NULL;
}

static struct text strip_set(struct text s, const struct text *set, int sides)
{
    size_t n;

    while ((sides & STRIP_LEFT) != 0 && s.len > 0) {
        n = text_char_len(s.p, s.p + s.len);
        if (n == 0 || !in_set(s.p, n, set))
            break;
        s.p += n;
        s.len -= n;
    }
    while ((sides & STRIP_RIGHT) != 0 && s.len > 0) {
        n = last_len(s);
        if (!in_set(s.p + s.len - n, n, set))
            break;
        s.len -= n;
    }
    return s;
}

struct text text_strip(struct text s, int sides)
{
    return strip_set(s, NULL, sides);
}

int run_strip(struct run *r, struct text s, const struct value *chars, int sides, struct text *out)
{
    bool plain = chars == NULL || chars->type == V_NONE;

    if (!plain && chars->type != V_STRING)
        return run_wrong_type(r, chars, "a string of characters to strip");
    if (!plain && chars->u.s.len > RUN_STRIP_NBYTES_MAX)
        return run_fail(r, "%zu bytes of characters to strip; at most %d are allowed",
                        chars->u.s.len, RUN_STRIP_NBYTES_MAX);
    *out = strip_set(s, plain ? NULL : &chars->u.s, sides);
    /* Each character that went was looked for in the whole set. */
    return run_charge_bytes(r, (s.len - out->len) * (plain ? 1 : 1 + chars->u.s.len / 16));
}

/* Letters with a special casing, titlecase letters, and cased characters that are no letters. */
static bool has_odd_case(uint32_t c)
{
    static const uint32_t odd[][2] = {
        {0xaa, 0xaa},     {0xba, 0xba},     {0xdf, 0xdf},     {0x130, 0x131},   {0x149, 0x149},
        {0x17f, 0x17f},   {0x1c4, 0x1cc},   {0x1f0, 0x1f3},   {0x2b0, 0x2ff},   {0x345, 0x345},
        {0x37a, 0x37a},   {0x390, 0x390},   {0x3a3, 0x3a3},   {0x3b0, 0x3b0},   {0x587, 0x587},
        {0x10a0, 0x10ff}, {0x13a0, 0x13ff}, {0x1c80, 0x1cbf}, {0x1d2c, 0x1dbf}, {0x1e96, 0x1e9f},
        {0x1f50, 0x1f57}, {0x1f80, 0x1fff}, {0x2071, 0x209c}, {0x2100, 0x2188}, {0x24b6, 0x24e9},
        {0x2c00, 0x2fff}, {0xa640, 0xab70}, {0xab70, 0xabbf}, {0xfb00, 0xfb17}, {0x10400, 0x1ffff}};

    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        if (c >= odd[i][0] && c <= odd[i][1])
            return utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c ||
                   utf8proc_tolower((utf8proc_int32_t)c) != (utf8proc_int32_t)c || c < 0x2000 ||
                   (c >= 0xfb00 && c <= 0xfb17);
    }
    return false;
}

static bool is_cased(uint32_t c)
{
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);

    return cat == UTF8PROC_CATEGORY_LU || cat == UTF8PROC_CATEGORY_LL ||
           cat == UTF8PROC_CATEGORY_LT;
}

static size_t put_case(char *out, uint32_t c, bool upper)
{
    if (c < 0x80) {
        bool letter = upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z';

        out[0] = (char)(letter ? c ^ 0x20 : c);
        return 1;
    }
    return (size_t)utf8proc_encode_char(upper ? utf8proc_toupper((utf8proc_int32_t)c)
                                              : utf8proc_tolower((utf8proc_int32_t)c),
                                        (utf8proc_uint8_t *)out);
}

int run_case(struct run *r, struct text s, enum text_case how, struct value *out)
{
    bool in_word = false, first = true;
    size_t n = 0, len;
    char *o;

    /* 4 bytes is the most that a character of at least 1 becomes; only ASCII is of 1. */
    if (run_charge_bytes(r, s.len * 4) != 0 || run_bytes(r, &o, s.len * 2 + 4) != 0)
        return -1;
    for (size_t i = 0; i < s.len; i += len) {
        uint32_t c;
        bool upper;

        len = text_char_len(s.p + i, s.p + s.len);
        c = text_char(s.p + i, len);
        if (len == 0 || (c >= 0x80 && has_odd_case(c)))
            return run_fail(r, "changing the case of character U+%04X is not supported", c);
        upper = how == CASE_UPPER || (how == CASE_TITLE && !in_word) ||
                (how == CASE_CAPITALIZE && first);
        n += put_case(o + n, c, upper);
        in_word = is_cased(c);
        first = false;
    }
    *out = value_text((struct text){o, n});
    return 0;
}

/* With an empty `old`, `new_text` goes before each character and at the end. */
static size_t next_match(struct text s, size_t from, struct text old, bool *found)
{
    const char *at;

    if (old.len == 0) {
        *found = true;
        return from;
    }
    at = s.len - from >= old.len ? memmem(s.p + from, s.len - from, old.p, old.len) : NULL;
    *found = at != NULL;
    return at != NULL ? (size_t)(at - s.p) : s.len;
}

/* Copies s[from, to) and `text` behind it; without `o` only counts. */
static size_t strings_put_part(char *o, size_t n, struct text s, size_t from, size_t to,
                               struct text text)
{
    if (o != NULL && to > from)
        memcpy(o + n, s.p + from, to - from);
    n += to - from;
    if (o != NULL && text.len > 0)
        memcpy(o + n, text.p, text.len);
    return n + text.len;
}

static size_t replace_into(char *o, struct text s, struct text old, struct text new_text,
                           int64_t n_max)
{
    size_t from = 0, n = 0, at, step;
    bool found = true;

    while (n_max < 0 || n_max > 0) {
        at = next_match(s, from, old, &found);
        if (!found)
            break;
        n = strings_put_part(o, n, s, from, at, new_text);
        from = at + old.len;
        n_max -= n_max > 0 ? 1 : 0;
        if (old.len > 0)
            continue;
        if (from >= s.len)
            break;
        step = text_char_len(s.p + from, s.p + s.len);
        n = strings_put_part(o, n, s, from, from + (step > 0 ? step : 1), TEXT(""));
        from += step > 0 ? step : 1;
    }
    return strings_put_part(o, n, s, from, s.len, TEXT(""));
}

int run_replace(struct run *r, struct text s, struct text old, struct text new_text, int64_t n_max,
                struct value *out)
{
    size_t n;
    char *o;

    /* Neither length is above JINJA_RENDER_NBYTES_MAX, so that no product overflows. */
    if (run_charge_bytes(r, s.len * 2) != 0)
        return -1;
    n = replace_into(NULL, s, old, new_text, n_max);
    if (run_charge_bytes(r, n) != 0 || run_bytes(r, &o, n) != 0)
        return -1;
    (void)replace_into(o, s, old, new_text, n_max);
    *out = value_text((struct text){o, n});
    return 0;
}
