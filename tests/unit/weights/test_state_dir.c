/* --state-dir: the journal and snapshots, whole, damaged in every byte, and on a disk that fails.
 */
#include "weights/state/state_dir.h"

#include "tests/unit/weights_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];
static int dirfd_of_test;

/* The number of the call of these functions that fails, from 1, and with what; 0: none. */
static int fail_at, n_calls, fail_errno;

static bool fails(void)
{
    if (fail_at == 0 || ++n_calls != fail_at)
        return false;
    errno = fail_errno;
    return true;
}

int __real_fsync(int fd);
int __real_renameat(int at, const char *from, int to_at, const char *to);
ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
int __wrap_fsync(int fd);
int __wrap_renameat(int at, const char *from, int to_at, const char *to);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);

int __wrap_fsync(int fd)
{
    return fails() ? -1 : __real_fsync(fd);
}

int __wrap_renameat(int at, const char *from, int to_at, const char *to)
{
    return fails() ? -1 : __real_renameat(at, from, to_at, to);
}

/* Also writes less than was asked for. */
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
    return fails() ? -1 : __real_pwrite(fd, p, n > 1000 ? 1000 : n, at);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/baton-state-XXXXXX");
    assert_non_null(mkdtemp(dir));
    dirfd_of_test = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dirfd_of_test >= 0);
    fail_at = n_calls = 0;
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    (void)close(dirfd_of_test);
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

static struct journal_entry entry_of(uint64_t serial)
{
    struct journal_entry j = {.serial = serial, .time_s = 1700000000};

    id_make(j.commit_id);
    (void)snprintf(j.label, sizeof j.label, "step-%llu \"\xc3\xa9\"", (unsigned long long)serial);
    (void)snprintf(j.model_spec, sizeof j.model_spec, "%064x", 7);
    return j;
}

static void assert_entry(const struct journal_entry *want)
{
    struct journal_entry found;
    struct err e = {0};

    assert_int_equal(journal_read(&found, dir, &e), JOURNAL_READ);
    assert_string_equal(found.commit_id, want->commit_id);
    assert_string_equal(found.label, want->label);
    assert_string_equal(found.model_spec, want->model_spec);
    assert_string_equal(found.content, want->content);
    assert_true(found.serial == want->serial && found.time_s == want->time_s);
}

/* The bytes of a file of the directory; returns how many. */
static size_t read_all(const char *name, char *out, size_t cap)
{
    int fd = openat(dirfd_of_test, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, out, cap);

    assert_true(fd >= 0 && n > 0 && (size_t)n < cap);
    (void)close(fd);
    return (size_t)n;
}

static void write_file(const char *name, const char *bytes, size_t n)
{
    int fd = openat(dirfd_of_test, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    (void)close(fd);
}

static void test_journal_is_read_as_it_was_written(void **state)
{
    struct journal_entry j = entry_of(1), found;
    struct err e = {0};

    (void)state;
    assert_int_equal(journal_read(&found, dir, &e), JOURNAL_NONE);
    assert_int_equal(journal_write(dirfd_of_test, &j, &e), 0);
    assert_entry(&j);
    j.serial = INT64_MAX;
    memset(j.content, 'c', CONTENT_LEN);
    memset(j.label, 'l', VERSION_LABEL_MAX);
    assert_int_equal(journal_write(dirfd_of_test, &j, &e), 0);
    assert_entry(&j);
}

/* A changed bit is found, unless the text still means the same. */
static void test_journal_finds_each_changed_byte(void **state)
{
    struct journal_entry j = entry_of(12), found;
    char text[4096], bad[4096];
    struct err e = {0};
    size_t n;

    (void)state;
    assert_int_equal(journal_write(dirfd_of_test, &j, &e), 0);
    n = read_all(JOURNAL_NAME, text, sizeof text);
    for (size_t i = 0; i < n; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            memcpy(bad, text, n);
            bad[i] = (char)(bad[i] ^ 1 << bit);
            write_file(JOURNAL_NAME, bad, n);
            if (journal_read(&found, dir, &e) == JOURNAL_READ)
                assert_entry(&j);
            else
                assert_true(e.code != ERR_NONE);
            err_clear(&e);
        }
    for (size_t cut = 0; cut < n; cut++) {
        write_file(JOURNAL_NAME, text, cut);
        assert_int_equal(journal_read(&found, dir, &e), JOURNAL_DAMAGED);
        err_clear(&e);
    }
}

/* After a failure the old entry is there, or the new one if only the last step failed. */
static void test_journal_survives_a_disk_that_fails(void **state)
{
    struct journal_entry old = entry_of(1), new = entry_of(2), found;
    struct err e = {0};
    int rc = -1;

    (void)state;
    assert_int_equal(journal_write(dirfd_of_test, &old, &e), 0);
    for (fail_at = 1; rc != 0; fail_at++) {
        fail_errno = fail_at % 2 == 0 ? ENOSPC : EIO;
        n_calls = 0;
        rc = journal_write(dirfd_of_test, &new, &e);
        if (rc != 0)
            assert_int_equal(e.code, ERR_NOT_RECORDED);
        err_clear(&e);
        assert_int_equal(journal_read(&found, dir, &e), JOURNAL_READ);
        assert_true(found.serial == 1 || fail_at >= 4);
    }
    assert_int_equal(fail_at, 6); /* a write, fsync, a rename, fsync of the directory; then none */
    assert_entry(&new);
}

/* A store with a state directory. */
struct world {
    struct state_dir *state;
    struct store *store;
    struct updates *updates;
    struct fx_answer answer;
};

static void open_world(struct world *w, uint32_t n_snapshots)
{
    struct store_cfg store_cfg = {
        .model_spec = fx_model_spec(), .n_versions_max = 3, .nbytes_max = UINT64_MAX};
    struct updates_cfg cfg = {.receive_timeout_us = 60000000, .pin_timeout_us = 60000000};
    struct err e = {0};

    assert_int_equal(state_dir_open(&w->state, dir, n_snapshots, store_cfg.model_spec, &e), 0);
    store_cfg.journal = state_dir_journal(w->state);
    assert_int_equal(store_new(&w->store, &store_cfg, &e), 0);
    store_continue(w->store, state_dir_last_serial(w->state), "");
    cfg.store = w->store;
    fx_answer_init(&w->answer);
    assert_int_equal(updates_new(&w->updates, &cfg, &e), 0);
    assert_int_equal(state_dir_served(w->state, w->store, "none", NULL, &e), 0);
}

static void close_world(struct world *w)
{
    updates_free(w->updates);
    state_dir_free(w->state);
    store_free(w->store);
    fx_answer_fini(&w->answer);
}

static enum err_code commit(struct world *w, unsigned step, const char *label)
{
    struct update_chunk *c = calloc(1, sizeof *c);
    struct err e = {0};

    assert_non_null(c);
    c->tensor_list = fx_tensor_list_of(FX_ALL);
    c->source = fx_source_new(FX_STEP(step));
    c->done = fx_done;
    c->done_arg = &w->answer;
    (void)snprintf(c->label, sizeof c->label, "%s", label);
    assert_int_equal(updates_submit(w->updates, c, &e), 0);
    return fx_await(&w->answer);
}

static void await_snapshots(struct world *w)
{
    while (state_dir_busy(w->state))
        (void)usleep(FX_POLL_US / 10);
}

static void path_of(char out[256], uint64_t serial)
{
    char name[SNAPSHOT_NAME_MAX];

    snapshot_name(name, serial);
    (void)snprintf(out, 256, "%s/%s", dir, name);
}

static void test_each_publication_is_recorded_before_it_is_served(void **state)
{
    struct journal_entry found;
    struct store_info info;
    struct world w = {0};
    struct err e = {0};
    uint64_t serial;

    (void)state;
    open_world(&w, 0);
    for (unsigned step = 1; step <= 3; step++) {
        assert_int_equal(commit(&w, step, "v"), ERR_NONE);
        assert_int_equal(journal_read(&found, dir, &e), JOURNAL_READ);
        assert_int_equal(found.serial, step);
        fx_assert_step(w.store, step);
    }
    assert_int_equal(store_set_label(w.store, "renamed", 0, &serial, &e), 0);
    assert_int_equal(journal_read(&found, dir, &e), JOURNAL_READ);
    assert_string_equal(found.label, "renamed");
    assert_int_equal(found.serial, 3);
    for (fail_at = 1; fail_at <= 4; fail_at++) { /* every step of the journal */
        fail_errno = EIO;
        n_calls = 0;
        assert_int_equal(commit(&w, 9, "lost"), ERR_NOT_RECORDED);
        n_calls = 0;
        assert_int_equal(store_set_label(w.store, "lost", 0, &serial, &e), -1);
        assert_int_equal(e.code, ERR_NOT_RECORDED);
        err_clear(&e);
        store_info(w.store, &info);
        assert_string_equal(info.label, "renamed");
        assert_int_equal(journal_read(&found, dir, &e), JOURNAL_READ);
        assert_string_equal(found.label, "renamed");
        fx_assert_step(w.store, 3);
    }
    fail_at = 0;
    assert_int_equal(commit(&w, 4, "v4"), ERR_NONE);
    close_world(&w);
    open_world(&w, 0); /* serials continue */
    assert_int_equal(commit(&w, 5, "v5"), ERR_NONE);
    assert_int_equal(journal_read(&found, dir, &e), JOURNAL_READ);
    assert_int_equal(found.serial, 5);
    close_world(&w);
}

/* Each commit has an id of its own, which a new label keeps, and its snapshot has the same. */
static void test_each_commit_has_an_id(void **state)
{
    char last[ID_LEN + 1] = "", path[256];
    struct model_spec *m = fx_model_spec();
    struct journal_entry found;
    struct snapshot_head head;
    struct world w = {0};
    struct err e = {0};
    uint64_t serial;

    (void)state;
    open_world(&w, 3);
    for (unsigned step = 1; step <= 3; step++) {
        assert_int_equal(commit(&w, step, "v"), ERR_NONE);
        assert_int_equal(store_set_label(w.store, "renamed", 0, &serial, &e), 0);
        await_snapshots(&w);
        assert_int_equal(journal_read(&found, dir, &e), JOURNAL_READ);
        assert_int_equal(strlen(found.commit_id), ID_LEN);
        assert_string_not_equal(found.commit_id, last);
        path_of(path, step);
        assert_int_equal(snapshot_read_head(&head, path, m, &e), 0);
        assert_string_equal(head.commit_id, found.commit_id);
        (void)snprintf(last, sizeof last, "%s", found.commit_id);
    }
    close_world(&w);
    model_spec_free(m);
}

/* A new directory is synchronized into the one above it, or it is not used. */
static void test_a_new_directory_survives_a_loss_of_power(void **state)
{
    struct state_dir *new = NULL;
    struct model_spec *m = fx_model_spec();
    struct err e = {0};
    char path[96];

    (void)state;
    (void)snprintf(path, sizeof path, "%s/new", dir);
    fail_at = 1;
    fail_errno = EIO;
    assert_int_equal(state_dir_open(&new, path, 0, m, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "the directory above it cannot be synchronized"));
    assert_int_not_equal(faccessat(dirfd_of_test, "new", F_OK, 0), 0);
    fail_at = 0;
    assert_int_equal(state_dir_open(&new, path, 0, m, (err_clear(&e), &e)), 0);
    state_dir_free(new);
    model_spec_free(m);
}

static void test_one_server_has_the_directory(void **state)
{
    struct state_dir *other = NULL;
    struct model_spec *m = fx_model_spec();
    struct world w = {0};
    struct err e = {0};

    (void)state;
    open_world(&w, 0);
    assert_int_equal(state_dir_open(&other, dir, 0, m, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    close_world(&w);
    assert_int_equal(state_dir_open(&other, dir, 0, m, &e), 0);
    state_dir_free(other);
    model_spec_free(m);
}

static void test_snapshots_are_the_newest(void **state)
{
    struct model_spec *m = fx_model_spec();
    struct snapshot_list list;
    struct snapshot_head head;
    struct world w = {0};
    struct err e = {0};
    char path[256];
    uint64_t serial;

    (void)state;
    open_world(&w, 2);
    for (unsigned step = 1; step <= 4; step++) {
        assert_int_equal(commit(&w, step, "v"), ERR_NONE);
        await_snapshots(&w);
    }
    assert_int_equal(snapshot_list_read(&list, dirfd_of_test, &e), 0);
    assert_int_equal(list.n, 2);
    assert_int_equal(list.serials[0], 4);
    assert_int_equal(list.serials[1], 3);
    assert_int_equal(store_set_label(w.store, "renamed", 0, &serial, &e), 0);
    await_snapshots(&w);
    path_of(path, 4);
    assert_int_equal(snapshot_read_head(&head, path, m, &e), 0);
    assert_int_equal(head.serial, 4);
    assert_string_equal(head.label, "renamed");
    close_world(&w);
    model_spec_free(m);
}

/* A changed bit of the head is found, unless the text still means the same. The tensors' bytes are
 * checked by the update that restores them. */
static void test_snapshot_finds_each_changed_byte_of_its_head(void **state)
{
    struct model_spec *m = fx_model_spec();
    static char text[65536], bad[65536];
    struct snapshot_head good, head;
    struct world w = {0};
    struct err e = {0};
    char path[256], name[SNAPSHOT_NAME_MAX];
    uint64_t n_head;
    size_t n;

    (void)state;
    open_world(&w, 1);
    assert_int_equal(commit(&w, 1, "v1"), ERR_NONE);
    await_snapshots(&w);
    close_world(&w);
    path_of(path, 1);
    snapshot_name(name, 1);
    assert_int_equal(snapshot_read_head(&good, path, m, &e), 0);
    n = read_all(name, text, sizeof text);
    memcpy(&n_head, text, sizeof n_head);
    for (size_t i = 0; i < 8 + n_head; i++) {
        memcpy(bad, text, n);
        bad[i] = (char)(bad[i] ^ 1 << i % 8);
        write_file(name, bad, n);
        if (snapshot_read_head(&head, path, m, &e) == 0) {
            assert_int_equal(head.serial, good.serial);
            assert_string_equal(head.label, good.label);
            assert_string_equal(head.commit_id, good.commit_id);
        }
        err_clear(&e);
    }
    for (size_t cut = 0; cut < n; cut += 7) {
        write_file(name, text, cut);
        assert_int_equal(snapshot_read_head(&head, path, m, &e), -1);
        err_clear(&e);
    }
    model_spec_free(m);
}

/* A snapshot that fails leaves nothing behind, and commits go on. */
static void test_snapshot_survives_a_disk_that_fails(void **state)
{
    struct state_info info = {0};
    struct world w = {0};

    (void)state;
    open_world(&w, 1);
    for (unsigned step = 1; info.n_written == 0; step++) {
        n_calls = 0;
        fail_errno = ENOSPC;
        fail_at = 4 + (int)step; /* after the journal's calls */
        assert_int_equal(commit(&w, step, "v"), ERR_NONE);
        await_snapshots(&w);
        state_dir_info(w.state, &info);
        assert_true(info.n_written > 0 || info.n_failed == step);
        assert_int_not_equal(faccessat(dirfd_of_test, SNAPSHOT_NEW, F_OK, 0), 0);
        fx_assert_step(w.store, step);
    }
    assert_true(info.n_failed > 8); /* 7 tensors, the head, fsync, a rename, fsync */
    assert_int_equal(info.snapshot_error.code, ERR_NONE);
    fail_at = 0;
    close_world(&w);
}

/* The writer's pin gives way to a sleep and to an update that waits for its memory. */
static void test_reader_is_awaited(void **state)
{
    const struct version *v;
    struct world w = {0};
    struct err e = {0};
    uint64_t serial;

    (void)state;
    open_world(&w, 0);
    assert_int_equal(commit(&w, 1, "v1"), ERR_NONE);
    assert_int_equal(store_pin(w.store, &v, &e), 0);
    assert_false(store_reader_awaited(w.store, v));
    assert_int_equal(commit(&w, 2, "v2"), ERR_NONE);
    assert_false(store_reader_awaited(w.store, v)); /* three versions may be alive */
    store_unpin(w.store, v);
    assert_int_equal(store_pin(w.store, &v, &e), 0);
    assert_int_equal(store_set_label(w.store, "renamed", 0, &serial, &e), 0);
    assert_true(store_reader_awaited(w.store, v));
    store_unpin(w.store, v);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_journal_is_read_as_it_was_written),
        TEST(test_journal_finds_each_changed_byte),
        TEST(test_journal_survives_a_disk_that_fails),
        TEST(test_each_publication_is_recorded_before_it_is_served),
        TEST(test_each_commit_has_an_id),
        TEST(test_a_new_directory_survives_a_loss_of_power),
        TEST(test_one_server_has_the_directory),
        TEST(test_snapshots_are_the_newest),
        TEST(test_snapshot_finds_each_changed_byte_of_its_head),
        TEST(test_snapshot_survives_a_disk_that_fails),
        TEST(test_reader_is_awaited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
