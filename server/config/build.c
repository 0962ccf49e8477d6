/* BATON_ENGINE is 1 or 0, by CMake. Nothing else is compiled differently: other files are. */
#include "server/config/build.h"

const bool build_has_engine = BATON_ENGINE;

const char *build_package(void)
{
    return build_has_engine ? "baton-server" : "baton-control";
}
