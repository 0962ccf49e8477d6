/* Tags and what stands between them. Which white space a tag eats is Jinja2's with trim_blocks and
 * lstrip_blocks: a block or comment alone on its line takes the line with it. */
#include "text/jinja/lexer.h"

#include "base/utf8.h"
#include "text/jinja/run.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BRACES_MAX = 128, NUMBER_LEN_MAX = 64 };

struct lexer {
    struct tokens *out;
    struct arena *arena;
    const char *at, *end;
    uint32_t line;
    bool line_starts; /* the last token ended its line */
    struct err *e;
};

int jinja_refuse(struct err *e, uint32_t line, const char *fmt, ...)
{
    char msg[ERR_MSG_MAX - 32];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    (void)utf8_clean(msg);
    return err_set(e, ERR_BAD_REQUEST, "/chat_template", "line %u: %s", line, msg);
}

int jinja_no_memory(struct err *e, const struct arena *a)
{
    if (a->full)
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "the parsed template takes more than %zu bytes", a->nbytes_max);
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a chat template");
}

static int lexer_push(struct lexer *x, const struct token *t)
{
    struct tokens *o = x->out;

    if (o->n == o->cap) {
        size_t cap = o->cap == 0 ? 256 : o->cap * 2;
        struct token *v = arena_array(x->arena, cap, sizeof *v);

        if (v == NULL)
            return jinja_no_memory(x->e, x->arena);
        if (o->n > 0)
            memcpy(v, o->v, o->n * sizeof *v);
        o->v = v;
        o->cap = cap;
    }
    o->v[o->n] = *t;
    o->v[o->n++].line = x->line;
    return 0;
}

static int push_plain(struct lexer *x, enum token_type type, const char *p, size_t len)
{
    return lexer_push(x, &(struct token){.type = type, .text = {p, len}});
}

/* Moves on over n bytes, counting their lines. */
static void advance(struct lexer *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x->line += x->at[i] == '\n';
    x->at += n;
}

static size_t lexer_space_len(const char *p, const char *end)
{
    size_t n = p < end ? text_char_len(p, end) : 0;

    return n > 0 && char_is_space(text_char(p, n)) ? n : 0;
}

static void skip_space(struct lexer *x)
{
    size_t n;

    while ((n = lexer_space_len(x->at, x->end)) > 0)
        advance(x, n);
}

/* The beginning of the next tag: {{, {% or {#. */
static const char *find_tag(const char *p, const char *end)
{
    while (p < end && (p = memchr(p, '{', (size_t)(end - p))) != NULL) {
        if (p + 1 < end && (p[1] == '{' || p[1] == '%' || p[1] == '#'))
            return p;
        p++;
    }
    return end;
}

/* What is left of the text before a tag: `sign` is the character after its two. */
static struct text trim_before(const struct lexer *x, struct text s, char sign, bool is_output)
{
    size_t line = s.len;
    struct text rest;

    if (sign == '-')
        return text_strip(s, STRIP_RIGHT);
    if (sign == '+' || is_output)
        return s;
    while (line > 0 && s.p[line - 1] != '\n')
        line--;
    if (line == 0 && !x->line_starts)
        return s;
    rest = text_strip((struct text){s.p + line, s.len - line}, STRIP_LEFT);
    return (struct text){s.p, rest.len == 0 ? line : s.len};
}

/* After a tag's end: what '-' eats, or else one newline. */
static void trim_after(struct lexer *x, bool all, bool newline)
{
    if (all)
        skip_space(x);
    else if (newline && x->at < x->end && *x->at == '\n')
        advance(x, 1);
    x->line_starts = x->at[-1] == '\n';
}

static int lex_comment(struct lexer *x)
{
    const char *p = x->at, *close = memmem(p, (size_t)(x->end - p), "#}", 2);
    char sign;

    if (close == NULL)
        return jinja_refuse(x->e, x->line, "a comment '{#' without its '#}'");
    sign = close > p ? close[-1] : '\0';
    advance(x, (size_t)(close + 2 - p));
    trim_after(x, sign == '-', sign != '+');
    return 0;
}

static bool is_name_start(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool lexer_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int lex_name(struct lexer *x)
{
    const char *p = x->at, *q = p;

    while (q < x->end && (is_name_start(*q) || lexer_is_digit(*q)))
        q++;
    if (q < x->end && (*q & 0x80) != 0)
        return jinja_refuse(x->e, x->line, "a name with a character outside ASCII");
    x->at = q;
    return push_plain(x, TOKEN_NAME, p, (size_t)(q - p));
}

static const char *lexer_digits(const char *p, const char *end)
{
    while (p < end && lexer_is_digit(*p))
        p++;
    return p;
}

static int lex_number(struct lexer *x)
{
    struct token t = {.type = TOKEN_INT};
    const char *p = x->at, *q = lexer_digits(p, x->end), *r;
    char text[NUMBER_LEN_MAX];
    size_t len;

    if (q + 1 < x->end && *q == '.' && lexer_is_digit(q[1])) {
        q = lexer_digits(q + 1, x->end);
        t.type = TOKEN_FLOAT;
    }
    if (q < x->end && (*q == 'e' || *q == 'E')) {
        r = q + 1 < x->end && (q[1] == '+' || q[1] == '-') ? q + 2 : q + 1;
        if (r < x->end && lexer_is_digit(*r)) {
            q = lexer_digits(r, x->end);
            t.type = TOKEN_FLOAT;
        }
    }
    len = (size_t)(q - p);
    if ((q < x->end && (is_name_start(*q) || *q == '_')) || len >= sizeof text ||
        (t.type == TOKEN_INT && len > 1 && *p == '0'))
        return jinja_refuse(x->e, x->line, "a number '%.*s...' that is not plain decimal",
                            (int)(len < sizeof text ? len : sizeof text), p);
    memcpy(text, p, len);
    text[len] = '\0';
    errno = 0;
    if (t.type == TOKEN_INT)
        t.i = strtoll(text, NULL, 10);
    else
        t.f = strtod(text, NULL);
    if (errno == ERANGE && (t.type == TOKEN_INT || t.f > 1.0))
        return jinja_refuse(x->e, x->line, "number %s is too large", text);
    t.text = (struct text){p, len};
    x->at = q;
    return lexer_push(x, &t);
}

static int lexer_hex_value(char c)
{
    static const char hex[] = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(hex, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;

    return at != NULL ? (int)(at - hex) : -1;
}

/* \xHH, \uHHHH, \UHHHHHHHH: n digits at p. */
static int lex_hex(struct lexer *x, const char *p, const char *end, unsigned n, uint32_t *out)
{
    uint32_t c = 0;

    for (unsigned i = 0; i < n; i++) {
        int v = p + i < end ? lexer_hex_value(p[i]) : -1;

        if (v < 0)
            return jinja_refuse(x->e, x->line, "an escape in a string needs %u hex digits", n);
        c = c << 4 | (uint32_t)v;
    }
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return jinja_refuse(x->e, x->line, "an escape in a string is no character: %#x", c);
    *out = c;
    return 0;
}

/* One escape at p, after the backslash. Writes *n bytes; returns how many it read, or -1. */
static int lex_escape(struct lexer *x, const char *p, const char *end, char *out, size_t *n)
{
    static const char from[] = "ntr\\'\"abfv", to[] = "\n\t\r\\'\"\a\b\f\v";
    const char *plain = strchr(from, *p);
    unsigned n_hex = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;
    uint32_t c = 0;

    if (plain != NULL && *p != '\0') {
        out[0] = to[plain - from];
        *n = 1;
        return 1;
    }
    if (*p == '\n') {
        *n = 0;
        return 1;
    }
    if (*p == 'x' || *p == 'u' || *p == 'U') {
        if (lex_hex(x, p + 1, end, n_hex, &c) != 0)
            return -1;
        *n = utf8_put(out, c);
        return (int)n_hex + 1;
    }
    if (lexer_is_digit(*p) || *p == 'N')
        return jinja_refuse(x->e, x->line, "escape '\\%c' in a string is not supported", *p);
    out[0] = '\\'; /* as Python: an unknown one stays */
    *n = 1;
    return 0;
}

static int decode_string(struct lexer *x, struct text raw, struct text *out)
{
    const char *p = raw.p, *end = raw.p + raw.len;
    char *o;
    size_t n = 0;

    if (raw.len == 0 || memchr(raw.p, '\\', raw.len) == NULL) {
        *out = raw;
        return 0;
    }
    out->p = o = arena_bytes(x->arena, raw.len); /* no escape is shorter than what it means */
    if (o == NULL)
        return jinja_no_memory(x->e, x->arena);
    out->len = 0;
    while (p < end) {
        if (*p != '\\') {
            o[out->len++] = *p++;
            continue;
        }
        int used = lex_escape(x, p + 1, end, o + out->len, &n);

        if (used < 0)
            return -1;
        p += 1 + used;
        out->len += n;
    }
    return 0;
}

static int lex_string(struct lexer *x)
{
    struct token t = {.type = TOKEN_STRING};
    char quote = *x->at;
    const char *p = x->at + 1;

    while (p < x->end && *p != quote)
        p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end)
        return jinja_refuse(x->e, x->line, "a string without its closing %c", quote);
    if (decode_string(x, (struct text){x->at + 1, (size_t)(p - x->at - 1)}, &t.text) != 0 ||
        lexer_push(x, &t) != 0)
        return -1;
    advance(x, (size_t)(p + 1 - x->at));
    return 0;
}

static int lex_operator(struct lexer *x, char *braces, unsigned *n_braces)
{
    static const char *const twos[] = {"==", "!=", "<=", ">=", "//", "**"};
    static const char open[] = "([{", close[] = ")]}";
    struct token t = {.type = TOKEN_OP, .text = {x->at, 1}};
    char c = *x->at;

    for (unsigned i = 0; i < sizeof twos / sizeof twos[0] && x->end - x->at >= 2; i++) {
        if (memcmp(x->at, twos[i], 2) == 0) {
            t.op = OP_2_EQ + i;
            t.text.len = 2;
        }
    }
    if (t.op == 0) {
        if (c == '\0' || strchr("+-*/%~[](){}<>=.:|,", c) == NULL)
            return jinja_refuse(x->e, x->line, "character '%c' has no meaning in a tag",
                                c > 0x20 && c < 0x7f ? c : '?');
        t.op = (unsigned char)c;
    }
    if (t.text.len == 1 && strchr(open, c) != NULL) {
        if (*n_braces == BRACES_MAX)
            return jinja_refuse(x->e, x->line, "brackets nest deeper than %d", BRACES_MAX);
        braces[(*n_braces)++] = close[strchr(open, c) - open];
    } else if (t.text.len == 1 && strchr(close, c) != NULL) {
        if (*n_braces == 0 || braces[--*n_braces] != c)
            return jinja_refuse(x->e, x->line, "'%c' closes nothing", c);
    }
    x->at += t.text.len;
    return lexer_push(x, &t);
}

/* Is the end of the tag here? Eats it and what it trims. */
static int lex_tag_end(struct lexer *x, bool is_output, bool *ended)
{
    const char *close = is_output ? "}}" : "%}";
    char sign = *x->at == '-' || (*x->at == '+' && !is_output) ? *x->at : '\0';
    size_t n = sign != '\0' ? 3 : 2;

    *ended = (size_t)(x->end - x->at) >= n && memcmp(x->at + n - 2, close, 2) == 0;
    if (!*ended)
        return 0;
    if (push_plain(x, is_output ? TOKEN_OUTPUT_END : TOKEN_BLOCK_END, x->at, n) != 0)
        return -1;
    x->at += n;
    trim_after(x, sign == '-', sign != '+' && !is_output);
    return 0;
}

static int lex_tag(struct lexer *x, bool is_output)
{
    char braces[BRACES_MAX];
    unsigned n_braces = 0;
    uint32_t line = x->line;
    bool ended = false;
    int rc;

    while (x->at < x->end) {
        if (n_braces == 0 && lex_tag_end(x, is_output, &ended) != 0)
            return -1;
        if (ended)
            return 0;
        if (lexer_space_len(x->at, x->end) > 0) {
            skip_space(x);
            continue;
        }
        if (is_name_start(*x->at) || (*x->at & 0x80) != 0)
            rc = lex_name(x);
        else if (lexer_is_digit(*x->at))
            rc = lex_number(x);
        else if (*x->at == '\'' || *x->at == '"')
            rc = lex_string(x);
        else
            rc = lex_operator(x, braces, &n_braces);
        if (rc != 0)
            return -1;
    }
    return jinja_refuse(x->e, line, "a tag '%s' that does not end", is_output ? "{{" : "{%");
}

/* The end of a tag at p that holds only `word`; NULL if it is another. */
static const char *after_word(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word), len;

    p += p + 2 < end && (p[2] == '-' || p[2] == '+') ? 3 : 2;
    while ((len = lexer_space_len(p, end)) > 0)
        p += len;
    if ((size_t)(end - p) < n || memcmp(p, word, n) != 0)
        return NULL;
    p += n;
    while ((len = lexer_space_len(p, end)) > 0)
        p += len;
    p += p < end && (*p == '-' || *p == '+') ? 1 : 0;
    return end - p >= 2 && memcmp(p, "%}", 2) == 0 ? p + 2 : NULL;
}

/* The text of {% raw %}, whose tag ends at `body`. */
static int lex_raw(struct lexer *x, const char *body)
{
    const char *tag, *close = NULL;
    uint32_t line = x->line;
    struct text data;

    advance(x, (size_t)(body - x->at));
    trim_after(x, body[-3] == '-', false);
    for (tag = find_tag(x->at, x->end); tag < x->end; tag = find_tag(tag + 1, x->end)) {
        close = tag[1] == '%' ? after_word(tag, x->end, "endraw") : NULL;
        if (close != NULL)
            break;
    }
    if (close == NULL)
        return jinja_refuse(x->e, line, "a tag 'raw' without its 'endraw'");
    data = trim_before(x, (struct text){x->at, (size_t)(tag - x->at)}, tag[2], false);
    if (data.len > 0 && push_plain(x, TOKEN_DATA, data.p, data.len) != 0)
        return -1;
    advance(x, (size_t)(close - x->at));
    trim_after(x, close[-3] == '-', close[-3] != '+');
    return 0;
}

static int lex_next(struct lexer *x)
{
    const char *tag = find_tag(x->at, x->end), *raw;
    struct text data = {x->at, (size_t)(tag - x->at)};
    char sign = x->end - tag > 2 ? tag[2] : '\0';
    bool is_output = tag < x->end && tag[1] == '{';

    if (tag < x->end)
        data = trim_before(x, data, sign, is_output);
    if (data.len > 0 && push_plain(x, TOKEN_DATA, data.p, data.len) != 0)
        return -1;
    advance(x, (size_t)(tag - x->at));
    if (tag == x->end)
        return 0;
    raw = tag[1] == '%' ? after_word(tag, x->end, "raw") : NULL;
    if (raw != NULL && raw[-3] != '+')
        return lex_raw(x, raw);
    x->at += sign == '-' || sign == '+' ? 3 : 2;
    if (tag[1] == '#')
        return lex_comment(x);
    if (push_plain(x, is_output ? TOKEN_OUTPUT : TOKEN_BLOCK, tag, 2) != 0)
        return -1;
    return lex_tag(x, is_output);
}

int jinja_lex(struct tokens *out, struct arena *a, struct text source, struct err *e)
{
    struct tokens tokens = {0};
    struct lexer x = {.out = &tokens,
                      .arena = a,
                      .at = source.p,
                      .end = source.p + source.len,
                      .line = 1,
                      .line_starts = true,
                      .e = e};

    while (x.at < x.end) {
        if (lex_next(&x) != 0)
            return -1;
    }
    if (push_plain(&x, TOKEN_EOF, x.end, 0) != 0)
        return -1;
    *out = tokens;
    return 0;
}
