/* tokenizer.json from outside, and text through a tokenizer. An input that begins with "TEXT" is a
 * text for the fixture's tokenizer; any other is a tokenizer.json. A refusal must explain itself;
 * what is accepted must give ids that it knows, and text that does not depend on how it is cut. */
#include "text/tokenizer.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { ID_MAX = (1 << 21) - 1, IDS_PER_BYTE_MAX = 4, TEMPLATE_IDS_MAX = 128 };

static void check_refusal(const struct err *e)
{
    assert(e->code == ERR_BAD_REQUEST || e->code == ERR_NO_MEMORY);
    assert(e->msg[0] != '\0');
}

static void check_decoding(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip)
{
    struct buf whole = {0}, pieces = {0};
    struct detok d;
    struct err e = {0};

    assert(tokenizer_decode(t, ids, n, skip, &whole, &e) == 0);
    detok_init(&d, t, skip);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], &pieces);
    detok_end(&d, &pieces);
    assert(whole.len == pieces.len);
    assert(whole.len == 0 || memcmp(whole.data, pieces.data, whole.len) == 0);
    buf_fini(&whole);
    buf_fini(&pieces);
}

static void check_text(const struct tokenizer *t, const char *text, size_t len)
{
    uint32_t *ids = NULL;
    size_t n = 0;
    struct err e = {0};

    if (tokenizer_encode(t, text, len, true, &ids, &n, &e) != 0) {
        check_refusal(&e);
        assert(ids == NULL);
        return;
    }
    assert(n <= len * IDS_PER_BYTE_MAX + TEMPLATE_IDS_MAX);
    for (size_t i = 0; i < n; i++)
        assert(tokenizer_token(t, ids[i]) != NULL);
    check_decoding(t, ids, n, false);
    check_decoding(t, ids, n, true);
    free(ids);
}

static void check_json(const char *json, size_t len)
{
    static const char sample[] = "Hello  the world's 123 \xc3\xa9 e\xcc\x81 \xe4\xbd\xa0\n\n <e>x ";
    struct tokenizer *t = NULL;
    struct err e = {0};

    if (tokenizer_parse(&t, json, len, &e) != 0) {
        check_refusal(&e);
        assert(t == NULL);
        return;
    }
    assert(tokenizer_vocab_size(t) >= 1 && tokenizer_vocab_size(t) - 1 <= ID_MAX);
    check_text(t, sample, strlen(sample));
    check_text(t, json, len < 256 ? len : 256);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct tokenizer *fixture;
    struct err e = {0};

    if (len < 4 || memcmp(data, "TEXT", 4) != 0) {
        check_json((const char *)data, len);
        return 0;
    }
    if (fixture == NULL) {
        int rc = tokenizer_load(&fixture, FIXTURES "/kjv-qwen3-1m", &e);

        assert(rc == 0);
        (void)rc;
    }
    check_text(fixture, (const char *)data + 4, len - 4);
    return 0;
}
