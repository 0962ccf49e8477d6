/* One pass over JSON text that skips strings. The depth is limited because jansson recurses;
 * positions are converted to members because jansson reports an offset. */
#include "handlers/body_scan.h"

#include "handlers/body.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Reads each byte at most twice: a quote that was found is remembered while escapes before it
 * are skipped. */
size_t scan_string_end(const char *text, size_t len, size_t i)
{
    const char *quote = NULL, *escape;

    while (i < len) {
        if (quote == NULL || quote < text + i)
            quote = memchr(text + i, '"', len - i);
        if (quote == NULL)
            return len;
        escape = memchr(text + i, '\\', (size_t)(quote - (text + i)));
        if (escape == NULL)
            return (size_t)(quote - text);
        i = (size_t)(escape - text) + 2;
    }
    return len;
}

size_t scan_depth(const char *text, size_t len, unsigned depth_max)
{
    unsigned depth = 0;

    for (size_t i = 0; i < len; i++) {
        if (text[i] == '"') {
            i = scan_string_end(text, len, i + 1);
        } else if (text[i] == '{' || text[i] == '[') {
            if (depth == depth_max)
                return i;
            depth++;
        } else if ((text[i] == '}' || text[i] == ']') && depth > 0) {
            depth--;
        }
    }
    return len;
}

void scan_line(const char *text, size_t at, size_t *line, size_t *column)
{
    size_t start = 0;

    *line = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            (*line)++;
            start = i + 1;
        }
    }
    *column = at - start + 1;
}

/* One open object or array on the path to an offset. */
struct step {
    bool array;
    size_t index;          /* of an array's element */
    size_t name, name_len; /* of an object's member; name_len 0 with name 0: none yet */
    bool in_name;          /* the next string is a name */
};

struct walk {
    struct step steps[BODY_DEPTH_MAX];
    unsigned depth;
};

static void walk_string(struct walk *w, size_t first, size_t end)
{
    struct step *s = w->depth > 0 ? &w->steps[w->depth - 1] : NULL;

    if (s == NULL || s->array || !s->in_name)
        return;
    s->name = first;
    s->name_len = end - first;
}

static void walk_mark(struct walk *w, char c)
{
    struct step *s = w->depth > 0 ? &w->steps[w->depth - 1] : NULL;

    if ((c == '{' || c == '[') && w->depth < BODY_DEPTH_MAX)
        w->steps[w->depth++] = (struct step){.array = c == '[', .in_name = c == '{'};
    else if ((c == '}' || c == ']') && w->depth > 0)
        w->depth--;
    else if (c == ':' && s != NULL)
        s->in_name = false;
    else if (c == ',' && s != NULL && s->array)
        s->index++;
    else if (c == ',' && s != NULL)
        s->in_name = true;
}

void scan_escape(char *out, size_t cap, const char *name, size_t len)
{
    size_t at = strlen(out), need = at + 1 + len;

    for (size_t i = 0; i < len; i++)
        need += name[i] == '~' || name[i] == '/';
    if (need >= cap)
        return;
    out[at++] = '/';
    for (size_t i = 0; i < len; i++) {
        if (name[i] == '~' || name[i] == '/')
            out[at++] = '~';
        out[at++] = name[i] == '~' ? '0' : name[i] == '/' ? '1' : name[i];
    }
    out[at] = '\0';
}

void scan_pointer(const char *text, size_t at, char *out, size_t cap)
{
    struct walk w = {.depth = 0};
    char index[24];

    for (size_t i = 0; i < at; i++) {
        if (text[i] == '"') {
            size_t end = scan_string_end(text, at, i + 1);

            walk_string(&w, i + 1, end);
            i = end;
        } else {
            walk_mark(&w, text[i]);
        }
    }
    out[0] = '\0';
    for (unsigned d = 0; d < w.depth; d++) {
        const struct step *s = &w.steps[d];
        size_t before = strlen(out);

        if (s->array)
            (void)snprintf(index, sizeof index, "%zu", s->index);
        if (s->array)
            scan_escape(out, cap, index, strlen(index));
        else if (s->name > 0)
            scan_escape(out, cap, text + s->name, s->name_len);
        if (strlen(out) == before)
            return; /* does not fit, or the name has not been read yet */
    }
}

static size_t skip_blank(const char *text, size_t len, size_t at)
{
    while (at < len && strchr(" \t\n\r", text[at]) != NULL && text[at] != '\0')
        at++;
    return at;
}

/* The end of a value that is not a string: the offset of the ',' or of the bracket that ends its
 * object, or `len`. */
static size_t skip_value(const char *text, size_t len, size_t at)
{
    size_t depth = 0;

    for (; at < len; at++) {
        char c = text[at];

        if (c == '"') {
            at = scan_string_end(text, len, at + 1);
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']' || c == ',') {
            if (depth == 0)
                return at;
            depth -= c != ',';
        }
    }
    return len;
}

/* A string whose quote is at `at`. Returns the offset after it, or 0 if it has no end. */
static size_t scan_quoted(const char *text, size_t len, size_t at, const char **out,
                          size_t *out_len)
{
    size_t end;

    if (at >= len || text[at] != '"')
        return 0;
    end = scan_string_end(text, len, at + 1);
    if (end >= len)
        return 0;
    *out = text + at + 1;
    *out_len = end - at - 1;
    return end + 1;
}

bool scan_next_member(const char *text, size_t len, struct scan_member *m)
{
    size_t at = skip_blank(text, len, m->next), end;

    if (at >= len || text[at] != (m->next == 0 ? '{' : ','))
        return false;
    at = scan_quoted(text, len, skip_blank(text, len, at + 1), &m->name, &m->name_len);
    if (at == 0)
        return false;
    at = skip_blank(text, len, at);
    if (at >= len || text[at] != ':')
        return false;
    at = skip_blank(text, len, at + 1);
    end = scan_quoted(text, len, at, &m->value, &m->value_len);
    if (end == 0) {
        end = skip_value(text, len, at);
        m->value = text + at;
        m->value_len = end - at;
    }
    m->next = end;
    return true;
}

bool scan_equals(const char *text, size_t len, const char *word)
{
    return strlen(word) == len && memcmp(text, word, len) == 0;
}
