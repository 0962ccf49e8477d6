/* The loader and the one translation of results. */
#include "driver/cuda.h"

#include "base/mtx.h"
#include "driver/library.h"

#include <dlfcn.h>
#include <string.h>

static const struct library_symbol symbols[] = {
#define X(field, symbol, required, args) {#symbol, offsetof(struct cu_api, field), required},
    CU_SYMBOLS(X)
#undef X
};

static const struct library_spec spec = {
    .soname = "libcuda.so.1",
    .needs = "a driver for CUDA 11.4 or newer",
    .code = ERR_CUDA,
    .symbols = symbols,
    .n_symbols = sizeof symbols / sizeof symbols[0],
};

int cu_load(struct cu_api *out, const char *path, struct err *e)
{
    struct cu_api api = {0};

    api.lib = library_open(&api, &spec, path, e);
    if (api.lib == NULL)
        return -1;
    *out = api;
    return 0;
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
