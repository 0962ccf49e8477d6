/* The only dlopen. */
#include "driver/library.h"

#include <dlfcn.h>
#include <string.h>

_Static_assert(sizeof(void *) == sizeof(void (*)(void)), "dlsym returns functions too");

/* The last path component: messages must not show where files are. */
static const char *library_name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static int open_failed(enum err_code code, const char *name, struct err *e)
{
    const char *why = dlerror();
    const char *colon = why != NULL ? strstr(why, ": ") : NULL; /* "PATH: what was wrong" */

    if (colon != NULL)
        why = colon + 2;
    return err_set(e, code, "", "%.100s could not be loaded: %.300s", name,
                   why != NULL ? why : "the loader does not say why");
}

static int symbols_fill(void *table, const struct library_spec *spec, void *lib, const char *name,
                        struct err *e)
{
    for (size_t i = 0; i < spec->n_symbols; i++) {
        const struct library_symbol *s = &spec->symbols[i];
        void *at = dlsym(lib, s->name);

        if (at == NULL && s->required)
            return err_set(e, spec->code, "", "%.100s has no symbol '%s'; %s is needed", name,
                           s->name, spec->needs);
        /* ISO C has no conversion from void * to a function; POSIX promises equal bytes. */
        memcpy((char *)table + s->offset, &at, sizeof at);
    }
    return 0;
}

void *library_open(void *table, const struct library_spec *spec, const char *path, struct err *e)
{
    const char *file = path != NULL && path[0] != '\0' ? path : spec->soname;
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);

    if (lib == NULL) {
        (void)open_failed(spec->code, library_name_of(file), e);
        return NULL;
    }
    if (symbols_fill(table, spec, lib, library_name_of(file), e) != 0) {
        (void)dlclose(lib);
        return NULL;
    }
    return lib;
}
