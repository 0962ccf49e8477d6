/* The fixture model served with adapters of a registry. Included with FIXTURES. */
#ifndef BATON_TESTS_LORA_FIXTURE_H
#define BATON_TESTS_LORA_FIXTURE_H

#include "tests/unit/engine/served_model.h"

#include "engine/lora/adapter_file.h"

#include <fcntl.h>
#include <poll.h>

enum { RANK_MAX = 64 };

static inline struct adapters *registry(uint64_t nbytes_max)
{
    static const char *const base[] = {"base", NULL};
    struct adapters_config cfg = {
        .n_max = 4, .rank_max = RANK_MAX, .nbytes_max = nbytes_max, .base_names = base};
    struct adapters *set;
    struct err e = {0};

    assert_int_equal(adapters_new(&set, &cfg, &e), 0);
    return set;
}

static inline struct adapters_outcome load(struct adapters *set, const struct model_config *model,
                                           const char *name, const char *kind)
{
    struct adapter_spec spec = {.model = model, .rank_max = RANK_MAX, .nbytes_max = 1 << 30};
    struct adapter_wait wait = {.deadline_us = clock_after_us(60000000)};
    struct adapters_options options = {0};
    struct adapters_outcome out;
    struct adapters_load *l;
    struct adapter *a;
    char path[512];
    struct adapter_dir dir = {.rootfd = AT_FDCWD, .path = path};
    struct adapter_sight sight = {0};
    struct err e = {0};
    int rc;

    (void)snprintf(path, sizeof path, MODEL_DIR "/adapters/%s", kind);
    assert_int_equal(adapters_begin(set, name, &options, &l, &e), 0);
    while ((rc = adapter_file_look(&sight, &a, NULL, &spec, &dir, NULL, &wait, &e)) == 1)
        (void)poll(NULL, 0, ADAPTER_POLL_MS);
    if (rc != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(adapters_put(l, a, &out, &e), 0);
    return out;
}

static inline struct adapter_use *use_of(struct adapters *set, const char *name)
{
    struct adapter_use *use;
    struct err e = {0};

    assert_int_equal(adapter_use_new(&use, set, name, &e), 0);
    return use;
}

/* Those of a registry that nobody uses: the engine that used them has been freed. */
static inline void close_registry(struct adapters *set)
{
    struct adapters_gauges g;

    adapters_gauges(set, &g);
    assert_int_equal(g.n_pinned_refs, 0);
    assert_int_equal(g.n_older, 0);
    adapters_free(set);
}

#endif
