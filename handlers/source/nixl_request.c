/* What is read by NIXL: agents of the trainer, and for each tensor the shards that they have; as
 * lists of flat ranges, or as ModelExpress's tables of boxes. */
#include "base/utf8.h"
#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/update_request.h"
#include "handlers/source/source_json.h"
#include "handlers/tensor_list_json.h"
#include "transport/ipc/ipc_handle.h"
#include "transport/nixl/nixl_source.h"
#include "transport/nixl/nixl_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AT_MAX = 64 };

/* A request while it is read. */
struct nixl_req {
    const struct app_weights *weights;
    struct nixl_agent *agents; /* owned; [n_agents] */
    const json_t **devices;    /* owned; [n_agents]: device_id, or NULL */
    uint32_t n_agents, cap;
    struct nixl_plan *plan; /* owned */
};

static void nixl_req_fini(struct nixl_req *q)
{
    nixl_agents_free(q->agents, q->n_agents);
    free(q->devices);
    nixl_plan_free(q->plan);
}

bool body_reads_nixl(const json_t *body)
{
    const char *transport = json_string_value(body_given(body, "transport"));

    return transport != NULL && strcmp(transport, "nixl") == 0;
}

static int reserve_agents(struct nixl_req *q, size_t n, const char *at, struct err *e)
{
    if (n == 0 || n > NIXL_AGENTS_MAX)
        return err_set(e, ERR_BAD_REQUEST, at, "a request has 1 to %d agents, this one %zu",
                       (int)NIXL_AGENTS_MAX, n);
    q->agents = calloc(n, sizeof *q->agents);
    q->devices = calloc(n, sizeof *q->devices);
    q->cap = (uint32_t)n;
    return q->agents != NULL && q->devices != NULL
               ? 0
               : err_set(e, ERR_NO_MEMORY, "", "no memory for the agents of an update");
}

/* NIXL_AGENTS_MAX if there is none of that name. */
static uint32_t agent_index(const struct nixl_req *q, const char *name)
{
    for (uint32_t i = 0; i < q->n_agents; i++)
        if (strcmp(q->agents[i].name, name) == 0)
            return i;
    return NIXL_AGENTS_MAX;
}

/* Adds an agent. @at  where its name and metadata are; errors are reported there */
static int add_agent(struct nixl_req *q, const char *name, const char *metadata,
                     const json_t *device, const char *at, struct err *e)
{
    struct nixl_agent *a = &q->agents[q->n_agents];
    size_t len = strlen(metadata), nbytes = 0;
    int rc;

    if (name[0] == '\0' || strlen(name) > NIXL_NAME_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, at, "an agent's name has 1 to %d bytes, this one %zu",
                       (int)NIXL_NAME_LEN_MAX, strlen(name));
    if (agent_index(q, name) < NIXL_AGENTS_MAX)
        return err_set(e, ERR_BAD_REQUEST, at, "two agents are named '%s'", name);
    if (len == 0 || len / 4 * 3 > NIXL_METADATA_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, at, "the metadata of agent '%s' has 1 byte to %d MiB",
                       name, (int)NIXL_METADATA_NBYTES_MAX >> 20);
    a->metadata = malloc(len / 4 * 3 + 3);
    a->name = strdup(name);
    q->devices[q->n_agents++] = device; /* it is freed with the others from now on */
    if (a->metadata == NULL || a->name == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an agent's metadata");
    rc = ipc_base64(a->metadata, &nbytes, metadata, len, "the agent's metadata", at, e);
    a->nbytes = (uint32_t)nbytes;
    return rc;
}

static int read_agents(struct nixl_req *q, const json_t *list, struct err *e)
{
    const json_t *object;
    char at[AT_MAX];
    size_t i;

    if (reserve_agents(q, json_array_size(list), "/agents", e) != 0)
        return -1;
    json_array_foreach(list, i, object)
    {
        struct nixl_agent_request r = {0};

        (void)snprintf(at, sizeof at, "/agents/%zu", i);
        if (!json_is_object(object))
            return err_set(e, ERR_BAD_REQUEST, at, "an agent is an object {name, metadata}");
        if (member_read_only(&r, nixl_agent_rows, object, at, e) != 0 ||
            add_agent(q, r.name, r.metadata, body_given(object, "device_id"), at, e) != 0)
            return -1;
    }
    return 0;
}

static int add_shard(struct nixl_req *q, const struct nixl_shard *shard, const char *at,
                     struct err *e)
{
    if (shard->vram && !q->weights->cuda->available)
        return err_set(e, ERR_NO_GPU, at,
                       "the shard is in a GPU's memory, and this machine has no GPU: %.200s",
                       q->weights->cuda->reason);
    return nixl_plan_add(q->plan, shard, at, e);
}

static int read_shard(struct nixl_req *q, uint32_t tensor, uint32_t index, const json_t *object,
                      struct err *e)
{
    struct nixl_shard_request r = {0};
    struct nixl_shard s = {.tensor = tensor, .index = index};
    char at[AT_MAX];

    (void)snprintf(at, sizeof at, "/shards/%u/%u", (unsigned)tensor, (unsigned)index);
    if (!json_is_object(object))
        return err_set(e, ERR_BAD_REQUEST, at,
                       "a shard is an object {agent, mem, device, offset, numel, addr}");
    if (member_read_only(&r, nixl_shard_rows, object, at, e) != 0)
        return -1;
    if (r.agent >= q->n_agents)
        return err_set(e, ERR_BAD_REQUEST, at, "the shard is of agent %llu, there are %u",
                       (unsigned long long)r.agent, (unsigned)q->n_agents);
    s.agent = (uint32_t)r.agent;
    s.vram = r.mem_given ? r.mem == 1 : q->devices[s.agent] != NULL;
    s.device = r.device_given || q->devices[s.agent] == NULL
                   ? r.device
                   : (uint64_t)json_integer_value(q->devices[s.agent]);
    s.addr = r.addr;
    s.box = (struct nixl_box){.ndim = 1, .start = {r.offset}, .size = {r.numel}};
    return add_shard(q, &s, at, e);
}

static int read_shards(struct nixl_req *q, const json_t *list, uint32_t n_tensors, struct err *e)
{
    const json_t *of_tensor, *object;
    size_t i, k;

    if (json_array_size(list) != n_tensors)
        return err_set(e, ERR_BAD_REQUEST, "/shards", "shards has %zu lists for %u tensors",
                       json_array_size(list), (unsigned)n_tensors);
    json_array_foreach(list, i, of_tensor)
    {
        char at[AT_MAX];

        (void)snprintf(at, sizeof at, "/shards/%zu", i);
        if (!json_is_array(of_tensor))
            return err_set(e, ERR_BAD_REQUEST, at, "the shards of a tensor are a list");
        json_array_foreach(of_tensor, k, object) if (read_shard(q, (uint32_t)i, (uint32_t)k, object,
                                                                e) != 0) return -1;
    }
    return 0;
}

/* The tables of ModelExpress, which has members that are not needed here. */

/* Reads integers of 0 and more. @n  receives how many */
static int read_dims(uint64_t out[TENSOR_LIST_NDIM_MAX], uint32_t *n, const json_t *object,
                     const char *member, const char *at, struct err *e)
{
    const json_t *list = json_object_get(object, member);

    *n = (uint32_t)json_array_size(list);
    if (!json_is_array(list) || json_array_size(list) > TENSOR_LIST_NDIM_MAX)
        return err_set(e, ERR_BAD_REQUEST, at, "%s is a list of at most %d integers", member,
                       (int)TENSOR_LIST_NDIM_MAX);
    for (uint32_t d = 0; d < *n; d++) {
        const json_t *value = json_array_get(list, d);

        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return err_set(e, ERR_BAD_REQUEST, at, "%s has an element that is no size", member);
        out[d] = (uint64_t)json_integer_value(value);
    }
    return 0;
}

static int read_table_shard(struct nixl_req *q, struct nixl_shard *s, uint32_t ndim,
                            const json_t *object, const char *at, struct err *e)
{
    const char *agent = "";
    uint32_t n_start = 0, n_size = 0;

    if (body_str(&agent, object, at, "agent_name", e) != 0 ||
        body_u64(&s->addr, object, at, "addr", 0, UINT64_MAX, e) != 0 ||
        body_u64(&s->device, object, at, "device_id", 0, UINT64_MAX, e) != 0 ||
        read_dims(s->box.start, &n_start, object, "shard_offset", at, e) != 0 ||
        read_dims(s->box.size, &n_size, object, "shape", at, e) != 0)
        return -1;
    s->agent = agent_index(q, agent);
    if (s->agent == NIXL_AGENTS_MAX)
        return err_set(e, ERR_BAD_REQUEST, at, "no table has the agent '%.*s' of the shard",
                       utf8_cut_name(agent), agent);
    if (n_start != ndim || n_size != ndim)
        return err_set(e, ERR_BAD_REQUEST, at,
                       "the shard has %u and %u dimensions, its tensor has %u", (unsigned)n_start,
                       (unsigned)n_size, (unsigned)ndim);
    s->box.ndim = ndim;
    if (ndim == 0)
        s->box = (struct nixl_box){.ndim = 1, .size = {1}};
    s->vram = strcmp(json_string_value(json_object_get(object, "mem")) != NULL
                         ? json_string_value(json_object_get(object, "mem"))
                         : "VRAM",
                     "DRAM") != 0;
    return add_shard(q, s, at, e);
}

/* A tensor of a table while the list is made; several tables may have shards of one. */
static int add_table_tensor(struct tensor_list_builder *b, const json_t *object, const char *at,
                            struct err *e)
{
    const char *name = "", *dtype = "";
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
    struct err cause = {0};
    uint32_t ndim;

    if (!json_is_object(object))
        return err_set(e, ERR_BAD_REQUEST, at, "a tensor of the table is an object");
    if (body_str(&name, object, at, "name", e) != 0 ||
        body_str(&dtype, object, at, "dtype", e) != 0 ||
        read_dims(shape, &ndim, object, "full_shape", at, e) != 0)
        return -1;
    if (dtype_parse(dtype) == DTYPE_NONE)
        return err_set(e, ERR_BAD_REQUEST, at, "dtype '%.32s' is not one of %s", dtype,
                       dtype_list());
    if (tensor_list_builder_find(b, name) != TENSOR_LIST_NO_TENSOR ||
        tensor_list_builder_add(b, name, dtype_parse(dtype), shape, ndim, UINT64_MAX, &cause) == 0)
        return 0;
    return err_set(e, cause.code, at, "%s", cause.msg);
}

/* Does a table say the same of the tensor as the one before it, and of its dtype? */
static int check_same_tensor(const struct tensor_spec *t, const json_t *object, const char *at,
                             struct err *e)
{
    const char *dtype = json_string_value(json_object_get(object, "dtype"));
    const json_t *elsize = json_object_get(object, "elsize");
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
    uint32_t ndim;

    if (elsize != NULL && json_integer_value(elsize) != (json_int_t)dtype_nbytes(t->dtype))
        return err_set(e, ERR_BAD_REQUEST, at, "its elsize is not that of %s, which has %u bytes",
                       dtype_name(t->dtype), (unsigned)dtype_nbytes(t->dtype));
    if (read_dims(shape, &ndim, object, "full_shape", at, e) != 0)
        return -1;
    if (dtype_parse(dtype) == t->dtype && ndim == t->ndim &&
        memcmp(shape, t->shape, ndim * sizeof shape[0]) == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, at, "two tables differ in the dtype or shape of '%.*s'",
                   utf8_cut_name(t->name), t->name);
}

static int read_table_shards(struct nixl_req *q, const struct tensor_list *list, uint32_t *counts,
                             const json_t *object, const char *at, struct err *e)
{
    uint32_t tensor = tensor_list_find(list, json_string_value(json_object_get(object, "name")));
    const json_t *shards = json_object_get(object, "shards"), *shard;
    size_t k;

    if (check_same_tensor(&list->tensors[tensor], object, at, e) != 0)
        return -1;
    if (!json_is_array(shards))
        return err_set(e, ERR_BAD_REQUEST, at, "the tensor has no list of shards");
    json_array_foreach(shards, k, shard)
    {
        struct nixl_shard s = {.tensor = tensor, .index = counts[tensor]++};

        if (read_table_shard(q, &s, list->tensors[tensor].ndim, shard, at, e) != 0)
            return -1;
    }
    return 0;
}

/* One table, or a list of them. */
static const json_t *table_at(const json_t *tables, size_t i)
{
    return json_is_array(tables) ? json_array_get(tables, i) : i == 0 ? tables : NULL;
}

static int read_table_agents(struct nixl_req *q, const json_t *tables, struct err *e)
{
    size_t n = json_is_array(tables) ? json_array_size(tables) : 1;

    if (reserve_agents(q, n, "/shard_table", e) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        const json_t *table = table_at(tables, i);
        const char *schema = NULL, *name = "", *metadata = "";
        char at[AT_MAX];

        (void)snprintf(at, sizeof at, "/shard_table");
        if (json_is_array(tables))
            (void)snprintf(at, sizeof at, "/shard_table/%zu", i);
        if (!json_is_object(table))
            return err_set(e, ERR_BAD_REQUEST, at, "a table is an object");
        if (body_str(&schema, table, at, "schema", e) != 0 ||
            body_str(&name, table, at, "agent_name", e) != 0 ||
            body_str(&metadata, table, at, "agent_meta_b64", e) != 0)
            return -1;
        if (schema == NULL || strcmp(schema, "mx.reshard.shard_table.v1") != 0)
            return err_set(e, ERR_BAD_REQUEST, at,
                           "the schema of a table is mx.reshard.shard_table.v1");
        if (add_agent(q, name, metadata, NULL, at, e) != 0)
            return -1;
    }
    return 0;
}

/* Calls one of the two for each tensor of each table. */
static int each_table_tensor(struct nixl_req *q, struct tensor_list_builder *b,
                             const struct tensor_list *list, uint32_t *counts, const json_t *tables,
                             struct err *e)
{
    const json_t *table, *object;
    size_t k;

    for (size_t i = 0; (table = table_at(tables, i)) != NULL; i++)
        json_array_foreach(json_object_get(table, "tensors"), k, object)
        {
            char at[AT_MAX];

            if (json_is_array(tables))
                (void)snprintf(at, sizeof at, "/shard_table/%zu/tensors/%zu", i, k);
            else
                (void)snprintf(at, sizeof at, "/shard_table/tensors/%zu", k);
            if ((b != NULL ? add_table_tensor(b, object, at, e)
                           : read_table_shards(q, list, counts, object, at, e)) != 0)
                return -1;
        }
    return 0;
}

static int list_of_tables(struct tensor_list **out, struct nixl_req *q, const json_t *tables,
                          struct err *e)
{
    struct tensor_list_builder *b;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    if (each_table_tensor(q, b, NULL, NULL, tables, e) != 0) {
        tensor_list_builder_free(b);
        return -1;
    }
    return tensor_list_builder_finish(b, out, e);
}

static int read_tables(struct tensor_list **out, struct nixl_req *q, const json_t *tables,
                       struct err *e)
{
    uint32_t *counts;
    int rc;

    if (read_table_agents(q, tables, e) != 0 || list_of_tables(out, q, tables, e) != 0)
        return -1;
    counts = calloc((*out)->n_tensors, sizeof *counts);
    if (counts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the shards of an update");
    rc = nixl_plan_new(&q->plan, *out, e);
    if (rc == 0)
        rc = each_table_tensor(q, NULL, *out, counts, tables, e);
    free(counts);
    return rc;
}

/* The tensors, the agents and the plan, by either form. */
static int read_form(struct tensor_list **list, struct nixl_req *q, const struct nixl_request *r,
                     const json_t *body, const struct body_columns *text, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const char *columns = member_given(field, tensor_list_rows, OF_LIST, body, "");

    if (r->shard_table != NULL && (columns != NULL || r->agents != NULL || r->shards != NULL))
        return err_set(e, ERR_BAD_REQUEST, "/shard_table",
                       "shard_table has the names, agents and shards itself: leave out %s",
                       columns != NULL     ? columns
                       : r->agents != NULL ? "agents"
                                           : "shards");
    if (r->shard_table != NULL)
        return read_tables(list, q, r->shard_table, e);
    if (body_required(body, "", "agents", e) != 0 || body_required(body, "", "shards", e) != 0 ||
        tensor_list_resolve(list, q->weights, body, text, "", false, e) != 0 ||
        read_agents(q, r->agents, e) != 0 || nixl_plan_new(&q->plan, *list, e) != 0)
        return -1;
    return read_shards(q, r->shards, (*list)->n_tensors, e);
}

/* Bytes that change while they are read look like any others. */
static int check_proof(const struct update_chunk *c, bool unchecked, struct err *e)
{
    for (uint32_t i = 0; !unchecked && i < c->tensor_list->n_tensors; i++)
        if (c->has_checksum == NULL || !c->has_checksum[i])
            return err_set(
                e, ERR_BAD_REQUEST, "/checksums",
                "tensor '%.*s' has no checksum, and only one would show that the "
                "trainer changed it while it was read: send checksums, or \"unchecked\": "
                "true to do without",
                utf8_cut_name(c->tensor_list->tensors[i].name), c->tensor_list->tensors[i].name);
    return 0;
}

int nixl_from_body(struct update_chunk *c, const struct app_weights *weights, const json_t *body,
                   const struct body_columns *text, struct err *e)
{
    struct nixl_req q = {.weights = weights};
    struct nixl_request r = {0};
    int rc;

    if (weights->nixl == NULL)
        return err_set(e, ERR_NO_NIXL, "/transport",
                       "this server does not read by NIXL: it was started without "
                       "--nixl-library");
    if (body_given(body, "packed") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/packed", "packed does not go with transport: nixl");
    rc = member_read(&r, nixl_rows, body, "", e);
    if (rc == 0)
        rc = read_form(&c->tensor_list, &q, &r, body, text, e);
    if (rc == 0)
        rc = checksums_add(&c->checksums, &c->has_checksum, body, "", c->tensor_list, 0,
                           c->tensor_list->n_tensors, e);
    if (rc == 0)
        rc = check_proof(c, r.unchecked, e);
    if (rc == 0)
        rc = nixl_plan_finish(q.plan, e);
    if (rc == 0) {
        rc = nixl_source_new(&c->source, weights->nixl, q.plan, q.agents, q.n_agents, e);
        q.plan = NULL;
        q.agents = NULL;
    }
    nixl_req_fini(&q);
    return rc;
}
