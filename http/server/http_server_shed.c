/* Which connections are closed to make space for others.
 *
 * None is while there are enough. When few are left, each answer ends its connection, and
 * connections give way in this order:
 *   1. the one that has been silent longest; almost at once if a client waits for the last place;
 *   2. the one that has been idle longest since its last answer;
 *   3. the oldest of those that have sent a part of a head, which get an answer; soon if a client
 *      waits for the last place;
 *   4. the oldest of those whose body is awaited though their request can do without it (health,
 *      control, or after a refusal), which get an answer.
 * A connection whose request is at work never gives way: its deadlines end it. So a client that
 * sends its next request soon still finds its connection, and one that only occupies a place has it
 * for about a second. */
#include "base/clock.h"
#include "http/server/http_server_priv.h"

#include <linux/tcp.h> /* glibc's struct tcp_info ends before tcpi_bytes_received */
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

void conn_queues_init(struct shard *s)
{
    s->silent.end = &s->silent.first;
    s->begun.end = &s->begun.first;
    s->kept.end = &s->kept.first;
    s->unread.end = &s->unread.first;
}

static void queue_leave(struct conn *c)
{
    if (c->queue == NULL)
        return;
    *c->prev_queued = c->next_queued;
    if (c->next_queued != NULL)
        c->next_queued->prev_queued = c->prev_queued;
    else
        c->queue->end = c->prev_queued;
    c->queue = NULL;
    c->shard->n_queued--;
}

/* A connection that is already in the queue keeps its position. */
static void queue_enter(struct conn *c, struct conn_queue *q)
{
    if (c->dead || c->queue == q)
        return;
    queue_leave(c);
    c->queue = q;
    c->queued_us = clock_now_us();
    c->next_queued = NULL;
    c->prev_queued = q->end;
    *q->end = c;
    q->end = &c->next_queued;
    c->shard->n_queued++;
}

void conn_busy(struct conn *c)
{
    queue_leave(c);
}

/* The first head is due from the accept on, another one from its first byte. */
void conn_begin(struct conn *c)
{
    if (c->queue == &c->shard->kept)
        conn_deadline(c, c->shard->http_server->cfg.header_timeout_us);
    queue_enter(c, &c->shard->begun);
}

void conn_silent(struct conn *c)
{
    queue_enter(c, &c->shard->silent);
}

void conn_kept(struct conn *c)
{
    queue_enter(c, &c->shard->kept);
}

void conn_unread(struct conn *c)
{
    queue_enter(c, &c->shard->unread);
}

static size_t n_living(const struct shard *s)
{
    return s->n_conns - s->n_dead + s->n_greetings;
}

bool conn_crowded(const struct shard *s)
{
    return n_living(s) > s->n_conns_crowded;
}

/* Does a client wait for a place? At the limit this is checked again soon: nothing is accepted, so
 * no event reports a new client. */
static bool place_wanted(const struct shard *s, uint64_t *wait_us)
{
    struct pollfd next = {.fd = s->listen_fd, .events = POLLIN};

    if (n_living(s) < s->n_conns_limit)
        return false;
    if (*wait_us > HTTP_SERVER_SILENT_US_MIN)
        *wait_us = HTTP_SERVER_SILENT_US_MIN;
    return poll(&next, 1, 0) > 0;
}

/* How long a silent connection may stay. */
static uint64_t silent_us(const struct shard *s, uint64_t *wait_us)
{
    return place_wanted(s, wait_us) ? HTTP_SERVER_SILENT_US_MIN : HTTP_SERVER_KEPT_US_MIN;
}

/* How long a connection that has sent a part of a head may stay: short while clients wait, since
 * each of many such connections would hold its slot for that long. */
static uint64_t begun_us(const struct shard *s, uint64_t *wait_us)
{
    if (s->begun.first == NULL)
        return HTTP_SERVER_BEGUN_US_MIN;
    return place_wanted(s, wait_us) ? HTTP_SERVER_WANTED_US_MIN : HTTP_SERVER_BEGUN_US_MIN;
}

/* Have least_us passed? If not, lowers *wait_us to the time that is left. */
static bool since(uint64_t from_us, uint64_t least_us, uint64_t *wait_us)
{
    uint64_t age_us = clock_now_us() - from_us;

    if (age_us < least_us && least_us - age_us < *wait_us)
        *wait_us = least_us - age_us;
    return age_us >= least_us;
}

static bool may_go(const struct conn_queue *q, uint64_t least_us, uint64_t *wait_us)
{
    return q->first != NULL && since(q->first->queued_us, least_us, wait_us);
}

/* It may have sent bytes for which this iteration has no event, or which libmicrohttpd read before
 * the event was seen. */
bool conn_begun(const struct conn *c)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    if (c->queue == &c->shard->begun || conn_has_unread(c))
        return true;
    return c->tcp && c->queue == &c->shard->silent &&
           getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
           info.tcpi_bytes_received > 0;
}

/* libmicrohttpd closes it in its next run. */
static void give_way(struct conn *c)
{
    if (c->req == NULL && conn_begun(c))
        conn_begin(c);
    else
        conn_kill(c);
}

static void give_up_head(struct conn *c)
{
    struct err e = {0};

    (void)err_set(&e, ERR_TIMEOUT, "",
                  "too many connections are open to wait longer for the head of the request");
    conn_cut_head(c, &e);
}

/* It stays for a while as a silent one, so that a late piece of the body does not destroy the
 * answer. */
static void give_up_body(struct conn *c)
{
    struct err e = {0};

    (void)err_set(&e, ERR_OVERLOADED, "",
                  "too many connections are open to wait longer for the body");
    conn_cut_body(c, &e);
    if (c->req == NULL || !c->req->raw_sent) {
        conn_kill(c);
        return;
    }
    conn_deadline(c, HTTP_SERVER_GRACE_US);
    conn_silent(c);
}

/* False: none may be closed yet. While there is a silent one, which is not for long, no other is
 * closed. */
static bool shed_one(struct shard *s, uint64_t *wait_us)
{
    if (s->greetings != NULL) {
        if (!since(s->greetings->since_us, silent_us(s, wait_us), wait_us))
            return false;
        greeting_close(s->greetings);
        accept_begin(s);
    } else if (s->silent.first != NULL) {
        if (!may_go(&s->silent, silent_us(s, wait_us), wait_us))
            return false;
        give_way(s->silent.first);
    } else if (may_go(&s->kept, HTTP_SERVER_KEPT_US_MIN, wait_us)) {
        give_way(s->kept.first);
    } else if (may_go(&s->begun, begun_us(s, wait_us), wait_us)) {
        give_up_head(s->begun.first);
    } else if (may_go(&s->unread, HTTP_SERVER_UNREAD_US_MIN, wait_us)) {
        give_up_body(s->unread.first);
    } else {
        return false;
    }
    return true;
}

uint64_t conn_shed(struct shard *s)
{
    uint64_t wait_us = CLOCK_NEVER;

    while (conn_crowded(s) && shed_one(s, &wait_us))
        wait_us = CLOCK_NEVER;
    return wait_us;
}
