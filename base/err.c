/* The error table, expanded. */
#include "base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct err_row {
    int status;
    const char *wire;
    bool retryable;
};

static const struct err_row rows[ERR_CODE_COUNT] = {[ERR_NONE] = {200, "none", false},
#define X(code, status, wire, retryable) [code] = {status, wire, retryable},
                                                    ERR_CODES(X)
#undef X
};

/* What a stranger wrote and a message quotes may hold line ends and escapes. */
static void keep_one_line(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == '\x7f')
            *text = ' ';
}

static void err_vfill(struct err *e, enum err_code code, const char *field, const char *fmt,
                      va_list ap)
{
    assert(e->code == ERR_NONE);
    assert(code > ERR_NONE && code < ERR_CODE_COUNT);
    e->code = code;
    (void)snprintf(e->field, sizeof e->field, "%s", field);
    (void)vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    keep_one_line(e->msg);
}

void err_fill(struct err *e, enum err_code code, const char *field, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_vfill(e, code, field, fmt, ap);
    va_end(ap);
}

static bool is_our_lack(int errnum)
{
    return errnum == EMFILE || errnum == ENFILE || errnum == ENOMEM || errnum == ENOBUFS;
}

void err_fill_errno(struct err *e, enum err_code code, const char *field, int errnum,
                    const char *fmt, ...)
{
    va_list ap;
    char text[128];
    size_t len;

    va_start(ap, fmt);
    err_vfill(e, is_our_lack(errnum) ? ERR_NO_MEMORY : code, field, fmt, ap);
    va_end(ap);
    len = strlen(e->msg);
    (void)snprintf(e->msg + len, sizeof e->msg - len, ": %s (errno %d)",
                   strerror_r(errnum, text, sizeof text), errnum);
}

void err_append(struct err *e, const char *text)
{
    size_t len = strlen(e->msg);

    (void)snprintf(e->msg + len, sizeof e->msg - len, "%s", text);
}

void err_clear(struct err *e)
{
    memset(e, 0, sizeof *e);
}

int err_http_status(enum err_code code)
{
    assert(code >= ERR_NONE && code < ERR_CODE_COUNT);
    return rows[code].status;
}

const char *err_wire_name(enum err_code code)
{
    assert(code >= ERR_NONE && code < ERR_CODE_COUNT);
    return rows[code].wire;
}

bool err_retryable(enum err_code code)
{
    assert(code >= ERR_NONE && code < ERR_CODE_COUNT);
    return rows[code].retryable;
}
