/* torch's counters: taken down once, never below zero, and only where torch made them. */
#include "transport/ipc/ref_counter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NAME_CAP = 64, NOBODY = 65534 };

static char name[NAME_CAP]; /* of this test's object; there is none before and after */
static char path[NAME_CAP + 16];

static int begin(void **state)
{
    (void)state;
    (void)snprintf(name, sizeof name, "/torch_%ld_1234567890_0", (long)getpid());
    (void)snprintf(path, sizeof path, "/dev/shm%s", name);
    return 0;
}

static int end(void **state)
{
    (void)state;
    (void)remove(path);
    return 0;
}

/* An object as torch makes it, in full and mapped. */
static uint64_t *make(void)
{
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    void *p;

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, REF_COUNTER_NBYTES), 0);
    p = mmap(NULL, REF_COUNTER_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    (void)close(fd);
    return p;
}

static int n_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

/* How often the object is mapped here. */
static int n_mapped(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        n += strstr(line, name) != NULL;
    (void)fclose(maps);
    return n;
}

static void test_names_are_torchs(void **state)
{
    static const struct {
        const char *name;
        pid_t pid;
    } good[] = {
        {"/torch_4242_1234567890_0", 4242},
        {"/torch_1_2", 1},
        {"/torch_2147483647_18446744073709551615_99999999999999999999", 2147483647},
        {"/torch_2147483648_1_1", 0},
        {"/torch_9999999999_1_1", 0},
        {"/torch_0_1_1", 0},
    };
    static const char *const bad[] = {"",
                                      "/",
                                      "torch_1_2_3",
                                      "/torch_",
                                      "/torch_1",
                                      "/torch_1_",
                                      "/torch__1",
                                      "/torch_1__2",
                                      "/torch_1_2_",
                                      "/torch_1_2_3_4",
                                      "/torch_12345678901_2_3",
                                      "/torch_-1_2_3",
                                      "/torch_1_123456789012345678901_3",
                                      "/torch_1_2_123456789012345678901",
                                      "/torch_1_2_3 ",
                                      "/torch_a_2_3",
                                      "/torch_1_2_../x",
                                      "/torch_1_2/3",
                                      "/other_1_2_3",
                                      "//torch_1_2_3",
                                      "/TORCH_1_2_3",
                                      "/sem.torch_1_2",
                                      "/torch_1_2\n"};
    struct ref_counter c = {0};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct err e = {0};
        assert_int_equal(ref_counter_pid(good[i].name), good[i].pid);
        assert_int_equal(ref_counter_open(&c, good[i].name, &e), -1);
        assert_non_null(strstr(e.msg, "cannot be opened")); /* a name like any, of no object */
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = {0};
        assert_int_equal(ref_counter_pid(bad[i]), 0);
        assert_int_equal(ref_counter_open(&c, bad[i], &e), -1);
        assert_int_equal(e.code, ERR_UNREADABLE);
        assert_non_null(strstr(e.msg, "is not the name of a torch counter"));
    }
    assert_null(c.base);
}

/* Down by one, not below zero, and nothing else of the object changes. */
static void test_release_takes_one_slot_down(void **state)
{
    static const uint32_t slots[] = {0, 1, 7, REF_COUNTER_SLOTS - 1};
    uint64_t *words = make(), *counts = words + REF_COUNTER_HEAD / 8;
    int n_open = n_files();
    struct err e = {0};
    struct stat st;

    (void)state;
    for (size_t i = 0; i < REF_COUNTER_NBYTES / 8; i++)
        words[i] = 3;
    counts[7] = 1;
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        uint64_t was = counts[slots[i]];
        assert_int_equal(ref_counter_release(name, slots[i], &e), 0);
        assert_int_equal(counts[slots[i]], was - 1);
        counts[slots[i]] = 3;
    }
    counts[7] = 0;
    assert_int_equal(ref_counter_release(name, 7, &e), 0);
    assert_int_equal(counts[7], 0);
    counts[7] = 3;
    for (size_t i = 0; i < REF_COUNTER_NBYTES / 8; i++)
        assert_int_equal(words[i], 3);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, REF_COUNTER_NBYTES);
    assert_int_equal(n_files(), n_open);
    assert_int_equal(n_mapped(), 1);
    assert_int_equal(ref_counter_release(name, REF_COUNTER_SLOTS, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "10000"));
    (void)munmap(words, REF_COUNTER_NBYTES);
}

static void test_many_slots_share_one_open(void **state)
{
    uint64_t *words = make(), *counts = words + REF_COUNTER_HEAD / 8;
    int n_open = n_files();
    struct ref_counter c = {0};
    struct err e = {0};

    (void)state;
    for (uint32_t i = 0; i < REF_COUNTER_SLOTS; i++)
        counts[i] = i % 3;
    assert_int_equal(ref_counter_open(&c, name, &e), 0);
    assert_int_equal(n_mapped(), 2);
    assert_int_equal(n_files(), n_open); /* it holds no descriptor */
    for (uint32_t i = 0; i < REF_COUNTER_SLOTS; i++)
        assert_int_equal(ref_counter_down(&c, i), i % 3 > 0);
    for (uint32_t i = 0; i < REF_COUNTER_SLOTS; i++)
        assert_int_equal(counts[i], i % 3 > 0 ? i % 3 - 1 : 0);
    ref_counter_close(&c);
    ref_counter_close(&c);
    assert_int_equal(n_mapped(), 1);
    (void)munmap(words, REF_COUNTER_NBYTES);
}

/* Receivers of one export in several processes: none is lost and none is too many. */
enum { N_TAKERS = 4, N_TRIES = 4000, N_THERE = 10000 };

static void *take(void *arg)
{
    atomic_int *taken = arg;
    struct ref_counter c = {0};
    struct err e = {0};

    if (ref_counter_open(&c, name, &e) != 0)
        return NULL;
    for (int i = 0; i < N_TRIES; i++)
        if (ref_counter_down(&c, 5))
            (void)atomic_fetch_add(taken, 1);
    ref_counter_close(&c);
    return NULL;
}

static void test_racing_receivers_count_right(void **state)
{
    uint64_t *words = make();
    pthread_t takers[N_TAKERS];
    atomic_int taken = 0;

    (void)state;
    words[REF_COUNTER_HEAD / 8 + 5] = N_THERE;
    for (int i = 0; i < N_TAKERS; i++)
        assert_int_equal(pthread_create(&takers[i], NULL, take, &taken), 0);
    for (int i = 0; i < N_TAKERS; i++)
        assert_int_equal(pthread_join(takers[i], NULL), 0);
    assert_int_equal(taken, N_THERE);
    assert_int_equal(words[REF_COUNTER_HEAD / 8 + 5], 0);
    (void)munmap(words, REF_COUNTER_NBYTES);
}

static void refused(const char *why)
{
    int n_open = n_files(), mapped = n_mapped();
    struct err e = {0};

    assert_int_equal(ref_counter_release(name, 0, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    if (strstr(e.msg, why) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, why);
    assert_int_equal(n_files(), n_open);
    assert_int_equal(n_mapped(), mapped);
}

static void test_what_is_no_counter_is_refused(void **state)
{
    static char other[sizeof path + 8];
    uint64_t *words;
    struct stat st;
    int fd;

    (void)state;
    refused("cannot be opened: No such file");
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    refused("has 0 bytes");
    assert_int_equal(ftruncate(fd, REF_COUNTER_NBYTES - 1), 0);
    refused("has 80063 bytes, expected 80064");
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, REF_COUNTER_NBYTES - 1); /* and not grown */
    (void)close(fd);
    (void)remove(path);

    words = make();
    words[REF_COUNTER_HEAD / 8] = 1;
    (void)snprintf(other, sizeof other, "%s.real", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    refused("cannot be opened: Too many levels of symbolic links");
    assert_int_equal(words[REF_COUNTER_HEAD / 8], 1);
    (void)munmap(words, REF_COUNTER_NBYTES);
    (void)remove(other);
    (void)remove(path);

    assert_int_equal(mkfifo(path, 0600), 0);
    refused("is not a shared memory object");
    (void)remove(path);
    assert_int_equal(mkdir(path, 0700), 0);
    refused("cannot be opened");
}

/* Our own: as torch's, and gone once it is removed. */
static void test_own_object(void **state)
{
    struct ref_counter c = {0}, other = {0};
    struct err e = {0};
    struct stat st;

    (void)state;
    ref_counter_remove(&other, name); /* there is none */
    assert_int_equal(ref_counter_create(&c, name, &e), 0);
    assert_int_equal(ref_counter_create(&other, name, &e), -1);
    assert_non_null(strstr(e.msg, "cannot be made: File exists"));
    err_clear(&e);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, REF_COUNTER_NBYTES);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(*(int32_t *)c.base, 1); /* torch's receivers do not unlink it */
    assert_true(ref_counter_is_down(&c, REF_COUNTER_SLOTS - 1));
    ref_counter_expect(&c, REF_COUNTER_SLOTS - 1);
    assert_false(ref_counter_is_down(&c, REF_COUNTER_SLOTS - 1));
    assert_int_equal(ref_counter_release(name, REF_COUNTER_SLOTS - 1, &e), 0);
    assert_true(ref_counter_is_down(&c, REF_COUNTER_SLOTS - 1));
    *(int64_t *)(void *)((char *)c.base + REF_COUNTER_HEAD) -= 1; /* torch's goes below zero */
    assert_true(ref_counter_is_down(&c, 0));
    ref_counter_remove(&c, name);
    assert_null(c.base);
    assert_int_equal(stat(path, &st), -1);
    assert_int_equal(n_mapped(), 0);
}

/* Only root can be another user for a moment. */
static void test_another_users_object_is_refused(void **state)
{
    uint64_t *words;
    int status;
    pid_t pid;

    (void)state;
    if (geteuid() != 0)
        skip();
    words = make();
    words[REF_COUNTER_HEAD / 8] = 1;
    assert_int_equal(chmod(path, 0666), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct err e = {0};
        if (setresuid(NOBODY, NOBODY, NOBODY) != 0)
            _exit(2);
        _exit(ref_counter_release(name, 0, &e) == -1 && e.code == ERR_UNREADABLE &&
                      strstr(e.msg, "belongs to user 0, we are user 65534") != NULL
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(words[REF_COUNTER_HEAD / 8], 1);
    assert_int_equal(chown(path, NOBODY, (gid_t)-1), 0);
    assert_int_equal(ref_counter_release(name, 0, &(struct err){0}), 0); /* root counts for all */
    assert_int_equal(words[REF_COUNTER_HEAD / 8], 0);
    (void)munmap(words, REF_COUNTER_NBYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names_are_torchs, begin, end),
        cmocka_unit_test_setup_teardown(test_release_takes_one_slot_down, begin, end),
        cmocka_unit_test_setup_teardown(test_many_slots_share_one_open, begin, end),
        cmocka_unit_test_setup_teardown(test_racing_receivers_count_right, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_no_counter_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_own_object, begin, end),
        cmocka_unit_test_setup_teardown(test_another_users_object_is_refused, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
