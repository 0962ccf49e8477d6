/* Added tokens: leftmost, then longest. The contents are sorted, so those that share a prefix are a
 * range, and a match narrows the range a byte at a time. Rejected: an automaton with a table for
 * each state, which for a few thousand tokens takes more memory than it saves time. */
#include "text/tokenizer_priv.h"

#include <stdlib.h>
#include <string.h>

static int by_content(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->content, y->content, n);

    if (order != 0)
        return order;
    return x->len < y->len ? -1 : x->len > y->len;
}

void added_set_sort(struct added_set *set)
{
    if (set->n > 0)
        qsort(set->tokens, set->n, sizeof *set->tokens, by_content);
    for (size_t byte = 0, i = 0; byte <= 256; byte++) {
        while (i < set->n && (unsigned char)set->tokens[i].content[0] < byte)
            i++;
        set->first[byte] = (uint32_t)i;
    }
}

/* The first of tokens [low, high), which agree up to `depth`, whose byte there is not below `byte`.
 * The one that ends at `depth`, if any, is first and counts as below every byte. */
static uint32_t lower(const struct added_set *set, uint32_t low, uint32_t high, size_t depth,
                      unsigned byte)
{
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const struct added_token *t = &set->tokens[mid];

        if (t->len <= depth || (unsigned char)t->content[depth] < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest token that begins at text[at]; NULL if none does. */
static const struct added_token *longest_at(const struct added_set *set, const char *text,
                                            size_t len, size_t at)
{
    unsigned byte = (unsigned char)text[at];
    uint32_t low = set->first[byte], high = set->first[byte + 1];
    const struct added_token *best = NULL;

    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low].len == depth)
            best = &set->tokens[low];
        if (at + depth == len)
            break;
        byte = (unsigned char)text[at + depth];
        low = lower(set, low, high, depth, byte);
        high = lower(set, low, high, depth, byte + 1);
    }
    return best;
}

/* The character that ends before `at`, and where it begins. */
static uint32_t char_before(const char *text, size_t at, size_t *start)
{
    uint32_t cp = 0;

    *start = at - 1;
    while (*start > 0 && ((unsigned char)text[*start] & 0xc0) == 0x80)
        (*start)--;
    (void)utf8_scan((const unsigned char *)text + *start, at - *start, &cp);
    return cp;
}

static bool stands_alone(const struct added_walk *w, size_t start, size_t end)
{
    size_t before;
    uint32_t cp = 0;

    if (start > 0 && unicode_is_word(char_before(w->text, start, &before)))
        return false;
    if (end == w->len)
        return true;
    (void)utf8_scan((const unsigned char *)w->text + end, w->len - end, &cp);
    return !unicode_is_word(cp);
}

/* Where the white space before `at` begins, but not before `floor`. */
static size_t space_start(const char *text, size_t at, size_t floor)
{
    size_t before;

    while (at > floor && unicode_is_space(char_before(text, at, &before)))
        at = before;
    return at < floor ? floor : at;
}

/* Where the white space at `at` ends. A run that was read once is remembered: with a token of white
 * space that swallows white space, each of a million spaces would read the rest of them. */
static size_t space_end(struct added_walk *w, size_t at)
{
    size_t end = at;
    uint32_t cp;

    if (at >= w->space_from && at < w->space_end)
        return w->space_end;
    while (end < w->len) {
        int n = utf8_scan((const unsigned char *)w->text + end, w->len - end, &cp);

        if (!unicode_is_space(cp))
            break;
        end += (size_t)n;
    }
    w->space_from = at;
    w->space_end = end;
    return end;
}

/* The next token that counts; false if there is none. A single_word token inside a word is skipped
 * as a whole: no shorter token is tried in its place. */
static bool added_find(const struct added_set *set, struct added_walk *w, struct added_piece *found)
{
    while (w->search < w->len) {
        const struct added_token *t = longest_at(set, w->text, w->len, w->search);
        size_t start = w->search;

        w->search += t != NULL ? t->len : 1;
        if (t == NULL || (t->single_word && !stands_alone(w, start, w->search)))
            continue;
        found->id = t->id;
        found->start = start;
        found->end = w->search;
        if (t->lstrip)
            found->start = start < w->done ? w->done : space_start(w->text, start, w->done);
        if (t->rstrip)
            found->end = space_end(w, w->search);
        return true;
    }
    return false;
}

/* Hands out the plain text up to `end`. */
static void plain_piece(struct added_walk *w, size_t end, struct added_piece *piece)
{
    piece->id = TOKENIZER_ID_NONE;
    piece->start = w->done;
    piece->end = w->done = end;
}

bool added_next(const struct added_set *set, struct added_walk *w, struct added_piece *piece)
{
    struct added_piece found;

    if (w->pending) {
        w->pending = false;
        piece->id = w->pending_id;
        piece->start = w->done;
        piece->end = w->done = w->pending_end;
        return true;
    }
    while (set->n > 0 && added_find(set, w, &found)) {
        if (found.start >= found.end)
            continue; /* the token before it took all of it */
        if (w->done >= found.start) {
            *piece = found;
            w->done = found.end;
            return true;
        }
        plain_piece(w, found.start, piece);
        w->pending = true;
        w->pending_id = found.id;
        w->pending_end = found.end;
        return true;
    }
    if (w->done == w->len)
        return false;
    plain_piece(w, w->len, piece);
    return true;
}
