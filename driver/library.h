/* Opening a vendor's shared library at run time, with its functions in a table of ours. */
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
    const char *soname; /* opened if no path is given */
    const char *needs;  /* the library that is needed, for the error about a missing symbol */
    enum err_code code; /* of every error */
    const struct library_symbol *symbols;
    size_t n_symbols;
};

/* library_open - open a library and write the address of each of its symbols into `table`.
 * @table    the caller's; has a function pointer at each symbol's offset; the pointer of a missing
 *           optional symbol is set to NULL
 * @path     a file, a name for the dynamic loader, or NULL or "" for the spec's soname
 * Threads: any. Blocks: for the dynamic loader, which reads files and runs constructors.
 * Returns: dlopen's handle, for dlclose. If the library cannot be loaded or lacks a required
 * symbol: NULL, with `e` set and `table` partly written. Messages name the library without its
 * directory, because they reach clients. */
void *library_open(void *table, const struct library_spec *spec, const char *path, struct err *e);

#endif
