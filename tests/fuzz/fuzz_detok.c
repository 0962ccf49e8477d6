/* Any ids to text. The first byte picks a tokenizer of the fixtures and how, the rest makes ids:
 * small ones, byte tokens, added ones, and hostile ones (negative, beyond the vocabulary, huge).
 * A refusal names the first id that is unknown. What is accepted decodes to valid UTF-8 and to what
 * a decoder that is spelt out here makes of it, however it is cut. */
#include "tests/fuzz/fuzz.h"

#include "base/utf8.h"
#include "handlers/generate/generate_params.h"
#include "text/tokenizer_priv.h"

enum { IDS_MAX = 4096, REPLACEMENT_NBYTES = 3 };

static const char replacement[] = "\xef\xbf\xbd";

static const struct tokenizer *tokenizer_number(uint32_t i)
{
    static const char *const dirs[] = {FIXTURES "/kjv-qwen3-1m", FIXTURES "/tiny-llama2-spm",
                                       FIXTURES "/tiny-llama3"};
    static struct tokenizer *loaded[3];
    struct err e = {0};

    if (loaded[i] == NULL)
        CHECK(tokenizer_load(&loaded[i], dirs[i], &e) == 0);
    return loaded[i];
}

/* As a client would say it. */
static int64_t take_id(struct taker *t, uint32_t vocab, bool hostile)
{
    static const int64_t odd[] = {-1,         INT32_MIN, INT64_MIN, INT64_MAX,
                                  UINT32_MAX, INT32_MAX, 1LL << 32, 4294967296LL + 5};
    uint32_t how = take_byte(t), low = take_byte(t);

    if (how < 160)
        return (how << 8 | low) % vocab;
    if (how <
        224) /* the bytes of a spelled tokenizer are at the beginning, added ones at the end */
        return low + 3 < vocab ? low + 3 : 0;
    if (how < 240 || !hostile)
        return vocab - 1 - low % (vocab < 16 ? vocab : 16);
    return how < 248 ? odd[low % 8] : (int64_t)vocab + low;
}

/* ---- the decoder spelt out ---- */

static void put_lossy(struct buf *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = utf8_scan((const unsigned char *)bytes + i, n - i, &cp);

        if (k > 0)
            buf_append(out, bytes + i, (size_t)k);
        else
            buf_append(out, replacement, REPLACEMENT_NBYTES);
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n - i;
    }
}

static void put_run(struct buf *out, struct buf *run)
{
    bool is_text = run->len > 0 && utf8_valid_prefix(run->data, run->len) == run->len;

    if (is_text)
        buf_append(out, run->data, run->len);
    for (size_t i = 0; !is_text && i < run->len; i++)
        buf_append(out, replacement, REPLACEMENT_NBYTES);
    buf_fini(run);
}

/* The text, in one go; its spelled runs are shorter than DETOK_RUN_MAX. */
static void decode_whole(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip,
                         struct buf *out)
{
    struct buf raw = {0}, run = {0};
    size_t strip = 0;

    for (size_t i = 0; i < n; i++) {
        const struct token *token = &t->tokens[ids[i]];

        if (token->special && skip)
            continue;
        if (t->decoder.kind == DECODER_SPELLED && token->byte >= 0) {
            unsigned char byte = (unsigned char)token->byte;

            buf_append(&run, &byte, 1);
            continue;
        }
        put_run(&raw, &run);
        buf_append(&raw, token->bytes, token->n_bytes);
    }
    put_run(&raw, &run);
    while (strip < raw.len && strip < t->decoder.n_strip && raw.data[strip] == ' ')
        strip++;
    if (raw.len > strip)
        put_lossy(out, raw.data + strip, raw.len - strip);
    buf_fini(&raw);
}

/* ---- what must hold ---- */

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static bool is_utf8(const struct buf *b)
{
    return b->len == 0 || utf8_valid_prefix(b->data, b->len) == b->len;
}

/* The longest run of byte tokens, which skipped ones do not end. */
static size_t longest_run(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip)
{
    size_t run = 0, longest = 0;

    for (size_t i = 0; i < n; i++) {
        const struct token *token = &t->tokens[ids[i]];

        if (token->special && skip)
            continue;
        run = token->byte >= 0 ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return longest;
}

/* One id at a time: what has gone out is a whole text at each moment, and what can be seen of what
 * is held is what the end would give. */
static void check_pieces(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip,
                         const struct buf *whole)
{
    struct buf pieces = {0};
    struct detok d, ended;
    const char *held = NULL;
    size_t n_held, before;

    detok_init(&d, t, skip);
    for (size_t i = 0; i < n; i++) {
        struct buf rest = {0};

        before = pieces.len;
        detok_push(&d, ids[i], &pieces);
        CHECK(pieces.len == before ||
              utf8_valid_prefix(pieces.data + before, pieces.len - before) == pieces.len - before);
        n_held = detok_peek(&d, &held);
        ended = d;
        detok_end(&ended, &rest);
        CHECK(is_utf8(&rest));
        CHECK(n_held == 0 || (rest.len == n_held && memcmp(rest.data, held, n_held) == 0));
        buf_fini(&rest);
    }
    detok_end(&d, &pieces);
    CHECK(same(&pieces, whole));
    buf_fini(&pieces);
}

/* What follows a prompt is what the prompt's text lacks of the whole; where they were not cut
 * within a character. */
static void check_follow(const struct tokenizer *t, const uint32_t *ids, size_t n, size_t n_prompt,
                         bool skip, const struct buf *whole)
{
    struct buf text = {0};
    struct detok d;
    struct err e = {0};

    CHECK(tokenizer_decode(t, ids, n_prompt, skip, &text, &e) == 0);
    detok_init(&d, t, skip);
    for (size_t i = 0; i < n_prompt; i++)
        detok_push(&d, ids[i], NULL);
    if (d.n_held == 0 && !d.broken) {
        detok_init(&d, t, skip);
        detok_follow(&d, ids, n_prompt);
        for (size_t i = n_prompt; i < n; i++)
            detok_push(&d, ids[i], &text);
        detok_end(&d, &text);
        CHECK(same(&text, whole));
    }
    buf_fini(&text);
}

static void check_known(const struct tokenizer *t, const uint32_t *ids, size_t n, size_t n_prompt,
                        bool skip)
{
    struct buf whole = {0}, wanted = {0};
    struct err e = {0};

    CHECK(tokenizer_decode(t, ids, n, skip, &whole, &e) == 0);
    CHECK(is_utf8(&whole));
    if (longest_run(t, ids, n, skip) < DETOK_RUN_MAX) {
        decode_whole(t, ids, n, skip, &wanted);
        CHECK(same(&whole, &wanted));
    }
    check_pieces(t, ids, n, skip, &whole);
    check_follow(t, ids, n, n_prompt, skip, &whole);
    buf_fini(&whole);
    buf_fini(&wanted);
}

/* Unknown ids by the way past the request: nothing is written for them, nothing is read there. */
static void check_unknown(const struct tokenizer *t, const uint32_t *ids, size_t n, size_t first)
{
    static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_NONE};
    struct buf out = {0};
    char field[32];
    struct err e = {0};
    struct detok d;

    (void)snprintf(field, sizeof field, "/tokens/%zu", first);
    CHECK(tokenizer_decode(t, ids, n, false, &out, &e) != 0);
    check_refusal(&e, codes, "/tokens/");
    CHECK(strcmp(e.field, field) == 0 && out.len == 0);
    detok_init(&d, t, false);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], &out);
    detok_end(&d, &out);
    CHECK(is_utf8(&out));
    buf_fini(&out);
}

/* The same as a request has them. */
static void check_request(const struct tokenizer *t, const int64_t *said, size_t n, size_t unknown)
{
    static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_NONE};
    json_t *tokens = json_array();
    uint32_t *ids = NULL, n_ids = 0;
    struct err e = {0};

    for (size_t i = 0; i < n; i++)
        CHECK(json_array_append_new(tokens, json_integer(said[i])) == 0);
    if (generate_parse_ids(&ids, &n_ids, tokens, "/tokens", tokenizer_vocab_size(t), IDS_MAX, &e) !=
        0) {
        char field[32];

        check_refusal(&e, codes, "/tokens");
        (void)snprintf(field, sizeof field, "/tokens/%zu", unknown);
        CHECK(n == 0 || (unknown < n && strcmp(e.field, field) == 0));
    } else {
        CHECK(n_ids == n);
        for (size_t i = 0; i < n; i++)
            CHECK((int64_t)ids[i] == said[i]);
        free(ids);
    }
    json_decref(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct taker in = {data, data + len};
    uint32_t how = take_byte(&in), ids[IDS_MAX], vocab;
    const struct tokenizer *t = tokenizer_number(how % 3);
    bool skip = (how & 4) != 0, hostile = (how & 8) != 0;
    size_t n = 0, n_prompt = take_byte(&in), first = SIZE_MAX, outside = SIZE_MAX;
    int64_t said[IDS_MAX];

    vocab = tokenizer_vocab_size(t);
    for (; in.at < in.end && n < IDS_MAX; n++) {
        said[n] = take_id(&in, vocab, hostile);
        ids[n] = (uint32_t)said[n];
        if (outside == SIZE_MAX && (said[n] < 0 || said[n] >= vocab))
            outside = n;
        if (first == SIZE_MAX && tokenizer_token(t, ids[n]) == NULL)
            first = n;
    }
    if (first == SIZE_MAX)
        check_known(t, ids, n, n_prompt < n ? n_prompt : n, skip);
    else
        check_unknown(t, ids, n, first);
    check_request(t, said, n, outside);
    return 0;
}
