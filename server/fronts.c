/* The listeners that routes are answered on, seen as one. */
#include "handlers/app.h"

void app_front_stats(const struct app *app, struct front_stats *out)
{
    struct front *const fronts[] = {app->front, app->control_front};
    struct front_stats sum = {0};

    for (size_t i = 0; i < sizeof fronts / sizeof fronts[0]; i++) {
        struct front_stats s = {0};

        if (fronts[i] == NULL)
            continue;
        front_stats(fronts[i], &s);
        sum.n_connections += s.n_connections;
        sum.n_accepted += s.n_accepted;
        sum.n_requests += s.n_requests;
        sum.n_rejected += s.n_rejected;
        sum.n_gone += s.n_gone;
        sum.n_timeouts += s.n_timeouts;
        if (s.lag_us_max > sum.lag_us_max)
            sum.lag_us_max = s.lag_us_max;
    }
    *out = sum;
}
