/* Sends another version to the engines in step, and makes it the fleet's. */
#include "fleet/ask/fleet_label.h"

#include "fleet/calls/fleet_priv.h"

#include <string.h>

/* Does it serve the fleet's version? That is not known of one that is down. Before the first update
 * that is not known of an engine that is not ready. */
static bool is_in_step(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return info.alive && info.synced && !info.fenced &&
           (info.serial > 0 || info.report.not_ready[0] == '\0');
}

/* Only these can get its new name. */
static size_t engines_in_step(struct fleet_control *fc, const struct upstream_list *all,
                              const struct api_args *args, struct fleet_target *targets)
{
    struct fleet_target reachable[FLEET_MAX];
    size_t n = fleet_reachable(fc, all, args, reachable), n_targets = 0;

    for (size_t i = 0; i < n; i++)
        if (is_in_step(fc, reachable[i].upstream))
            targets[n_targets++] = reachable[i];
    return n_targets;
}

/* Does it report another version than the fleet's, or none in time? Then it was restarted since its
 * last probe, or another client has changed it, or either may be, and the name would be that of
 * other bytes there. One that refuses to tell has no such route. */
static bool may_have_other_version(struct fleet_control *fc, const char *fleet_label,
                                   const struct fleet_result *read)
{
    enum have_answer answer = fleet_result_answer(read);
    char label[API_VERSION_MAX + 1];
    struct err ignored = {0};

    if (answer != HAVE_GOOD)
        return answer != HAVE_REFUSED;
    return read->outcome == FLEET_OK &&
           api_read_version(label, upstream_kind(read->upstream), read->text, read->text_len,
                            &ignored) == 0 &&
           label[0] != '\0' && fleet_label[0] != '\0' && strcmp(label, fleet_label) != 0 &&
           !fleet_may_name(fleet_of(fc), read->upstream, label);
}

/* Leaves those out, and those that are found to be out of step while another does not answer.
 * @targets, @n  in, out */
static int read_versions(struct fleet_control *fc, struct fleet_target *targets, size_t *n,
                         struct err *e)
{
    fleet_results_auto read = {0};
    struct fleet_stats stats;
    size_t n_kept = 0;

    if (*n == 0)
        return 0;
    fleet_stats(fleet_of(fc), &stats);
    if (fleet_query(fc, API_GET_VERSION, targets, *n, fleet_step_us(fc), &read, e) != 0)
        return -1;
    for (size_t i = 0; i < *n; i++)
        if (is_in_step(fc, targets[i].upstream) &&
            !may_have_other_version(fc, stats.label, &read.list[i]))
            targets[n_kept++] = targets[i];
    *n = n_kept;
    return n_kept > 0 || fleet_results_ok(&read, e) ? 0 : -1;
}

static int fleet_label_check_serial(struct fleet_control *fc, uint64_t if_serial, struct err *e)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    if (if_serial == 0 || if_serial == stats.serial)
        return 0;
    return err_set(e, ERR_PRECONDITION, "/if_serial", "serial %llu is served, not %llu",
                   (unsigned long long)stats.serial, (unsigned long long)if_serial);
}

static int check_any(struct fleet_control *fc, size_t n, struct err *e)
{
    if (n > 0)
        return 0;
    if (fleet_version_undecided(fleet_of(fc), e))
        return -1;
    return err_set(e, ERR_UNSYNCED, "", "no upstream serves a version that could be named");
}

/* The engines that did not take the version are out of step then. */
static void fleet_label_apply_results(struct fleet_control *fc,
                                      const struct fleet_label_request *req,
                                      const struct fleet_results *results, uint64_t *serial)
{
    const struct upstream *labelled[FLEET_MAX];
    size_t n_labelled = 0;

    for (size_t i = 0; i < results->n; i++)
        if (result_ok(&results->list[i]))
            labelled[n_labelled++] = results->list[i].upstream;
    if (n_labelled > 0 || req->record != NULL)
        *serial = fleet_set_label(fleet_of(fc), req->label, labelled, n_labelled);
    else
        fleet_set_updating(fleet_of(fc), false);
}

static int name_engines(struct fleet_control *fc, const struct fleet_label_request *req,
                        const struct fleet_target *targets, size_t n, struct fleet_results *results,
                        uint64_t *serial, struct err *e)
{
    int rc;

    fleet_begin_naming(fleet_of(fc));
    rc = fleet_request(fc, API_SET_VERSION, targets, n, fleet_step_us(fc), results, e);
    fleet_label_apply_results(fc, req, results, serial);
    if (req->abort_requests && *serial != 0)
        fleet_abort_all_requests(fc);
    return rc == 0 && fleet_results_done(results, e) ? 0 : -1;
}

int fleet_label_all(struct fleet_control *fc, const struct fleet_label_request *req,
                    struct fleet_results *results, uint64_t *serial, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    const struct api_args args = {.label = req->label};
    struct fleet_target targets[FLEET_MAX];
    size_t n = engines_in_step(fc, all, &args, targets);

    *serial = 0;
    if (read_versions(fc, targets, &n, e) != 0 || check_any(fc, n, e) != 0 ||
        fleet_label_check_serial(fc, req->if_serial, e) != 0 ||
        (req->record != NULL && req->record(req->arg, e) != 0))
        return -1;
    return name_engines(fc, req, targets, n, results, serial, e);
}
