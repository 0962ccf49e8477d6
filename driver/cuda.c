/* The loader and the one translation of results. */
#include "driver/cuda.h"

#include "base/mtx.h"

#include <dlfcn.h>
#include <string.h>

#define CU_SONAME "libcuda.so.1"

struct symbol_row {
    const char *symbol;
    size_t offset; /* of its pointer in struct cu_api */
    bool required;
};

static const struct symbol_row symbols[] = {
#define X(field, symbol, required, args) {#symbol, offsetof(struct cu_api, field), required},
    CU_SYMBOLS(X)
#undef X
};

_Static_assert(sizeof(void *) == sizeof(CUresult(*)(unsigned)), "dlsym returns functions too");

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
    return err_set(e, ERR_CUDA, "", "%.100s could not be loaded: %.300s", name,
                   why != NULL ? why : "the loader does not say why");
}

static int fill(struct cu_api *out, const char *name, struct err *e)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *at = dlsym(out->lib, symbols[i].symbol);

        if (at == NULL && symbols[i].required)
            return err_set(e, ERR_CUDA, "",
                           "%.100s has no symbol '%s'; a driver for CUDA 11.4 or newer is needed",
                           name, symbols[i].symbol);
        /* ISO C has no conversion from void * to a function; POSIX promises equal bytes. */
        memcpy((char *)out + symbols[i].offset, &at, sizeof at);
    }
    return 0;
}

int cu_load(struct cu_api *out, const char *path, struct err *e)
{
    struct cu_api api = {0};

    if (path == NULL || path[0] == '\0')
        path = CU_SONAME;
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

void cu_unload(struct cu_api *cu)
{
    if (cu == NULL)
        return;
    if (cu->lib != NULL)
        (void)dlclose(cu->lib);
    memset(cu, 0, sizeof *cu);
}

int cu_try(const struct cu_api *cu, CUresult result, const char *call, struct err *e)
{
    const char *name = NULL, *text = NULL;

    mtx_assert_none();
    if (result == CUDA_SUCCESS)
        return 0;
    if (cu->get_error_name(result, &name) != CUDA_SUCCESS || name == NULL)
        name = "a result without a name";
    if (cu->get_error_string(result, &text) != CUDA_SUCCESS || text == NULL)
        text = "the driver does not say more";
    return err_set(e, ERR_CUDA, "", "%.60s: %.100s (%d): %.250s", call, name, result, text);
}

bool cu_can_launch(const struct cu_api *cu)
{
    return cu->module_load_data != NULL && cu->module_unload != NULL &&
           cu->module_get_function != NULL && cu->launch_kernel != NULL;
}
