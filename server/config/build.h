/* Which build this is: with the embedded engine (package baton-server), or without it
 * (baton-control; cmake -DBATON_ENGINE=OFF), which is a store and a front for fleets. */
#ifndef BATON_SERVER_CONFIG_BUILD_H
#define BATON_SERVER_CONFIG_BUILD_H

#include <stdbool.h>

/* build_has_engine - what `baton serve --engine embedded` needs. */
extern const bool build_has_engine;

/* build_package - the name of the package that has this build. */
const char *build_package(void);

/* What an error of a build without the engine says. */
#define BUILD_LACKS_ENGINE                                                                         \
    "this build of baton has no engine (baton-control): install baton-server, which has it"

#endif
