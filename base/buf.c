/* A byte buffer that grows by doubling. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_CAP_MIN = 256 };

/* Makes room for `more` bytes and a NUL. */
static bool buf_reserve(struct buf *b, size_t more)
{
    size_t need, cap;
    char *data;

    if (b->failed || more > SIZE_MAX / 2 - b->len) {
        b->failed = true;
        return false;
    }
    need = b->len + more + 1;
    if (need <= b->cap)
        return true;
    cap = b->cap < BUF_CAP_MIN ? BUF_CAP_MIN : b->cap;
    while (cap < need)
        cap *= 2;
    data = realloc(b->data, cap);
    if (data == NULL) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_fini(struct buf *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

void buf_append(struct buf *b, const void *data, size_t len)
{
    if (!buf_reserve(b, len))
        return;
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *text)
{
    buf_append(b, text, strlen(text));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    int len;

    va_start(ap, fmt);
    len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (len < 0 || !buf_reserve(b, (size_t)len))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(b->data + b->len, (size_t)len + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)len;
}

char *buf_take(struct buf *b, size_t *len)
{
    char *data;

    if (!buf_reserve(b, 0)) {
        buf_fini(b);
        return NULL;
    }
    data = b->data;
    data[b->len] = '\0';
    *len = b->len;
    memset(b, 0, sizeof *b);
    return data;
}
