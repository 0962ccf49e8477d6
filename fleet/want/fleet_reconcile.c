/* The table of aspects, and the jobs that it starts. */
#include "fleet/want/fleet_reconcile.h"

#include "fleet/calls/fleet_priv.h"

/* What it needs besides the weights it gets while it runs, and stays so. */
static bool needs_locked(struct fleet_control *fc, struct upstream *upstream,
                         const struct upstream_info *info, enum fleet_need which)
{
    return info->alive && !info->removed && !info->may_sleep && !fc->sleep.weights &&
           !fc->sleep.kv && fleet_needs(fleet_of(fc), upstream, which) &&
           !fleet_engine_is_held_locked(fc, upstream) &&
           !fleet_pause_differs_locked(fc, upstream, info);
}

static bool caches_differ_locked(struct fleet_control *fc, struct upstream *upstream,
                                 const struct upstream_info *info)
{
    return needs_locked(fc, upstream, info, NEED_CACHES);
}

static bool adapters_differ_locked(struct fleet_control *fc, struct upstream *upstream,
                                   const struct upstream_info *info)
{
    return needs_locked(fc, upstream, info, NEED_ADAPTERS);
}

static bool name_differs_locked(struct fleet_control *fc, struct upstream *upstream,
                                const struct upstream_info *info)
{
    return needs_locked(fc, upstream, info, NEED_NAME);
}

/* Each row has one of `drive` and `give`. */
static const struct {
    fleet_differs_fn *differs_locked;
    void (*drive)(struct fleet_control *fc);
    bool (*give)(struct fleet_control *fc, struct upstream *upstream);
} aspects[ASPECTS] = {
    [ASPECT_PAUSE] = {fleet_pause_differs_locked, .drive = fleet_pause_drive},
    [ASPECT_SLEEP] = {fleet_sleep_differs_locked, .drive = fleet_sleep_drive},
    [ASPECT_OWN_UPDATE] = {fleet_own_update_differs_locked, .drive = fleet_own_updates_drive},
    [ASPECT_VERSION] = {fleet_seed_differs_locked, .drive = fleet_seed_drive},
    [ASPECT_CACHES] = {caches_differ_locked, .give = fleet_give_caches},
    [ASPECT_ADAPTERS] = {adapters_differ_locked, .give = fleet_give_adapter},
    [ASPECT_NAME] = {name_differs_locked, .give = fleet_give_name},
};

/* The first aspect from `from` in which the engine differs. ASPECTS: there is none. */
static enum aspect next_differing(struct fleet_control *fc, struct upstream *upstream,
                                  enum aspect from)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct upstream_info info;
    enum aspect a = from;

    fleet_info(fleet_of(fc), upstream, &info);
    while (a < ASPECTS && !aspects[a].differs_locked(fc, upstream, &info))
        a++;
    return a;
}

/* jobs */

/* It may be gone with its engine afterwards. */
static void end_task(struct fleet_task *task)
{
    struct fleet_control *fc = task->fc;

    mtx_lock(&fc->lock);
    task->running = false;
    mtx_unlock(&fc->lock);
    upstream_unref(task->upstream);
}

static void reconcile_run(void *arg)
{
    struct fleet_task *task = arg;
    enum aspect a;

    if (task->upstream == NULL)
        task->work(task->fc);
    else
        do
            a = next_differing(task->fc, task->upstream, ASPECTS_OF_ALL);
        while (a < ASPECTS && aspects[a].give(task->fc, task->upstream));
    end_task(task);
}

void fleet_task_start(struct fleet_task *task)
{
    struct fleet_control *fc = task->fc;
    struct err ignored = {0};
    bool starts;

    mtx_lock(&fc->lock);
    starts = !task->running;
    task->running = true;
    if (starts && task->upstream != NULL)
        (void)upstream_ref(task->upstream); /* until end_task */
    mtx_unlock(&fc->lock);
    if (!starts)
        return;
    task->job = (struct job){.run = reconcile_run, .arg = task};
    if (workers_post(fc->cfg.executor, &task->job, WORKERS_URGENT, &ignored) != 0)
        end_task(task);
}

void fleet_reconcile_init(struct fleet_control *fc)
{
    for (enum aspect a = 0; a < ASPECTS_OF_ALL; a++)
        fc->tasks[a] = (struct fleet_task){.fc = fc, .work = aspects[a].drive};
}

void fleet_reconcile_look(struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);

    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];
        enum aspect a = 0;

        while ((a = next_differing(fc, it, a)) < ASPECTS) {
            fleet_task_start(a < ASPECTS_OF_ALL ? &fc->tasks[a] : &fleet_engine(it)->task);
            a = a < ASPECTS_OF_ALL ? a + 1 : ASPECTS;
        }
    }
}
