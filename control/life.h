/* Life cycle: starting -> serving -> leaving -> draining; a server without --drain-delay skips
 * leaving. Any thread may ask; only main moves it. */
#ifndef BATON_CONTROL_LIFE_H
#define BATON_CONTROL_LIFE_H

#include "base/id.h"

#include <stdatomic.h>
#include <stdint.h>

enum life_state {
    LIFE_STARTING,
    LIFE_SERVING,
    LIFE_LEAVING, /* not ready any more, so that load balancers go elsewhere; serves as before */
    LIFE_DRAINING
};

struct life {
    char boot_id[ID_LEN + 1]; /* immutable after life_init */
    uint64_t started_us;      /* immutable */
    int64_t started_wall_s;   /* immutable */
    atomic_int state;         /* release by main, acquire by readers */
};

void life_init(struct life *l);
enum life_state life_state(const struct life *l);
void life_set(struct life *l, enum life_state state); /* asserts that it only moves forward */
const char *life_state_name(enum life_state state);

#endif
