/* Routed experts as engines with --enable-return-routed-experts return them. Every row shows which
 * version computed it: its ids count up from the row's tag. */
#include "tests/fakes/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, TOP_K = 2, ROW = LAYERS * TOP_K, NPY_ALIGN = 64, HEADER_MAX = 192 };

static void put_base64(struct buf *b, const uint8_t *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < len; i += 3) {
        size_t n = len - i < 3 ? len - i : 3;
        uint32_t word = (uint32_t)bytes[i] << 16 | (n > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (n > 2 ? (uint32_t)bytes[i + 2] : 0);
        char four[4] = {digits[word >> 18], digits[word >> 12 & 63],
                        n > 1 ? digits[word >> 6 & 63] : '=', n > 2 ? digits[word & 63] : '='};

        buf_append(b, four, sizeof four);
    }
}

/* New: the ids of all rows. @width  bytes of an id; they are below 256, so the others are 0 */
static uint8_t *make_ids(const uint8_t *tags, size_t n_rows, size_t width)
{
    uint8_t *ids = must(calloc(n_rows * ROW + 1, width));

    for (size_t i = 0; i < n_rows * ROW; i++)
        ids[i * width] = (uint8_t)(tags[i / ROW] + i % ROW);
    return ids;
}

/* numpy's format 1.0. */
static void put_npy(struct buf *b, const uint8_t *ids, size_t n_rows)
{
    static const char magic[] = "\x93NUMPY\x01";
    char header[HEADER_MAX];
    size_t before = sizeof magic + 2, len;
    struct buf file = {0};

    len = (size_t)snprintf(header, sizeof header,
                           "{'descr': '|u1', 'fortran_order': False, 'shape': (%zu, %d, %d), }",
                           n_rows, LAYERS, TOP_K);
    while ((before + len + 1) % NPY_ALIGN != 0)
        header[len++] = ' ';
    header[len++] = '\n';
    buf_append(&file, magic, sizeof magic); /* with its 0: the minor version */
    buf_append(&file, (char[]){(char)len, 0}, 2);
    buf_append(&file, header, len);
    buf_append(&file, ids, n_rows * ROW);
    put_base64(b, (const uint8_t *)file.data, file.len);
    buf_fini(&file);
}

void put_experts(struct buf *b, enum experts_form form, const uint8_t *tags, size_t n_rows,
                 size_t start)
{
    size_t width = form == EXPERTS_SGLANG ? sizeof(int32_t) : 1;
    uint8_t *ids = make_ids(tags, n_rows, width);

    if (form == EXPERTS_SKYRL || form == EXPERTS_PRIME_RL)
        buf_puts(b, "{\"data\":");
    buf_puts(b, "\"");
    if (form == EXPERTS_VLLM)
        put_npy(b, ids, n_rows);
    else
        put_base64(b, ids, n_rows * ROW * width);
    buf_puts(b, "\"");
    if (form == EXPERTS_PRIME_RL)
        buf_printf(b, ",\"start\":%zu", start);
    if (form == EXPERTS_SKYRL || form == EXPERTS_PRIME_RL)
        buf_printf(b, ",\"shape\":[%zu,%d,%d],\"dtype\":\"uint8\"}", n_rows, LAYERS, TOP_K);
    free(ids);
}
