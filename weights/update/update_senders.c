/* Who brought what in a session: the ranks of the trainer that its requests name, and the ranks of
 * this server whose GPUs had tensor lists of their own. An incomplete update is explained by it. */
#include "weights/update/update_priv.h"

#include "base/utf8.h"
#include "memory/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENDERS_NAMED_MAX = 8, SENDER_TEXT_MAX = 96, REASON_SHOWN_MAX = 200 };

static bool is_trainer_rank(const struct update_sender *sender)
{
    return sender->place == NULL;
}

static struct update_sender *sender_find(const struct session *s, const char *place, uint32_t rank)
{
    for (uint32_t i = 0; i < s->n_senders; i++)
        if (s->senders[i].rank == rank && (s->senders[i].place == NULL) == (place == NULL))
            return &s->senders[i];
    return NULL;
}

/* Finds a sender, or adds it. @place  NULL: a rank of the trainer */
static int sender_add(const struct updates *u, struct session *s, const char *place, uint32_t rank,
                      struct err *e)
{
    const struct device *device = place != NULL ? store_device(u->cfg.store, rank) : NULL;

    if (s->senders == NULL) {
        s->senders = calloc(UPDATE_SENDERS_MAX, sizeof *s->senders);
        s->brought_by = calloc(u->model_spec->tensor_list->n_tensors, sizeof *s->brought_by);
        if (s->senders == NULL || s->brought_by == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory to count what each rank brings");
    }
    if (sender_find(s, place, rank) != NULL)
        return 0;
    s->senders[s->n_senders++] = (struct update_sender){
        .place = place, .gpu = device != NULL ? device_about(device)->uuid : NULL, .rank = rank};
    return 0;
}

int senders_declare(const struct updates *u, struct session *s, uint32_t n, struct err *e)
{
    for (uint32_t r = 0; r < n; r++)
        if (sender_add(u, s, NULL, r, e) != 0)
            return -1;
    s->n_trainer_ranks = n;
    return 0;
}

int senders_take_locked(struct updates *u, struct session *s, const struct update_job *job,
                        struct err *e)
{
    const struct update_chunk *c = job->chunk;

    mtx_assert_held(&u->lock);
    if (s->n_trainer_ranks > 0 && (!c->has_trainer_rank || c->trainer_rank >= s->n_trainer_ranks))
        return err_set(e, ERR_BAD_REQUEST, "/trainer_rank",
                       "update %s was started for %u ranks of a trainer: each request names its "
                       "trainer_rank, 0 to %u",
                       s->id, s->n_trainer_ranks, s->n_trainer_ranks - 1);
    if (c->has_trainer_rank)
        return sender_add(u, s, NULL, c->trainer_rank, e);
    for (uint32_t r = 0; c->ranks != NULL && r < c->n_ranks; r++)
        if (c->ranks[r].tensor_list != NULL &&
            sender_add(u, s, store_place_name(u->cfg.store, r), r, e) != 0)
            return -1;
    return 0;
}

/* The sender of what rank `rank` of this server gets from a chunk, or NULL. */
static struct update_sender *sender_of(const struct updates *u, const struct session *s,
                                       const struct update_chunk *c, uint32_t rank)
{
    if (c->has_trainer_rank)
        return sender_find(s, NULL, c->trainer_rank);
    return c->ranks == NULL ? NULL : sender_find(s, store_place_name(u->cfg.store, rank), rank);
}

static void update_senders_count(struct update_sender *sender, const struct tensor_list *list)
{
    if (sender == NULL || list == NULL)
        return;
    sender->n_tensors += list->n_tensors;
    sender->nbytes += list->nbytes;
    sender->refused = ERR_NONE;
}

void senders_queue_locked(const struct updates *u, struct session *s, const struct update_job *job)
{
    const struct update_chunk *c = job->chunk;

    for (uint32_t r = 0; s->senders != NULL && r < (c->ranks != NULL ? s->n_ranks : 1); r++) {
        const struct update_sender *sender = sender_of(u, s, c, r);
        const struct layout *l = job_layout(job, r);

        for (size_t i = 0; sender != NULL && l != NULL && i < l->n_dst_slots; i++)
            s->brought_by[l->dst_slots[i].index] = (uint16_t)(sender - s->senders + 1);
    }
}

void senders_release_locked(struct session *s, const struct update_job *job)
{
    for (uint32_t k = 0; s->senders != NULL && k < job->n_layouts; k++)
        for (size_t i = 0; job->layouts[k] != NULL && i < job->layouts[k]->n_dst_slots; i++)
            s->brought_by[job->layouts[k]->dst_slots[i].index] = 0;
}

/* Which rank of the trainer, if not this one, has sent all tensors of a part, or is about to?
 * @ranks  of this server, whose GPUs or host get the part */
static uint32_t part_sent_by(const struct session *s, const struct update_sender *self,
                             const struct part *part, uint32_t first_rank, uint32_t n_ranks)
{
    const struct update_sender *other = NULL;
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    for (uint32_t k = 0; k < n; k++) {
        uint16_t sender = s->brought_by[targets[k]];

        if (sender == 0 || &s->senders[sender - 1] == self ||
            !is_trainer_rank(&s->senders[sender - 1]) ||
            !tensor_states_has_locked(s, targets[k], first_rank, n_ranks))
            return TENSOR_LIST_NO_TENSOR;
        other = &s->senders[sender - 1];
    }
    return other != NULL ? other->rank : TENSOR_LIST_NO_TENSOR;
}

static int layout_find_repeats(struct updates *u, const struct session *s, struct layout **l,
                               const struct tensor_list *list, const struct update_sender *self,
                               uint32_t first_rank, uint32_t n_ranks, struct err *e)
{
    uint32_t *sent_by = malloc(list->n_tensors * sizeof *sent_by);
    struct layout *repeating = NULL;
    bool any = false;
    int rc = 0;

    if (sent_by == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk of %u tensors",
                       list->n_tensors);
    for (uint32_t i = 0; i < list->n_tensors; i++) {
        sent_by[i] = part_sent_by(s, self, &(*l)->parts[i], first_rank, n_ranks);
        any = any || sent_by[i] != TENSOR_LIST_NO_TENSOR;
    }
    if (any)
        rc = layout_repeating(&repeating, *l, u->model_spec, list, sent_by, e);
    free(sent_by);
    if (rc == 0 && any) {
        layout_unref(*l);
        *l = repeating;
    }
    return rc;
}

int senders_repeats_locked(struct updates *u, const struct session *s, struct update_job *job,
                           struct err *e)
{
    const struct update_chunk *c = job->chunk;
    const struct update_sender *self;

    mtx_assert_held(&u->lock);
    if (!c->has_trainer_rank || s->senders == NULL)
        return 0;
    self = sender_find(s, NULL, c->trainer_rank);
    for (uint32_t k = 0; k < job->n_layouts; k++) {
        bool all = c->ranks == NULL;

        if (job->layouts[k] != NULL &&
            layout_find_repeats(u, s, &job->layouts[k], chunk_tensor_list(c, k), self, all ? 0 : k,
                                all ? s->n_ranks : 1, e) != 0)
            return -1;
    }
    return 0;
}

void senders_arrive_locked(const struct updates *u, struct session *s, const struct update_job *job)
{
    const struct update_chunk *c = job->chunk;

    if (s->senders == NULL)
        return;
    for (uint32_t r = 0; r < (c->ranks != NULL ? s->n_ranks : 1); r++)
        update_senders_count(sender_of(u, s, c, r), chunk_tensor_list(c, r));
}

void senders_refuse_locked(const struct updates *u, struct session *s, const struct update_job *job,
                           const struct err *why)
{
    const struct update_chunk *c = job->chunk;
    struct update_sender *sender = NULL;

    if (s->senders != NULL && (c->has_trainer_rank || c->refused_rank > 0))
        sender = sender_of(u, s, c, c->refused_rank > 0 ? c->refused_rank - 1 : 0);
    if (sender == NULL)
        return;
    sender->refused = why->code;
    s->refusal = *why;
}

void senders_info_locked(const struct session *s, struct update_info *out)
{
    out->n_senders = s->n_senders;
    if (s->n_senders > 0)
        memcpy(out->senders, s->senders, s->n_senders * sizeof out->senders[0]);
}

/* explanations */

static void sender_text(char out[SENDER_TEXT_MAX], const struct update_sender *sender)
{
    if (is_trainer_rank(sender))
        (void)snprintf(out, SENDER_TEXT_MAX, "trainer rank %u", sender->rank);
    else
        (void)snprintf(out, SENDER_TEXT_MAX, "%s (%.60s)", sender->place,
                       sender->gpu != NULL ? sender->gpu : "no GPU");
}

/* Adds a reason to an error. */
__attribute__((format(printf, 2, 3))) static void append(struct err *e, const char *fmt, ...)
{
    struct err before = *e;
    char more[ERR_MSG_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(more, sizeof more, fmt, args);
    va_end(args);
    err_clear(e);
    (void)err_set(e, before.code, before.field, "%s%s", before.msg, more);
}

/* The trainer's ranks that have sent nothing: "trainer ranks 1, 2 have". Returns their number. */
static uint32_t silent_text(char out[SENDER_TEXT_MAX], const struct session *s)
{
    char ranks[SENDER_TEXT_MAX - 24] = "";
    uint32_t n = 0;
    size_t len = 0;

    for (uint32_t i = 0; i < s->n_senders; i++) {
        if (!is_trainer_rank(&s->senders[i]) || s->senders[i].n_tensors > 0)
            continue;
        if (n++ < SENDERS_NAMED_MAX)
            len += (size_t)snprintf(ranks + len, sizeof ranks - len, "%s%u", n > 1 ? ", " : "",
                                    s->senders[i].rank);
    }
    if (n > SENDERS_NAMED_MAX)
        (void)snprintf(ranks + len, sizeof ranks - len, " and %u more", n - SENDERS_NAMED_MAX);
    (void)snprintf(out, SENDER_TEXT_MAX, "trainer rank%s %s %s", n > 1 ? "s" : "", ranks,
                   n > 1 ? "have" : "has");
    return n;
}

static const struct update_sender *refused_sender(const struct session *s)
{
    for (uint32_t i = 0; i < s->n_senders; i++)
        if (s->senders[i].refused != ERR_NONE)
            return &s->senders[i];
    return NULL;
}

/* A rank of this server for which no list came, though others had theirs; or n_ranks. */
static uint32_t rank_without_list(const struct updates *u, const struct session *s)
{
    uint32_t n_without = 0, first = s->n_ranks;

    for (uint32_t r = s->n_ranks; r > 0; r--) {
        if (sender_find(s, store_place_name(u->cfg.store, r - 1), r - 1) != NULL)
            continue;
        first = r - 1;
        n_without++;
    }
    return n_without < s->n_ranks ? first : s->n_ranks;
}

void senders_explain_locked(const struct updates *u, const struct session *s, uint32_t missing,
                            struct err *e)
{
    const struct update_sender *refused = refused_sender(s);
    uint32_t rank = rank_without_list(u, s);
    char text[SENDER_TEXT_MAX];

    if (silent_text(text, s) > 0)
        append(e, "; %s sent no tensors", text);
    if (rank < s->n_ranks)
        append(e, "; no tensors came for %s (%s)", store_place_name(u->cfg.store, rank),
               device_about(store_device(u->cfg.store, rank))->uuid);
    if (refused != NULL) {
        sender_text(text, refused);
        append(e, "; the last request of %s was refused: %.*s", text, REASON_SHOWN_MAX,
               s->refusal.msg);
    }
    if (missing != TENSOR_LIST_NO_TENSOR && u->last_brought_by != NULL &&
        u->last_brought_by[missing] > 0) {
        sender_text(text, &u->last_senders[u->last_brought_by[missing] - 1]);
        append(e, "; %s brought it in the last update", text);
    }
}

int senders_check_locked(struct updates *u, struct session *s, struct err *e)
{
    const struct tensor_list *tensor_list = u->model_spec->tensor_list;
    const char *first = NULL;
    uint32_t n_missing = tensor_states_missing_locked(u, s, &first, 1);
    char text[SENDER_TEXT_MAX];

    if (s->n_trainer_ranks == 0 || silent_text(text, s) == 0)
        return 0;
    if (n_missing > 0)
        (void)err_set(e, ERR_INCOMPLETE, "", "%u of %u tensors are missing, '%.*s' first",
                      n_missing, tensor_list->n_tensors, utf8_cut_name(first), first);
    else
        (void)err_set(e, ERR_INCOMPLETE, "",
                      "the update was started for %u ranks of a trainer and is not complete",
                      s->n_trainer_ranks);
    senders_explain_locked(u, s, n_missing > 0 ? s->missing_from : TENSOR_LIST_NO_TENSOR, e);
    return -1;
}

/* Without memory for it, the next incomplete update is explained less well. */
void senders_keep_locked(struct updates *u, struct session *s)
{
    if (s->partial)
        return;
    free(u->last_brought_by);
    u->last_brought_by = NULL;
    if (s->senders == NULL)
        return;
    if (u->last_senders == NULL)
        u->last_senders = calloc(UPDATE_SENDERS_MAX, sizeof *u->last_senders);
    if (u->last_senders == NULL)
        return;
    memcpy(u->last_senders, s->senders, s->n_senders * sizeof *s->senders);
    u->last_brought_by = s->brought_by;
    s->brought_by = NULL;
}
