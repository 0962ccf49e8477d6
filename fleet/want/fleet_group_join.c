/* How engines join a trainer's group and leave it. */
#include "fleet/want/fleet_group_join.h"

#include "base/clock.h"
#include "base/log.h"
#include "fleet/calls/fleet_locks.h"
#include "fleet/calls/fleet_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* join */

static int group_join_read_ranks(uint64_t *out, const struct fleet_result *result, struct err *e)
{
    const char *name = upstream_name(result->upstream);
    struct err why = {0};

    if (api_read_ranks(out, upstream_kind(result->upstream), result->text, result->text_len,
                       &why) != 0)
        return err_set(e, ERR_UPSTREAM, "", "%.100s: %.300s", name, why.msg);
    if (*out == 0)
        return err_set(e, ERR_NO_GPU, "",
                       "%.100s keeps its weights in host memory, and NCCL needs GPUs: start it "
                       "with --device cuda:0",
                       name);
    return *out < FLEET_WORLD_SIZE_MAX
               ? 0
               : err_set(e, ERR_UPSTREAM, "", "%.100s reports %" PRIu64 " ranks", name, *out);
}

/* @n_ranks  [n], of each target */
static int ask_ranks(struct fleet_control *fc, const struct fleet_target *targets, size_t n,
                     uint64_t *n_ranks, struct fleet_results *reply, struct err *e)
{
    if (fleet_query(fc, API_GET_RANKS, targets, n, fleet_step_us(fc), reply, e) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        struct fleet_result *r = &reply->list[i];

        if (r->outcome == FLEET_OK && group_join_read_ranks(&n_ranks[i], r, &r->why) != 0)
            r->outcome = FLEET_REFUSED;
    }
    if (!fleet_results_ok(reply, e))
        return -1;
    fleet_results_fini(reply);
    return 0;
}

/* The ranks of each engine follow those of the one before it. */
static int place_ranks(const struct fleet_join_request *req, struct fleet_target *targets, size_t n,
                       const uint64_t *n_ranks, struct err *e)
{
    uint64_t next = req->rank_offset;

    for (size_t i = 0; i < n; i++) {
        targets[i].ctx.has_rank_offset = true;
        targets[i].ctx.rank_offset = next;
        next += n_ranks[i];
    }
    if (next <= req->world_size && (req->offset_given || next == req->world_size))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/world_size",
                   "the %zu upstreams are ranks %" PRIu64 " to %" PRIu64
                   ", which with the trainer's before them make a world of %" PRIu64
                   ", not of %" PRIu64,
                   n, req->rank_offset, next - 1, next, req->world_size);
}

/* After a join that failed on some engines. */
static void leave_again(struct fleet_control *fc, const struct fleet_join_request *req,
                        const struct fleet_results *results)
{
    struct api_context ctx = {.group_name = req->group_name != NULL ? req->group_name : ""};
    struct fleet_target targets[FLEET_MAX];
    size_t n = 0;

    for (size_t i = 0; i < results->n; i++) {
        const struct fleet_result *r = &results->list[i];

        if (r->outcome == FLEET_OK || r->outcome == FLEET_UNKNOWN)
            targets[n++] = (struct fleet_target){.upstream = r->upstream, .ctx = ctx};
    }
    fleet_tell(fc, API_SHUTDOWN_TRANSFER, targets, n, FLEET_LEAVE_US);
}

/* Does every engine stay in the groups that it joined before? */
static bool keeps_groups(const struct fleet_target *targets, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!upstream_caps_of(targets[i].upstream)->joins_many_groups)
            return false;
    return true;
}

/* A join replaces the group before, also a join that failed: engines left that one first. */
static void forget_replaced(struct fleet_control *fc, const struct fleet_join_request *req,
                            const struct fleet_target *targets, size_t n)
{
    if (!keeps_groups(targets, n))
        fleet_forget_groups(fc);
    (void)fleet_forget_group(fc, req->group_name != NULL ? req->group_name : SGLANG_GROUP_NAME,
                             NULL);
}

/* Before the engines join: one that is restarted meanwhile may have missed it. */
static void fleet_group_join_make_group(struct fleet_group *g, struct fleet_control *fc,
                                        const struct fleet_join_request *req,
                                        const struct fleet_target *targets, size_t n,
                                        const uint64_t *n_ranks)
{
    struct upstream_info info;

    *g = (struct fleet_group){.packing = req->packing,
                              .ends_if_refused = req->ends_if_refused,
                              .world_size = req->world_size,
                              .rank_offset = req->rank_offset,
                              .began_us = clock_now_us()};
    if (req->group_name != NULL)
        (void)snprintf(g->name, sizeof g->name, "%s", req->group_name);
    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(fc), targets[i].upstream, &info);
        g->members[g->n_members++] = (struct fleet_group_member){
            .number = upstream_number(targets[i].upstream),
            .offset = targets[i].ctx.rank_offset,
            .n_ranks = n_ranks[i],
            .incarnation = info.incarnation,
        };
    }
}

int fleet_group_join(struct fleet_control *fc, const struct fleet_join_request *req,
                     struct api_object *native, struct fleet_results *reply, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    const struct fleet_handles *handles = req->handles;
    const struct api_join join = {.group = req->group_name,
                                  .by_handles = handles != NULL,
                                  .packed_given = handles != NULL && handles->on,
                                  .packed = handles != NULL && handles->packed};
    const struct api_args args = {.native = native, .join = &join};
    uint64_t n_ranks[FLEET_MAX] = {0};
    struct fleet_target targets[FLEET_MAX];
    struct fleet_group g;
    size_t n;

    if (fleet_reachable_quorum(fc, all, &args, targets, &n, e) != 0 ||
        (req->handles == NULL && (ask_ranks(fc, targets, n, n_ranks, reply, e) != 0 ||
                                  place_ranks(req, targets, n, n_ranks, e) != 0)))
        return -1;
    fleet_group_join_make_group(&g, fc, req, targets, n, n_ranks);
    if (fleet_request(fc, API_INIT_TRANSFER, targets, n, req->timeout_us + FLEET_GRACE_US, reply,
                      e) != 0)
        return -1;
    if (fleet_results_ok(reply, e)) {
        if (req->handles != NULL) {
            fleet_set_handles(fc, req->handles);
        } else {
            forget_replaced(fc, req, targets, n);
            fleet_add_group(fc, &g);
        }
        return 0;
    }
    if (req->handles == NULL) {
        leave_again(fc, req, reply);
        forget_replaced(fc, req, targets, n);
    }
    return -1;
}

/* leave */

/* Has the engine anything to undo? Not every kind keeps anything of a set-up for handles. */
static bool is_set_up(struct fleet_control *fc, const struct fleet_group *g, bool handles,
                      struct upstream *upstream)
{
    return fleet_group_has(fc, g, upstream) ||
           (handles && upstream_caps_of(upstream)->keeps_handle_setup);
}

/* Asks the engines that joined a group, or are set up for handles. It is forgotten already, or
 * marked as left, so that no tensors follow. */
static int ask_to_leave(struct fleet_control *fc, const struct fleet_group *g,
                        struct fleet_results *reply, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_target reachable[FLEET_MAX], targets[FLEET_MAX];
    size_t n = fleet_reachable(fc, all, NULL, reachable), n_targets = 0;
    struct fleet_handles handles;

    fleet_get_handles(fc, &handles);
    fleet_set_handles(fc, NULL);
    for (size_t i = 0; i < n; i++)
        if (is_set_up(fc, g, handles.set, reachable[i].upstream)) {
            targets[n_targets] = reachable[i];
            targets[n_targets++].ctx.group_name = g->name;
        }
    return fleet_request(fc, API_SHUTDOWN_TRANSFER, targets, n_targets, FLEET_LEAVE_US, reply, e);
}

int fleet_group_leave(struct fleet_control *fc, const char *name, struct fleet_results *reply,
                      struct err *e)
{
    struct fleet_group g;
    bool more;

    if (fleet_check_group_name(fc, name, e) != 0)
        return -1;
    do {
        fleet_results_fini(reply);
        more = fleet_forget_group(fc, name, &g) && name == NULL;
        if (ask_to_leave(fc, &g, reply, e) != 0 || !fleet_results_ok(reply, e))
            return -1;
    } while (more);
    return 0;
}

/* leave after a refusal */

/* A group that was left, and by which nothing is received any more: its engines are asked now. */
static bool next_to_ask(struct fleet_control *fc, struct fleet_group *out)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct fleet_transfer *t = &fc->transfer;

    for (size_t i = 0; i < t->n_groups; i++) {
        struct fleet_group *g = &t->groups[i];

        if (!g->left || g->asked || g->n_running > 0)
            continue;
        g->asked = true;
        *out = *g;
        out->list = NULL;
        return true;
    }
    return false;
}

/* A leave of the trainer asks those again that have not left. */
static void note_left(struct fleet_control *fc, uint64_t began_us,
                      const struct fleet_results *reply)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct fleet_group *g = fleet_group_since_locked(fc, began_us);
    struct fleet_group_member *m;

    for (size_t i = 0; g != NULL && i < reply->n; i++) {
        m = fleet_group_member_of(g, reply->list[i].upstream);
        if (m != NULL && reply->list[i].outcome == FLEET_OK)
            m->number = 0;
    }
}

/* One that has not left, as far as known: one that was not reached may have ended, or wait in NCCL.
 * @g       as it was before
 * @reason  in: of the request as a whole, ""; out
 * Returns: its name, valid until upstreams_free; NULL: all have left. */
static const char *find_staying(struct fleet_control *fc, const struct fleet_group *g,
                                const struct fleet_results *reply, const char **reason)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);

    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];
        const struct fleet_result *r = fleet_result_of(reply, it);

        if (r != NULL ? r->outcome == FLEET_OK
                      : upstream_is_removed(it) || !fleet_group_has(fc, g, it))
            continue;
        if (r != NULL && r->outcome == FLEET_SKIPPED)
            *reason = "its release has no call for that";
        else if (r != NULL)
            *reason = r->why.msg;
        else if (**reason == '\0')
            *reason = "it does not answer";
        return upstream_name(it);
    }
    return NULL;
}

/* @why  of the request as a whole, or clean. @out  [ERR_MSG_MAX] */
static void describe_leave(struct fleet_control *fc, const struct fleet_group *g,
                           const struct fleet_results *reply, const struct err *why, char *out)
{
    const char *reason = why->msg, *name = find_staying(fc, g, reply, &reason);

    if (name == NULL && why->code == ERR_NONE)
        (void)snprintf(out, ERR_MSG_MAX,
                       FLEET_GROUP_REFUSED ", so the upstreams have left the group, which NCCL "
                                           "reports there: join a new group");
    else
        (void)snprintf(out, ERR_MSG_MAX,
                       FLEET_GROUP_REFUSED ", and %.80s has not left the group (%.150s), so the "
                                           "broadcast may wait there: join a new group",
                       name != NULL ? name : "an upstream", reason);
}

/* @words  [ERR_MSG_MAX] out: of the last group; as it was if no engine was asked */
static void leave_refused(struct fleet_control *fc, char *words)
{
    struct fleet_group g;
    struct err busy = {0};

    if (fleet_op_lock(fc, NULL, "the end of a group", &busy) != 0)
        return;
    while (next_to_ask(fc, &g)) {
        fleet_results_auto reply = {0};
        struct err why = {0};

        (void)ask_to_leave(fc, &g, &reply, &why);
        note_left(fc, g.began_us, &reply);
        describe_leave(fc, &g, &reply, &why, words);
        log_line(LOG_WARN, "group.left", "%s", words);
    }
    fleet_op_unlock(fc);
}

void fleet_group_leave_refused(struct fleet_control *fc, const char *name, uint64_t sent_us,
                               struct err *e)
{
    char words[ERR_MSG_MAX] = FLEET_GROUP_REFUSED
        ", so the upstreams leave the group when what they receive by it has ended: join a new "
        "group";
    bool meant, running = false;
    struct fleet_group *g;

    mtx_lock(&fc->lock);
    g = fleet_any_group_locked(fc, name);
    meant = g != NULL && g->ends_if_refused && g->began_us <= sent_us && !g->asked;
    if (meant) {
        g->left = true;
        running = g->n_running > 0;
    }
    mtx_unlock(&fc->lock);
    if (!meant)
        return;
    if (!running)
        leave_refused(fc, words);
    if (e->code == ERR_GROUP_LEFT)
        return;
    err_append(e, "; ");
    err_append(e, words);
}

void fleet_group_end_receive(struct fleet_control *fc, uint64_t began_us)
{
    struct fleet_group *g;
    char words[ERR_MSG_MAX];
    bool leaves;

    mtx_lock(&fc->lock);
    g = fleet_group_since_locked(fc, began_us);
    leaves = g != NULL && --g->n_running == 0 && g->left;
    mtx_unlock(&fc->lock);
    if (leaves)
        leave_refused(fc, words);
}
