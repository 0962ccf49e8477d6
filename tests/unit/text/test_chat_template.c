/* Chat templates against goldens that Jinja2 made (fixtures/chat), what is refused and where, every
 * bound, every allocation that fails, and the directories that templates come from. */
#include "tests/unit/failing_alloc.h"
#include "text/chat_template.h"
#include "text/jinja/jinja.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static json_t *read_json(const char *name)
{
    char path[512];
    json_error_t je;
    json_t *o;

    (void)snprintf(path, sizeof path, FIXTURES "/chat/%s", name);
    o = json_load_file(path, JSON_ALLOW_NUL, &je);
    assert_non_null(o);
    return o;
}

static char *read_text(const char *name)
{
    char path[512], *text = calloc(1, 65536);
    FILE *f;

    (void)snprintf(path, sizeof path, FIXTURES "/chat/%s", name);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, 65535, f) > 0);
    assert_int_equal(fclose(f), 0);
    return text;
}

static struct chat_input input_of(const json_t *c, const json_t *kwargs)
{
    const json_t *tools = json_object_get(c, "tools"), *own = json_object_get(c, "kwargs");

    return (struct chat_input){
        .messages = json_object_get(c, "messages"),
        .tools = json_is_array(tools) ? tools : NULL,
        .kwargs = own != NULL ? own : kwargs,
        .add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt")),
        .now_s = json_integer_value(json_object_get(c, "now_s"))};
}

/* One golden: its text, or its error, whose words count when the template raised it. */
static void check_case(const struct chat_template *t, const json_t *c, const json_t *kwargs)
{
    const json_t *expected = json_object_get(c, "expected");
    const char *raised = json_string_value(json_object_get(c, "error"));
    struct chat_input in = input_of(c, kwargs);
    struct buf out = {0};
    struct err e = {0};
    int rc = chat_template_render(t, &in, &out, &e);

    if (rc != 0 && expected != NULL)
        print_error("refused: %s\n", e.msg);
    assert_int_equal(rc == 0, expected != NULL);
    if (rc == 0 && (out.len != json_string_length(expected) ||
                    (out.len > 0 && memcmp(out.data, json_string_value(expected), out.len) != 0)))
        fail_msg("expected <%s>\ngot <%.*s>", json_string_value(expected), (int)out.len, out.data);
    if (rc != 0) {
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, "/messages");
        assert_int_equal(out.len, 0);
    }
    if (raised != NULL)
        assert_string_equal(e.msg, raised);
    buf_fini(&out);
}

static void check_family(const char *family)
{
    char name[64];
    json_t *golden, *config, *c;
    struct chat_template *t = NULL;
    struct err e = {0};
    size_t i, n_texts = 0;
    char *source;

    (void)snprintf(name, sizeof name, "%s.json", family);
    golden = read_json(name);
    (void)snprintf(name, sizeof name, "%s.config", family);
    config = read_json(name);
    (void)snprintf(name, sizeof name, "%s.jinja", family);
    source = read_text(name);
    if (chat_template_parse(&t, source, strlen(source), config, &e) != 0)
        fail_msg("%s: %s", family, e.msg);
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        check_case(t, c, NULL);
        n_texts += json_object_get(c, "expected") != NULL;
    }
    assert_true(i >= 50 && n_texts >= 30);
    chat_template_free(t);
    free(source);
    json_decref(config);
    json_decref(golden);
}

static void test_chat_template_families_match_jinja2(void **state)
{
    static const char *const families[] = {"chatml",  "deepseek", "llama2", "llama3", "macros",
                                           "mistral", "qwen25",   "qwen3",  "zephyr"};

    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        check_family(families[i]);
}

static void check_templates(const char *file, size_t n_min)
{
    json_t *golden = read_json(file), *c;
    size_t i;

    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        const json_t *source = json_object_get(c, "template");
        struct chat_template *t = NULL;
        struct err e = {0};

        if (chat_template_parse(&t, json_string_value(source), json_string_length(source),
                                json_object_get(golden, "config"), &e) == 0)
            check_case(t, c, json_object_get(golden, "kwargs"));
        else if (json_object_get(c, "expected") != NULL)
            fail_msg("%s: %s", json_string_value(source), e.msg);
        chat_template_free(t);
    }
    assert_true(i >= n_min);
    json_decref(golden);
}

static void test_chat_template_random_ones_match_jinja2(void **state)
{
    (void)state;
    check_templates("random.json", 300);
}

static void test_chat_template_constructs_match_jinja2(void **state)
{
    (void)state;
    check_templates("constructs.json", 150);
}

/* Renders one message; 0, or -1 with *e. */
static int render(const char *source, struct buf *out, struct err *e)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hi");
    struct chat_input in = {.messages = messages};
    struct chat_template *t = NULL;
    int rc = chat_template_parse(&t, source, strlen(source), NULL, e);

    assert_non_null(messages);
    if (rc == 0)
        rc = chat_template_render(t, &in, out, e);
    chat_template_free(t);
    json_decref(messages);
    return rc;
}

struct refusal {
    const char *source, *msg;
};

static void check_refusals(const struct refusal *rows, size_t n, const char *field)
{
    for (size_t i = 0; i < n; i++) {
        struct buf out = {0};
        struct err e = {0};

        if (render(rows[i].source, &out, &e) == 0)
            fail_msg("'%s' was taken", rows[i].source);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, field);
        if (strstr(e.msg, rows[i].msg) == NULL)
            fail_msg("'%s': '%s' does not say '%s'", rows[i].source, e.msg, rows[i].msg);
        assert_int_equal(out.len, 0);
        buf_fini(&out);
    }
}

static void test_jinja_parse_refuses_by_line_and_name(void **state)
{
    static const struct refusal rows[] = {
        {"a\n{{ x | nofilter }}", "line 2: filter 'nofilter'"},
        {"\n\n{{ x is notest }}", "line 3: test 'notest'"},
        {"{% if x %}{% for y in x %}{{ y|nofilter }}{% endfor %}{% endif %}", "filter 'nofilter'"},
        {"{% include 'x' %}", "line 1: tag 'include'"},
        {"{% endfor %}", "tag 'endfor' is not supported here"},
        {"{% for x in y recursive %}{% endfor %}", "recursive"},
        {"{% if x %}", "the end of the template"},
        {"{% if x %}{% endfor %}", "tag 'endfor'"},
        {"{% break %}", "'break' outside a loop"},
        {"{% raw %}{% endraw", "a tag 'raw' without its 'endraw'"},
        {"{% filter nofilter %}{% endfilter %}", "filter 'nofilter'"},
        {"{{ x[1:2](1) ", "does not end"},
        {"{% set loop = 1 %}", "a name that can be assigned"},
        {"{{ 'abc }}", "without its closing '"},
        {"{{ (1 }}", "closes nothing"},
        {"{{ 1", "does not end"},
        {"{# x", "'{#' without"},
        {"{{ 1 ? 2 }}", "character '?'"},
        {"{{ 99999999999999999999 }}", "too large"},
        {"{{ }}", "an expression"},
        {"{% macro f(a, a) %}{% endmacro %}", "comes twice"},
        {"{{ x is a is b }}", "test 'a'"},
        {"\xff", "byte 0 of the template is not UTF-8"},
    };

    (void)state;
    check_refusals(rows, sizeof rows / sizeof rows[0], "/chat_template");
}

static void test_jinja_render_refuses_where_it_happens(void **state)
{
    static const struct refusal rows[] = {
        {"{{ raise_exception('No, ' ~ messages[0].role) }}", "No, user"},
        {"\n{{ messages.x.y }}", "line 2: 'list object' has no element 'x'"},
        {"{{ nope.x }}", "'nope' is undefined"},
        {"{{ messages.get('x') }}", "'list' does not have this method"},
        {"{{ 1 / 0 }}", "division by zero"},
        {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
        {"{{ 1 + 'a' }}", "'int' and 'str'"},
        {"{{ nope() }}", "'nope' is undefined"},
        {"{% for x in 1 %}{% endfor %}", "'int' where something to walk over"},
        {"{% set a, b = [1] %}", "1 values for 2 names"},
        {"{% set x = 1 %}{% set x.y = 2 %}", "a namespace"},
        {"{{ range(100001) }}", "'range' over 100000"},
        {"{{ strftime_now('%Q') }}", "conversion"},
        {"{{ '\xc3\x9f'|upper }}", "U+00DF"},
        {"{{ {[]: 1} }}", "a key of a dict"},
        {"{{ nope|tojson }}", "'nope' is undefined"},
        {"{{ messages[::0] }}", "step 0"},
        {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "takes 1 arguments, 2 are given"},
        {"\n\n{% if x is notest %}{% endif %}", "line 3: test 'notest'"},
        {"{% if true %}\n{{ 1 | nofilter }}{% endif %}", "line 2: filter 'nofilter'"},
        {"{{ 1 | wordwrap }}", "filter 'wordwrap' is not supported"},
        {"{{ 'a'.encode('utf8') }}", "method 'encode' of a value of type 'str'"},
        {"{{ messages.append(1) }}", "no element 'append'"},
        {"{{ 'a' | trim(1, 2) }}", "filter 'trim' takes at most 1"},
        {"{{ 'a' | replace('a') }}", "needs its argument 'new'"},
        {"{{ 'a' | default(nope=1) }}", "takes no argument 'nope'"},
        {"{{ [] | map(y) | list }}", "must name what it hands on to as a string"},
        {"{{ [] | select('no') }}", "test 'no'"},
        {"{{ 'a'|trim(*x) }}", "'*' and '**'"},
        {"{{ f(**x) }}", "'**' in arguments"},
        {"{% macro f() %}{% endmacro %}{{ f(*range(65)) }}", "more than 64 arguments"},
        {"{{ messages[0](1) }}", "'dict' where something to call"},
        {"{{ lipsum() }}", "lipsum are not supported"},
        {"{{ '%5d' % 1 }}", "place '%5d' in a format"},
        {"{{ '%s' % () }}", "places for more than 0 values"},
        {"{{ '{a.b}'.format(a=1) }}", "place 'a.b' in a format"},
        {"{{ '{x}'.format(a=1) }}", "no value 'x'"},
        {"{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "'caller'"},
    };

    (void)state;
    check_refusals(rows, sizeof rows / sizeof rows[0], "/messages");
}

static void test_jinja_render_ends_whatever_the_template_does(void **state)
{
    static const struct refusal rows[] = {
        {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
         "take more than 134217728 bytes"},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nests deeper than"},
        {"{% macro f(x=f()) %}{% endmacro %}{{ f() }}", "nests deeper than"},
        {"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
         "{% endfor %}",
         "take more than 134217728 bytes"},
        {"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
         "{% endfor %}",
         "passes 16777216 bytes"},
        {"{{ 'x' * 999999999 }}", "take more than"},
        {"{{ [0] * 999999999 }}", "more than"},
        {"{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x] %}{% endfor %}"
         "{{ n.x }}",
         "nest deeper than 64"},
        {"{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x] %}{% endfor %}"
         "{{ n.x == [n.x] }}{{ n.x|tojson }}",
         "nest deeper than 64"},
        {"{% for i in range(100000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 9 }}{% endfor %}",
         "passes 16777216 bytes"},
        {"{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{{ 'b' in s }}{% endfor %}",
         "more than 20000000 steps"},
        {"{{ (range(100000)|list + ['a'])|sort }}", "no order"},
        {"{{ ('a' * 4000000).strip('a' * 4000000) }}", "at most 256 are allowed"},
        {"{{ ('a' * 4000000).rsplit('b' ~ 'a' * 2000000) }}", "more than 20000000 steps"},
        {"{{ ('a' * 4000000).rfind('a' * 2000000 ~ 'b') }}", "more than 20000000 steps"},
        {"{% set a = 'a' * 4000000 %}{% set b = 'a' * 3999999 ~ 'b' %}{% for i in range(100000) %}"
         "{{ a == b }}{% endfor %}",
         "more than 20000000 steps"},
        {"{% set a = 'a' * 4000000 %}{% set d = {'a' * 3999999 ~ 'b': 1} %}"
         "{% for i in range(100000) %}{{ d[a] }}{% endfor %}",
         "more than 20000000 steps"},
        {"{% set l = range(100000)|list %}{{ l|unique|list|length }}", "steps"},
    };

    (void)state;
    check_refusals(rows, sizeof rows / sizeof rows[0], "/messages");
}

/* `n` times `piece`, between the two. */
static char *repeated(const char *head, const char *piece, size_t n, const char *tail)
{
    struct buf b = {0};

    buf_puts(&b, head);
    for (size_t i = 0; i < n; i++)
        buf_puts(&b, piece);
    buf_puts(&b, tail);
    return buf_take(&b, &n);
}

static void test_jinja_parse_bounds_depth_and_size(void **state)
{
    static const struct {
        const char *head, *piece;
        size_t n;
        const char *tail, *msg;
    } rows[] = {
        {"{{ ", "(", 100000, "", "nest deeper"},
        {"{{ ", "-", 5000, "1 }}", "nests deeper"},
        {"{{ ", "not ", 5000, "1 }}", "nests deeper"},
        {"{{ 1", " + 1", 5000, " }}", "nests deeper"},
        {"{{ 1", " if 1 else 1", 5000, " }}", "nests deeper"},
        {"{{ x", "|trim", 5000, " }}", "nests deeper"},
        {"{{ x", ".y", 5000, " }}", "nests deeper"},
        {"", "{% if x %}", 5000, "", "nests deeper"},
        {"{% if x %}", "{% elif x %}", 5000, "{% endif %}", "nests deeper"},
        {"{{ f(", "1,", 65, ") }}", "more than 64 arguments"},
        {"{{ 1", " < 1", 65, " }}", "more than 63 comparisons"},
        {"", "{{ 1 }}", 60000, "", "more than 100000 parts"},
        {"", "0123456789abcdef", 40000, "", "at most 524288"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *source = repeated(rows[i].head, rows[i].piece, rows[i].n, rows[i].tail);
        struct refusal row = {source, rows[i].msg};

        check_refusals(&row, 1, "/chat_template");
        free(source);
    }
}

/* The deepest that is allowed, on the stack that the workers have. */
static void *render_deep(void *arg)
{
    struct err *e = arg;
    char *args = repeated("{% macro f(x) %}{{ ", "(1 + (not (", 10, "f(x|trim|upper)");
    char *source = repeated(args, ")))", 10, " }}{% endmacro %}{{ f('a') }}");
    struct buf out = {0};

    (void)render(source, &out, e);
    buf_fini(&out);
    free(source);
    free(args);
    return NULL;
}

static void test_jinja_render_fits_the_stack_of_a_worker(void **state)
{
    struct err e = {0};
    pthread_attr_t attr;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 2 << 20), 0);
    assert_int_equal(pthread_create(&thread, &attr, render_deep, &e), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_non_null(strstr(e.msg, "nests deeper than"));
    (void)pthread_attr_destroy(&attr);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void remove_dir(const char *dir)
{
    static const char *const names[] = {
        "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/default.jinja",
        "additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja"};
    char path[256];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    (void)rmdir(path);
    assert_int_equal(rmdir(dir), 0);
}

/* @more  a NULL-terminated list of names and sources, or NULL */
static void check_load_all(const char *config, const char *jinja, const char *const *more,
                           bool tools, const char *expected, enum err_code code)
{
    char dir[] = "/tmp/test_chat_XXXXXX";
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hi"),
           *some = json_array();
    struct chat_input in = {.messages = messages, .tools = tools ? some : NULL};
    struct chat_template *t = NULL;
    struct buf out = {0};
    struct err e = {0};

    assert_non_null(mkdtemp(dir));
    if (config != NULL)
        write_file(dir, "tokenizer_config.json", config);
    if (jinja != NULL)
        write_file(dir, "chat_template.jinja", jinja);
    for (size_t i = 0; more != NULL && more[i] != NULL; i += 2) {
        char path[256];

        (void)snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
        (void)mkdir(path, 0700);
        write_file(path, more[i], more[i + 1]);
    }
    if (chat_template_load(&t, dir, &e) == 0)
        (void)chat_template_render(t, &in, &out, &e);
    assert_int_equal(e.code, code);
    if (expected != NULL)
        assert_string_equal(code == ERR_NONE ? out.data : e.msg, expected);
    chat_template_free(t);
    buf_fini(&out);
    json_decref(messages);
    json_decref(some);
    remove_dir(dir);
}

static void check_load(const char *config, const char *jinja, bool tools, const char *expected,
                       enum err_code code)
{
    check_load_all(config, jinja, NULL, tools, expected, code);
}

/* As transformers 5 saves and loads a model with several templates. */
static void test_chat_template_load_finds_additional_ones(void **state)
{
    static const char config[] = "{\"chat_template\": \"C\"}";
    static const char *const tool[] = {"tool_use.jinja", "T{{ tools|length }}", "rag.jinja",
                                       "{% nonsense %}", NULL};
    static const char *const other[] = {"default.jinja", "O", NULL};
    static const char *const bad[] = {"tool_use.jinja", "\n{% x %}", NULL};
    static const char *const fails[] = {"tool_use.jinja", "\n{{ nope.x }}", NULL};

    (void)state;
    check_load_all(config, "D", tool, true, "T0", ERR_NONE);
    check_load_all(config, "D", tool, false, "D", ERR_NONE);
    check_load_all(config, "D", other, true, "O", ERR_NONE);
    check_load_all(config, NULL, other, false, "O", ERR_NONE);
    check_load_all(config, NULL, tool, true, "T0", ERR_NONE);
    check_load_all(config, NULL, tool, false,
                   "the model's only chat template is for requests with tools", ERR_BAD_REQUEST);
    check_load_all(config, "D", bad, false, "template 'tool_use': line 2: tag 'x' is not supported",
                   ERR_BAD_REQUEST);
    check_load_all(config, "D", fails, true,
                   "template 'tool_use': chat template, line 2: 'nope' is undefined",
                   ERR_BAD_REQUEST);
}

static void test_chat_template_load_finds_the_template(void **state)
{
    static const char list[] =
        "{\"eos_token\": \"<e>\", \"chat_template\": [{\"name\": \"default\", \"template\": \"D{{ "
        "eos_token }}\"}, {\"name\": \"tool_use\", \"template\": \"T{{ tools|length }}\"}, "
        "{\"name\": \"rag\", \"template\": \"{% nonsense %}\"}]}";

    (void)state;
    check_load("{\"bos_token\": {\"content\": \"<b>\"}, \"chat_template\": \"{{ bos_token }}{{ "
               "messages[0].content }}\"}",
               NULL, false, "<b>hi", ERR_NONE);
    check_load("{\"bos_token\": \"<b>\", \"chat_template\": \"no\"}", "{{ bos_token }}file\n",
               false, "<b>file", ERR_NONE);
    check_load(NULL, "alone", false, "alone", ERR_NONE);
    check_load(list, NULL, false, "D<e>", ERR_NONE);
    check_load(list, NULL, true, "T0", ERR_NONE);
    check_load("{}", NULL, false, NULL, ERR_NOT_FOUND);
    check_load(NULL, NULL, false, NULL, ERR_NOT_FOUND);
    check_load("{\"chat_template\": 1}", NULL, false, NULL, ERR_BAD_REQUEST);
    check_load("{\"chat_template\": []}", NULL, false, NULL, ERR_BAD_REQUEST);
    check_load("[", NULL, false, NULL, ERR_BAD_REQUEST);
    check_load("{\"chat_template\": ?}", NULL, false,
               "tokenizer_config.json is not JSON: line 1, column 19: invalid token near '?'",
               ERR_BAD_REQUEST);
    check_load("{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"a\"}",
               NULL, false, "a", ERR_NONE);
    check_load(NULL, "{% x %}", false, "line 1: tag 'x' is not supported", ERR_BAD_REQUEST);
    check_load("{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"}]}", NULL, false,
               "the model's only chat template is for requests with tools", ERR_BAD_REQUEST);
}

static void check_final_json(const char *source, const char *content, const char *expected)
{
    json_t *messages = json_pack("[{s:s, s:o}]", "role", "assistant", "content",
                                 json_loads(content, JSON_DECODE_ANY, NULL));
    struct chat_input in = {.messages = messages, .continue_final = true};
    struct chat_template *t = NULL;
    struct buf out = {0};
    struct err e = {0};
    int rc;

    assert_int_equal(chat_template_parse(&t, source, strlen(source), NULL, &e), 0);
    rc = chat_template_render(t, &in, &out, &e);
    assert_int_equal(rc == 0, expected != NULL);
    if (expected != NULL)
        assert_string_equal(out.data, expected);
    else
        assert_string_equal(e.field, "/continue_final_message");
    assert_true(rc == 0 || out.len == 0);
    chat_template_free(t);
    buf_fini(&out);
    json_decref(messages);
}

static void check_final(const char *source, const char *content, const char *expected)
{
    json_t *text = json_string(content);
    char *json = json_dumps(text, JSON_ENCODE_ANY);

    check_final_json(source, json, expected);
    free(json);
    json_decref(text);
}

/* As transformers 5.24 does it, whose words for what cannot be continued are others. */
static void test_chat_template_render_ends_in_the_final_message(void **state)
{
    static const char plain[] = "<a>{{ messages[0].content }}<end>\n";
    static const char trims[] = "<a>{{ messages[0].content|trim }}<end>\n";
    static const char walks[] = "{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}";

    (void)state;
    check_final(plain, "<", "<a><");
    check_final(plain, "e", "<a>e");
    check_final(plain, "end", "<a>end");
    check_final(plain, "", "<a>");
    check_final(plain, " ", "<a> ");
    check_final(plain, "a\n\n", "<a>a\n\n");
    check_final(trims, "a\n\n", "<a>a");
    check_final(trims, "a\u3000", "<a>a");
    check_final("<a> {{ messages[0].content|trim }}", "  ", "<a>");
    check_final(plain, "CONTINUE_FINAL_MESSAGE_TAG", "<a>CONTINUE_FINAL_MESSAGE_TAG");
    check_final("so it", "so it", NULL);
    check_final("{{ messages[0].content[-9:] }}", "so it", NULL);
    check_final_json(walks, "[{\"text\": \"a\"}, {\"text\": \"b \"}, {\"type\": \"image\"}]",
                     "[a][b ");
    check_final_json(walks, "[{\"type\": \"image\"}]", NULL);
    check_final_json(walks, "[]", NULL);
    check_final_json(walks, "null", NULL);
    check_final("<a>{{ messages[0].content }}<end>\n", "so it", "<a>so it");
    check_final("<a>{{ messages[0].content }}<end>\n", " so it ", "<a> so it ");
    check_final("<a>{{ messages[0].content|trim }}<end>\n", " so it ", "<a>so it");
    check_final("x {{ messages[0].content }} y", "x", "x x");
    check_final("nothing", "so it", NULL);
    check_final("{{ messages[0].content }}", "  ", "  ");
    check_final("{{ messages[0].content[:2] }}", "abc", NULL);
}

static void test_chat_template_reads_reasoning_by_each_name(void **state)
{
    static const char source[] = "{% for k, v in messages[0]|items %}{{ k }}={{ v }};{% endfor %}";
    static const struct {
        const char *message, *expected;
    } rows[] = {
        {"{\"role\": \"a\", \"reasoning\": \"r\"}",
         "thinking=r;role=a;reasoning=r;reasoning_content=r;"},
        {"{\"role\": \"a\", \"reasoning_content\": \"r\"}",
         "thinking=r;role=a;reasoning_content=r;"},
        {"{\"role\": \"a\", \"thinking\": \"t\", \"reasoning\": \"r\"}",
         "thinking=t;role=a;reasoning=r;reasoning_content=t;"},
        {"{\"role\": \"a\", \"reasoning\": null}", "role=a;reasoning=None;"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *messages = json_pack("[o]", json_loads(rows[i].message, 0, NULL));
        struct chat_input in = {.messages = messages};
        struct chat_template *t = NULL;
        struct buf out = {0};
        struct err e = {0};

        assert_int_equal(chat_template_parse(&t, source, sizeof source - 1, NULL, &e), 0);
        assert_int_equal(chat_template_render(t, &in, &out, &e), 0);
        assert_string_equal(out.data, rows[i].expected);
        chat_template_free(t);
        buf_fini(&out);
        json_decref(messages);
    }
}

static void test_chat_template_takes_parts_when_it_walks_them(void **state)
{
    static const struct {
        const char *source;
        bool takes;
    } rows[] = {{"{% for p in messages[0].content %}{% endfor %}", true},
                {"{% for p in messages[0]['content'] %}{% endfor %}", true},
                {"{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}", true},
                {"{% for p in messages %}{{ p.content }}{% endfor %}", false}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct chat_template *t = NULL;
        struct err e = {0};

        assert_int_equal(chat_template_parse(&t, rows[i].source, strlen(rows[i].source), NULL, &e),
                         0);
        assert_int_equal(chat_template_takes_parts(t, false), rows[i].takes);
        chat_template_free(t);
    }
}

/* Every allocation of a parse and a render in turn: none leaks, all say so. */
static void test_chat_template_survives_every_failed_allocation(void **state)
{
    json_t *golden = read_json("macros.json"), *config = read_json("macros.config");
    struct chat_input in = input_of(json_array_get(json_object_get(golden, "cases"), 26), NULL);
    char *source = read_text("macros.jinja");
    int rc = -1;
    long n = 0;

    (void)state;
    for (; rc != 0; n++) {
        struct chat_template *t = NULL;
        struct buf out = {0};
        struct err e = {0};

        alloc_left = n;
        rc = chat_template_parse(&t, source, strlen(source), config, &e);
        if (rc == 0)
            rc = chat_template_render(t, &in, &out, &e);
        alloc_left = -1;
        assert_true((rc == 0) == (e.code == ERR_NONE));
        assert_true(rc == 0 || (e.code == ERR_NO_MEMORY && out.len == 0));
        chat_template_free(t);
        buf_fini(&out);
    }
    assert_true(n > 10);
    free(source);
    json_decref(config);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_template_families_match_jinja2),
        cmocka_unit_test(test_chat_template_random_ones_match_jinja2),
        cmocka_unit_test(test_chat_template_constructs_match_jinja2),
        cmocka_unit_test(test_jinja_parse_refuses_by_line_and_name),
        cmocka_unit_test(test_jinja_render_refuses_where_it_happens),
        cmocka_unit_test(test_jinja_render_ends_whatever_the_template_does),
        cmocka_unit_test(test_jinja_parse_bounds_depth_and_size),
        cmocka_unit_test(test_jinja_render_fits_the_stack_of_a_worker),
        cmocka_unit_test(test_chat_template_load_finds_the_template),
        cmocka_unit_test(test_chat_template_load_finds_additional_ones),
        cmocka_unit_test(test_chat_template_render_ends_in_the_final_message),
        cmocka_unit_test(test_chat_template_reads_reasoning_by_each_name),
        cmocka_unit_test(test_chat_template_takes_parts_when_it_walks_them),
        cmocka_unit_test(test_chat_template_survives_every_failed_allocation),
    };

    json_set_alloc_funcs(__wrap_malloc, free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
