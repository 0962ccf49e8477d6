/* Matching module paths. Most patterns in use are names or ends of paths, one for each module where
 * a trainer chose ranks layer by layer. Those are compared as text: for thousands of patterns and
 * thousands of modules a regex library is too slow. */
#include "engine/lora/adapter_pattern.h"

#include "base/utf8.h"
#include "weights/tensor_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    MATCH_STEPS_MAX = 1000000,
    MATCH_DEPTH_MAX = 100000,
    MATCH_HEAP_KIB_MAX = 16 << 10,
    PARENS_MAX = 100,
    QUOTED_MAX = 100, /* of a pattern, in a message */
    ERROR_TEXT_MAX = 128
};

struct adapter_pattern {
    enum adapter_pattern_kind kind;
    char *text; /* owned */
    size_t len;
    pcre2_code *code; /* owned; NULL: plain */
    char field[ERR_FIELD_MAX];
};

static const char plain_chars[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

static int pattern_refuse(const char *text, const char *at, const char *why, const char *field,
                          struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field, "pattern '%.*s': %s at byte %zu",
                   utf8_cut(text, QUOTED_MAX), text, why, (size_t)(at - text));
}

/* Groups and escapes that both libraries read alike. */
static bool group_known(const char *at)
{
    static const char *const known[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?P<", "(?P=", "(?i:"};

    if (at[1] == '*')
        return false;
    if (at[1] != '?')
        return true;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0)
            return true;
    return false;
}

static bool escape_known(char c)
{
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

    return c != '\0' && (!word || strchr("dDwWsSbBnrtfAZ123456789", c) != NULL);
}

static int check_syntax(const char *text, const char *field, struct err *e)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '(' && !group_known(at))
            return pattern_refuse(text, at, "a group that is not supported", field, e);
        if (at[0] == '[' && (at[1] == '[' || at[1] == ':'))
            return pattern_refuse(text, at, "a set that is not supported", field, e);
        if (at[0] == '{' && at[1] == ',')
            return pattern_refuse(text, at, "a repeat count that is not supported", field, e);
        if (*at == '\\') {
            at++;
            if (!escape_known(*at))
                return pattern_refuse(text, at - 1, "an escape that is not supported", field, e);
        }
    }
    return 0;
}

static int pattern_compile(struct adapter_pattern *p, const char *field, struct err *e)
{
    uint32_t options = PCRE2_ANCHORED | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C |
                       (p->kind == PATTERN_WHOLE ? (uint32_t)PCRE2_ENDANCHORED : 0U);
    bool tail = p->kind == PATTERN_TAIL;
    char whole[ADAPTER_PATTERN_LEN_MAX + 16];
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    unsigned char why[ERROR_TEXT_MAX];
    PCRE2_SIZE at = 0;
    int code = 0, n;

    if (context == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory for a pattern");
    /* The prefix is a group, as in PEFT: references to groups count it. */
    n = snprintf(whole, sizeof whole, "%s%s%s", tail ? "(.*\\.)?(" : "", p->text, tail ? ")$" : "");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    (void)pcre2_set_parens_nest_limit(context, PARENS_MAX);
    p->code = pcre2_compile((PCRE2_SPTR)whole, (PCRE2_SIZE)n, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (p->code != NULL)
        return 0;
    if (pcre2_get_error_message(code, why, sizeof why) < 0)
        why[0] = '\0';
    return err_set(e, ERR_BAD_REQUEST, field, "pattern '%.*s' is malformed: %s (pcre2 %d)",
                   utf8_cut(p->text, QUOTED_MAX), p->text, (const char *)why, code);
}

int adapter_pattern_new(struct adapter_pattern **out, const char *text,
                        enum adapter_pattern_kind kind, const char *field, struct err *e)
{
    size_t len = strlen(text);
    struct adapter_pattern *p;

    if (len == 0 || len > ADAPTER_PATTERN_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "a pattern of %zu bytes; 1 to %d are allowed",
                       len, ADAPTER_PATTERN_LEN_MAX);
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory for a pattern");
    p->kind = kind;
    p->len = len;
    (void)snprintf(p->field, sizeof p->field, "%s", field);
    p->text = strdup(text);
    if (p->text == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, field, "no memory for a pattern");
        goto drop;
    }
    if (strspn(text, plain_chars) != len &&
        (check_syntax(text, field, e) != 0 || pattern_compile(p, field, e) != 0))
        goto drop;
    *out = p;
    return 0;

drop:
    adapter_pattern_free(p);
    return -1;
}

void adapter_pattern_free(struct adapter_pattern *p)
{
    if (p == NULL)
        return;
    pcre2_code_free(p->code);
    free(p->text);
    free(p);
}

bool adapter_pattern_is_plain(const struct adapter_pattern *p)
{
    return p->code == NULL;
}

/* A '.' of a plain pattern is any character, as it is in the regular expression. */
static bool plain_match(const struct adapter_pattern *p, const char *path, size_t len)
{
    if (p->len > len || (p->kind == PATTERN_WHOLE && p->len != len))
        return false;
    for (size_t i = 1; i <= p->len; i++)
        if (p->text[p->len - i] != '.' && p->text[p->len - i] != path[len - i])
            return false;
    return p->len == len || path[len - p->len - 1] == '.';
}

static uint64_t adapter_pattern_thread_cpu_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000U + (uint64_t)ts.tv_nsec / 1000U;
}

static int pattern_match(const struct adapter_pattern *p, const char *path, size_t len)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    int rc = PCRE2_ERROR_NOMEMORY;

    if (data != NULL && context != NULL) {
        (void)pcre2_set_match_limit(context, MATCH_STEPS_MAX);
        (void)pcre2_set_depth_limit(context, MATCH_DEPTH_MAX);
        (void)pcre2_set_heap_limit(context, MATCH_HEAP_KIB_MAX);
        rc = pcre2_match(p->code, (PCRE2_SPTR)path, len, 0, 0, data, context);
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return rc;
}

int adapter_pattern_match(const struct adapter_pattern *p, const char *path, uint64_t *cpu_us,
                          bool *out, struct err *e)
{
    size_t len = strlen(path);
    uint64_t start;
    int rc;

    if (p->code == NULL) {
        *out = plain_match(p, path, len);
        return 0;
    }
    start = adapter_pattern_thread_cpu_us();
    rc = pattern_match(p, path, len);
    *cpu_us += adapter_pattern_thread_cpu_us() - start;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return err_set(e, ERR_NO_MEMORY, p->field, "no memory to match a pattern");
    if (*cpu_us > ADAPTER_MATCH_CPU_US_MAX || (rc < 0 && rc != PCRE2_ERROR_NOMATCH))
        return err_set(e, ERR_BAD_REQUEST, p->field,
                       "pattern '%.*s' takes too long to match module '%s' (pcre2 %d)",
                       utf8_cut(p->text, QUOTED_MAX), p->text, path, rc);
    *out = rc >= 0;
    return 0;
}
