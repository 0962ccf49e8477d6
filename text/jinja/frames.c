/* What Jinja2's idtracking.py finds, as far as a render shows it. The statements of a scope are
 * walked in their order, without the bodies that have scopes of their own; then each of these. */
#include "text/jinja/frames.h"

/* The names of the scopes under way, the innermost last. */
struct seen {
    uint32_t sym;
    bool unset;
};

struct frames {
    struct jinja *t;
    bool *known;       /* [n_symbols]: it is in `seen` */
    struct seen *seen; /* [n_symbols] */
    uint32_t n_seen;
    unsigned n_ifs; /* around the statement, within its scope */
    bool starved;
};

static void see(struct frames *f, uint32_t sym, bool unset)
{
    if (f->known[sym])
        return;
    f->known[sym] = true;
    f->seen[f->n_seen++] = (struct seen){sym, unset};
}

static void frames_load(struct frames *f, const struct node *n)
{
    if (n == NULL)
        return;
    if (n->kind == N_NAME)
        see(f, n->sym, false);
    for (uint32_t i = 0; i < n->n_kids; i++)
        frames_load(f, n->kids[i]);
}

/* @param  of a loop: the scope begins with it */
static void store(struct frames *f, const struct node *target, bool param)
{
    if (target->kind == N_TUPLE) {
        for (uint32_t i = 0; i < target->n_kids; i++)
            store(f, target->kids[i], param);
    } else { /* a namespace is read */
        see(f, target->sym, target->kind == N_NAME && !param && f->n_ifs == 0);
    }
}

static void walk(struct frames *f, const struct block *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct node *n = b->nodes[i];

        if (n->kind == N_IF || n->kind == N_OUTPUT || n->kind == N_FILTER_BLOCK)
            frames_load(f, n->kids[0]);
        else if (n->kind == N_FOR || n->kind == N_SET)
            frames_load(f, n->kids[1]);
        if (n->kind == N_SET || n->kind == N_SET_BLOCK)
            store(f, n->kids[0], false);
        else if (n->kind == N_MACRO)
            see(f, n->sym, f->n_ifs == 0);
        else if (n->kind == N_IF) {
            f->n_ifs++;
            walk(f, &n->body);
            walk(f, &n->other);
            f->n_ifs--;
        }
    }
}

/* Sets b->unset from what was seen since `from`. */
static void keep_unset(struct frames *f, struct block *b, uint32_t from)
{
    uint32_t n = 0;

    for (uint32_t i = from; i < f->n_seen; i++)
        n += f->seen[i].unset ? 1 : 0;
    if (n == 0)
        return;
    b->unset = arena_array(&f->t->arena, n, sizeof *b->unset);
    if (b->unset == NULL) {
        f->starved = true;
        return;
    }
    for (uint32_t i = from; i < f->n_seen; i++)
        if (f->seen[i].unset)
            b->unset[b->n_unset++] = f->seen[i].sym;
}

static void find_inner(struct frames *f, struct block *b);

/* A body with a scope of its own. @of  whose parameters it begins with, or NULL */
static void frame_find(struct frames *f, struct block *b, const struct node *of)
{
    uint32_t from = f->n_seen;
    unsigned n_ifs = f->n_ifs;

    f->n_ifs = 0;
    if (of != NULL && of->kind == N_FOR) {
        store(f, of->kids[0], true);
        see(f, f->t->loop_sym, false);
    }
    for (uint32_t i = 0; of != NULL && of->kind == N_MACRO && i < of->n_kids; i++)
        see(f, of->syms[i], false);
    for (uint32_t i = 0; of != NULL && of->kind == N_MACRO && i < of->n_kids; i++)
        frames_load(f, of->kids[i]);
    walk(f, b);
    keep_unset(f, b, from);
    find_inner(f, b);
    while (f->n_seen > from)
        f->known[f->seen[--f->n_seen].sym] = false;
    f->n_ifs = n_ifs;
}

static void find_inner(struct frames *f, struct block *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        struct node *n = b->nodes[i];

        if (n->kind == N_IF) {
            find_inner(f, &n->body);
            find_inner(f, &n->other);
        } else if (n->body.n > 0 || n->other.n > 0) {
            frame_find(f, &n->body, n);
            frame_find(f, &n->other, NULL);
        }
    }
}

int frames_find(struct jinja *t)
{
    struct frames f = {.t = t,
                       .known = arena_array(&t->arena, t->n_symbols, sizeof *f.known),
                       .seen = arena_array(&t->arena, t->n_symbols, sizeof *f.seen)};

    if (f.known == NULL || f.seen == NULL)
        return -1;
    frame_find(&f, &t->body, NULL);
    return f.starved ? -1 : 0;
}
