/* A line of the log for people: time, level, event, then members as name=value. It is made of the
 * JSON line, which is flat and of our own making. Strings keep the escapes of JSON, so that what a
 * client sent cannot control a terminal. */
#include "base/log.h"

#include <string.h>

struct text_out {
    char *at, *end;
};

static void log_text_put(struct text_out *o, const char *text, size_t len)
{
    if (len > (size_t)(o->end - o->at))
        len = (size_t)(o->end - o->at);
    memcpy(o->at, text, len);
    o->at += len;
}

static void log_text_put_word(struct text_out *o, const char *text)
{
    log_text_put(o, text, strlen(text));
}

/* The end of the value at `at`: behind the closing quote, or at the comma or brace. */
static const char *value_end(const char *at, const char *end)
{
    if (at < end && *at != '"') {
        while (at < end && *at != ',' && *at != '}')
            at++;
        return at;
    }
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\';
    return at < end ? at + 1 : end;
}

/* Quotes are left out around a single word. */
static void log_put_value(struct text_out *o, const char *at, const char *end)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "._-:/[]{}+%@,";
    bool is_word = end - at > 2 && *at == '"';

    for (const char *p = at + 1; is_word && p < end - 1; p++)
        is_word = memchr(word, *p, sizeof word - 1) != NULL;
    if (is_word)
        log_text_put(o, at + 1, (size_t)(end - at) - 2);
    else
        log_text_put(o, at, (size_t)(end - at));
}

static void put_level(struct text_out *o, const char *at, const char *end, bool color)
{
    static const struct {
        const char *level, *shown, *color;
    } rows[] = {{"\"debug\"", "DEBUG", "\x1b[2m"},
                {"\"info\"", "INFO ", "\x1b[32m"},
                {"\"warn\"", "WARN ", "\x1b[33m"},
                {"\"error\"", "ERROR", "\x1b[31m"}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strlen(rows[i].level) != (size_t)(end - at) ||
            memcmp(rows[i].level, at, (size_t)(end - at)) != 0)
            continue;
        log_text_put_word(o, color ? rows[i].color : "");
        log_text_put_word(o, rows[i].shown);
        log_text_put_word(o, color ? "\x1b[0m" : "");
    }
}

size_t log_text(char *out, size_t cap, const char *json, size_t len, bool color)
{
    struct text_out o = {out, out + cap - 1};
    const char *end = json + len, *at = json + 1;

    for (int i = 0; at < end && *at == '"'; i++) {
        const char *name = at + 1, *value = value_end(at, end) + 1, *next = value_end(value, end);

        if (value >= end) /* no line of ours ends here */
            break;
        log_text_put_word(&o, i == 0 ? "" : " ");
        if (i > 2) { /* ts, level and event come first */
            log_text_put(&o, name, (size_t)(value - name) - 2);
            log_text_put_word(&o, "=");
        }
        if (i == 1)
            put_level(&o, value, next, color);
        else
            log_put_value(&o, value, next);
        at = next + 1;
    }
    *o.at++ = '\n';
    return (size_t)(o.at - out);
}
