/* Series of a source appear with its first committed update; those of refusals for which an alert
 * is useful are there from the start, so that the first refusal is an increase. */
#include "control/update_metrics.h"

#include "control/history.h"

#include <string.h>

static const char *const phase_names[UPDATE_N_PHASES] = {"wait", "receive", "proof", "commit"};
/* The last one is for all others. */
static const char *const source_names[UPDATE_N_SOURCES] = {"body",        "shm",  "path",
                                                           "ipc_handles", "nccl", "other"};

static size_t source_index(const char *source)
{
    size_t i = 0;

    while (i < UPDATE_N_SOURCES - 1 && (source == NULL || strcmp(source_names[i], source) != 0))
        i++;
    return i;
}

void update_metrics_count(struct update_metrics *m, const struct update_record *u)
{
    const uint64_t times[UPDATE_N_PHASES] = {u->times.wait_us, u->times.receive_us,
                                             u->times.proof_us, u->times.commit_us};
    size_t source = source_index(u->source);

    if (u->outcome == OUTCOME_REFUSED)
        (void)atomic_fetch_add_explicit(&m->refused[u->error.code], 1, memory_order_relaxed);
    if (u->outcome != OUTCOME_COMMITTED)
        return;
    for (size_t i = 0; i < UPDATE_N_PHASES; i++)
        histogram_observe(&m->phases[source][i], histogram_times, times[i]);
    histogram_observe(&m->whole[source], histogram_times, u->times.whole_us);
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

static void put_whole(const struct update_metrics *m, struct buf *out)
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
    static const char refused[] = "baton_updates_refused_total";

    put_phases(m, out);
    put_whole(m, out);
    prom_head(out, refused, "counter",
              "Requests of updates that were refused, by error code; those that ended their update "
              "are in baton_updates_aborted_total");
    for (int code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++) {
        uint64_t n = atomic_load_explicit(&m->refused[code], memory_order_relaxed);

        if (n > 0 || err_http_status((enum err_code)code) == 422)
            prom_u64(
                out, refused,
                (struct prom_label[]){{"code", err_wire_name((enum err_code)code)}, {NULL, NULL}},
                n);
    }
}
