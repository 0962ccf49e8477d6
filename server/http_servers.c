/* Statistics of both listeners of routes together. */
#include "handlers/app.h"

void app_http_server_stats(const struct app *app, struct http_server_stats *out)
{
    struct http_server *const http_servers[] = {app->http_server, app->control_http_server};
    struct http_server_stats sum = {0};

    for (size_t i = 0; i < sizeof http_servers / sizeof http_servers[0]; i++) {
        struct http_server_stats s = {0};

        if (http_servers[i] == NULL)
            continue;
        http_server_stats(http_servers[i], &s);
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
