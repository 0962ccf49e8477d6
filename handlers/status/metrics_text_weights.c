/* Metrics of weights, updates, IPC mappings and the NCCL group. */
#include "handlers/status/metrics_text_priv.h"

#include "control/weight_transfer.h"
#include "transport/ipc/cuda_ipc.h"
#include "transport/peer/seeder.h"
#include "weights/state/state_dir.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <string.h>

static void put_weights(struct store *store, struct buf *out)
{
    struct store_info info = {0};

    store_info(store, &info);
    prom_one(out, "baton_weights_serial", "gauge", "Serial of the served version, 0 for none",
             info.serial);
    prom_head(out, "baton_weights_state", "gauge", "1 for the state of the weights");
    for (int s = STORE_UNSYNCED; s < STORE_STATE_COUNT; s++)
        prom_u64(out, "baton_weights_state",
                 LABELS({"state", store_state_name((enum store_state)s)}),
                 info.state == (enum store_state)s);
    prom_one(out, "baton_weights_bytes", "gauge", "Bytes of the served version", info.nbytes);
    prom_one(out, "baton_weights_versions_alive", "gauge",
             "Versions in memory, with old ones that are still read", info.n_live);
    prom_one(out, "baton_weights_commits_total", "counter", "Versions committed", info.n_commits);
    if (info.committed_at_us > 0)
        prom_one_seconds(out, "baton_weights_age_seconds", "gauge", "Time since the last commit",
                         metrics_text_age_us(info.committed_at_us));
}

static void put_state(struct state_dir *state, struct buf *out)
{
    struct state_info info = {0};

    state_dir_info(state, &info);
    prom_one(out, "baton_journal_serial", "gauge", "Serial that the journal names, 0 for none",
             info.serial);
    prom_one(out, "baton_journal_failures_total", "counter",
             "Commits and labels refused because the journal could not be written",
             info.n_journal_failures);
    if (info.n_snapshots == 0)
        return;
    prom_one(out, "baton_snapshot_serial", "gauge",
             "Serial of the newest snapshot that is known to be good, 0 for none",
             info.snapshot_serial);
    prom_one(out, "baton_snapshots_written_total", "counter", "Snapshots written", info.n_written);
    prom_one(out, "baton_snapshots_given_up_total", "counter",
             "Snapshots given up because an update or a sleep needed their memory",
             info.n_given_up);
    prom_one(out, "baton_snapshot_failures_total", "counter",
             "Snapshots that could not be written, or older ones that could not be removed",
             info.n_failed);
}

static void put_seed(struct seeder *seeder, struct buf *out)
{
    struct seeder_info info = {0};

    seeder_info(seeder, &info);
    prom_one(out, "baton_seed_active", "gauge",
             "1 while a version of a peer is read, or peers are "
             "asked for one",
             info.state == SEED_SEEDING);
    prom_one(out, "baton_seed_versions_total", "counter", "Versions of peers committed",
             info.n_versions);
    prom_one(out, "baton_seed_failures_total", "counter", "How often a peer was left",
             info.n_failures);
    prom_one(out, "baton_seed_read_bytes_total", "counter", "Tensor bytes read of peers",
             info.nbytes_read);
}

static void put_update(struct updates *updates, struct buf *out)
{
    struct update_info info = {0};

    updates_current(updates, &info);
    prom_head(out, "baton_update_phase", "gauge", "1 for the phase of the open update");
    for (int p = UPDATE_NONE; p <= UPDATE_VERIFIED; p++)
        prom_u64(out, "baton_update_phase",
                 LABELS({"phase", update_phase_name((enum update_phase)p)}),
                 info.phase == (enum update_phase)p);
    prom_one(out, "baton_update_received_bytes", "gauge", "Bytes that the open update has received",
             info.nbytes_done);
    prom_one(out, "baton_update_expected_bytes", "gauge", "Bytes that the open update expects",
             info.nbytes_total);
    prom_one_seconds(out, "baton_update_lease_seconds", "gauge",
                     "Time until the open update's lease ends", info.lease_left_us);
}

static void put_updates(struct updates *updates, struct buf *out)
{
    static const char spent[] = "baton_update_seconds_total";
    struct updates_stats s = {0};

    updates_stats(updates, &s);
    prom_one(out, "baton_updates_started_total", "counter", "Updates started", s.n_started);
    prom_one(out, "baton_updates_committed_total", "counter", "Updates committed", s.n_committed);
    prom_one(out, "baton_updates_aborted_total", "counter", "Updates aborted", s.n_aborted);
    prom_one(out, "baton_updates_received_bytes_total", "counter", "Tensor bytes received",
             s.nbytes_received);
    prom_head(out, spent, "counter", "Time spent on updates, by phase");
    prom_seconds(out, spent, LABELS({"phase", "receive"}), s.receive_us);
    prom_seconds(out, spent, LABELS({"phase", "verify"}), s.verify_us);
    prom_seconds(out, spent, LABELS({"phase", "commit"}), s.commit_us);
}

static void put_changes(struct updates *updates, struct buf *out)
{
    static const char tensors[] = "baton_weights_tensors",
                      warnings[] = "baton_weights_change_warnings_total";
    struct updates_stats s = {0};

    updates_stats(updates, &s);
    prom_head(out, tensors, "gauge",
              "Tensors of the last commit, by their change since the version before it; all 0 if "
              "there was none");
    for (int i = 0; i < CHANGE_COUNT; i++)
        prom_u64(out, tensors, LABELS({"change", change_name((enum change)i)}), s.changes.n[i]);
    prom_one(out, "baton_weights_tensors_equal_to_another", "gauge",
             "Changed tensors of the last commit that have the bytes of another tensor",
             s.changes.n_equal_to_another);
    prom_head(out, warnings, "counter", "Commits with a warning about what they changed");
    for (int i = 0; i < CHANGE_WARNING_COUNT; i++)
        prom_u64(out, warnings, LABELS({"warning", change_warning_name((enum change_warning)i)}),
                 s.n_change_warnings[i]);
}

static void put_ipc(struct cuda_ipc_stats *s, struct buf *out)
{
#define LOAD(field) atomic_load_explicit(&s->field, memory_order_relaxed)
    prom_one(out, "baton_ipc_mappings_opened_total", "counter", "Mappings of trainers' memory made",
             LOAD(n_opened));
    prom_one(out, "baton_ipc_mappings_closed_total", "counter",
             "Mappings of trainers' memory undone", LOAD(n_closed));
    prom_one(out, "baton_ipc_mapped", "gauge", "Mappings of trainers' memory now", LOAD(n_mapped));
    prom_one(out, "baton_ipc_exports_released_total", "counter",
             "Exports whose counter was taken down", LOAD(n_exports_released));
    prom_one(out, "baton_ipc_exports_stuck_total", "counter",
             "Exports whose counter could not be reached: their trainer keeps that memory",
             LOAD(n_exports_stuck));
#undef LOAD
}

static void put_transfer(struct weight_transfer *t, struct buf *out)
{
    static const char *const states[] = {"none", "joining", "joined", "failed", "stuck"};
    const struct nccl_join_stats *s = weight_transfer_stats(t);
    const char *state = weight_transfer_state(t);

#define LOAD(field) atomic_load_explicit(&s->field, memory_order_relaxed)
    prom_head(out, "baton_nccl_group_state", "gauge", "1 for the state of the trainer's group");
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        prom_u64(out, "baton_nccl_group_state", LABELS({"state", states[i]}),
                 strcmp(state, states[i]) == 0);
    prom_one(out, "baton_nccl_joins_begun_total", "counter", "Joins of a group started",
             LOAD(n_begun));
    prom_one(out, "baton_nccl_joins_total", "counter", "Groups joined", LOAD(n_joined));
    prom_one(out, "baton_nccl_failures_total", "counter",
             "Groups that failed, before or after they were joined", LOAD(n_failed));
    prom_one(out, "baton_nccl_received_bytes_total", "counter", "Bytes received by broadcasts",
             LOAD(nbytes_received));
    prom_one(out, "baton_nccl_broadcasts_total", "counter", "Broadcasts received",
             LOAD(n_broadcasts));
#undef LOAD
}

void metrics_text_weights(const struct app_weights *w, struct buf *out)
{
    put_weights(w->store, out);
    if (w->state != NULL)
        put_state(w->state, out);
    put_update(w->updates, out);
    put_updates(w->updates, out);
    put_changes(w->updates, out);
    if (w->seeder != NULL)
        put_seed(w->seeder, out);
    if (w->ipc_stats != NULL)
        put_ipc(w->ipc_stats, out);
    if (w->transfer != NULL)
        put_transfer(w->transfer, out);
}
