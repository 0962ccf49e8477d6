/* The loader. */
#include "driver/nixl.h"

#include "driver/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static const struct library_symbol symbols[] = {
#define X(field, symbol, returns, args) {#symbol, offsetof(struct nixl_api, field), true},
    NIXL_SYMBOLS(X)
#undef X
};

static const struct library_spec spec = {
    .soname = "libnixl_capi.so",
    .needs = "NIXL 0.9.0 or newer",
    .code = ERR_NO_NIXL,
    .symbols = symbols,
    .n_symbols = sizeof symbols / sizeof symbols[0],
};

int nixl_load(struct nixl_api *out, const char *path, struct err *e)
{
    struct nixl_api api = {0};

    api.lib = library_open(&api, &spec, path, e);
    if (api.lib == NULL)
        return -1;
    if (api.is_stub())
        return err_set(e, ERR_NO_NIXL, "",
                       "libnixl_capi.so is a stub without NIXL behind it: name the one of an "
                       "installed NIXL, as that of the package nixl-cu12 of PyPI");
    *out = api;
    return 0;
}

/* A backend's libraries are local to it, so the loader's list is searched for the file. */
static int ask_ucx(struct dl_phdr_info *info, size_t nbytes, void *out)
{
    const char *slash = info->dlpi_name != NULL ? strrchr(info->dlpi_name, '/') : NULL;
    const char *(*version)(void) = NULL;
    void *lib, *at;

    (void)nbytes;
    if (slash == NULL || strncmp(slash, "/libucp", sizeof "/libucp" - 1) != 0)
        return 0;
    lib = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
    at = lib != NULL ? dlsym(lib, "ucp_get_version_string") : NULL;
    memcpy(&version, &at, sizeof version);
    if (version != NULL)
        (void)snprintf(out, NIXL_VERSION_TEXT_MAX, "%s", version());
    if (lib != NULL)
        (void)dlclose(lib);
    return version != NULL;
}

void nixl_ucx_version(char out[NIXL_VERSION_TEXT_MAX])
{
    out[0] = '\0';
    (void)dl_iterate_phdr(ask_ucx, out);
}
