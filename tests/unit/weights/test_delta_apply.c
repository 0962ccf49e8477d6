/* Every kind of delta makes the new bytes from the old ones, bit for bit; what is wrong in any way
 * is refused, and the refusal names the tensor. */
#include "tests/unit/weights/delta_fixture.h"

#include <string.h>

static uint64_t seed = 1;

static uint64_t random_below(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static struct tensor_spec spec_of(enum dtype dtype, uint64_t numel)
{
    return (struct tensor_spec){.name = "layers.0.weight",
                                .dtype = dtype,
                                .ndim = 1,
                                .shape = {numel},
                                .numel = numel,
                                .nbytes = numel * dtype_nbytes(dtype)};
}

static struct delta_merge *merge_new(void)
{
    struct delta_merge *m = NULL;
    struct err e = {0};

    assert_int_equal(delta_merge_new(&m, &e), 0);
    return m;
}

/* Two versions of a tensor, one byte off any alignment. */
struct pair {
    struct tensor_spec t;
    char *old, *new, *out; /* owned, but for the byte before each */
};

static char *bytes_new(uint64_t nbytes)
{
    char *bytes = malloc(nbytes + 2);

    assert_non_null(bytes);
    return bytes + 1;
}

static struct pair pair_new(enum dtype dtype, uint64_t numel)
{
    struct pair p = {.t = spec_of(dtype, numel)};

    p.old = bytes_new(p.t.nbytes);
    p.new = bytes_new(p.t.nbytes);
    p.out = bytes_new(p.t.nbytes);
    for (uint64_t i = 0; i < p.t.nbytes; i++)
        p.old[i] = (char)random_below(256);
    memcpy(p.new, p.old, p.t.nbytes);
    return p;
}

static void pair_free(struct pair *p)
{
    free(p->old - 1);
    free(p->new - 1);
    free(p->out - 1);
}

static void change(struct pair *p, uint64_t i)
{
    uint64_t unit = dtype_nbytes(p->t.dtype);

    p->new[i * unit + random_below(unit)] ^= (char)(1 + random_below(255));
}

/* As every kind, raw and compressed, elsewhere and in place, at once and in pieces of 64 bytes. */
static void check_kinds(struct delta_merge *m, struct pair *p)
{
    uint32_t width = (uint32_t)dtype_nbytes(p->t.dtype);

    for (int kind = 0; kind < DELTA_KIND_COUNT; kind++) {
        for (unsigned how = 0; how < (p->t.numel < 20000 ? 16 : 4); how++) {
            uint32_t unit = (how & 4) != 0 ? 1 : width;
            uint32_t position_nbytes = kind == DELTA_INDEX ? ((how & 8) != 0 ? 8 : 4) : 0;
            struct written w = write_delta(kind, unit, position_nbytes, p->old, p->new,
                                           p->t.nbytes);
            struct err e = {0};

            written_compress(&w, (how & 1) != 0, (how & 2) != 0);
            if ((how & 1) != 0)
                w.d.position_nbytes = 0;
            memset(p->out, 0x5a, p->t.nbytes);
            assert_int_equal(
                apply_written(m, &w, &p->t, p->out, kind == DELTA_WHOLE ? NULL : p->old, &e), 0);
            assert_memory_equal(p->out, p->new, p->t.nbytes);
            memcpy(p->out, p->old, p->t.nbytes);
            assert_int_equal(apply_written(m, &w, &p->t, p->out, p->out, &e), 0);
            assert_memory_equal(p->out, p->new, p->t.nbytes);
            assert_int_equal(
                delta_merge_begin(m, &p->t, &w.d, bytes_of(&w.positions), bytes_of(&w.values), &e),
                0);
            memset(p->out, 0x5a, p->t.nbytes);
            for (uint64_t at = 0, n; at < p->t.nbytes; at += n) {
                n = 64 * (1 + random_below(2000));
                n = n < p->t.nbytes - at ? n : p->t.nbytes - at;
                assert_int_equal(delta_merge_next(m, p->out + at, p->old + at, n, &e), 0);
            }
            assert_int_equal(delta_merge_end(m, &e), 0);
            assert_memory_equal(p->out, p->new, p->t.nbytes);
            written_free(&w);
        }
    }
}

static void test_delta_apply_makes_the_new_bytes_of_every_dtype(void **state)
{
    static const uint64_t sizes[] = {0, 1, 7, 8, 9, 63, 64, 65, 1000, 9000};
    struct delta_merge *m = merge_new();

    (void)state;
    for (int dtype = DTYPE_NONE + 1; dtype < DTYPE_COUNT; dtype++) {
        /* the last two, of which one spans blocks, of each width once: minutes under a sanitizer */
        bool once = dtype == DTYPE_BOOL || dtype == DTYPE_BF16 || dtype == DTYPE_F32 ||
                    dtype == DTYPE_F64;

        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0] - (once ? 0 : 2); k++) {
            struct pair p = pair_new(dtype, sizes[k]);

            check_kinds(m, &p); /* nothing changes */
            for (uint64_t n = 0; sizes[k] > 0 && n <= sizes[k] / 50; n++)
                change(&p, random_below(sizes[k]));
            check_kinds(m, &p);
            for (uint64_t i = 0; i < sizes[k]; i++)
                change(&p, i);
            check_kinds(m, &p); /* all of it, or nearly */
            pair_free(&p);
        }
    }
    delta_merge_free(m);
}

/* Gaps around what 16 bits can say, and around a block's end. */
static void test_delta_apply_bridges_gaps(void **state)
{
    static const uint64_t gaps[] = {0,     1,      65534,  65535,  65536, 65537,
                                    16383, 131071, 131072, 200000, 32767};
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_I64};
    struct delta_merge *m = merge_new();

    (void)state;
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t k = 0; k < sizeof gaps / sizeof gaps[0]; k++) {
            struct pair p = pair_new(dtypes[d], 2 * gaps[k] + 2 + random_below(3));

            change(&p, gaps[k]);
            change(&p, 2 * gaps[k] + 1);
            check_kinds(m, &p);
            pair_free(&p);
        }
    }
    delta_merge_free(m);
}

/* A chain of deltas of any kinds is the last version, as if that had been sent whole. */
static void test_delta_apply_in_chains(void **state)
{
    struct delta_merge *m = merge_new();
    struct pair p = pair_new(DTYPE_BF16, 100003);
    char *served = bytes_new(p.t.nbytes);

    (void)state;
    memcpy(served, p.old, p.t.nbytes);
    for (unsigned step = 0; step < 40; step++) {
        struct written w;
        struct err e = {0};

        for (unsigned n = 0; n < 1000; n++)
            change(&p, random_below(p.t.numel));
        w = write_delta((enum delta_kind)(step % DELTA_KIND_COUNT), 2, step % 3 == 0 ? 8 : 4, p.old,
                        p.new, p.t.nbytes);
        written_compress(&w, step % 2 == 0, step % 5 == 0);
        assert_int_equal(apply_written(m, &w, &p.t, served, served, &e), 0);
        assert_memory_equal(served, p.new, p.t.nbytes);
        memcpy(p.old, p.new, p.t.nbytes);
        written_free(&w);
    }
    free(served - 1);
    pair_free(&p);
    delta_merge_free(m);
}

/* ---- what is refused ---- */

enum { N_BAD = 100 };

/* A delta of 100 BF16 elements, of which 10, 20 and 30 changed; the row breaks it. */
struct bad {
    const char *says;
    enum delta_kind kind;
    void (*damage)(struct written *w);
};

static void set(struct part_bytes *p, uint64_t i, uint64_t value, uint32_t width)
{
    memcpy(p->data + i * width, &value, width);
}

static void index_beyond(struct written *w)
{
    set(&w->positions, 2, N_BAD, 4);
}
static void index_negative(struct written *w)
{
    set(&w->positions, 2, UINT32_MAX, 4);
}
static void index_twice(struct written *w)
{
    set(&w->positions, 1, 10, 4);
}
static void index_falls(struct written *w)
{
    set(&w->positions, 2, 15, 4);
}
static void one_position_less(struct written *w)
{
    w->positions.nbytes -= 4;
}
static void one_value_less(struct written *w)
{
    w->values.nbytes -= 2;
}
static void half_a_value(struct written *w)
{
    w->values.nbytes -= 1;
}
static void gap_beyond(struct written *w)
{
    set(&w->positions, 2, 79, 2);
}
static void bit_beyond(struct written *w)
{
    set(&w->positions, 12, 0x10, 1);
    part_put_uint(&w->values, 1, 2);
}
static void bit_more(struct written *w)
{
    set(&w->positions, 5, 1, 1);
}
static void bit_less(struct written *w)
{
    set(&w->positions, 1, 0, 1);
}
static void bitmap_longer(struct written *w)
{
    part_put_uint(&w->positions, 0, 1);
}
static void range_beyond(struct written *w)
{
    set(&w->positions, 4, N_BAD, 8);
}
static void range_too_long(struct written *w)
{
    set(&w->positions, 5, 71, 8);
}
static void range_huge(struct written *w)
{
    set(&w->positions, 5, UINT64_MAX, 8);
}
static void range_empty(struct written *w)
{
    set(&w->positions, 1, 0, 8);
}
static void range_overlaps(struct written *w)
{
    set(&w->positions, 2, 10, 8);
}
static void range_without_values(struct written *w)
{
    set(&w->positions, 5, 2, 8);
}
static void range_value_left(struct written *w)
{
    part_put_uint(&w->values, 1, 2);
}
static void range_half(struct written *w)
{
    w->positions.nbytes -= 8;
}
static void frame_none(struct written *w)
{
    w->d.values.zstd = true;
}
static void frame_empty(struct written *w)
{
    w->d.values.zstd = true;
    w->values.nbytes = 0;
}
static void frame_cut(struct written *w)
{
    written_compress(w, false, true);
    w->values.nbytes -= 1;
}
static void frame_head_only(struct written *w)
{
    written_compress(w, false, true);
    w->values.nbytes = 6;
}
static void frame_followed(struct written *w)
{
    written_compress(w, false, true);
    part_put_uint(&w->values, 0, 1);
}
static void frame_twice(struct written *w)
{
    struct part_bytes copy = {0};

    written_compress(w, false, true);
    part_put(&copy, w->values.data, w->values.nbytes);
    part_put(&w->values, copy.data, copy.nbytes);
    free(copy.data);
}
static void frame_skippable(struct written *w)
{
    static const char skippable[] = {0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4};

    w->d.positions.zstd = true;
    w->positions.nbytes = 0;
    part_put(&w->positions, skippable, sizeof skippable);
}
static void frame_says(struct written *w, uint64_t n)
{
    written_compress(w, false, true);
    set(&w->values, 5, 2 * n, 1); /* of a frame of one segment: the size of its content */
}
static void frame_says_less(struct written *w)
{
    frame_says(w, 2);
}
static void frame_says_more(struct written *w)
{
    frame_says(w, N_BAD);
}
static void frame_lies_low(struct written *w)
{
    frame_says(w, 2);
    w->positions.nbytes -= 2;
}
static void frame_lies_high(struct written *w)
{
    frame_says(w, 4);
    part_put_uint(&w->positions, 0, 2);
}

static void frame_without_size(struct written *w)
{
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    char frame[300];
    ZSTD_outBuffer out = {frame, sizeof frame, 0};
    ZSTD_inBuffer in = {w->values.data, w->values.nbytes, 0}, none = {"", 0, 0};

    assert_false(ZSTD_isError(ZSTD_compressStream2(ctx, &out, &in, ZSTD_e_flush)));
    assert_int_equal(ZSTD_compressStream2(ctx, &out, &none, ZSTD_e_end), 0);
    (void)ZSTD_freeCCtx(ctx);
    w->d.values.zstd = true;
    w->values.nbytes = 0;
    part_put(&w->values, frame, out.pos);
}
/* Terabytes of zeros in a few bytes: never even begun, since no part of this tensor is so long. */
static void frame_is_a_bomb(struct written *w)
{
    free(w->values.data);
    w->values = (struct part_bytes){.data = calloc(1, 8 << 20), .nbytes = 8 << 20};
    assert_non_null(w->values.data);
    written_compress(w, false, true);
}
static void xor_longer(struct written *w)
{
    part_put_uint(&w->values, 0, 2);
}

static const struct bad bads[] = {
    {"position 2 is 100, beyond the tensor's 100 units", DELTA_INDEX, index_beyond},
    {"position 2 is 4294967295, beyond", DELTA_INDEX, index_negative},
    {"position 1 is 10, not above the one before it (10)", DELTA_INDEX, index_twice},
    {"position 2 is 15, not above the one before it (20)", DELTA_INDEX, index_falls},
    {"do not fit", DELTA_INDEX, one_position_less},
    {"do not fit", DELTA_INDEX, one_value_less},
    {"do not fit", DELTA_INDEX, half_a_value},
    {"position 2 is 100, beyond", DELTA_GAP, gap_beyond},
    {"do not fit", DELTA_GAP, one_value_less},
    {"do not fit", DELTA_GAP, half_a_value},
    {"bits beyond the tensor", DELTA_BITMAP, bit_beyond},
    {"more than there are values (3)", DELTA_BITMAP, bit_more},
    {"1 values have no position", DELTA_BITMAP, bit_less},
    {"do not fit", DELTA_BITMAP, bitmap_longer},
    {"range 2", DELTA_RANGE, range_beyond},
    {"range 2", DELTA_RANGE, range_too_long},
    {"range 2", DELTA_RANGE, range_huge},
    {"range 0", DELTA_RANGE, range_empty},
    {"range 1", DELTA_RANGE, range_overlaps},
    {"its values end within range 2", DELTA_RANGE, range_without_values},
    {"1 values have no position", DELTA_RANGE, range_value_left},
    {"do not fit", DELTA_RANGE, range_half},
    {"do not begin with a zstd frame", DELTA_GAP, frame_none},
    {"do not begin with a zstd frame", DELTA_GAP, frame_empty},
    {"is cut", DELTA_GAP, frame_cut},
    {"cut", DELTA_GAP, frame_head_only},
    {"1 bytes follow the zstd frame", DELTA_GAP, frame_followed},
    {"bytes follow the zstd frame", DELTA_INDEX, frame_twice},
    {"do not begin with a zstd frame", DELTA_INDEX, frame_skippable},
    {"do not fit", DELTA_XOR, frame_says_less},
    {"do not fit", DELTA_GAP, frame_says_less},
    {"the zstd frame of its values", DELTA_GAP, frame_lies_low},
    {"the zstd frame of its values", DELTA_GAP, frame_lies_high},
    {"do not fit", DELTA_GAP, frame_says_more},
    {"does not state the size", DELTA_GAP, frame_without_size},
    {"do not fit", DELTA_XOR, frame_is_a_bomb},
    {"do not fit", DELTA_GAP, frame_is_a_bomb},
    {"do not fit", DELTA_XOR, xor_longer},
    {"do not fit", DELTA_XOR, one_value_less},
    {"do not fit", DELTA_WHOLE, one_value_less},
    {"do not fit", DELTA_WHOLE, xor_longer},
};

static void test_delta_apply_refuses(void **state)
{
    struct delta_merge *m = merge_new();

    (void)state;
    for (size_t k = 0; k < sizeof bads / sizeof bads[0]; k++) {
        struct pair p = pair_new(DTYPE_BF16, N_BAD);
        struct err e = {0};
        struct written w;

        change(&p, 10);
        change(&p, 20);
        change(&p, 30);
        w = write_delta(bads[k].kind, 2, bads[k].kind == DELTA_INDEX ? 4 : 0, p.old, p.new,
                        p.t.nbytes);
        w.d.positions.i = 7;
        w.d.values.i = 8;
        bads[k].damage(&w);
        assert_int_equal(apply_written(m, &w, &p.t, p.out, p.old, &e), -1);
        if (e.code != ERR_BAD_REQUEST || strstr(e.msg, bads[k].says) == NULL)
            print_error("row %zu: %s\n", k, e.msg);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_non_null(strstr(e.msg, bads[k].says));
        assert_non_null(strstr(e.msg, "'layers.0.weight'"));
        assert_true(strcmp(e.field, "/names/7") == 0 || strcmp(e.field, "/names/8") == 0);
        written_free(&w);
        change(&p, 40); /* the next one is right */
        check_kinds(m, &p);
        pair_free(&p);
    }
    delta_merge_free(m);
}

/* Frames that need more memory than a constant are refused before it is taken. */
static void test_delta_apply_limits_a_frames_window(void **state)
{
    struct delta_merge *m = merge_new();
    struct pair p = pair_new(DTYPE_F32, 1 << 20);

    (void)state;
    for (int log = DELTA_WINDOW_LOG_MAX; log <= DELTA_WINDOW_LOG_MAX + 1; log++) {
        /* magic, descriptor (8 bytes of content size, window), window, content size, one block */
        unsigned char frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0xc0, (unsigned char)((log - 10) << 3),
                                 0,    0,    0x40, 0,    0,    0,
                                 0,    0,    0x03, 0,    0x02, 0};
        struct written w = write_delta(DELTA_XOR, 4, 0, p.old, p.new, 0);
        struct err e = {0};

        w.d.values.zstd = true;
        part_put(&w.values, frame, sizeof frame);
        assert_int_equal(apply_written(m, &w, &p.t, p.out, p.old, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_true((strstr(e.msg, "window") != NULL) == (log > DELTA_WINDOW_LOG_MAX));
        written_free(&w);
    }
    pair_free(&p);
    delta_merge_free(m);
}

/* Any byte of a frame flipped: refused, or other bytes, which checksums find; never a crash. */
static void test_delta_apply_survives_flipped_bits(void **state)
{
    struct delta_merge *m = merge_new();
    struct pair p = pair_new(DTYPE_BF16, 3000);

    (void)state;
    for (unsigned n = 0; n < 40; n++)
        change(&p, random_below(3000));
    for (int kind = 0; kind < DELTA_KIND_COUNT; kind++) {
        struct written w = write_delta(kind, 2, kind == DELTA_INDEX ? 4 : 0, p.old, p.new,
                                       p.t.nbytes);

        written_compress(&w, true, true);
        for (uint64_t bit = 0; bit < 8 * w.values.nbytes && bit < 4000; bit++) {
            struct err e = {0};

            w.values.data[bit / 8] ^= (char)(1 << bit % 8);
            (void)apply_written(m, &w, &p.t, p.out, p.old, &e);
            w.values.data[bit / 8] ^= (char)(1 << bit % 8);
        }
        for (uint64_t bit = 0; bit < 8 * w.positions.nbytes; bit++) {
            struct err e = {0};

            w.positions.data[bit / 8] ^= (char)(1 << bit % 8);
            (void)apply_written(m, &w, &p.t, p.out, p.old, &e);
            w.positions.data[bit / 8] ^= (char)(1 << bit % 8);
        }
        written_free(&w);
    }
    pair_free(&p);
    delta_merge_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delta_apply_makes_the_new_bytes_of_every_dtype),
        cmocka_unit_test(test_delta_apply_bridges_gaps),
        cmocka_unit_test(test_delta_apply_in_chains),
        cmocka_unit_test(test_delta_apply_refuses),
        cmocka_unit_test(test_delta_apply_limits_a_frames_window),
        cmocka_unit_test(test_delta_apply_survives_flipped_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
