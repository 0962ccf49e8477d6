/* Edit distance with swapped neighbours (optimal string alignment), on short words only. */
#include "base/closest_match.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

enum { DISTANCE_MAX = 2 };

/* Flags, members and variables differ in case, '-' and '_' only: these count as equal. */
static int closest_match_fold(char c)
{
    return c == '-' ? '_' : tolower((unsigned char)c);
}

static size_t closest_match_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t closest_match_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t rows[3][CLOSEST_MATCH_LEN_MAX + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2], *spare;

    for (size_t j = 0; j <= b_len; j++)
        last[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t swap = closest_match_fold(a[i - 1]) == closest_match_fold(b[j - 1]) ? 0 : 1;

            row[j] = closest_match_least(last[j - 1] + swap,
                                         closest_match_least(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && closest_match_fold(a[i - 1]) == closest_match_fold(b[j - 2]) &&
                closest_match_fold(a[i - 2]) == closest_match_fold(b[j - 1]))
                row[j] = closest_match_least(row[j], before[j - 2] + 1);
        }
        spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[b_len];
}

const char *closest_match(const char *word, const char *const *candidates)
{
    size_t len = strnlen(word, CLOSEST_MATCH_LEN_MAX + 1), best = DISTANCE_MAX + 1;
    const char *found = NULL;

    if (len > CLOSEST_MATCH_LEN_MAX || candidates == NULL)
        return NULL;
    for (; *candidates != NULL; candidates++) {
        size_t other = strnlen(*candidates, CLOSEST_MATCH_LEN_MAX + 1), d;

        if (other > CLOSEST_MATCH_LEN_MAX || other > len + DISTANCE_MAX ||
            len > other + DISTANCE_MAX)
            continue;
        d = closest_match_distance(word, len, *candidates, other);
        if (d < best && d * 2 < len) {
            best = d;
            found = *candidates;
        }
    }
    return found;
}
