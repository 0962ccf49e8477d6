/* The server in front of upstream engines: what it has instead of an engine and weights. */
#ifndef BATON_SERVER_SERVE_FLEET_H
#define BATON_SERVER_SERVE_FLEET_H

#include "base/err.h"
#include "handlers/app.h"
#include "server/config/config.h"

#include <stdbool.h>
#include <stdio.h>

struct log_rec;

/* fleet_wanted - does the configuration name upstreams? */
bool fleet_wanted(const struct config *c);

/* fleet_open - fills app->fleet but its control and its threads; nobody is asked yet.
 * Errors: as upstreams_new's.
 */
int fleet_open(struct app *app, const struct config *c, struct err *e);

/* fleet_open_control - sets app->fleet->control; behind fleet_open, and all pools of threads.
 * Errors: ERR_NO_MEMORY. */
int fleet_open_control(struct app *app, const struct config *c, struct err *e);

/* fleet_open_spec - gives app->fleet->control what each update has to bring, if --model or
 * --manifest give it: only the spec is read from them. Errors: of what is read, at the
 * option.
 */
int fleet_open_spec(struct app *app, const struct config *c, struct err *e);

/* fleet_pools_new - the threads of those who wait for a lock (app->fleet->operation … abort).
 * Errors: as workers_new's; what was started is fleet_pools_free's. */
int fleet_pools_new(struct app *app, size_t n_queue_max, size_t n_threads, struct err *e);
void fleet_pools_stop(struct app_fleet *fleet); /* as workers_stop; nothing where there are none */
void fleet_pools_free(struct app_fleet *fleet);

/* fleet_reload - read again what says which upstreams there are; logs how that went. */
void fleet_reload(struct app *app);

/* fleet_log - how many upstreams, of the line that says it serves. */
void fleet_log(const struct app *app, struct log_rec *r);

/* fleet_check - read what fleet_open reads, and say what it is. Errors: as fleet_open's. */
int fleet_check(const struct config *c, FILE *to, struct err *e);

#endif
