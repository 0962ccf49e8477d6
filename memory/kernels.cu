/* All kernels, as one image. */
#include "memory/copy_sum.cu"
#include "memory/scatter.cu"
