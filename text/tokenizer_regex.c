/* Patterns of the pre-tokenizer, on PCRE2.
 *
 * They were written for Oniguruma. Where the two read a construct alike it is passed on; where the
 * Unicode tables differ (\s, \d, \p{..}) it is spelled out; where they would read it differently
 * the pattern is refused: a tokenizer that is almost right gives wrong ids without any error.
 * Rejected: hand-written scanners for the known patterns (faster, but a family each). */
#include "text/tokenizer_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    REWRITTEN_NBYTES_MAX = 4 << 20, /* a pattern after rewriting */
    MATCH_STARTS_MAX = 16,          /* places tried in one search, so that the clock is looked at */
    MATCH_CPU_MS_MIN = 1000, /* time for one text: this, and some for each of its kilobytes */
    MATCH_CPU_MS_PER_KB = 4,
    MATCH_STEPS_PER_BYTE = 16, /* backtracking allowed in one search, by length of the text */
    MATCH_STEPS_MIN = 1000000,
    MATCH_DEPTH_MAX = 1000000,
    MATCH_HEAP_KIB_MAX = 256 << 10,
    REGEX_TEXT_NBYTES_MAX = 8 * TOKENIZER_TEXT_NBYTES_MAX, /* normalised, and with spaces added */
    ERROR_TEXT_MAX = 128,
};

/* Searches stop after MATCH_STARTS_MAX places, and do not look ahead of them for a likely one. */
#define SEARCH_OPTIONS (PCRE2_USE_OFFSET_LIMIT | PCRE2_NO_START_OPTIMIZE)

const char REGEX_GPT2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                          "\\s+(?!\\S)|\\s+";

/* White_Space, which is what \s means; PCRE2 10.42 counts U+180E in. And all the rest, for \S. */
static const char space_set[] = "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
                                "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
static const char not_space_set[] =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"
    "\\x{3001}-\\x{10ffff}";

struct regex {
    pcre2_code *code; /* owned */
    bool jit;
};

struct matcher {
    pcre2_match_data *data;       /* owned */
    pcre2_match_context *context; /* owned */
    uint64_t cpu_us_end;          /* this thread's time at which matching is given up */
    unsigned n_searches;
};

/* One pass over a pattern. */
struct rewrite {
    const char *pattern; /* borrowed */
    size_t len, at;
    const char *field; /* borrowed */
    struct buf out;
    bool in_class;
    bool dash;      /* in a class: the last thing written was a '-' that may open a range */
    bool after_set; /* in a class: the last thing written was a set, which no range may begin */
};

static int rewrite_refuse(const struct rewrite *r, size_t len, const char *why, struct err *e)
{
    if (len > r->len - r->at)
        len = r->len - r->at;
    while (len < r->len - r->at && (r->pattern[r->at + len] & 0xc0) == 0x80)
        len++; /* quote whole characters */
    return err_set(e, ERR_BAD_REQUEST, r->field, "'%.*s' at byte %zu of the pattern: %s", (int)len,
                   r->pattern + r->at, r->at, why);
}

static int rewrite_peek(const struct rewrite *r, size_t ahead)
{
    return ahead < r->len - r->at ? (unsigned char)r->pattern[r->at + ahead] : -1;
}

/* Writes a set of characters, inside a class or as a class of its own. */
static int put_set(struct rewrite *r, size_t n_source, bool negated, const char *set, struct err *e)
{
    if (r->in_class && r->dash)
        return rewrite_refuse(r, n_source, "a range may not end in a set", e);
    assert(!(r->in_class && negated));
    if (r->in_class)
        buf_puts(&r->out, set);
    else
        buf_printf(&r->out, negated ? "[^%s]" : "[%s]", set);
    r->at += n_source;
    r->after_set = true;
    return 0;
}

/* \p{category} and what the library's tables lack of it. */
static int put_category(struct rewrite *r, size_t n_source, bool negated, const char *category,
                        struct err *e)
{
    struct buf set = {0};
    size_t n;
    const struct unicode_range *rows = unicode_newer(&n);
    int rc;

    buf_printf(&set, "\\p{%s}", category);
    for (size_t i = 0; i < n; i++)
        if (strncmp(rows[i].category, category, strlen(category)) == 0)
            buf_printf(&set, "\\x{%x}-\\x{%x}", rows[i].first, rows[i].last);
    rc = set.failed ? err_set(e, ERR_NO_MEMORY, r->field, "no memory for the pattern")
                    : put_set(r, n_source, negated, set.data, e);
    buf_fini(&set);
    return rc;
}

/* \p{X}, \P{X}, \p{^X}; at `\`. */
static int rewrite_property(struct rewrite *r, struct err *e)
{
    /* Mn is not among them: U+1171E left it after Unicode 14, and ranges can only add. */
    static const char *const known[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mc", "Me", "N",
                                        "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
                                        "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
    const char *name = r->pattern + r->at + 3;
    const char *close = rewrite_peek(r, 2) == '{' ? memchr(name, '}', r->len - r->at - 3) : NULL;
    bool negated = rewrite_peek(r, 1) == 'P';
    size_t n_source;

    if (close == NULL)
        return rewrite_refuse(r, 4, "a property is written \\p{Name}", e);
    n_source = (size_t)(close + 1 - (r->pattern + r->at));
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    if (negated && r->in_class)
        return rewrite_refuse(r, n_source, "a negated property inside [] is not supported", e);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i]) == (size_t)(close - name) &&
            memcmp(known[i], name, (size_t)(close - name)) == 0)
            return put_category(r, n_source, negated, known[i], e);
    return rewrite_refuse(r, n_source, "this property is not supported", e);
}

/* One plain character, written so that nothing can take it for syntax. */
static void put_char(struct rewrite *r, size_t n_source, uint32_t cp)
{
    buf_printf(&r->out, "\\x{%x}", cp);
    r->at += n_source;
    r->dash = r->after_set = false;
}

static int tokenizer_regex_hex_value(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* \xHH, \x{H...}, \uHHHH; at `\`. */
static int rewrite_hex(struct rewrite *r, struct err *e)
{
    bool braces = rewrite_peek(r, 1) == 'x' && rewrite_peek(r, 2) == '{';
    size_t at = braces ? 3 : 2,
           n_digits_max = braces                      ? 8
                          : rewrite_peek(r, 1) == 'u' ? 4
                                                      : 2,
           n = 0;
    uint32_t cp = 0;

    for (; n < n_digits_max && tokenizer_regex_hex_value(rewrite_peek(r, at)) >= 0; n++, at++)
        cp = cp << 4 | (uint32_t)tokenizer_regex_hex_value(rewrite_peek(r, at));
    if (n == 0 || (!braces && n < n_digits_max) || (braces && rewrite_peek(r, at) != '}'))
        return rewrite_refuse(r, at, "a hexadecimal escape is malformed", e);
    at += braces;
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return rewrite_refuse(r, at, "there is no such character", e);
    if (rewrite_peek(r, 1) == 'x' && !braces &&
        cp >= 0x80) /* a byte to one library, not to the other */
        return rewrite_refuse(r, at, "write \\x{..} for characters above 7f", e);
    put_char(r, at, cp);
    return 0;
}

static int rewrite_escape(struct rewrite *r, struct err *e)
{
    static const char from[] = "nrtfvae", to[] = "\n\r\t\f\v\a\033";
    int c = rewrite_peek(r, 1);
    const char *letter = c > 0 ? strchr(from, c) : NULL;

    if (c == -1)
        return rewrite_refuse(r, 1, "the pattern ends in a backslash", e);
    if (letter != NULL) {
        put_char(r, 2, (unsigned char)to[letter - from]);
        return 0;
    }
    switch (c) {
    case 's':
        return put_set(r, 2, false, space_set, e);
    case 'S':
        return put_set(r, 2, false, not_space_set, e);
    case 'd':
        return put_category(r, 2, false, "Nd", e);
    case 'p':
    case 'P':
        return rewrite_property(r, e);
    case 'x':
    case 'u':
        return rewrite_hex(r, e);
    default:
        break;
    }
    if (c < 0x21 || c > 0x7e || tokenizer_regex_hex_value(c) >= 0 || (c >= 'A' && c <= 'Z') ||
        (c >= 'a' && c <= 'z'))
        return rewrite_refuse(r, 2, "this escape is not supported", e);
    put_char(r, 2, (uint32_t)c);
    return 0;
}

/* `(`: only the groups that both libraries read alike. */
static int rewrite_group(struct rewrite *r, struct err *e)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

    if (rewrite_peek(r, 1) == '*')
        return rewrite_refuse(r, 2, "verbs are not supported", e);
    if (rewrite_peek(r, 1) != '?') {
        buf_puts(&r->out, "(?:"); /* nothing refers to a group by number */
        r->at++;
        return 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i]);

        if (n <= r->len - r->at && memcmp(r->pattern + r->at, known[i], n) == 0) {
            buf_puts(&r->out, known[i]);
            r->at += n;
            return 0;
        }
    }
    return rewrite_refuse(r, 4, "this group is not supported", e);
}

/* `{`: {n}, {n,} or {n,m}, and nothing after it that the libraries read differently. */
static int rewrite_repeat(struct rewrite *r, struct err *e)
{
    size_t at = 1;

    while (rewrite_peek(r, at) >= '0' && rewrite_peek(r, at) <= '9')
        at++;
    if (at == 1)
        return rewrite_refuse(r, 2, "'{' begins a repeat count here; write \\{ for the character",
                              e);
    if (rewrite_peek(r, at) == ',')
        at++;
    while (rewrite_peek(r, at) >= '0' && rewrite_peek(r, at) <= '9')
        at++;
    if (rewrite_peek(r, at) != '}')
        return rewrite_refuse(r, at + 1, "a repeat count is malformed", e);
    at++;
    if (rewrite_peek(r, at) == '+' || rewrite_peek(r, at) == '?' || rewrite_peek(r, at) == '*')
        return rewrite_refuse(r, at + 1, "a repeat count may not be followed by ?, * or +", e);
    buf_append(&r->out, r->pattern + r->at, at);
    r->at += at;
    return 0;
}

static int rewrite_class_char(struct rewrite *r, struct err *e)
{
    int c = rewrite_peek(r, 0);

    if (c == '\\')
        return rewrite_escape(r, e);
    if (c == '[' || (c == '&' && rewrite_peek(r, 1) == '&'))
        return rewrite_refuse(r, 2, "sets of sets are not supported", e);
    if (c == ']') {
        r->in_class = false;
        buf_puts(&r->out, "]");
        r->at++;
        return 0;
    }
    if (c == '-' && r->after_set && rewrite_peek(r, 1) != ']')
        return rewrite_refuse(r, 2, "a range may not begin with a set", e);
    r->dash = c == '-' && rewrite_peek(r, 1) != ']';
    r->after_set = false;
    if (c == '^' || (c == '-' && !r->dash))
        buf_puts(&r->out, "\\"); /* a plain character at this place */
    buf_append(&r->out, r->pattern + r->at, 1);
    r->at++;
    return 0;
}

static int rewrite_char(struct rewrite *r, struct err *e)
{
    switch (rewrite_peek(r, 0)) {
    case '\\':
        return rewrite_escape(r, e);
    case '(':
        return rewrite_group(r, e);
    case '{':
        return rewrite_repeat(r, e);
    case '[':
        r->in_class = true;
        r->at += rewrite_peek(r, 1) == '^' ? 2 : 1;
        buf_puts(&r->out, r->pattern[r->at - 1] == '^' ? "[^" : "[");
        if (rewrite_peek(r, 0) == ']')
            return rewrite_refuse(r, 1, "write \\] at the start of a set", e);
        if (rewrite_peek(r, 0) == '-')
            put_char(r, 1, '-');
        r->dash = r->after_set = false;
        return 0;
    default:
        buf_append(&r->out, r->pattern + r->at, 1);
        r->at++;
        return 0;
    }
}

/* The pattern as PCRE2 must see it, in r->out. */
static int rewrite_pattern(struct rewrite *r, struct err *e)
{
    while (r->at < r->len) {
        if ((r->in_class ? rewrite_class_char(r, e) : rewrite_char(r, e)) != 0)
            return -1;
        if (r->out.len > REWRITTEN_NBYTES_MAX)
            return err_set(e, ERR_BAD_REQUEST, r->field,
                           "the pattern grows past %d bytes when its properties are spelled out",
                           REWRITTEN_NBYTES_MAX);
    }
    if (r->out.failed)
        return err_set(e, ERR_NO_MEMORY, r->field, "no memory for the pattern");
    return 0;
}

static int regex_compile(struct regex *re, const char *pattern, size_t len, uint32_t options,
                         const char *field, struct err *e)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    unsigned char text[ERROR_TEXT_MAX];
    int code = 0;
    PCRE2_SIZE at = 0;

    if (context == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory for the pattern");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* what . ^ and $ go by */
    re->code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (re->code == NULL) {
        if (pcre2_get_error_message(code, text, sizeof text) < 0)
            text[0] = '\0';
        return err_set(e, ERR_BAD_REQUEST, field, "the pattern is malformed: %s (pcre2 %d)",
                       (const char *)text, code);
    }
    re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0; /* only faster */
    return 0;
}

int regex_new(struct regex **out, const char *pattern, size_t len, bool literal, const char *field,
              struct err *e)
{
    struct rewrite r = {.pattern = pattern, .len = len, .field = field};
    struct regex *re;
    int rc = -1;

    if (len == 0 || len > TOKENIZER_PATTERN_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "a pattern of %zu bytes; 1 to %d are allowed",
                       len, TOKENIZER_PATTERN_NBYTES_MAX);
    re = calloc(1, sizeof *re);
    if (re == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory for the pattern");
    if (literal)
        rc = regex_compile(re, pattern, len, PCRE2_UTF | PCRE2_LITERAL | SEARCH_OPTIONS, field, e);
    else if (rewrite_pattern(&r, e) == 0)
        rc = regex_compile(re, r.out.data, r.out.len,
                           PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                               SEARCH_OPTIONS,
                           field, e);
    buf_fini(&r.out);
    if (rc != 0) {
        regex_free(re);
        return -1;
    }
    *out = re;
    return 0;
}

void regex_free(struct regex *re)
{
    if (re == NULL)
        return;
    pcre2_code_free(re->code);
    free(re);
}

static uint64_t tokenizer_regex_thread_cpu_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000U + (uint64_t)ts.tv_nsec / 1000U;
}

struct matcher *matcher_new(size_t len)
{
    struct matcher *m = calloc(1, sizeof *m);

    if (m == NULL)
        return NULL;
    m->cpu_us_end = tokenizer_regex_thread_cpu_us() +
                    1000 * (MATCH_CPU_MS_MIN + (uint64_t)len / 1000 * MATCH_CPU_MS_PER_KB);
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (m->data == NULL || m->context == NULL) {
        matcher_free(m);
        return NULL;
    }
    (void)pcre2_set_depth_limit(m->context, MATCH_DEPTH_MAX);
    (void)pcre2_set_heap_limit(m->context, MATCH_HEAP_KIB_MAX);
    return m;
}

void matcher_free(struct matcher *m)
{
    if (m == NULL)
        return;
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    free(m);
}

/* Looks for a match that begins at w->from or up to `last`; by the interpreter when the machine
 * code's own small stack does not do. PCRE2 counts steps for each place where a match may begin,
 * not for them all, so a pattern that fails slowly at each of a million places passes every limit
 * of its own. The clock bounds that. */
static int regex_search(const struct regex *re, struct matcher *m, const struct regex_walk *w,
                        size_t last)
{
    PCRE2_SPTR text = (PCRE2_SPTR)w->text;
    int rc;

    if (++m->n_searches % MATCH_STARTS_MAX == 0 && tokenizer_regex_thread_cpu_us() > m->cpu_us_end)
        return PCRE2_ERROR_MATCHLIMIT;
    (void)pcre2_set_offset_limit(m->context, last);
    (void)pcre2_set_match_limit(m->context,
                                MATCH_STEPS_MIN + (uint32_t)w->len * MATCH_STEPS_PER_BYTE);
    rc = pcre2_match(re->code, text, w->len, w->from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && re->jit)
        rc = pcre2_match(re->code, text, w->len, w->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         m->data, m->context);
    return rc;
}

static int match_failed(int rc, const struct regex_walk *w, struct err *e)
{
    unsigned char text[ERROR_TEXT_MAX];

    if (rc == PCRE2_ERROR_NOMEMORY)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to match the tokenizer's pattern");
    if (pcre2_get_error_message(rc, text, sizeof text) < 0)
        text[0] = '\0';
    return err_set(e, ERR_BAD_REQUEST, "",
                   "the tokenizer's pattern gives up on this text at byte %zu of a piece of %zu: "
                   "%s (pcre2 %d)",
                   w->from, w->len, (const char *)text, rc);
}

/* The end of the character that holds byte `at`, or follows the text. */
static size_t next_char(const struct regex_walk *w, size_t at)
{
    do
        at++;
    while (at < w->len && (w->text[at] & 0xc0) == 0x80);
    return at;
}

int regex_next(const struct regex *re, struct matcher *m, struct regex_walk *w, struct err *e)
{
    assert(w->len <= REGEX_TEXT_NBYTES_MAX);
    while (w->from <= w->len) {
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(m->data);
        size_t last = w->len - w->from < MATCH_STARTS_MAX ? w->len : w->from + MATCH_STARTS_MAX;
        int rc = regex_search(re, m, w, last);

        if (rc == PCRE2_ERROR_NOMATCH) {
            w->from = next_char(w, last);
            continue;
        }
        if (rc < 0)
            return match_failed(rc, w, e);
        /* An empty match where the last one ended is none: go on a character later. */
        if (found[0] == found[1] && w->last_end == found[1]) {
            w->from = next_char(w, found[1]);
            continue;
        }
        w->start = found[0];
        w->end = w->from = w->last_end = found[1];
        return 1;
    }
    return 0;
}
