/* The life cycle moves forward only. */
#include "control/life.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_states_and_identity(void **state)
{
    struct life l, other;

    (void)state;
    life_init(&l);
    life_init(&other);
    assert_int_equal(strlen(l.boot_id), ID_LEN);
    assert_string_not_equal(l.boot_id, other.boot_id);
    assert_true(l.started_us > 0 && l.started_wall_s > 1000000000);
    assert_string_equal(life_state_name(life_state(&l)), "starting");
    life_set(&l, LIFE_SERVING);
    assert_string_equal(life_state_name(life_state(&l)), "serving");
    life_set(&l, LIFE_LEAVING);
    assert_string_equal(life_state_name(life_state(&l)), "leaving");
    life_set(&l, LIFE_DRAINING);
    assert_string_equal(life_state_name(life_state(&l)), "draining");
}

static void test_backwards_is_a_bug(void **state)
{
    pid_t pid;
    int status;

    (void)state;
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct life l;

        (void)close(2); /* its complaint is expected */
        life_init(&l);
        life_set(&l, LIFE_DRAINING);
        life_set(&l, LIFE_SERVING);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_and_identity),
        cmocka_unit_test(test_backwards_is_a_bug),
    };

    return cmocka_run_group_tests_name("life", tests, NULL, NULL);
}
