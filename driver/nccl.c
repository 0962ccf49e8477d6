/* The loader and the one translation of results. */
#include "driver/nccl.h"

#include "base/mtx.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_SONAME "libnccl.so.2"
enum { LAST_ERROR_MAX = 256 };

struct symbol_row {
    const char *symbol;
    size_t offset; /* of its pointer in struct nccl_api */
    bool required;
};

static const struct symbol_row symbols[] = {
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

_Static_assert(sizeof(void *) == sizeof(ncclResult_t(*)(int *)), "dlsym returns functions too");

void nccl_environment(void)
{
    (void)setenv("NCCL_COMM_BLOCKING", "0", 1);
}

/* The library's last path component: messages do not tell where our files lie. */
static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static int load_failed(const char *name, struct err *e)
{
    const char *why = dlerror();
    const char *colon = why != NULL ? strstr(why, ": ") : NULL; /* "PATH: what was wrong" */

    if (colon != NULL)
        why = colon + 2;
    return err_set(e, ERR_NCCL, "", "%.100s could not be loaded: %.300s", name,
                   why != NULL ? why : "the loader does not say why");
}

static int fill(struct nccl_api *out, const char *name, struct err *e)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *at = dlsym(out->lib, symbols[i].symbol);

        if (at == NULL && symbols[i].required)
            return err_set(e, ERR_NCCL, "",
                           "%.100s has no symbol '%s'; NCCL 2.14 or newer is needed", name,
                           symbols[i].symbol);
        /* ISO C has no conversion from void * to a function; POSIX promises equal bytes. */
        memcpy((char *)out + symbols[i].offset, &at, sizeof at);
    }
    return 0;
}

int nccl_load(struct nccl_api *out, const char *path, struct err *e)
{
    struct nccl_api api = {0};

    if (path == NULL || path[0] == '\0')
        path = NCCL_SONAME;
    api.lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (api.lib == NULL)
        return load_failed(name_of(path), e);
    if (fill(&api, name_of(path), e) != 0)
        goto err_close;
    *out = api;
    return 0;

err_close:
    (void)dlclose(api.lib);
    return -1;
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

/* NCCL's last message as one line. It writes the buffer without a lock: what is read here may be
 * half of one message and half of the next, but it ends. */
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
