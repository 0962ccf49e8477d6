/* What the fleet's files share: its table, and how a change of it is begun and ended. */
#ifndef BATON_FLEET_MEMBERS_FLEET_PRIV_H
#define BATON_FLEET_MEMBERS_FLEET_PRIV_H

#include "base/mtx.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstream_state.h"

enum {
    FLEET_WHO_MAX = 200,  /* of a name in a message */
    FLEET_NAMED_MAX = 60, /* of a version's */
};

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_GRANTED };

/* All of it is guarded by the fleet's lock, like the table that it is in. */
struct upstream {
    /* What it is: written when it joins, no_pause_controller by fleet_pause_controller. */
    const char *name; /* borrowed; NULL: it has none */
    uint64_t hash;    /* of the name, or else of the index: for affinity */
    bool no_pause_controller;

    /* What keeps it out of rotation: written by fleet_move alone, once it has joined. */
    unsigned out;        /* set of enum upstream_out, without what fleet_out_of adds */
    uint64_t fence_life; /* n_lives when it was fenced for what it missed */

    /* What it said, and how often it said nothing (fleet.c). */
    uint64_t heard_us; /* 0: never */
    bool told;         /* saw.label is what it serves now, as far as it says */
    unsigned n_misses; /* in a row */
    unsigned n_silent; /* questions about itself, in a row, that gave no answer */
    uint64_t serial;
    struct upstream_saw saw;
    uint64_t n_missed;

    /* Permits (fleet_permits.c). */
    size_t n_outstanding[FLEET_LANES];
    uint64_t n_granted;

    /* Why it is out, in words: written by fleet_blame and those that clear it. */
    struct err error;     /* why it is out of step, fenced or refused; clean: it is not */
    int64_t error_wall_s; /* since when that is so; 0: it is not */
    uint64_t error_words; /* a hash of them */
    struct err no_answer; /* to the last that it was asked; clean: it answered */
    int64_t no_answer_wall_s;

    /* What it has besides the weights (fleet_outfit.c). */
    bool needs_outfit;
    uint64_t n_lives, fit_life; /* processes so far; of which `lack` speaks */
    uint64_t fit_change;
    struct err lack; /* clean: nothing */

    /* What was told of its state (fleet_moves.c). */
    enum upstream_state state, last; /* told last; seen last */
    uint64_t moves_us;               /* since when n_moves are counted */
    unsigned n_moves;
    uint64_t n_untold;
};

struct line {
    struct fleet_ticket *head, **tail;
    size_t n_waiting, n_running;
    uint64_t n_refused, n_cancelled;
};

struct fleet {
    struct mtx lock;            /* rank MTX_ADMISSION; guards down to the blank line */
    struct upstream *upstreams; /* [FLEET_MAX], of which n are used */
    size_t n, min_ready;
    struct line lines[FLEET_LANES];
    size_t turn; /* where the search for the least loaded begins: equals take turns */
    uint64_t serial, epoch, still_order, held_order;
    char label[FLEET_LABEL_MAX + 1]; /* of the version that is decided */
    bool decided, updating, still, closed, needs_outfit;
    bool held_back; /* generates for those without a gate wait here */

    struct fleet_cfg cfg; /* immutable */
};

struct fleet_who {
    char text[FLEET_WHO_MAX];
};

/* fleet_who - "http://10.0.0.1:8000", or "upstream 3" of one without a name. */
struct fleet_who fleet_who(const struct fleet *f, size_t upstream);

uint64_t fleet_mix(uint64_t x); /* spreads whatever bits differ over the whole word */

/* fleet_blame - why it is out of step from now on; the same words again are not news. */
void fleet_blame(struct upstream *u, const struct err *why);

/* fleet_error_of - what is wrong with it, and since when or when last: that it does not answer goes
 * first, and is forgotten when it does. */
const struct err *fleet_error_of(const struct upstream *u, int64_t *wall_s);

/* fleet_answered_locked - it answered somebody: unless its own questions go unanswered, or it is
 * down, nothing else is held against it. */
void fleet_answered_locked(struct upstream *u);

/* fleet_is_out - is any of these what keeps it out of rotation? Not of what fleet_out_of adds. */
static inline bool fleet_is_out(const struct upstream *u, unsigned any)
{
    return (u->out & any) != 0;
}

/* fleet_move - an event happened to one of the fleet's. Asserts that the lock is held, and what
 * upstream_move does. */
static inline void fleet_move(const struct fleet *f, struct upstream *u, enum upstream_event event)
{
    mtx_assert_held(&f->lock);
    upstream_move(&u->out, event);
}

/* fleet_is_alive - does it answer? fleet_is_synced - does it serve the fleet's version? */
static inline bool fleet_is_alive(const struct upstream *u)
{
    return !fleet_is_out(u, OUT_UNREACHED);
}

static inline bool fleet_is_synced(const struct upstream *u)
{
    return !fleet_is_out(u, OUT_OTHER_WEIGHTS);
}

/* fleet_is_sound - does what runs there run as it should? */
static inline bool fleet_is_sound(const struct upstream *u)
{
    return !fleet_is_out(u, OUT_UNSOUND);
}

/* fleet_is_fit - does it have all that it is to have besides the weights? */
static inline bool fleet_is_fit(const struct upstream *u)
{
    return !u->needs_outfit || (u->fit_life == u->n_lives && u->lack.code == ERR_NONE);
}

/* fleet_out_of - all that keeps it out of rotation: a set of enum upstream_out. */
static inline unsigned fleet_out_of(const struct upstream *u)
{
    return u->out | (u->n_silent >= FLEET_SILENT_MAX ? OUT_SILENT : 0) |
           (fleet_is_fit(u) ? 0 : OUT_ADAPTERS) | (u->saw.unready[0] != '\0' ? OUT_NOT_READY : 0);
}

static inline enum upstream_state fleet_state_of(const struct upstream *u)
{
    return upstream_state_of(fleet_out_of(u));
}

static inline bool fleet_in_rotation(const struct upstream *u)
{
    return fleet_out_of(u) == 0;
}

bool fleet_any_serving_locked(const struct fleet *f);

/* Each change of the table is made between these two: the second takes down what follows for the
 * fleet's version, lets go of the lock, and tells. */
struct fleet_change {
    size_t n;
    struct fleet_standing { /* a removed one that is sound serves what it has, and no more */
        bool sound, open;
    } before[FLEET_MAX], after[FLEET_MAX];
};
void fleet_change_begin(struct fleet *f, struct fleet_change *c); /* takes the lock */
void fleet_change_end(struct fleet *f, struct fleet_change *c);

/* ---- fleet_permits.c ---- */

/* fleet_grant_all - somebody entered rotation, who brought room. No lock held. */
void fleet_grant_all(struct fleet *f);

/* ---- fleet_version.c ---- */

/* fleet_name_of - "'step-3'", or "none that has a name". */
struct fleet_named {
    char text[FLEET_NAMED_MAX + 3];
};
struct fleet_named fleet_name_of(const char *label);

/* fleet_decide_locked - before the first update: which version is the fleet's, and who has it. */
void fleet_decide_locked(struct fleet *f);

/* fleet_waits_locked - is the version undecided only because some have not answered yet? */
bool fleet_waits_locked(const struct fleet *f);

/* fleet_undecided_locked - no version is decided, and some answered. @e  clean; then set, with
 * which versions there are and what to do */
bool fleet_undecided_locked(const struct fleet *f, struct err *e);

/* ---- fleet_outfit.c ---- */

/* fleet_blame_unfit_locked - that one lacks something, is not as still as the others, or refuses
 * our key, is told where nothing worse is. */
void fleet_blame_unfit_locked(struct fleet *f);

/* ---- fleet_moves.c ---- */

/* fleet_tell_moves - says what states have changed. No lock held. */
void fleet_tell_moves(struct fleet *f);

#endif
