#include "cli/relative_change.h"

#include <math.h>

enum { PIECE_NUMEL = 4096 };

double relative_change(const void *from, enum dtype from_dtype, const void *to, enum dtype to_dtype,
                       uint64_t numel)
{
    const unsigned char *a = from, *b = to;
    float x[PIECE_NUMEL], y[PIECE_NUMEL];
    double of_change = 0, of_old = 0;

    for (uint64_t at = 0, n; at < numel; at += n) {
        n = numel - at < PIECE_NUMEL ? numel - at : PIECE_NUMEL;
        dtype_convert(x, DTYPE_F32, a + at * dtype_nbytes(from_dtype), from_dtype, n);
        dtype_convert(y, DTYPE_F32, b + at * dtype_nbytes(to_dtype), to_dtype, n);
        for (uint64_t i = 0; i < n; i++) {
            double d = (double)y[i] - (double)x[i];

            of_change += d * d;
            of_old += (double)x[i] * (double)x[i];
        }
    }
    return of_change == 0 ? 0 : sqrt(of_change / of_old);
}
