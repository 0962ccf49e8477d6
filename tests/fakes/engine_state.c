/* What an engine is in, whatever the dialect: served version, open update, pause, sleep, adapters,
 * group. */
#include "tests/fakes/engine_ids.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void state_reset(struct engine *e)
{
    struct timespec now;

    id_make(e->boot_id);
    e->n_boots++;
    /* Unique, however fast the double restarts or another one replaces it. */
    (void)clock_gettime(CLOCK_REALTIME, &now);
    e->started_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9 + (double)e->n_boots / 100;
    e->has_label = e->o.label != NULL || e->o.dialect == SGLANG;
    (void)snprintf(e->label, sizeof e->label, "%s",
                   e->o.label != NULL ? e->o.label
                   : e->has_label     ? "default"
                                      : "");
    e->torn = false;
    memcpy(e->whole, e->label, sizeof e->whole);
    e->serial = 1;
    e->epoch++;
    e->weights++;
    cache_reset(&e->cache);
    e->phase = UPDATE_NONE;
    e->update_id[0] = '\0';
    e->n_received = 0;
    json_decref(e->group);
    json_decref(e->groups);
    e->group = e->groups = NULL;
    e->pause = PAUSE_NONE;
    e->asleep = 0;
    memset(e->adapters, 0, sizeof e->adapters);
}

void state_commit(struct engine *e, const char *label)
{
    e->has_label = label != NULL;
    (void)snprintf(e->label, sizeof e->label, "%s", label != NULL ? label : "");
    memcpy(e->whole, e->label, sizeof e->whole);
    e->torn = false;
    e->serial++;
    e->epoch++;
}

void state_set_label(struct engine *e, const char *label)
{
    e->has_label = label[0] != '\0';
    (void)snprintf(e->label, sizeof e->label, "%s", label);
    e->epoch++;
}

bool is_unfinished(const char *label)
{
    static const char prefix[] = "baton:unfinished:";

    return strncmp(label, prefix, sizeof prefix - 1) == 0;
}

void state_touch(struct engine *e)
{
    e->torn = true;
    e->epoch++;
}

void state_weights_changed(struct engine *e)
{
    e->weights++;
}

void state_preempt(struct engine *e)
{
    for (struct conn *c = e->conns; c != NULL; c = c->next)
        if (!c->dead && c->job != NULL && job_is_live(c, false))
            job_preempt(c);
}

bool state_holds_kv(const struct engine *e, bool preempted)
{
    for (const struct conn *c = e->conns; c != NULL; c = c->next)
        if (!c->dead && c->job != NULL &&
            (job_is_live(c, false) || (preempted && job_preempted(c))))
            return true;
    return false;
}

/* pause and sleep */

static void reply_paused(struct conn *c)
{
    static const char sglang[] = "{\"message\":\"Generation paused successfully.\","
                                 "\"status\":\"ok\"}";
    static const char vllm[] = "{\"status\":\"paused\"}";

    if (c->e->o.dialect == BATON)
        conn_reply_json(c, 200, baton_pause_json(c->e));
    else if (c->e->o.dialect == VLLM)
        conn_reply(c, 200, "application/json", vllm, sizeof vllm - 1);
    else
        conn_reply(c, 200, "application/json", sglang, sizeof sglang - 1);
}

void state_job_ended(struct engine *e)
{
    if (e->pause == PAUSE_WAIT && e->n_running > 0)
        return;
    for (struct conn *c = e->conns; c != NULL; c = c->next)
        if (!c->dead && c->draining)
            reply_paused(c);
}

void state_pause(struct conn *c, enum pause pause)
{
    struct engine *e = c->e;

    e->pause = pause;
    if (pause == PAUSE_ABORT)
        (void)state_abort(e, NULL, false);
    c->draining = true;
    state_job_ended(e);
}

static void unfreeze(struct engine *e)
{
    for (struct conn *c = e->conns; c != NULL; c = c->next)
        if (!c->dead && c->job != NULL && c->timer.at == 0)
            conn_arm(c, STEP_TOKEN, clock_now_us());
}

void state_resume(struct engine *e)
{
    e->pause = PAUSE_NONE;
    state_job_ended(e); /* nor does a pause wait any longer */
    unfreeze(e);
}

void state_sleep(struct engine *e, unsigned what)
{
    e->asleep |= what;
    if ((what & SLEEP_KV) != 0)
        cache_reset(&e->cache);
}

void state_wake(struct engine *e, unsigned what)
{
    e->asleep &= ~what;
    unfreeze(e);
}

static bool id_is_among(const struct conn *c, const json_t *ids)
{
    const json_t *id;
    size_t i;

    json_array_foreach(ids, i,
                       id) if (json_is_string(id) && job_is(c, json_string_value(id))) return true;
    return ids == NULL;
}

size_t state_abort(struct engine *e, const json_t *ids, bool queued)
{
    size_t n = 0;

    for (struct conn *c = e->conns; c != NULL; c = c->next) {
        if (c->dead || c->job == NULL || !job_is_live(c, queued) || !id_is_among(c, ids))
            continue;
        job_abort(c);
        n++;
    }
    return n;
}

size_t state_waiting(const struct engine *e)
{
    size_t n = 0;

    for (const struct conn *c = e->conns; c != NULL; c = c->next)
        n += !c->dead && c->job != NULL && job_is_live(c, true) && !job_is_live(c, false);
    return n;
}

/* adapters */

static struct adapter *named(struct engine *e, const char *name)
{
    for (size_t i = 0; i < ADAPTERS_MAX; i++)
        if (e->adapters[i].n_loads > 0 && strcmp(e->adapters[i].name, name) == 0)
            return &e->adapters[i];
    return NULL;
}

struct adapter *state_adapter(struct engine *e, const char *name)
{
    struct adapter *a = named(e, name);

    return a != NULL && a->loaded ? a : NULL;
}

struct adapter *state_adapter_load(struct engine *e, const char *name, const char *path)
{
    struct adapter *a = named(e, name);

    for (size_t i = 0; a == NULL && i < ADAPTERS_MAX; i++)
        if (e->adapters[i].n_loads == 0)
            a = &e->adapters[i];
    if (a == NULL)
        return NULL;
    a->loaded = true;
    a->n_loads++;
    (void)snprintf(a->name, sizeof a->name, "%s", name);
    (void)snprintf(a->path, sizeof a->path, "%s", path);
    return a;
}

/* the names that trainers send */

unsigned state_tags(const json_t *body)
{
    const json_t *tags = json_object_get(body, "tags"), *tag;
    unsigned what = json_array_size(tags) == 0 ? SLEEP_ALL : 0;
    size_t i;

    json_array_foreach(tags, i, tag)
    {
        const char *word = json_is_string(tag) ? json_string_value(tag) : "";

        what |= strcmp(word, "weights") == 0 ? SLEEP_WEIGHTS : 0;
        what |= strcmp(word, "kv_cache") == 0 ? SLEEP_KV : 0;
    }
    return what;
}

bool state_init(struct conn *c, const json_t *info, bool port_may_be_text)
{
    const json_t *port = json_object_get(info, "master_port");
    uint64_t offset = int_member(info, "rank_offset", c->e->o.dialect == BATON ? 1 : 0);
    uint64_t world = int_member(info, "world_size", 0);
    const char *id = c->e->o.dialect == BATON ? "nccl_unique_id" : "nccl_unique_id_b64";
    bool by_id = c->e->o.dialect != SGLANG && text_member(info, id, NULL) != NULL;

    if (!by_id && (text_member(info, "master_address", NULL) == NULL ||
                   !(json_is_integer(port) || (port_may_be_text && json_is_string(port))))) {
        conn_refuse(c, 400, "bad_request", "master_address or master_port is missing");
        return false;
    }
    if (offset == 0 || offset + c->e->o.world_size > world) {
        conn_refuse(c, 400, "bad_request", "%u ranks from %zu on are not in a world of %zu",
                    c->e->o.world_size, (size_t)offset, (size_t)world);
        return false;
    }
    json_decref(c->e->group);
    c->e->group = json_deep_copy(info);
    return true;
}

bool state_columns(struct conn *c, const json_t *body, const char *names, const char *dtypes)
{
    const char *const columns[] = {names, dtypes, "shapes"};
    size_t n = json_array_size(json_object_get(body, names));

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        const json_t *column = json_object_get(body, columns[i]);

        if (json_array_size(column) == n && n > 0)
            continue;
        conn_refuse(c, 400, "bad_request", "%s has %zu entries and %s %zu", columns[i],
                    json_array_size(column), names, n);
        return false;
    }
    return true;
}

/* They follow from the label, and from whether the weights are whole. */
json_t *state_checksums(const struct engine *e, const char *prefix)
{
    static const char *const names[] = {"model.embed_tokens.weight", "model.norm.weight"};
    const char *maker = e->torn ? "torn" : e->label;
    json_t *sums = must(json_object());
    char name[LABEL_MAX], sum[65];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        (void)snprintf(sum, sizeof sum, "%056x%08x", (unsigned)i, fnv1a_of(maker, strlen(maker)));
        (void)json_object_set_new(sums, name, must(json_string(sum)));
    }
    return sums;
}
