/* The compiled kernels, as bytes of this binary, so that it is one file and needs no CUDA to start.
 * Without nvcc there are none, and the host does their work. */
#include "memory/copy_sum.h"

#ifdef BATON_COPY_SUM_FATBIN
__asm__(".pushsection .rodata, \"a\"\n"
        ".balign 64\n"
        ".globl copy_sum_image\n"
        "copy_sum_image:\n"
        ".incbin \"" BATON_COPY_SUM_FATBIN "\"\n"
        ".Lcopy_sum_image_end:\n"
        ".balign 8\n"
        ".globl copy_sum_image_nbytes\n"
        "copy_sum_image_nbytes:\n"
        ".quad .Lcopy_sum_image_end - copy_sum_image\n"
        ".popsection\n");
#else
const unsigned char copy_sum_image[] = {0};
const size_t copy_sum_image_nbytes = 0;
#endif
