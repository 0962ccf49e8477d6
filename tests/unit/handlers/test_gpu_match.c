/* Which GPU's bucket feeds which rank. */
#include "handlers/source/gpu_match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FIELD "/buckets/2/ipc_handles"

/* GPU 'a' is aaaaaaaa-0000-4000-8000-000000000000, and so on. */
static void uuid_of(char out[IPC_UUID_LEN + 1], char gpu)
{
    (void)snprintf(out, IPC_UUID_LEN + 1, "%c%c%c%c%c%c%c%c-0000-4000-8000-000000000000", gpu, gpu,
                   gpu, gpu, gpu, gpu, gpu, gpu);
}

/* Which GPUs the machine shows, and which of them every rank can read. */
struct machine {
    const char *shown, *readable;
    int n_asked;
};

static enum gpu_reach reach(void *arg, uint32_t rank, const char *uuid)
{
    struct machine *m = arg;

    (void)rank;
    m->n_asked++;
    if (strchr(m->shown, uuid[0]) == NULL)
        return GPU_NOT_VISIBLE;
    return strchr(m->readable, uuid[0]) != NULL ? GPU_REACHABLE : GPU_NO_PEER_ACCESS;
}

struct row {
    const char *what;
    const char *ranks; /* a letter each */
    const char *gpus;  /* of the handles */
    const char *shown, *readable;
    bool sharded;
    const char *fed; /* a letter for each rank, '-' for nothing; NULL: refused */
    const char *says;
};

static const struct row rows[] = {
    {"its own", "a", "a", "a", "", false, "a", NULL},
    {"its own of several", "b", "abcd", "b", "", false, "b", NULL},
    {"each its own, in any order", "ab", "ba", "ab", "", false, "ab", NULL},
    {"its own, though the other could be read", "ab", "ab", "ab", "ab", false, "ab", NULL},
    {"the only one, by peer copy", "b", "a", "ab", "a", false, "a", NULL},
    {"the only one feeds all", "bc", "a", "abc", "a", false, "aa", NULL},
    {"its own and by peer copy", "ab", "a", "ab", "a", false, "aa", NULL},
    {"no way to the only one", "b", "a", "ab", "", false, NULL, "no peer access"},
    {"the only one is of another machine", "b", "a", "b", "", false, NULL, "no handle for GPU"},
    {"several, none ours: which would it be?", "c", "ab", "abc", "ab", false, NULL,
     "no handle for GPU"},
    {"one of two is missing", "ac", "ab", "abc", "abc", false, NULL, "no handle for GPU"},
    {"a shard for one", "ab", "b", "ab", "ab", true, "-b", NULL},
    {"shards for each", "ab", "ab", "ab", "", true, "ab", NULL},
    {"a shard among others' shards", "ab", "bcd", "ab", "", true, "-b", NULL},
    {"a shard from a GPU that is no rank", "ab", "c", "abc", "c", true, "cc", NULL},
    {"shards of others alone", "ab", "cd", "abcd", "cd", true, NULL, "no handle for GPU"},
    {"a shard out of reach", "ab", "c", "abc", "", true, NULL, "no peer access"},
    {"one rank, sharded", "a", "a", "a", "", true, "a", NULL},
};

static void fill(struct ipc_handles *h, const char *gpus)
{
    *h = (struct ipc_handles){.packed = true, .n_handles = 1};
    for (; gpus[h->n_gpus] != '\0'; h->n_gpus++)
        uuid_of(h->gpus[h->n_gpus].uuid, gpus[h->n_gpus]);
}

static void assert_fed(const struct row *r, const struct ipc_gpu **fed, const struct ipc_handles *h)
{
    for (uint32_t i = 0; r->fed[i] != '\0'; i++) {
        if (r->fed[i] == '-') {
            assert_null(fed[i]);
            continue;
        }
        assert_non_null(fed[i]);
        assert_true(fed[i] >= h->gpus && fed[i] < h->gpus + h->n_gpus);
        assert_int_equal(fed[i]->uuid[0], r->fed[i]);
    }
}

static void test_match_gpus_feeds_by_uuid(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        const struct row *r = &rows[k];
        char text[8][IPC_UUID_LEN + 1];
        const char *uuids[8];
        const struct ipc_gpu *fed[8], *const untouched = (const void *)r;
        struct machine m = {.shown = r->shown, .readable = r->readable};
        struct gpu_match_ranks ranks = {(uint32_t)strlen(r->ranks), uuids, reach, &m};
        struct ipc_handles h;
        struct err e = {0};
        int rc;

        for (uint32_t i = 0; i < ranks.n; i++) {
            uuid_of(text[i], r->ranks[i]);
            uuids[i] = text[i];
            fed[i] = untouched;
        }
        fill(&h, r->gpus);
        rc = gpu_match(fed, &ranks, &h, r->sharded, FIELD, &e);
        if ((rc == 0) != (r->fed != NULL))
            fail_msg("%s: %d %s", r->what, rc, e.msg);
        if (rc == 0) {
            assert_fed(r, fed, &h);
            continue;
        }
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, FIELD);
        if (strstr(e.msg, r->says) == NULL)
            fail_msg("%s: %s", r->what, e.msg);
        for (uint32_t i = 0; i < ranks.n; i++)
            assert_ptr_equal(fed[i], untouched);
    }
}

static void test_match_gpus_reads_any_spelling_of_a_uuid(void **state)
{
    const char *const spelt[] = {
        "GPU-abcdefab-0000-4000-8000-000000000000",
        "MIG-ABCDEFAB-0000-4000-8000-000000000000",
        "gpu-AbCdEfAb-0000-4000-8000-000000000000",
        "abcdefab-0000-4000-8000-000000000000",
    };
    struct ipc_handles h = {.packed = true, .n_handles = 1, .n_gpus = 1};

    (void)state;
    (void)snprintf(h.gpus[0].uuid, sizeof h.gpus[0].uuid, "abcdefab-0000-4000-8000-000000000000");
    for (size_t i = 0; i < sizeof spelt / sizeof spelt[0]; i++) {
        struct machine m = {.shown = "", .readable = ""};
        struct gpu_match_ranks ranks = {1, &spelt[i], reach, &m};
        const struct ipc_gpu *fed = NULL;
        struct err e = {0};

        assert_int_equal(gpu_match(&fed, &ranks, &h, false, FIELD, &e), 0);
        assert_ptr_equal(fed, &h.gpus[0]);
        assert_int_equal(m.n_asked, 0); /* whose handle is there is not looked for elsewhere */
        assert_true(gpu_match_is_rank(&ranks, h.gpus[0].uuid));
        assert_false(gpu_match_is_rank(&ranks, "abcdefab-0000-4000-8000-000000000001"));
    }
}

/* Sixty-four on each side: the first few of each, and how many more. */
static void test_match_gpus_lists_both_sides_cut(void **state)
{
    static char ours[IPC_GPUS_MAX][IPC_UUID_LEN + 1];
    const char *uuids[IPC_GPUS_MAX];
    struct machine m = {.shown = "", .readable = ""};
    struct gpu_match_ranks ranks = {IPC_GPUS_MAX, uuids, reach, &m};
    struct ipc_handles h = {.packed = true, .n_handles = 1, .n_gpus = IPC_GPUS_MAX};
    const struct ipc_gpu *fed[IPC_GPUS_MAX];
    struct err e = {0};

    (void)state;
    for (unsigned i = 0; i < IPC_GPUS_MAX; i++) {
        (void)snprintf(ours[i], sizeof ours[i], "%08x-0000-4000-8000-0000000000aa", i & 255);
        (void)snprintf(h.gpus[i].uuid, sizeof h.gpus[i].uuid, "%08x-0000-4000-8000-0000000000bb",
                       i & 255);
        uuids[i] = ours[i];
    }
    assert_int_equal(gpu_match(fed, &ranks, &h, false, FIELD, &e), -1);
    assert_non_null(strstr(e.msg, ours[0]));
    assert_non_null(strstr(e.msg, ours[3]));
    assert_non_null(strstr(e.msg, h.gpus[0].uuid));
    assert_non_null(strstr(e.msg, h.gpus[3].uuid));
    assert_non_null(strstr(e.msg, " and 60 more;"));
    assert_string_equal(e.msg + strlen(e.msg) - 12, " and 60 more");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match_gpus_feeds_by_uuid),
        cmocka_unit_test(test_match_gpus_reads_any_spelling_of_a_uuid),
        cmocka_unit_test(test_match_gpus_lists_both_sides_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
