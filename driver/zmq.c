/* The loader. */
#include "driver/zmq.h"

#include "driver/library.h"

enum { MAJOR_MIN = 4 };

static const struct library_symbol symbols[] = {
#define X(field, symbol, returns, args) {#symbol, offsetof(struct zmq_api, field), true},
    ZMQ_SYMBOLS(X)
#undef X
};

static const struct library_spec spec = {
    .soname = "libzmq.so.5",
    .needs = "libzmq 4 or newer",
    .code = ERR_NO_ZMQ,
    .symbols = symbols,
    .n_symbols = sizeof symbols / sizeof symbols[0],
};

int zmq_load(struct zmq_api *out, struct err *e)
{
    struct zmq_api api = {0};
    struct err cause = {0};
    int major = 0, minor = 0, patch = 0;

    api.lib = library_open(&api, &spec, NULL, &cause);
    if (api.lib == NULL)
        return err_set(e, cause.code, "",
                       "weights come over zmq sockets here, and libzmq cannot be opened: %.300s; "
                       "where it is not installed, install it (Debian and Ubuntu: apt-get install "
                       "libzmq5), no restart is needed",
                       cause.msg);
    api.version(&major, &minor, &patch);
    if (major < MAJOR_MIN)
        return err_set(e, ERR_NO_ZMQ, "", "libzmq %d.%d.%d is too old: 4.0 or newer is needed",
                       major, minor, patch);
    *out = api;
    return 0;
}
