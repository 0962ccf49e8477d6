/* The end of an update over sockets: the answer to the request, and replies to a trainer whose
 * update failed. */
#include "handlers/update/zmq_session.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/source_threads.h"
#include "handlers/app.h"
#include "handlers/update/update_requester.h"
#include "handlers/update/zmq_request.h"
#include "transport/ipc/ref_counter.h"

#include <stdio.h>
#include <time.h>

enum {
    UNMAP_POLL_NS = 1000000, /* between two checks whether the worker has unmapped the buffer */
    UNMAP_POLLS = 5000,
    REPLY_TEXT_MAX = ERR_MSG_MAX + 64
};

/* The trainer frees its buffer when it receives the error: nothing may have it mapped then. */
static void wait_unmapped(struct zmq_session *p, struct update_info *info)
{
    struct timespec poll_interval = {0, UNMAP_POLL_NS};
    struct err ignored = {0};

    for (uint32_t i = 0; i < UNMAP_POLLS; i++) {
        if (updates_get(p->app->weights->updates, p->id, info, &ignored) != 0 ||
            info->mappings.n_mapped == 0)
            return;
        (void)nanosleep(&poll_interval, NULL);
    }
    log_line(LOG_WARN, "update.still_mapped", "a trainer's buffer is mapped after update %s ended",
             p->id);
}

/* A received handle keeps the trainer's memory until its counter is decremented. */
static void zmq_session_drop_exports(struct zmq_session *p)
{
    for (uint32_t i = 0; i < p->n_ports && p->state == ZMQ_EXPECT_TENSORS && !p->submitted; i++) {
        struct err e = {0};

        if (p->buffers[i].ref_name[0] != '\0' &&
            ref_counter_release(p->buffers[i].ref_name, p->buffers[i].ref_slot, &e) != 0)
            log_line(LOG_WARN, "ipc.counter_stuck", "%.300s", e.msg);
    }
}

void zmq_session_reply(struct zmq_session *p, const struct update_info *info, const struct err *e)
{
    struct update_requester *asker = p->asker;

    p->asker = NULL;
    update_reply_done(asker, info, e);
}

/* Tensors' names and shapes are not members of the request. */
static void set_request_field(struct err *e)
{
    if (e->field[0] != '\0')
        (void)snprintf(e->field, sizeof e->field, ZMQ_SESSION_FIELD);
}

void zmq_session_fail(struct zmq_session *p, const struct err *cause)
{
    struct update_info info = {.phase = UPDATE_NONE};
    struct err ignored = {0};

    p->cause = *cause;
    p->n_none = p->state == ZMQ_EXPECT_COMMIT;
    set_request_field(&p->cause);
    if (p->id[0] != '\0') {
        (void)updates_fail(p->app->weights->updates, p->id, &p->cause, &info, &ignored);
        wait_unmapped(p, &info);
    }
    zmq_session_drop_exports(p);
    p->state = ZMQ_FAILED;
    zmq_session_reply(p, &info, &p->cause);
}

/* Replies to one socket of a failed update. Returns true if the trainer will send nothing more
 * there: it has sent an error, which needs no reply, or None twice. */
static bool refuse_message(struct zmq_session *p, uint32_t i, uint32_t *n_none)
{
    char text[REPLY_TEXT_MAX];
    struct zmq_message m = {0};
    struct err ignored = {0};
    size_t nbytes = 0;
    const void *data = zmq_ports_message(p->ports, i, &nbytes);
    bool known;
    int len;

    if (data == NULL)
        return zmq_ports_lost(p->ports, i, NULL);
    known = zmq_message_read(&m, data, nbytes, &ignored) == 0;
    zmq_message_fini(&m);
    if (known && m.kind == ZMQ_MESSAGE_ERROR)
        return true;
    if (known && m.kind == ZMQ_MESSAGE_NONE)
        ++*n_none;
    len = snprintf(text, sizeof text, "baton: %s: %s", err_wire_name(p->cause.code), p->cause.msg);
    zmq_ports_reply(p->ports, i, text, (size_t)len);
    return *n_none > 1;
}

/* The trainer waits for replies without a deadline, so each of its messages is answered with the
 * error until it stops, dies, or ZMQ_REFUSE_MS have passed. For a socket that no process has
 * bound, this waits only until p->connect_us. */
void zmq_session_refuse_remaining(struct zmq_session *p)
{
    uint64_t deadline_us = clock_after_us(ZMQ_REFUSE_MS * 1000ULL);
    uint32_t n_none[ZMQ_SESSION_PORTS_MAX], n_left = p->n_ports;
    bool ended[ZMQ_SESSION_PORTS_MAX] = {false};

    for (uint32_t i = 0; i < p->n_ports; i++)
        n_none[i] = p->n_none;
    while (n_left > 0 && !source_threads_stopping(p->pool) && !clock_passed(deadline_us)) {
        n_left = 0;
        for (uint32_t i = 0; i < p->n_ports; i++) {
            ended[i] = ended[i] || refuse_message(p, i, &n_none[i]);
            if (!ended[i] && (zmq_ports_connected(p->ports, i) || !clock_passed(p->connect_us)))
                n_left++;
        }
        if (n_left > 0)
            zmq_ports_wait(p->ports, ZMQ_SLICE_MS);
    }
}
