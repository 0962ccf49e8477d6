/* One pass over JSON text, strings skipped: nesting is bounded here because jansson recurses, and
 * places are found here because jansson tells an offset and people want a member. */
#include "handlers/body_scan.h"

#include "handlers/body.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Each byte is looked at twice at most: a quote that was found is kept while escapes before it are
 * passed over. */
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

/* One open object or array on the way to a place. */
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

static void take_string(struct walk *w, size_t first, size_t end)
{
    struct step *s = w->depth > 0 ? &w->steps[w->depth - 1] : NULL;

    if (s == NULL || s->array || !s->in_name)
        return;
    s->name = first;
    s->name_len = end - first;
}

static void take_mark(struct walk *w, char c)
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

            take_string(&w, i + 1, end);
            i = end;
        } else {
            take_mark(&w, text[i]);
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
            return; /* no room, or a name has yet to come */
    }
}
