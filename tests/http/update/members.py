"""Every member of a request, beside every source: it has an effect there, or it is refused by its name.
Usage: members.py BATON FOLDER TESTS. The members are those of the document, which is made from the program's tables: one
that is new, and in no line of GOES_WITH, has to be refused by each source."""

import json
import os
import sys

from fleet_world import Server

BATON, FOLDER, TESTS = sys.argv[1:]
MODEL = os.path.join(TESTS, "fixtures/kjv-qwen3-1m")
LIST = {"names", "dtypes", "dtype_names", "shapes", "sizes", "plan_id", "checksums"}
HANDLES = {"tensor_sizes", "per_gpu", "metadata_by_gpu"}
GROUP = {"packed", "bucket_nbytes", "packed_buffer_size_bytes", "expected_digest", "group_name", "num_updates_list"}
NIXL = {"agents", "shards", "shard_table", "unchecked"}
# Of the whole update, whatever its source.
ALWAYS = {"update_id", "chunk_id", "weight_version", "partial", "convert", "base_version", "base_update_id", "delta",
          "abort_requests", "placement", "trainer_rank", "selector"}
GOES_WITH = {
    "shm": LIST | {"packed"},
    "path": LIST,
    "ipc_handles": LIST | HANDLES | {"packed"},
    "ipc_handles_pickled": LIST | HANDLES | {"packed"},
    "buckets": set(),  # they are in each of them
    "serialized_named_tensors": {"serialized_format"},
    "nccl": LIST | GROUP,
    "nixl": LIST | NIXL,
}
# Of loads of adapters
OF_LOAD = {"lora_name", "load_inplace", "pinned", "if_revision", "if_digest", "delta", "allow_partial", "timeout_s",
           "is_3d_lora_weight", "lora_int_id", "base_model_name"}
LOADS = ("shm", "ipc_handles", "ipc_handles_pickled", "buckets", "nccl")
SOURCES = {"shm", "path", "lora_path", "ipc_handles", "ipc_handles_pickled", "buckets", "serialized_named_tensors", "transport"}
n_checks = 0


def value_of(schema):
    """One that the schema allows."""
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else next(k for k in kinds if k != "null")
    if "enum" in schema:
        return next(v for v in schema["enum"] if v is not None)
    return {"string": "0" * schema.get("minLength", 1), "boolean": True, "array": [1], "object": {"x": "x"},
            "integer": max(1, schema.get("minimum", 1)), "number": 1}[kind]


def requests():
    handle = {"GPU-00000000-0000-0000-0000-000000000000": {"handle": "A" * 86 + "==", "offset": 0, "nbytes": 512}}
    one = {"names": ["model.norm.weight"], "dtypes": ["BF16"], "shapes": [[256]]}
    return {
        "shm": {"shm": {"name": "/no-such", "offset": 0, "nbytes": 512}, **one},
        "path": {"path": f"{MODEL}/checkpoints/step-00100.safetensors"},
        "ipc_handles": {"ipc_handles": handle, **one},
        "ipc_handles_pickled": {"ipc_handles_pickled": "gAQu", **one},
        "buckets": {"buckets": [{"ipc_handles": handle, **one}]},
        "serialized_named_tensors": {"serialized_named_tensors": ["gAQu"]},
        "nccl": {"transport": "nccl", **one},
        "nixl": {"transport": "nixl", "agents": [], "shards": [], **one},
    }


def properties(route):
    with open(f"{TESTS}/../openapi/baton.json", encoding="utf-8") as f:
        content = json.load(f)["paths"][route]["post"]["requestBody"]["content"]
    return content["application/json"]["schema"]["properties"]


def refuse(s, route, source, request, goes):
    """Each member that is not in `goes`, added to the request."""
    global n_checks
    wrong = []
    for name, schema in properties(route).items():
        if name in goes | SOURCES:
            continue
        status, said = s.ask("POST", route, {**request, name: value_of(schema)})
        n_checks += 1
        if (status, status == 400 and said["error"]["param"]) != (400, f"/{name}"):
            wrong.append(f"{name} beside {source}: {status} {str(said)[:200]}")
    assert not wrong, "\n".join(wrong)


def updates(s):
    for source, request in requests().items():
        # What is refused for a member must not have begun patches: the update takes whole tensors after it.
        update = s.post("/v1/update_weights/start", {"partial": True})["update_id"]
        refuse(s, "/v1/update_weights", source, {**request, "update_id": update}, ALWAYS | GOES_WITH[source])
        same = s.get(f"/v1/update_weights/{update}")
        assert (same["phase"], same["delta"]) == ("open", False), same
        s.post("/v1/update_weights/abort", {"update_id": update})


def adapters(s):
    asked, config = requests(), {"adapter_config": {"r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}}
    refuse(s, "/v1/load_lora_adapter", "lora_path", {"lora_name": "a", "lora_path": f"{FOLDER}/a"}, OF_LOAD)
    for source in LOADS:
        refuse(s, "/v1/load_lora_adapter", source, {"lora_name": "a", **asked[source], **config},
               OF_LOAD | GOES_WITH[source] | {"adapter_config"})


with Server(BATON, f"{FOLDER}/log", "--model", MODEL, "--weights", f"{MODEL}/checkpoints/step-00000.safetensors",
            "--allow-path", MODEL, "--allow-path", FOLDER) as server:
    updates(server)
    adapters(server)
print(f"ok: {n_checks} checks")
