/* Which process answers for an upstream. */
#include "fleet/calls/fleet_priv.h"

#include <string.h>

void fleet_incarnation_of(struct fleet_control *fc, struct upstream *upstream,
                          struct fleet_incarnation *out)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    memcpy(out->process, info.report.process, sizeof out->process);
    out->incarnation = info.incarnation;
    out->n_failures = info.n_failures;
    out->synced = info.synced;
}

bool fleet_is_other_incarnation(struct fleet_control *fc, struct upstream *upstream,
                                const struct fleet_incarnation *before)
{
    struct fleet_incarnation now;

    fleet_incarnation_of(fc, upstream, &now);
    if (before->process[0] != '\0' && now.process[0] != '\0')
        return strcmp(before->process, now.process) != 0;
    return before->incarnation != now.incarnation || (before->synced && !now.synced) ||
           now.n_failures >= before->n_failures + FLEET_FAILURES_DOWN;
}

bool fleet_may_be_other(struct fleet_control *fc, struct upstream *upstream,
                        const struct fleet_incarnation *before)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return !info.alive || fleet_is_other_incarnation(fc, upstream, before) ||
           (before->process[0] != '\0' && info.n_failures != before->n_failures);
}
