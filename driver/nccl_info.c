/* The library, described. */
#include "driver/nccl_info.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void nccl_version_text(char out[NCCL_VERSION_TEXT_MAX], int code)
{
    int major_unit = code < 10000 ? 1000 : 10000; /* 2.8.x and before: 2804 */

    out[0] = '\0';
    if (code >= 1000)
        (void)snprintf(out, NCCL_VERSION_TEXT_MAX, "%d.%d.%d", code / major_unit,
                       code % major_unit / 100, code % 100);
}

/* The file behind a symbol of the table; the SONAME alone does not show which file was loaded. */
static void nccl_path_of(const struct nccl_api *nccl, char out[NCCL_LIBRARY_PATH_MAX])
{
    Dl_info found;
    void *at;

    memcpy(&at, &nccl->get_version, sizeof at);
    if (dladdr(at, &found) != 0 && found.dli_fname != NULL)
        (void)snprintf(out, NCCL_LIBRARY_PATH_MAX, "%s", found.dli_fname);
}

static int library_read(struct nccl_info *info, const char *path, struct err *e)
{
    int code = 0;

    if (nccl_load(&info->api, path, e) != 0)
        return -1;
    nccl_path_of(&info->api, info->path);
    if (nccl_try(&info->api, info->api.get_version(&code), "ncclGetVersion", e) != 0)
        return -1;
    info->version_code = code;
    nccl_version_text(info->version, code);
    if (code < NCCL_VERSION_CODE_MIN || code > NCCL_VERSION_CODE_MAX)
        return err_set(e, ERR_NCCL, "", "NCCL %s (%d) is not one of 2.14 and newer, below 3",
                       info->version[0] != '\0' ? info->version : "without a version", code);
    return 0;
}

void nccl_probe(struct nccl_info *out, const char *path)
{
    struct err e = {0};

    memset(out, 0, sizeof *out);
    out->available = library_read(out, path, &e) == 0;
    if (out->available)
        return;
    (void)snprintf(out->reason, sizeof out->reason, "%s", e.msg);
    nccl_unload(&out->api); /* nothing in it has run but the question for its version */
}
