/* The two streams are replaced by ones that write through terminal_show(), so that no print can be
 * forgotten. Rejected: to clean each argument of each print. */
#include "cli/terminal.h"

#include "base/utf8.h"

#include <string.h>
#include <unistd.h>

struct guarded {
    FILE *stream, *raw;
    int fd;
    bool passes;
    char rest[UTF8_MAX]; /* of a character whose end is not printed yet */
    size_t n_rest;
};

static struct guarded guarded_out = {.fd = STDOUT_FILENO}, guarded_err = {.fd = STDERR_FILENO};

size_t terminal_show(struct buf *out, const char *text, size_t len, enum terminal_form form)
{
    const unsigned char *s = (const unsigned char *)text;

    for (size_t at = 0; at < len;) {
        uint32_t cp = 0;
        int n = utf8_scan(s + at, len - at, &cp);
        bool stays = form != TERMINAL_LINE && (cp == '\n' || cp == '\t');

        if (n == 0)
            return len - at;
        if (n < 0)
            buf_printf(out, "\\x%02x", s[at]);
        else if (stays || !utf8_is_hidden(cp))
            buf_append(out, s + at, (size_t)n);
        else
            buf_printf(out, cp < 0x80 && form != TERMINAL_JSON ? "\\x%02x" : "\\u%04x",
                       (unsigned)cp);
        at += n > 0 ? (size_t)n : 1;
    }
    return 0;
}

static bool terminal_write_all(struct guarded *g, const char *data, size_t len)
{
    return fwrite(data, 1, len, g->raw) == len && fflush(g->raw) == 0;
}

/* Without memory for more: what is not plain ASCII is a question mark. */
static bool write_plain(struct guarded *g, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        bool plain = (data[i] >= ' ' && data[i] <= '~') || data[i] == '\n' || data[i] == '\t';

        if (putc(plain ? data[i] : '?', g->raw) == EOF)
            return false;
    }
    return fflush(g->raw) == 0;
}

static ssize_t guarded_write(void *cookie, const char *data, size_t len)
{
    struct guarded *g = cookie;
    struct buf whole = {0}, shown = {0};
    bool wrote;

    if (g->passes)
        return terminal_write_all(g, data, len) ? (ssize_t)len : 0;
    buf_append(&whole, g->rest, g->n_rest);
    buf_append(&whole, data, len);
    if (!whole.failed) {
        g->n_rest = terminal_show(&shown, whole.data, whole.len, TERMINAL_TEXT);
        memcpy(g->rest, whole.data + whole.len - g->n_rest, g->n_rest);
    }
    wrote = whole.failed || shown.failed ? write_plain(g, data, len)
                                         : terminal_write_all(g, shown.data, shown.len);
    buf_fini(&whole);
    buf_fini(&shown);
    return wrote ? (ssize_t)len : 0;
}

static bool guard(struct guarded *g, FILE **stream)
{
    static const cookie_io_functions_t functions = {.write = guarded_write};
    FILE *to;

    (void)fflush(*stream);
    to = fopencookie(g, "w", functions);
    if (to == NULL)
        return false;
    if (isatty(g->fd) || g->fd == STDERR_FILENO)
        (void)setvbuf(to, NULL, _IOLBF, BUFSIZ);
    g->raw = *stream;
    g->stream = to;
    *stream = to;
    return true;
}

bool terminal_guard(void)
{
    return guard(&guarded_out, &stdout) && guard(&guarded_err, &stderr);
}

void terminal_pass_stdout(void)
{
    guarded_out.passes = true;
}

void terminal_control(FILE *to, const char *sequence)
{
    struct guarded *g = to == guarded_err.stream ? &guarded_err : &guarded_out;

    (void)fflush(to);
    (void)terminal_write_all(g, sequence, strlen(sequence));
}
