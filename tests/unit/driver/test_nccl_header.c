/* The rows of driver/nccl_symbols.h, and those that the fake adds, against an installed nccl.h:
 * prototypes, values, sizes, the configuration. Compiled against that header, not against ours. */
#include "driver/nccl_symbols.h"
#include "tests/fakes/libnccl/fakenccl.h"

#include <nccl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The controlling expression is not evaluated: nothing of libnccl is linked. */
static const struct {
    const char *symbol;
    bool same;
} prototypes[] = {
#define X(field, symbol, required, returns, args)                                                  \
    {#symbol, _Generic(&(symbol), returns(*) args : true, default : false)},
    NCCL_SYMBOLS(X) FAKENCCL_SYMBOLS(X)
#undef X
};

static const struct {
    const char *name;
    long long ours, theirs;
} values[] = {
#define X(name, value) {#name, (value), (long long)(name)},
    NCCL_RESULTS(X) NCCL_CONSTANTS(X)
#undef X
#define X(type, nbytes) {"sizeof " #type, (nbytes), sizeof(type)},
        NCCL_SIZES(X)
#undef X
};

static void test_prototypes_are_the_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof prototypes / sizeof prototypes[0]; i++) {
        if (!prototypes[i].same)
            fail_msg("%s has other arguments in nccl.h", prototypes[i].symbol);
    }
}

static void test_values_and_sizes_are_the_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i].ours != values[i].theirs)
            fail_msg("%s is %lld, not %lld", values[i].name, values[i].theirs, values[i].ours);
    }
}

/* A newer header may have more behind what we have; an older one less, and is not asked. */
static void test_the_configuration_begins_as_the_headers(void **state)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    struct ours {
#define X(type, name, initial) type name;
        NCCL_CONFIG_MEMBERS(X)
#undef X
    };
    static const struct {
        const char *name;
        size_t ours, theirs, n_ours, n_theirs;
    } members[] = {
#define X(type, name, initial)                                                                     \
    {#name, offsetof(struct ours, name), offsetof(ncclConfig_t, name), sizeof(type),               \
     sizeof((ncclConfig_t *)NULL)->name},
        NCCL_CONFIG_MEMBERS(X)
#undef X
    };
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;

    (void)state;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (members[i].ours != members[i].theirs || members[i].n_ours != members[i].n_theirs)
            fail_msg("ncclConfig_t.%s is elsewhere", members[i].name);
    }
    assert_true(sizeof(struct ours) <= sizeof(ncclConfig_t));
    assert_true(theirs.version >= NCCL_CONFIG_VERSION);
    theirs.version = NCCL_CONFIG_VERSION;
#define X(type, name, initial) assert_true(theirs.name == (initial));
    NCCL_CONFIG_MEMBERS(X)
#undef X
#else
    (void)state;
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prototypes_are_the_headers),
        cmocka_unit_test(test_values_and_sizes_are_the_headers),
        cmocka_unit_test(test_the_configuration_begins_as_the_headers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
