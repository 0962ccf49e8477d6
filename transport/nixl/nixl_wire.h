/* What the server and its child that reads by NIXL (transport/nixl/nixl_child.h) send each other
 * over their socket. Both are the same program. The child answers each command with one reply, in
 * order; the first reply answers none and says that it is ready.
 *
 * The child may be overwritten by a peer, so the server trusts no reply beyond its text and code.
 */
#ifndef BATON_TRANSPORT_NIXL_NIXL_WIRE_H
#define BATON_TRANSPORT_NIXL_NIXL_WIRE_H

#include "base/err.h"
#include "driver/nixl.h"
#include "transport/nixl/nixl_plan.h"

#include <stdint.h>

enum {
    NIXL_WINDOWS = 2,
    NIXL_WINDOW_NBYTES = 32 << 20,
    NIXL_METADATA_NBYTES_MAX = 16 << 20,
    NIXL_NAME_LEN_MAX = 255,

    NIXL_FD_SOCKET = 3, /* the child's descriptors, besides output */
    NIXL_FD_WINDOWS = 4,
    NIXL_FD_END = 5,

    NIXL_IDLE_MS = 60000, /* without a command the child ends */
    NIXL_EXIT_IDLE = 64
};

enum nixl_operation {
    NIXL_COMMAND_AGENTS, /* n agents: each {uint32 len, uint32 nbytes, name, metadata} */
    NIXL_COMMAND_READ    /* n slices */
};

struct nixl_command {
    uint32_t operation, n, window;
    uint32_t zero;
    uint64_t nbytes; /* of what follows */
};

struct nixl_agent_head {
    uint32_t len, nbytes;
};

struct nixl_reply {
    uint32_t code; /* enum err_code */
    uint32_t slice;
    char version[NIXL_VERSION_TEXT_MAX]; /* of the first reply: of UCX */
    char msg[ERR_MSG_MAX];
};

#endif
