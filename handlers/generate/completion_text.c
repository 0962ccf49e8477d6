/* Only as much text as necessary is held back: the longest end of it that begins a stop string, or
 * a complete stop string in the text of the last step, which is a match unless the engine continues
 * (min_tokens). */
#include "handlers/generate/completion_text.h"

#include <string.h>

void completion_text_init(struct completion_text *c, const struct tokenizer *t, bool skip_special,
                          const struct gen_params *stops, bool include_stop, uint64_t n_chars)
{
    *c = (struct completion_text){
        .stops = stops, .include_stop = include_stop, .n_decoded = n_chars, .n_chars = n_chars};
    detok_init(&c->detok, t, skip_special);
}

void completion_text_follow(struct completion_text *c, const uint32_t *ids, size_t n)
{
    detok_follow(&c->detok, ids, n);
}

void completion_text_fini(struct completion_text *c)
{
    buf_fini(&c->pending);
}

void completion_text_more(struct completion_text *c)
{
    c->n_old = c->pending.len;
}

uint64_t completion_text_chars(const char *text, size_t len)
{
    uint64_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0U) != 0x80U;
    return n;
}

void completion_text_push(struct completion_text *c, uint32_t id)
{
    size_t before = c->pending.len, n_held;
    const char *held = NULL;

    detok_push(&c->detok, id, &c->pending);
    if (c->pending.len > before)
        c->n_decoded += completion_text_chars(c->pending.data + before, c->pending.len - before);
    n_held = detok_peek(&c->detok, &held);
    c->n_chars = c->n_decoded + completion_text_chars(held, n_held);
}

/* Start of a complete stop string that ends in the newest text, or the length of `pending`. */
static size_t match_start(const struct completion_text *c, const char *stop, size_t len)
{
    const char *at;
    size_t from;

    if (c->pending.len < len)
        return c->pending.len;
    from = c->n_old >= len ? c->n_old - len + 1 : 0;
    at = memmem(c->pending.data + from, c->pending.len - from, stop, len);
    return at != NULL ? (size_t)(at - c->pending.data) : c->pending.len;
}

/* Start of the longest end of `pending` which is the beginning of the stop string. */
static size_t prefix_start(const struct completion_text *c, const char *stop, size_t len)
{
    size_t n = len - 1 < c->pending.len ? len - 1 : c->pending.len;

    for (; n > 0; n--) {
        if (memcmp(c->pending.data + c->pending.len - n, stop, n) == 0)
            return c->pending.len - n;
    }
    return c->pending.len;
}

size_t completion_text_ready(const struct completion_text *c)
{
    size_t ready = c->pending.len;

    for (uint32_t i = 0; i < c->stops->n_stops; i++) {
        const char *stop = c->stops->stops[i];
        size_t len = strlen(stop), match = match_start(c, stop, len),
               prefix = prefix_start(c, stop, len);

        ready = match < ready ? match : ready;
        ready = prefix < ready ? prefix : ready;
    }
    return ready;
}

/* `cut` counts from the end of the engine's text, which may differ from ours in special tokens. If
 * it does not fit our text, the last occurrence of the stop string is the match. */
static bool find_stop(const struct completion_text *c, const char *stop, size_t len, uint32_t cut,
                      size_t *at)
{
    const struct buf *p = &c->pending;

    if (p->len < len)
        return false;
    if (cut >= len && cut <= p->len && memcmp(p->data + p->len - cut, stop, len) == 0) {
        *at = p->len - cut;
        return true;
    }
    for (size_t i = p->len - len + 1; i-- > 0;) {
        if (memcmp(p->data + i, stop, len) == 0) {
            *at = i;
            return true;
        }
    }
    return false;
}

void completion_text_end(struct completion_text *c, const char *stop_text, uint32_t cut)
{
    size_t len = stop_text != NULL ? strlen(stop_text) : 0, sure = c->pending.len, n_held, at;
    const char *held = NULL;

    n_held = detok_peek(&c->detok, &held);
    if (stop_text != NULL && n_held > 0)
        buf_append(&c->pending, held, n_held); /* the engine's match included it */
    if (stop_text != NULL && find_stop(c, stop_text, len, cut, &at)) {
        c->pending.len = c->include_stop ? at + len : at;
        return; /* a character cut short at the end comes after the stop string */
    }
    c->pending.len = sure;
    detok_end(&c->detok, &c->pending);
}

void completion_text_take(struct completion_text *c, size_t n, struct buf *out)
{
    if (c->pending.failed)
        out->failed = true;
    if (n == 0 || c->pending.failed)
        return;
    buf_append(out, c->pending.data, n);
    memmove(c->pending.data, c->pending.data + n, c->pending.len - n);
    c->pending.len -= n;
    c->n_old = c->n_old > n ? c->n_old - n : 0;
}
