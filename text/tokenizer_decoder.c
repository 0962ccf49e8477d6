/* The decoder member, and what each token decodes to. Two kinds: ByteLevel, whose tokens are
 * mapped bytes; and spelled tokens, in which "<0x0A>" may mean a byte. */
#include "text/tokenizer_members.h"
#include "text/tokenizer_priv.h"

#include <string.h>

enum { STRIP_MAX = 16 }; /* characters that a text may lose at its beginning */

/* Stages of a spelled decoder, in the only order in which they are understood. */
enum rank { RANK_NONE, RANK_REPLACE, RANK_BYTE_FALLBACK, RANK_FUSE, RANK_STRIP };

static int parse_strip(struct decoder *d, const json_t *v, const char *field, struct err *e)
{
    const json_t *start = json_object_get(v, "start"), *stop = json_object_get(v, "stop");
    const char *content;

    if (member_str(&content, v, field, "content", e) != 0)
        return -1;
    if (strcmp(content, " ") != 0)
        return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "content").text,
                       "'%s' is not supported; a space is", member_quote(content).text);
    if (!json_is_integer(start) || json_integer_value(start) < 0 ||
        json_integer_value(start) > STRIP_MAX)
        return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "start").text,
                       "no integer within 0..%d", STRIP_MAX);
    if (!json_is_integer(stop) || json_integer_value(stop) != 0)
        return err_set(e, ERR_BAD_REQUEST, pointer_member(field, "stop").text,
                       "only 0 is supported");
    d->n_strip = (unsigned)json_integer_value(start);
    return 0;
}

/* One stage; *last is the rank of the one before. */
static int parse_stage(struct decoder *d, const json_t *v, const char *field, enum rank *last,
                       struct err *e)
{
    static const char *const names[] = {"", "Replace", "ByteFallback", "Fuse", "Strip"};
    enum rank rank = RANK_NONE;
    const char *type;

    if (member_type(&type, v, field, e) != 0)
        return -1;
    for (int i = RANK_REPLACE; i <= RANK_STRIP; i++)
        if (strcmp(type, names[i]) == 0)
            rank = (enum rank)i;
    if (rank == RANK_NONE)
        return member_unsupported(field, type, "Replace, ByteFallback, Fuse or Strip", e);
    if (rank <= *last || (rank == RANK_STRIP && *last != RANK_FUSE))
        return err_set(
            e, ERR_BAD_REQUEST, field,
            "'%s' here is not supported: the order is Replace, ByteFallback, Fuse, Strip", type);
    *last = rank;
    if (rank == RANK_REPLACE)
        return replace_read(&d->from, &d->to, v, field, e);
    d->byte_fallback = d->byte_fallback || rank == RANK_BYTE_FALLBACK;
    return rank == RANK_STRIP ? parse_strip(d, v, field, e) : 0;
}

int tokenizer_parse_decoder(struct tokenizer *t, const json_t *v, struct err *e)
{
    struct pointer base = pointer_member("/decoder", "decoders");
    enum rank last = RANK_NONE;
    const json_t *list, *child;
    const char *type;
    size_t i;

    if (member_type(&type, v, "/decoder", e) != 0)
        return -1;
    if (strcmp(type, "ByteLevel") == 0) {
        t->decoder.kind = DECODER_BYTE_LEVEL;
        return 0;
    }
    if (strcmp(type, "Sequence") != 0)
        return member_unsupported("/decoder", type, "ByteLevel or Sequence", e);
    t->decoder.kind = DECODER_SPELLED;
    if (member_array(&list, v, "/decoder", "decoders", e) != 0)
        return -1;
    json_array_foreach(list, i, child)
    {
        if (parse_stage(&t->decoder, child, pointer_index(base.text, i).text, &last, e) != 0)
            return -1;
    }
    return 0;
}

static int tokenizer_decoder_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int byte_token(const char *text, size_t len)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' ||
        tokenizer_decoder_hex_digit(text[3]) < 0 || tokenizer_decoder_hex_digit(text[4]) < 0)
        return -1;
    return tokenizer_decoder_hex_digit(text[3]) << 4 | tokenizer_decoder_hex_digit(text[4]);
}

size_t spelled_bytes(const struct decoder *d, const char *text, size_t len, unsigned char *bytes)
{
    size_t n = 0;

    for (size_t at = 0; at < len;) {
        if (d->from.len > 0 && len - at >= d->from.len &&
            memcmp(text + at, d->from.text, d->from.len) == 0) {
            memcpy(bytes + n, d->to.text, d->to.len);
            n += d->to.len;
            at += d->from.len;
        } else {
            bytes[n++] = (unsigned char)text[at++];
        }
    }
    return n;
}
