/* weights/memory: what /proc and the control groups say, from made-up trees. */
#include "memory/memory.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char root[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/baton-memory-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void assert_room(uint64_t nbytes, const char *bound)
{
    struct memory_room room = memory_room(root);

    assert_int_equal(room.nbytes, nbytes);
    assert_non_null(strstr(room.bound, bound));
}

static void test_memory_room_without_any_file_is_unbounded(void **state)
{
    (void)state;
    assert_room(UINT64_MAX, "nothing");
}

static void test_memory_room_reads_mem_available(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal:  900 kB\nMemFree: 1 kB\nMemAvailable:    700 kB\n");
    assert_room(700 * 1024, "MemAvailable");
}

static void test_memory_room_takes_the_tightest_group_above(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable: 700 kB\n");
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.current", "5000\n");
    assert_room(700 * 1024, "MemAvailable");
    put("sys/fs/cgroup/a/memory.max", "9000\n");
    put("sys/fs/cgroup/a/memory.current", "6000\n");
    assert_room(3000, "memory.max");
    put("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 2000\nactive_file 7\n");
    assert_room(5000, "memory.max");
    put("sys/fs/cgroup/a/memory.current", "20000\n"); /* over its limit: nothing is left */
    assert_room(0, "memory.max");
}

static void test_memory_room_reads_the_root_of_a_namespace(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/memory.max", "10000\n");
    put("sys/fs/cgroup/memory.current", "4000\n");
    assert_room(6000, "memory.max");
}

static void test_memory_room_reads_version_1(void **state)
{
    (void)state;
    put("proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/x\n1:name=systemd:/x\n");
    put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "8000\n");
    put("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "3000\n");
    put("sys/fs/cgroup/memory/x/memory.stat", "inactive_file 9\ntotal_inactive_file 500\n");
    assert_room(5500, "limit_in_bytes");
}

static void test_memory_room_ignores_what_makes_no_sense(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable: lots\nMemAvailableX: 1 kB\n");
    put("proc/self/cgroup", "nonsense\n0::/a\n:\n");
    put("sys/fs/cgroup/a/memory.max", "99999999999999999999999999\n");
    put("sys/fs/cgroup/a/memory.current", "1\n");
    assert_room(UINT64_MAX, "nothing");
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(test_memory_room_without_any_file_is_unbounded),
        ROW(test_memory_room_reads_mem_available),
        ROW(test_memory_room_takes_the_tightest_group_above),
        ROW(test_memory_room_reads_the_root_of_a_namespace),
        ROW(test_memory_room_reads_version_1),
        ROW(test_memory_room_ignores_what_makes_no_sense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
