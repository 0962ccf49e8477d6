/* Doubles of engines for a simulation with a fake clock: what the API of a vLLM, an SGLang and a
 * baton does to the engine. A double knows its true state, and objects to what no engine survives.
 */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_DOUBLE_H
#define BATON_TESTS_UNIT_FLEET_SIM_DOUBLE_H

#include "tests/unit/fleet/model/aspects.h"

enum { SIM_ADAPTERS = 2, SIM_TORN = -1, SIM_DROPPED = -2, SIM_LABEL_MAX = 40 };

struct sim_double {
    enum upstream_kind kind;
    uint64_t process;
    bool paused, paused_by_other;
    bool weights_asleep, kv_asleep;
    bool own_open;
    char label[SIM_LABEL_MAX];
    int weights;         /* serial that it serves; 0: of its own start; SIM_TORN, SIM_DROPPED */
    int received;        /* serial that arrived, which a finish makes the served one; 0: none */
    uint64_t last_chunk; /* of the update it takes part in: update * 16 + chunk */
    bool stale, stale_second; /* it caches something of other weights, or of another adapter */
    uint32_t adapters[SIM_ADAPTERS]; /* revision; 0: none */
    bool in_group;
    bool holds_requests; /* an SGLang that is paused with them does not empty its caches */
    uint64_t packing;
};

/* double_boot - another process: of the one before only an SGLang's storage is left. */
void double_boot(struct sim_double *d);

/* double_execute - execute the call. Returns: what it answers.
 * @update  number of the fleet's update, for tensors
 * @bad     set to a static text if the call must never be sent to an engine in this state */
enum answer double_execute(struct sim_double *d, const struct call *call, uint64_t update,
                           int serial, struct reply *reply, const char **bad);

bool double_runs(const struct sim_double *d);

#endif
