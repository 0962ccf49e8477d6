/* Series of a source appear with its first committed update; those of errors for which an alert
 * is useful are there from the start, so that the first error is an increase. */
#include "control/update_metrics.h"

#include "base/clock.h"
#include "control/history.h"

#include <string.h>

static const char *const phase_names[UPDATE_N_PHASES] = {"wait", "receive", "proof", "commit"};
/* The last one is for all others. */
static const char *const source_names[UPDATE_N_SOURCES] = {"body", "shm",  "path", "ipc_handles",
                                                           "nccl", "nixl", "other"};

static size_t source_index(const char *source)
{
    size_t i = 0;

    while (i < UPDATE_N_SOURCES - 1 && (source == NULL || strcmp(source_names[i], source) != 0))
        i++;
    return i;
}

static void keep_commit(struct update_metrics *m, uint64_t serial)
{
    size_t i = serial % UPDATE_COMMITS_KEPT;

    atomic_store_explicit(&m->commits[i].serial, serial, memory_order_relaxed);
    atomic_store_explicit(&m->commits[i].at_us, clock_now_us(), memory_order_release);
    atomic_store_explicit(&m->newest, serial, memory_order_relaxed);
}

void update_metrics_count(struct update_metrics *m, const struct update_record *u)
{
    const uint64_t times[UPDATE_N_PHASES] = {u->times.wait_us, u->times.receive_us,
                                             u->times.proof_us, u->times.commit_us};
    size_t source = source_index(u->source);

    (void)atomic_fetch_add_explicit(&m->outcomes[u->outcome], 1, memory_order_relaxed);
    if (u->outcome != OUTCOME_COMMITTED) {
        (void)atomic_fetch_add_explicit(&m->errors[u->error.code], 1, memory_order_relaxed);
        return;
    }
    for (size_t i = 0; i < UPDATE_N_PHASES; i++)
        histogram_observe(&m->phases[source][i], histogram_times, times[i]);
    histogram_observe(&m->whole[source], histogram_times, u->times.whole_us);
    keep_commit(m, u->serial);
}

/* Of a version whose commit is no longer known only the number of versions is counted. */
void update_metrics_token_age(struct update_metrics *m, uint64_t serial)
{
    uint64_t newest = atomic_load_explicit(&m->newest, memory_order_relaxed), at_us;
    size_t i = serial % UPDATE_COMMITS_KEPT;

    histogram_observe(&m->age_versions, histogram_versions,
                      HISTOGRAM_COUNT(newest > serial ? newest - serial : 0));
    at_us = atomic_load_explicit(&m->commits[i].at_us, memory_order_acquire);
    if (atomic_load_explicit(&m->commits[i].serial, memory_order_relaxed) == serial)
        histogram_observe(&m->age, histogram_times, clock_now_us() - at_us);
}

static void put_token_age(const struct update_metrics *m, struct buf *out)
{
    static const char versions[] = "baton_generation_token_age_versions",
                      age[] = "baton_generation_token_age_seconds";

    if (histogram_n(&m->age_versions) == 0)
        return;
    prom_head(
        out, versions, "histogram",
        "How many versions were committed after the oldest one that made tokens of a sequence, "
        "when it ended");
    histogram_put(out, versions, NULL, histogram_versions, &m->age_versions);
    prom_head(out, age, "histogram",
              "How long before the end of a sequence the oldest version that made tokens of it was "
              "committed");
    histogram_put(out, age, NULL, histogram_times, &m->age);
}

static void put_phases(const struct update_metrics *m, struct buf *out)
{
    static const char name[] = "baton_update_phase_seconds";

    prom_head(
        out, name, "histogram",
        "Time of a committed update in each phase (wait: for the trainer, for earlier work or "
        "for memory), by the source of its bytes");
    for (size_t s = 0; s < UPDATE_N_SOURCES; s++)
        for (size_t p = 0; p < UPDATE_N_PHASES; p++)
            if (histogram_n(&m->phases[s][p]) > 0)
                histogram_put(out, name,
                              (struct prom_label[]){{"phase", phase_names[p]},
                                                    {"source", source_names[s]},
                                                    {NULL, NULL}},
                              histogram_times, &m->phases[s][p]);
}

static void metrics_put_whole(const struct update_metrics *m, struct buf *out)
{
    static const char name[] = "baton_update_duration_seconds";

    prom_head(out, name, "histogram",
              "Committed updates, from their start to their commit, by the source of their bytes");
    for (size_t s = 0; s < UPDATE_N_SOURCES; s++)
        if (histogram_n(&m->whole[s]) > 0)
            histogram_put(out, name,
                          (struct prom_label[]){{"source", source_names[s]}, {NULL, NULL}},
                          histogram_times, &m->whole[s]);
}

void update_metrics_put(const struct update_metrics *m, struct buf *out)
{
    static const char errors[] = "baton_update_errors_total", ended[] = "baton_updates_ended_total";

    put_phases(m, out);
    metrics_put_whole(m, out);
    put_token_age(m, out);
    prom_head(out, ended, "counter", "Ends of updates, and requests of updates that were refused");
    for (int i = 0; i < UPDATE_N_OUTCOMES; i++)
        prom_u64(out, ended,
                 (struct prom_label[]){{"outcome", update_outcome_name((enum update_outcome)i)},
                                       {NULL, NULL}},
                 atomic_load_explicit(&m->outcomes[i], memory_order_relaxed));
    prom_head(
        out, errors, "counter",
        "Updates that were aborted, and requests of updates that were refused, by error code");
    for (int code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++) {
        uint64_t n = atomic_load_explicit(&m->errors[code], memory_order_relaxed);

        if (n > 0 || err_http_status((enum err_code)code) == 422)
            prom_u64(
                out, errors,
                (struct prom_label[]){{"code", err_wire_name((enum err_code)code)}, {NULL, NULL}},
                n);
    }
}
