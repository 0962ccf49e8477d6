/* weights: what is served, tensor by tensor, and whether files hold the same. */
#include "cli/cli_priv.h"
#include "cli/interrupt.h"
#include "cli/relative_change.h"
#include "cli/weight_files.h"

#include "memory/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

static enum cli_exit files_open(struct weight_files *out, const struct cli *c, const char *path)
{
    struct err e = {0};

    if (weight_files_open(out, path, &e) == 0)
        return CLI_OK;
    (void)fprintf(stderr, "baton %s: %s\n", c->name, e.msg);
    return CLI_USAGE;
}

enum { LINES_MAX = 100 }; /* differences printed */

/* One of the two that are compared. */
struct side {
    const char *name;
    json_t *table;
    const struct weight_files *files; /* NULL: it is what the server has */
};

static bool tensor_of(const struct weight_files *w, const char *name, const struct weight_file **f,
                      uint32_t *i)
{
    for (size_t k = 0; k < w->n; k++) {
        *f = &w->files[k];
        *i = tensor_list_find(w->files[k].head.tensor_list, name);
        if (*i != TENSOR_LIST_NO_TENSOR)
            return true;
    }
    return false;
}

/* False: the tensor is not in both, has not as many elements in both, or no numbers. */
static bool weights_change_of(const struct weight_files *from, const struct weight_files *to,
                              const char *name, double *out)
{
    const struct weight_file *f, *g;
    const struct tensor_spec *t, *u;
    uint32_t i, k;

    if (!tensor_of(from, name, &f, &i) || !tensor_of(to, name, &g, &k))
        return false;
    t = &f->head.tensor_list->tensors[i];
    u = &g->head.tensor_list->tensors[k];
    if (t->numel != u->numel || !dtype_convertible(t->dtype, DTYPE_F32) ||
        !dtype_convertible(u->dtype, DTYPE_F32))
        return false;
    *out = relative_change(weight_file_bytes(f, i), t->dtype, weight_file_bytes(g, k), u->dtype,
                           t->numel);
    return true;
}

/* How much the tensor changed where that can be said, else both checksums. */
static void difference_print(const struct side *a, const struct side *b, const char *name,
                             const char *left, const char *right)
{
    int n = (int)(strrchr(left, ' ') - left), m = (int)(strrchr(right, ' ') - right);
    double change;

    if (b->files == NULL || !weights_change_of(a->files, b->files, name, &change))
        (void)printf("differs: %s: %s | %s\n", name, left, right);
    else if (n == m && strncmp(left, right, (size_t)n) == 0)
        (void)printf("differs: %s: %.*s: relative change %.3g\n", name, n, left, change);
    else
        (void)printf("differs: %s: %.*s | %.*s: relative change %.3g\n", name, n, left, m, right,
                     change);
}

/* Does the server have the file's values in float32? It holds some tensors so, whatever a file has.
 */
static bool is_widened(const struct side *a, const struct side *b, const char *name,
                       const char *served)
{
    const struct weight_file *f;
    const struct tensor_spec *t;
    char text[SHAPE_TEXT_MAX + CHECKSUM_LEN + 8], shape[SHAPE_TEXT_MAX], sum[CHECKSUM_LEN + 1];
    struct checksum s;
    uint32_t i;
    float *wide;

    if (b->files != NULL || a->files == NULL || !tensor_of(a->files, name, &f, &i))
        return false;
    t = &f->head.tensor_list->tensors[i];
    if ((t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16) || strncmp(served, "F32 ", 4) != 0)
        return false;
    wide = malloc((size_t)t->numel * sizeof *wide + 1);
    if (wide == NULL)
        return false;
    dtype_convert(wide, DTYPE_F32, weight_file_bytes(f, i), t->dtype, t->numel);
    s = checksum_of(wide, t->numel * sizeof *wide);
    free(wide);
    checksum_text(&s, sum);
    (void)snprintf(text, sizeof text, "F32 %s %s", shape_text(t, shape), sum);
    return strcmp(text, served) == 0;
}

/* Prints what differs. Returns how many tensors do. */
static size_t tables_compare(const struct side *a, const struct side *b)
{
    size_t n = 0;
    const char *name;
    json_t *value;

    json_object_foreach(a->table, name, value)
    {
        const char *other = json_string_value(json_object_get(b->table, name));

        if (other != NULL &&
            (strcmp(other, json_string_value(value)) == 0 || is_widened(a, b, name, other)))
            continue;
        if (n++ >= LINES_MAX)
            continue;
        if (other == NULL)
            (void)printf("only in %s: %s\n", a->name, name);
        else
            difference_print(a, b, name, json_string_value(value), other);
    }
    json_object_foreach(b->table, name, value)
    {
        if (json_object_get(a->table, name) != NULL)
            continue;
        if (n++ < LINES_MAX)
            (void)printf("only in %s: %s\n", b->name, name);
    }
    return n;
}

static enum cli_exit tables_judge(const struct side *a, const struct side *b)
{
    size_t n, n_left = json_object_size(a->table), n_right = json_object_size(b->table);

    if (interrupted())
        return CLI_INTERRUPTED;
    (void)printf("%s | %s\n", a->name, b->name);
    n = tables_compare(a, b);
    if (n > LINES_MAX)
        (void)printf("and %zu more\n", n - LINES_MAX);
    if (n == 0)
        (void)printf("the same: %zu tensors\n", n_left);
    else
        (void)printf("%zu of %zu tensors differ\n", n, n_left > n_right ? n_left : n_right);
    return n == 0 ? CLI_OK : CLI_REFUSED;
}

enum cli_exit cmd_weights_verify(struct cli *c)
{
    struct weight_files w;
    struct answer a;
    enum cli_exit rc = files_open(&w, c, c->args[0]);
    char what[160];

    if (rc != CLI_OK)
        return rc;
    rc = cli_ask(c, "GET", "/v1/weights", NULL, &a);
    if (rc == CLI_OK) {
        struct side files = {c->args[0], files_table(&w), &w};
        struct side served = {what, served_table(a.json), NULL};

        (void)snprintf(what, sizeof what, "served version %.128s",
                       cli_text(a.json, "weight_version"));
        rc = tables_judge(&files, &served);
        json_decref(files.table);
        json_decref(served.table);
    }
    answer_fini(&a);
    weight_files_close(&w);
    return rc;
}

static void largest_print(const struct weight_files *from, const struct weight_files *to)
{
    double largest = -1, change;
    const char *name = NULL;

    for (size_t k = 0; k < from->n; k++) {
        const struct tensor_list *l = from->files[k].head.tensor_list;

        for (uint32_t i = 0; i < l->n_tensors && !isnan(largest) && !interrupted(); i++) {
            if (!weights_change_of(from, to, l->tensors[i].name, &change) || change <= largest)
                continue; /* NaN is the largest */
            largest = change;
            name = l->tensors[i].name;
        }
    }
    if (name != NULL && !interrupted())
        (void)printf("largest relative change: %.3g in %s\n", largest, name);
}

static enum cli_exit files_diff(const struct cli *c, const struct weight_files *from,
                                const struct weight_files *to)
{
    json_t *a = files_table(from), *b = files_table(to);
    struct side left = {c->args[0], a, from}, right = {c->args[1], b, to};
    enum cli_exit rc = tables_judge(&left, &right);

    if (rc == CLI_REFUSED)
        largest_print(from, to);
    json_decref(a);
    json_decref(b);
    return rc;
}

enum cli_exit cmd_weights_diff(struct cli *c)
{
    struct weight_files from = {0}, to = {0};
    enum cli_exit rc = CLI_USAGE;

    if (c->n_args == 0)
        return changes_show(c);
    if (c->n_args == 1)
        return cli_usage_error(c, "it takes two checkpoints, or none for the last commit");
    if (cli_has(c, OPT_JSON))
        return cli_usage_error(c, "--json is for the last commit, not for two checkpoints");
    if (files_open(&from, c, c->args[0]) == CLI_OK && files_open(&to, c, c->args[1]) == CLI_OK)
        rc = files_diff(c, &from, &to);
    weight_files_close(&to);
    weight_files_close(&from);
    return rc;
}
