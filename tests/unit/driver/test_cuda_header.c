/* The rows of driver/cuda_symbols.h against the toolkit's own cuda.h: prototypes, values, sizes.
 * Compiled against that header, not against ours: the same macros, expanded with its types. */
#include "driver/cuda_symbols.h"

#include <cuda.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The controlling expression is not evaluated: nothing of libcuda is linked. */
static const struct {
    const char *symbol;
    bool same;
} prototypes[] = {
#define X(field, symbol, required, args)                                                           \
    {#symbol, _Generic(&(symbol), CUresult(*) args : true, default : false)},
    CU_SYMBOLS(X)
#undef X
};

static const struct {
    const char *name;
    long long ours, theirs;
} values[] = {
#define X(name, value) {#name, (value), (long long)(name)},
    CU_RESULTS(X) CU_CONSTANTS(X)
#undef X
#define X(type, nbytes) {"sizeof " #type, (nbytes), sizeof(type)},
        CU_SIZES(X)
#undef X
};

static void test_prototypes_are_the_toolkits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof prototypes / sizeof prototypes[0]; i++) {
        if (!prototypes[i].same)
            fail_msg("%s has other arguments in cuda.h", prototypes[i].symbol);
    }
}

static void test_values_and_sizes_are_the_toolkits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i].ours != values[i].theirs)
            fail_msg("%s is %lld, not %lld", values[i].name, values[i].theirs, values[i].ours);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prototypes_are_the_toolkits),
        cmocka_unit_test(test_values_and_sizes_are_the_toolkits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
