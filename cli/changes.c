/* What a commit changed, as the server reports it: warnings of a push, and weights diff. */
#include "cli/cli_priv.h"

#include "base/buf.h"

#include <stdio.h>
#include <string.h>

enum {
    NAMES_MAX = 20,
    PAGE_MAX = 10000
}; /* names printed of each kind; tensors asked for at once */

static void warning_print(FILE *to, const json_t *changes, const char *name)
{
    (void)fputs(name, to);
    if (strcmp(name, "nothing_changed") == 0)
        (void)fprintf(to, ": every tensor that was sent has the bytes that it had in %s",
                      cli_text(changes, "before.weight_version"));
    else if (strcmp(name, "few_unchanged") == 0)
        (void)fprintf(to, ": large tensors that did not change: %.0f (%.0f tensors changed)",
                      cli_real(changes, "n_newly_unchanged"), cli_real(changes, "n_changed"));
    else if (strcmp(name, "equal_to_another") == 0)
        (void)fprintf(to, ": tensors that have the bytes of another one: %.0f",
                      cli_real(changes, "n_equal_to_another"));
}

size_t changes_warn(FILE *to, const json_t *answer, const char *before, const char *after)
{
    const json_t *changes = cli_at(answer, "changes"), *name;
    size_t i;

    json_array_foreach(cli_at(changes, "warnings"), i, name)
    {
        (void)fputs(before, to);
        warning_print(to, changes, json_string_value(name));
        (void)fprintf(to, "%s\n", after);
    }
    return json_array_size(cli_at(changes, "warnings"));
}

/* Lines of one kind of tensors, of all pages. */
struct names {
    const char *kind;
    size_t n;
    struct buf lines; /* of the first NAMES_MAX */
};
enum { EQUAL, NEWLY, UNCHANGED, N_KINDS };

static void changed_names_add(struct names *of, const json_t *t)
{
    if (of->n++ >= NAMES_MAX)
        return;
    buf_printf(&of->lines, "%s: %s", of->kind, cli_text(t, "name"));
    if (json_is_object(cli_at(t, "equal_to")))
        buf_printf(&of->lines, " has the bytes of %s in the %s", cli_text(t, "equal_to.name"),
                   strcmp(cli_text(t, "equal_to.in"), "this_version") == 0 ? "same version"
                                                                           : "version before");
    buf_puts(&of->lines, "\n");
}

static void page_add(struct names kinds[N_KINDS], const json_t *page)
{
    const json_t *t;
    size_t i;

    json_array_foreach(cli_at(page, "tensors"), i, t)
    {
        if (json_is_true(cli_at(t, "newly_unchanged")))
            changed_names_add(&kinds[NEWLY], t);
        else if (strcmp(cli_text(t, "change"), "unchanged") == 0)
            changed_names_add(&kinds[UNCHANGED], t);
        else if (json_is_object(cli_at(t, "equal_to")))
            changed_names_add(&kinds[EQUAL], t);
    }
}

static void names_print(struct names *of)
{
    if (of->n > 0)
        (void)fputs(of->lines.data, stdout);
    if (of->n > NAMES_MAX)
        (void)printf("%s: and %zu more (--json lists up to %d tensors)\n", of->kind,
                     of->n - NAMES_MAX, PAGE_MAX);
    buf_fini(&of->lines);
}

static void summary_print(const json_t *answer)
{
    if (!json_is_object(cli_at(answer, "changes"))) {
        (void)printf("# no version was before the last commit\n");
        return;
    }
    (void)printf("# %s, serial %.0f, compared with %s, serial %.0f\n",
                 cli_text(answer, "weight_version"), cli_real(answer, "serial"),
                 cli_text(answer, "changes.before.weight_version"),
                 cli_real(answer, "changes.before.serial"));
    (void)printf("%.0f changed, %.0f unchanged, %.0f not sent, %.0f not compared, %.0f equal to "
                 "another; warnings: %zu\n",
                 cli_real(answer, "changes.n_changed"), cli_real(answer, "changes.n_unchanged"),
                 cli_real(answer, "changes.n_not_sent"), cli_real(answer, "changes.n_not_compared"),
                 cli_real(answer, "changes.n_equal_to_another"),
                 json_array_size(cli_at(answer, "changes.warnings")));
    if (json_is_true(cli_at(answer, "changes.repeated")))
        (void)puts("repeated: nothing changed, and the label is that of the version before");
    (void)changes_warn(stdout, answer, "warning: ", "");
}

enum cli_exit changes_show(struct cli *c)
{
    struct names kinds[N_KINDS] = {[EQUAL] = {.kind = "equal to another"},
                                   [NEWLY] = {.kind = "newly unchanged"},
                                   [UNCHANGED] = {.kind = "unchanged"}};
    enum cli_exit rc = CLI_OK;
    size_t n_warnings = 0;
    double offset = 0;
    bool more = true;

    while (rc == CLI_OK && more) {
        char path[80];
        struct answer a;

        (void)snprintf(path, sizeof path, "/v1/weights/diff?limit=%d&offset=%.0f", PAGE_MAX,
                       offset);
        rc = cli_ask(c, "GET", path, NULL, &a);
        if (rc == CLI_OK && cli_has(c, OPT_JSON))
            cli_print_json(&a);
        else if (rc == CLI_OK && offset == 0)
            summary_print(a.json);
        if (rc == CLI_OK && !cli_has(c, OPT_JSON))
            page_add(kinds, a.json);
        n_warnings = json_array_size(cli_at(a.json, "changes.warnings"));
        offset = cli_real(a.json, "next_offset");
        more = offset > 0 && !cli_has(c, OPT_JSON);
        answer_fini(&a);
    }
    for (int i = 0; i < N_KINDS; i++)
        names_print(&kinds[i]);
    if (rc == CLI_OK && !cli_has(c, OPT_JSON))
        rc = stage_show(c);
    return rc == CLI_OK && n_warnings > 0 ? CLI_REFUSED : rc;
}
