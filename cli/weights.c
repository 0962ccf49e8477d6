/* weights: what is served, tensor by tensor, and whether files hold the same. */
#include "cli/cli_priv.h"
#include "cli/interrupt.h"
#include "cli/relative_change.h"
#include "cli/weight_files.h"

#include "memory/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHAPE_TEXT_MAX = 192 };

static const char *shape_json_text(const json_t *shape, char out[SHAPE_TEXT_MAX])
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < json_array_size(shape) && len < SHAPE_TEXT_MAX; i++)
        len += (size_t)snprintf(out + len, SHAPE_TEXT_MAX - len, "%s%lld", i > 0 ? "x" : "",
                                (long long)json_integer_value(json_array_get(shape, i)));
    return out;
}

enum cli_exit cmd_weights_list(struct cli *c)
{
    struct answer a;
    enum cli_exit rc = cli_ask(c, "GET", "/v1/weights", NULL, &a);
    char shape[SHAPE_TEXT_MAX];
    const json_t *t;
    size_t i;

    if (rc == CLI_OK && cli_has(c, OPT_JSON)) {
        cli_print_json(&a);
    } else if (rc == CLI_OK) {
        (void)printf("# %s, serial %.0f\n", cli_text(a.json, "weight_version"),
                     cli_real(a.json, "serial"));
        json_array_foreach(cli_at(a.json, "tensors"), i, t)(void)
            printf("%s %-8s %-16s %s\n", cli_text(t, "checksum"), cli_text(t, "dtype"),
                   shape_json_text(cli_at(t, "shape"), shape), cli_text(t, "name"));
    }
    answer_fini(&a);
    return rc;
}

static const char *shape_text(const struct tensor_spec *t, char out[SHAPE_TEXT_MAX])
{
    size_t len = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < t->ndim; i++)
        len += (size_t)snprintf(out + len, SHAPE_TEXT_MAX - len, "%s%llu", i > 0 ? "x" : "",
                                (unsigned long long)t->shape[i]);
    return out;
}

/* {name: "BF16 128x64 CHECKSUM"} of all tensors of a checkpoint. */
static json_t *files_table(const struct weight_files *w)
{
    json_t *table = json_object();
    char shape[SHAPE_TEXT_MAX], sum[CHECKSUM_LEN + 1];

    for (size_t i = 0; i < w->n; i++) {
        const struct tensor_list *l = w->files[i].head.tensor_list;

        for (uint32_t k = 0; k < l->n_tensors && !interrupted(); k++) {
            const struct tensor_spec *t = &l->tensors[k];
            struct checksum s = weight_file_checksum(&w->files[i], k);

            checksum_text(&s, sum);
            (void)json_object_set_new(
                table, t->name,
                json_sprintf("%s %s %s", dtype_name(t->dtype), shape_text(t, shape), sum));
        }
    }
    return table;
}

/* The same of an answer of /v1/weights. */
static json_t *served_table(const json_t *answer)
{
    json_t *table = json_object();
    char shape[SHAPE_TEXT_MAX];
    const json_t *t;
    size_t i;

    json_array_foreach(cli_at(answer, "tensors"), i, t)(void) json_object_set_new(
        table, cli_text(t, "name"),
        json_sprintf("%s %s %s", cli_text(t, "dtype"), shape_json_text(cli_at(t, "shape"), shape),
                     cli_text(t, "checksum")));
    return table;
}

static json_t *path_table(const struct cli *c, const char *path)
{
    struct weight_files w;
    struct err e = {0};
    json_t *table;

    if (weight_files_open(&w, path, &e) != 0) {
        (void)fprintf(stderr, "baton %s: %s\n", c->name, e.msg);
        return NULL;
    }
    table = files_table(&w);
    weight_files_close(&w);
    return table;
}

enum { LINES_MAX = 100, PAGE_MAX = 10000 }; /* differences printed; tensors asked for at once */

/* Prints what differs; @from and @to name the two sides. Returns how many tensors do. */
static size_t tables_compare(json_t *a, const char *from, json_t *b, const char *to)
{
    size_t n = 0;
    const char *name;
    json_t *value;

    json_object_foreach(a, name, value)
    {
        const char *other = json_string_value(json_object_get(b, name));

        if (other != NULL && strcmp(other, json_string_value(value)) == 0)
            continue;
        if (n++ >= LINES_MAX)
            continue;
        if (other == NULL)
            (void)printf("only in %s: %s\n", from, name);
        else
            (void)printf("differs: %s: %s | %s\n", name, json_string_value(value), other);
    }
    json_object_foreach(b, name, value)
    {
        if (json_object_get(a, name) != NULL)
            continue;
        if (n++ < LINES_MAX)
            (void)printf("only in %s: %s\n", to, name);
    }
    return n;
}

static enum cli_exit tables_judge(json_t *a, const char *from, json_t *b, const char *to)
{
    size_t n;

    if (interrupted())
        return CLI_INTERRUPTED;
    (void)printf("%s | %s\n", from, to);
    n = tables_compare(a, from, b, to);
    if (n > LINES_MAX)
        (void)printf("and %zu more\n", n - LINES_MAX);
    if (n == 0)
        (void)printf("the same: %zu tensors\n", json_object_size(a));
    else
        (void)printf("%zu of %zu tensors differ\n", n,
                     json_object_size(a) > json_object_size(b) ? json_object_size(a)
                                                               : json_object_size(b));
    return n == 0 ? CLI_OK : CLI_REFUSED;
}

enum cli_exit cmd_weights_verify(struct cli *c)
{
    json_t *files = path_table(c, c->args[0]), *served = NULL;
    struct answer a = {0};
    enum cli_exit rc = CLI_USAGE;
    char what[160];

    if (files != NULL)
        rc = cli_ask(c, "GET", "/v1/weights", NULL, &a);
    if (rc == CLI_OK) {
        served = served_table(a.json);
        (void)snprintf(what, sizeof what, "served version %.128s",
                       cli_text(a.json, "weight_version"));
        rc = tables_judge(files, c->args[0], served, what);
    }
    json_decref(served);
    json_decref(files);
    answer_fini(&a);
    return rc;
}

/* Prints the tensors of a page that did not change, or have the bytes of another one; at most
 * LINES_MAX with the `n` before. Returns how many there are with these. */
static size_t print_changes(const json_t *page, size_t n)
{
    const json_t *t;
    size_t i;

    json_array_foreach(cli_at(page, "tensors"), i, t)
    {
        bool unchanged = strcmp(cli_text(t, "change"), "unchanged") == 0;
        bool equal = json_is_object(cli_at(t, "equal_to"));

        if ((!unchanged && !equal) || n++ >= LINES_MAX)
            continue;
        if (unchanged)
            (void)printf("unchanged: %s\n", cli_text(t, "name"));
        else
            (void)printf("equal to another: %s has the bytes of %s in the %s\n",
                         cli_text(t, "name"), cli_text(t, "equal_to.name"),
                         strcmp(cli_text(t, "equal_to.in"), "this_version") == 0
                             ? "same version"
                             : "version before");
    }
    return n;
}

static void print_counts(const json_t *answer)
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
                 "another\n",
                 cli_real(answer, "changes.n_changed"), cli_real(answer, "changes.n_unchanged"),
                 cli_real(answer, "changes.n_not_sent"), cli_real(answer, "changes.n_not_compared"),
                 cli_real(answer, "changes.n_equal_to_another"));
}

/* Prints all pages of the report. Returns CLI_REFUSED if the server warned of the commit. */
static enum cli_exit changes_show(struct cli *c)
{
    enum cli_exit rc = CLI_OK;
    size_t n_lines = 0, n_warnings = 0;
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
            print_counts(a.json);
        if (rc == CLI_OK && !cli_has(c, OPT_JSON))
            n_lines = print_changes(a.json, n_lines);
        n_warnings = json_array_size(cli_at(a.json, "changes.warnings"));
        offset = cli_real(a.json, "next_offset");
        more = offset > 0 && !cli_has(c, OPT_JSON);
        answer_fini(&a);
    }
    if (rc == CLI_OK && n_lines > LINES_MAX)
        (void)printf("and %zu more\n", n_lines - LINES_MAX);
    return rc == CLI_OK && n_warnings > 0 ? CLI_REFUSED : rc;
}

/* The largest relative change of the tensors that two checkpoints have with as many elements. */
struct largest {
    double change;    /* -1: there is none */
    const char *name; /* of the first checkpoint */
};

static void largest_add(struct largest *l, const struct weight_file *f, uint32_t i,
                        const struct weight_files *others)
{
    const struct tensor_spec *t = &f->head.tensor_list->tensors[i];
    double change;

    for (size_t k = 0; k < others->n; k++) {
        const struct tensor_list *list = others->files[k].head.tensor_list;
        uint32_t j = tensor_list_find(list, t->name);

        if (j == TENSOR_LIST_NO_TENSOR || list->tensors[j].numel != t->numel ||
            !dtype_convertible(t->dtype, DTYPE_F32) ||
            !dtype_convertible(list->tensors[j].dtype, DTYPE_F32))
            continue;
        change = relative_change(weight_file_bytes(f, i), t->dtype,
                                 weight_file_bytes(&others->files[k], j), list->tensors[j].dtype,
                                 t->numel);
        if (!(change <= l->change)) /* NaN is the largest */
            *l = (struct largest){change, t->name};
    }
}

static void largest_print(const struct weight_files *from, const struct weight_files *to)
{
    struct largest l = {-1, NULL};

    for (size_t k = 0; k < from->n; k++)
        for (uint32_t i = 0; i < from->files[k].head.tensor_list->n_tensors && !interrupted(); i++)
            if (!isnan(l.change))
                largest_add(&l, &from->files[k], i, to);
    if (l.name != NULL && !interrupted())
        (void)printf("largest relative change: %.3g in %s\n", l.change, l.name);
}

/* Both were read just before. */
static void relative_changes(const struct cli *c)
{
    struct weight_files from, to;
    struct err e = {0};

    if (weight_files_open(&from, c->args[0], &e) != 0)
        return;
    if (weight_files_open(&to, c->args[1], &e) == 0) {
        largest_print(&from, &to);
        weight_files_close(&to);
    }
    weight_files_close(&from);
}

enum cli_exit cmd_weights_diff(struct cli *c)
{
    json_t *a, *b;
    enum cli_exit rc = CLI_USAGE;

    if (c->n_args == 0)
        return changes_show(c);
    if (c->n_args == 1)
        return cli_usage_error(c, "it takes two checkpoints, or none for the last commit");
    if (cli_has(c, OPT_JSON))
        return cli_usage_error(c, "--json is for the last commit, not for two checkpoints");
    a = path_table(c, c->args[0]);
    b = a != NULL ? path_table(c, c->args[1]) : NULL;
    if (b != NULL)
        rc = tables_judge(a, c->args[0], b, c->args[1]);
    if (rc == CLI_REFUSED)
        relative_changes(c);
    json_decref(a);
    json_decref(b);
    return rc;
}
