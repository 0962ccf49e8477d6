/* The data plane without sockets and without a model: a fake engine whose tokens the test makes,
 * and requests whose HTTP server is the test. */
#ifndef BATON_TESTS_FAKES_DATA_PLANE_H
#define BATON_TESTS_FAKES_DATA_PLANE_H

#include "base/mtx.h"
#include "control/life.h"
#include "engine/gen.h"
#include "engine/generation.h"
#include "handlers/app.h"
#include "handlers/route.h"
#include "http/http_request_priv.h"

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { PLANE_SEQS_MAX = 4096, PLANE_VOCAB = 1024, PLANE_CONTEXT = 64 };

struct plane_x;

struct plane_seq {
    struct gen_request r;
    struct gen_record *rec; /* NULL once ended */
    bool cancelled;
};

struct plane {
    struct engine engine; /* first */
    struct mtx lock;      /* rank MTX_ENGINE; guards down to the blank line */
    struct cnd moved;
    struct plane_seq seqs[PLANE_SEQS_MAX]; /* id - 1 */
    uint64_t n_seqs;
    uint64_t n_cancels;
    uint64_t refuse_from; /* submit refuses from this id on; 0: never */

    struct plane_x
        *hang_up; /* its client disconnects while submit runs; NULL: none. Set before it is sent */

    pthread_barrier_t all_here; /* every thread of the text pool, and the test */
    struct app app;
    struct app_weights weights;   /* of app: it has none */
    struct app_generate generate; /* of app */
    struct life life;
};

/* One request as the HTTP server would hold it. */
struct plane_x {
    struct http_request_http_server http_server;
    struct http_request *x; /* the HTTP server's reference */
    struct mtx lock;        /* rank MTX_LEAF; guards `woken` */
    struct cnd woken;
    uint64_t n_woken;
};

/* plane_new - an app with a fake engine. @tokenizer  may be NULL */
struct plane *plane_new(size_t n_permits, size_t n_queue, const struct tokenizer *tokenizer);
void plane_free(struct plane *p); /* every generation has ended */

/* plane_send - dispatch a body to a handler as the HTTP server does; an immediate refusal is
 * answered. */
void plane_send(struct plane *p, struct plane_x *px, const struct route *route, const char *body);
void plane_x_fini(struct plane_x *px);

/* Waits fail the test after a minute. */
void plane_wait_submitted(struct plane *p, uint64_t n_seqs);
void plane_wait_cancels(struct plane *p, uint64_t n_cancels);
void plane_wait_answer(struct plane_x *px);                  /* answered, or a stream opened */
json_t *plane_wait_reply(struct plane_x *px, int *status);   /* new; NULL when the body is empty */
char *plane_wait_stream(struct plane_x *px, bool *complete); /* the caller's; all of it */
void plane_wait_stream_bytes(struct plane_x *px, char *out, size_t cap); /* some of it, NUL added */

/* plane_settle - wait until the pools have run all that was posted to them so far. */
void plane_settle(struct plane *p);

/* The caller of these acts as the engine's thread. ids begin at 1. */
void plane_tokens(struct plane *p, uint64_t id, const uint32_t *ids, uint32_t n, uint64_t serial);
void plane_end(struct plane *p, uint64_t id, enum gen_finish finish);
/* plane_last_token - the token that ends it, and the end; the pools have seen the one before the
 * other. */
void plane_last_token(struct plane *p, uint64_t id, uint32_t last, uint64_t serial,
                      enum gen_finish finish);
/* plane_stop_text - the next plane_end reports that this stop string matched. */
void plane_stop_text(struct plane *p, uint64_t id, uint32_t i_stop, uint32_t cut);

#endif
