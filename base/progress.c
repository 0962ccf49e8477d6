#include "base/progress.h"

#include "base/clock.h"

int progress_check(const struct progress *p, struct err *e)
{
    if (atomic_load_explicit(&p->stop, memory_order_relaxed))
        return err_set(e, ERR_CONFLICT, "", "the update was aborted while its bytes arrived");
    if (clock_passed(p->deadline_us))
        return err_set(e, ERR_TIMEOUT, "", "the bytes did not arrive before the deadline");
    if (p->gone != NULL && p->gone(p->gone_arg))
        return err_set(e, ERR_GONE, "", "the client went away before its tensors were taken");
    return 0;
}
