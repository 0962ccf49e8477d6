/* Which clients are at the same host. */
#include "base/net/actor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_the_same_host_whatever_the_port(void **state)
{
    static const struct {
        struct actor a, b;
        bool same;
    } rows[] = {
        {{.peer = "10.0.0.7:41234"}, {.peer = "10.0.0.7:9"}, true},
        {{.peer = "10.0.0.7:41234"}, {.peer = "10.0.0.70:41234"}, false},
        {{.peer = "10.0.0.7:1", .key = "a"}, {.peer = "10.0.0.7:1", .key = "b"}, false},
        {{.peer = "[::1]:41234"}, {.peer = "[::1]:5"}, true},
        {{.peer = "[::1]:41234"}, {.peer = "[::2]:41234"}, false},
        {{.peer = "unix:uid=1000"}, {.peer = "unix:uid=1000"}, true},
        {{.peer = "unix:uid=1000"}, {.peer = "unix:uid=1001"}, false},
        {{.peer = ""}, {.peer = "10.0.0.7:1"}, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_true(actor_is_same_host(&rows[i].a, &rows[i].b) == rows[i].same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_host_whatever_the_port),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
