/* The loader and the one translation of results. */
#include "driver/nccl.h"

#include "base/mtx.h"
#include "driver/library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { LAST_ERROR_MAX = 256 };

static const struct library_symbol symbols[] = {
#define X(field, symbol, required, returns, args)                                                  \
    {#symbol, offsetof(struct nccl_api, field), required},
    NCCL_SYMBOLS(X)
#undef X
};

static const struct {
    ncclResult_t value;
    const char *name;
} results[] = {
#define X(name, value) {name, #name},
    NCCL_RESULTS(X)
#undef X
};

void nccl_environment(void)
{
    (void)setenv("NCCL_COMM_BLOCKING", "0", 1);
}

static const struct library_spec spec = {
    .soname = "libnccl.so.2",
    .needs = "NCCL 2.14 or newer",
    .code = ERR_NCCL,
    .symbols = symbols,
    .n_symbols = sizeof symbols / sizeof symbols[0],
};

int nccl_load(struct nccl_api *out, const char *path, struct err *e)
{
    struct nccl_api api = {0};

    api.lib = library_open(&api, &spec, path, e);
    if (api.lib == NULL)
        return -1;
    *out = api;
    return 0;
}

void nccl_unload(struct nccl_api *nccl)
{
    if (nccl == NULL)
        return;
    if (nccl->lib != NULL)
        (void)dlclose(nccl->lib);
    memset(nccl, 0, sizeof *nccl);
}

void nccl_config_init(ncclConfig_t *out)
{
    memset(out, 0, sizeof *out); /* the padding too */
#define X(type, name, initial) out->name = (initial);
    NCCL_CONFIG_MEMBERS(X)
#undef X
    out->blocking = 0;
}

static const char *result_name(ncclResult_t result)
{
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        if (results[i].value == result)
            return results[i].name;
    }
    return "a result without a name";
}

/* NCCL's last message as one line. NCCL writes the buffer without a lock: the text may be half of
 * one message and half of the next, but it is terminated. */
static void last_error(const struct nccl_api *nccl, char out[LAST_ERROR_MAX])
{
    const char *text = nccl->get_last_error(NULL);
    size_t len = 0;

    for (; text != NULL && text[len] != '\0' && len + 1 < LAST_ERROR_MAX; len++)
        out[len] = (unsigned char)text[len] < ' ' || text[len] == 0x7f ? ' ' : text[len];
    while (len > 0 && out[len - 1] == ' ')
        len--;
    out[len] = '\0';
}

int nccl_try(const struct nccl_api *nccl, ncclResult_t result, const char *call, struct err *e)
{
    char last[LAST_ERROR_MAX];
    const char *text;

    mtx_assert_none();
    if (result == ncclSuccess || result == ncclInProgress)
        return 0;
    text = nccl->get_error_string(result);
    last_error(nccl, last);
    return err_set(e, ERR_NCCL, "", "%.60s: %s (%d): %.120s%s%s", call, result_name(result), result,
                   text != NULL ? text : "the library does not say more",
                   last[0] != '\0' ? ": " : "", last);
}

int nccl_poll(const struct nccl_api *nccl, ncclComm_t comm, const char *call, bool *done,
              struct err *e)
{
    ncclResult_t result = ncclSuccess;

    if (nccl_try(nccl, nccl->comm_get_async_error(comm, &result), "ncclCommGetAsyncError", e) !=
            0 ||
        nccl_try(nccl, result, call, e) != 0)
        return -1;
    *done = result != ncclInProgress;
    return 0;
}
