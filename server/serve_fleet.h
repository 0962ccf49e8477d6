/* The server in front of a fleet: what of it is read, reloaded and reported. */
#ifndef BATON_SERVER_SERVE_FLEET_H
#define BATON_SERVER_SERVE_FLEET_H

#include "base/err.h"
#include "handlers/app.h"
#include "server/config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct listeners;
struct log_rec;
struct model_spec;

/* serve_fleet_reload - read --upstream-file and the upstreams' key files again. After a failure all
 * is as before. @text  of the result, for the log. Returns: was it read? */
bool serve_fleet_reload(struct app_fleet *fleet, char *text, size_t cap);

/* serve_fleet_log - add the number of upstreams to a log line. */
void serve_fleet_log(const struct app_fleet *fleet, struct log_rec *r);

/* serve_fleet_spec - what each update must contain, of --manifest or the files of --model.
 * @out, @from  NULL if neither is given; from: the option, static. Errors: of the file. */
int serve_fleet_spec(struct model_spec **out, const char **from, const struct config *c,
                     struct err *e);

/* serve_fleet_check - for --check: read what a start in front of a fleet would read, and write what
 * it is. @l and @busy as of listeners_put. Errors: of a start; ERR_INTERNAL if `to` fails. */
int serve_fleet_check(struct listeners *l, FILE *to, struct err *busy, struct err *e);

#endif
