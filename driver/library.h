/* A vendor's shared library, opened at run time, and its functions in a table of ours. */
#ifndef BATON_DRIVER_LIBRARY_H
#define BATON_DRIVER_LIBRARY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct library_symbol {
    const char *name;
    size_t offset; /* of the pointer to the function in the table */
    bool required;
};

struct library_spec {
    const char *soname; /* what is opened where no path is given */
    const char *needs;  /* what a library without a required symbol should have been */
    enum err_code code; /* of every error */
    const struct library_symbol *symbols;
    size_t n_symbols;
};

/* library_open - open a library and write the address of each of its symbols into `table`.
 * @table    owned by caller; a pointer to a function at each symbol's offset; NULL is written where
 *           one that is not required is missing
 * @path     a file, a name for the dynamic loader, or NULL or "" for the spec's soname
 * Blocks: for the dynamic loader, which reads files and runs constructors. Any thread.
 * Returns: dlopen's handle, for dlclose; NULL with `e` set, and `table` in part written, where the
 * library cannot be loaded or lacks a required symbol. Messages name the library without its
 * folder: they reach clients. */
void *library_open(void *table, const struct library_spec *spec, const char *path, struct err *e);

#endif
