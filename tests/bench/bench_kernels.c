/* How close a bf16 matrix-vector product comes to memory speed: bytes of weights a second, and as
 * a ratio to memcpy of the same bytes in the same run. Then what a batch makes of it. The best of
 * several rounds over more memory than the caches hold; both use one thread. */
#include "base/clock.h"
#include "engine/kernels/kernels.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4096, K = 4096, N_MATRICES = 8, M_MAX = 64, ROUNDS = 3 };
#define MATRIX_NBYTES ((size_t)N * K * 2)

struct bench {
    char *weights; /* [N_MATRICES][N][K] bf16 */
    char *copy;    /* one matrix */
    float *x, *y;  /* [M_MAX][K], [M_MAX][N] */
};

static int bench_init(struct bench *b)
{
    b->weights = malloc(N_MATRICES * MATRIX_NBYTES);
    b->copy = malloc(MATRIX_NBYTES);
    b->x = aligned_alloc(64, sizeof(float) * M_MAX * K); /* as the model has it */
    b->y = malloc(sizeof(float) * M_MAX * N);
    if (b->weights == NULL || b->copy == NULL || b->x == NULL || b->y == NULL)
        return -1;
    for (size_t i = 0; i < N_MATRICES * MATRIX_NBYTES; i += 2) { /* 1.0 to 1.99, both signs */
        uint16_t h = (uint16_t)(0x3f80U | (i * 2654435761U >> 7 & 0x807fU));

        memcpy(b->weights + i, &h, sizeof h);
    }
    for (size_t i = 0; i < (size_t)M_MAX * K; i++)
        b->x[i] = (float)(i % 17) - 8.0F;
    memset(b->copy, 1, MATRIX_NBYTES); /* the pages exist before the clock runs */
    return 0;
}

/* Best seconds for one matrix of memcpy. */
static double time_copy(struct bench *b)
{
    double best = 1e9;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = clock_now_us();
        double s;

        for (size_t i = 0; i < N_MATRICES; i++) {
            memcpy(b->copy, b->weights + i * MATRIX_NBYTES, MATRIX_NBYTES);
            __asm__ volatile("" : : "r"(b->copy) : "memory"); /* the copy is wanted */
        }
        s = (double)(clock_now_us() - begin) / 1e6 / N_MATRICES;
        best = s < best ? s : best;
    }
    return best;
}

static double time_matmul(struct bench *b, const struct kernels *ks, uint32_t m)
{
    double best = 1e9;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = clock_now_us();
        double s;

        for (size_t i = 0; i < N_MATRICES; i++) {
            struct matmul a = {.x = b->x,
                               .ldx = K,
                               .w = b->weights + i * MATRIX_NBYTES,
                               .dtype = DTYPE_BF16,
                               .y = b->y,
                               .ldy = N,
                               .m = m,
                               .k = K};

            kernels_matmul(ks, &a, 0, N);
        }
        s = (double)(clock_now_us() - begin) / 1e6 / N_MATRICES;
        best = s < best ? s : best;
    }
    return best;
}

int main(void)
{
    static const uint32_t batches[] = {1, 4, 16, M_MAX};
    struct bench b = {0};
    double copy;

    if (bench_init(&b) != 0) {
        (void)fprintf(stderr, "no memory\n");
        return 1;
    }
    copy = time_copy(&b);
    (void)printf("memcpy: %.1f GB/s\n", (double)MATRIX_NBYTES / copy / 1e9);
    for (int isa = KERNELS_AVX2; isa < KERNELS_ISA_COUNT; isa++) {
        const struct kernels *ks = kernels_get((enum kernels_isa)isa);

        for (size_t i = 0; ks != NULL && i < sizeof batches / sizeof batches[0]; i++) {
            double s = time_matmul(&b, ks, batches[i]);

            (void)printf("%s, %u tokens: %.2f ms, %.1f GB/s (%.2f of memcpy), %.0f GFLOP/s\n",
                         ks->name, batches[i], s * 1e3, (double)MATRIX_NBYTES / s / 1e9, copy / s,
                         2.0 * N * K * batches[i] / s / 1e9);
        }
    }
    free(b.y);
    free(b.x);
    free(b.copy);
    free(b.weights);
    return 0;
}
