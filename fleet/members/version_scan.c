#include "fleet/members/version_scan.h"

#include <string.h>

static const char member[] = "\"weight_version\":";

static void match_member(struct version_scan *s, char c)
{
    if (c == member[s->matched])
        s->matched++;
    else
        s->matched = c == member[0] ? 1 : 0;
    if (s->matched < sizeof member - 1)
        return;
    s->matched = s->len = 0;
    s->has_escape = false;
    s->at = SCAN_VALUE;
}

static void add_byte(struct version_scan *s, char c)
{
    if (s->len < FLEET_LABEL_MAX)
        s->name[s->len++] = c;
}

/* Returns: true at the end of a name. */
static bool scan_byte(struct version_scan *s, char c)
{
    switch (s->at) {
    case SCAN_MEMBER:
        match_member(s, c);
        return false;
    case SCAN_VALUE:
        if (c != ' ')
            s->at = c == '"' ? SCAN_STRING : SCAN_MEMBER;
        return false;
    case SCAN_ESCAPE:
        s->has_escape = s->has_escape || (c != '"' && c != '\\' && c != '/');
        add_byte(s, c);
        s->at = SCAN_STRING;
        return false;
    case SCAN_STRING:
        break;
    }
    if (c == '\\') {
        s->at = SCAN_ESCAPE;
    } else if (c != '"') {
        add_byte(s, c);
    } else {
        s->name[s->len] = '\0';
        s->at = SCAN_MEMBER;
        return !s->has_escape;
    }
    return false;
}

bool version_scan_next(struct version_scan *s, const char **data, size_t *len)
{
    while (*len > 0) {
        const char *quote = *data;

        if (s->at == SCAN_MEMBER && s->matched == 0) {
            quote = memchr(*data, '"', *len);
            if (quote == NULL)
                break;
        }
        *len -= (size_t)(quote - *data) + 1;
        *data = quote + 1;
        if (scan_byte(s, *quote))
            return true;
    }
    *len = 0;
    return false;
}
