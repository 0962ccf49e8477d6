/* NIXL's library, libnixl_capi.so, opened in the process that reads by it and nowhere else. */
#ifndef BATON_DRIVER_NIXL_H
#define BATON_DRIVER_NIXL_H

#include "base/err.h"
#include "driver/nixl_symbols.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void *nixl_handle;

/* nixl_capi_agent_config_t. Without a delay the agent's thread never sleeps. */
struct nixl_agent_config {
    bool progress_thread, listen_thread;
    int listen_port, sync;
    unsigned n_workers;
    uint64_t progress_delay_us, listen_delay_us;
    bool telemetry;
};
_Static_assert(sizeof(struct nixl_agent_config) == 40, "nixl_capi_agent_config_t has another size");

enum nixl_constant {
#define X(name, value) name = (value),
    NIXL_CONSTANTS(X)
#undef X
};

struct nixl_api {
    void *lib; /* dlopen handle; kept until the process ends */
#define X(field, symbol, returns, args) returns(*field) args;
    NIXL_SYMBOLS(X)
#undef X
};

enum { NIXL_VERSION_TEXT_MAX = 32 };

/* nixl_load - open the library and fill the table.
 * @path  a file
 * Threads: one. Blocks: for the dynamic loader.
 * Errors:  ERR_NO_NIXL  it cannot be opened, lacks a symbol, or is the stub that NIXL builds for
 *                       programs on machines without it. *out is untouched. */
int nixl_load(struct nixl_api *out, const char *path, struct err *e);

/* nixl_ucx_version - the version of the UCX that a backend has loaded into this process; "" if
 * there is none. NIXL itself does not say its version. Blocks: no. */
void nixl_ucx_version(char out[NIXL_VERSION_TEXT_MAX]);

#endif
