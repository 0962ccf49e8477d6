/* The ring. An event's slot follows from its id, so there is no list. Events are copied under the
 * lock: one is at most 2 KiB, and there are a few in a second. */
#include "base/events.h"

#include "base/clock.h"
#include "base/mtx.h"

#include <stdatomic.h>
#include <string.h>

static struct {
    struct mtx lock; /* rank MTX_EVENTS; guards down to the blank line */
    struct cnd moved;
    uint64_t last; /* id of the latest event; before the first one first - 1 */
    bool woken;
    struct event ring[EVENTS_KEPT]; /* an event is at id % EVENTS_KEPT */

    uint64_t first;   /* the first id of this process; immutable once open */
    atomic_bool open; /* release after the lock was made; acquire by events_put */
} g;

void events_open(void)
{
    if (!atomic_load(&g.open)) {
        mtx_init(&g.lock, MTX_EVENTS);
        cnd_init(&g.moved);
    }
    g.first = (uint64_t)clock_wall_s() * EVENTS_IDS_EACH_S + 1;
    g.last = g.first - 1;
    g.woken = false;
    atomic_store_explicit(&g.open, true, memory_order_release);
}

void events_put(const char *name, const char *data, size_t len)
{
    struct event *e;

    if (!atomic_load_explicit(&g.open, memory_order_acquire))
        return;
    mtx_lock(&g.lock);
    e = &g.ring[++g.last % EVENTS_KEPT];
    e->id = g.last;
    e->name = name;
    e->len = len < sizeof e->data ? len : sizeof e->data;
    memcpy(e->data, data, e->len);
    cnd_signal(&g.moved);
    mtx_unlock(&g.lock);
}

uint64_t events_last(void)
{
    uint64_t last;

    mtx_lock(&g.lock);
    last = g.last;
    mtx_unlock(&g.lock);
    return last;
}

/* The id of the oldest event in the ring; last + 1 without any. */
static uint64_t oldest_locked(void)
{
    return g.last - g.first + 1 > EVENTS_KEPT ? g.last - EVENTS_KEPT + 1 : g.first;
}

bool events_has(uint64_t id)
{
    bool has;

    mtx_lock(&g.lock);
    has = id <= g.last && id + 1 >= oldest_locked();
    mtx_unlock(&g.lock);
    return has;
}

bool events_next(uint64_t after, struct event *out)
{
    const struct event *e;
    uint64_t oldest;
    bool has;

    mtx_lock(&g.lock);
    oldest = oldest_locked();
    has = after < g.last && g.last >= g.first;
    if (has) {
        e = &g.ring[(after + 1 > oldest ? after + 1 : oldest) % EVENTS_KEPT];
        out->id = e->id;
        out->name = e->name;
        out->len = e->len;
        memcpy(out->data, e->data, e->len);
    }
    mtx_unlock(&g.lock);
    return has;
}

void events_wait(uint64_t after, uint64_t deadline_us)
{
    bool in_time = true;

    mtx_lock(&g.lock);
    while (in_time && !g.woken && g.last <= after)
        in_time = cnd_wait(&g.moved, &g.lock, deadline_us);
    g.woken = false;
    mtx_unlock(&g.lock);
}

void events_wake(void)
{
    mtx_lock(&g.lock);
    g.woken = true;
    cnd_signal(&g.moved);
    mtx_unlock(&g.lock);
}
