/* What an update knows of its parts, watched while everything may happen to it. */
#ifndef BATON_TESTS_UNIT_FLEET_UPDATE_FAULTS_WATCH_H
#define BATON_TESTS_UNIT_FLEET_UPDATE_FAULTS_WATCH_H

#include "tests/unit/fleet/update_faults_world.h"

/* The facts of a part: its weights (b as before, t torn, n new), a capital if it is out. Which may
 * follow on which, by kind: overwriting, two-phase. */
static const char *const moves[2] = {"bt bB bT tb tB tn tT nT BT", "bn bB nN"};
static bool reached[2][64]; /* the same, over all seeds */

static struct {
    char update_id[UPDATE_ID_MAX + 1]; /* of the last update */
    char parts[ENGINES_MAX];           /* as it was last seen */
} watched;

/* Is every change of a part one that may be? The caller holds the lock of the fleet's control. */
static void watch_parts(void)
{
    const struct fleet_session *s = w.fc->session != NULL ? w.fc->session : w.fc->ended[0];

    if (s == NULL)
        return;
    if (strcmp(watched.update_id, s->id) != 0) {
        (void)snprintf(watched.update_id, sizeof watched.update_id, "%s", s->id);
        memset(watched.parts, 'b', sizeof watched.parts);
    }
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];
        const char move[] = {watched.parts[i], (p->out ? "BTN" : "btn")[p->weights], '\0'};
        const char *found = strstr(moves[p->two_phase], move);

        watched.parts[i] = move[1];
        if (move[0] == move[1])
            continue;
        trace("part %zu: %s", i, move);
        if (found == NULL)
            fail_msg("seed %u: part %zu of kind %d: %s", w.seed, i, (int)p->two_phase, move);
        reached[p->two_phase][found - moves[p->two_phase]] = true;
    }
}

#endif
