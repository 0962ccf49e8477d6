"""What vLLM 0.32 itself says and takes on the wire of weight updates, without a server of it: its
HTTPVLLMWeightSyncClient against baton's engine; and what baton sends a vLLM of that release, built
into the dataclasses that its workers build of it. Usage: test_vllm_wire.py --baton PROGRAM"""

import json
import os
import pathlib
import sys

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # as its workers read pickled handles

import real_world
import requests
from real_world import ask, world
from vllm.distributed.weight_transfer import ipc_engine, nccl_common, nccl_engine
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

sys.path.insert(0, str(real_world.ROOT / "tests" / "http" / "lib"))
from fake_engine_world import Double  # noqa: E402

TENSORS = {"names": ["a", "b"], "dtype_names": ["bfloat16"] * 2, "shapes": [[1], [2, 3]]}
BUFFERS = {"packed": True, "packed_buffer_size_bytes": 4096, "packed_num_buffers": 3}
HANDLES = {**TENSORS, "tensor_sizes": [2, 12], "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}  # {}


def joining(world_size):
    """As its trainer ships it to the workers."""
    info = nccl_common.NCCLWeightTransferInitInfo(
        master_address="127.0.0.1", master_port=29500, rank_offset=1, world_size=world_size, **BUFFERS
    )
    return nccl_common.worker_init_payload(info)


def status_of(call):
    try:
        call()
        return 200, ""
    except requests.HTTPError as e:
        return e.response.status_code, e.response.text


def to_baton(args, checks):
    with real_world.embedded(args) as server:
        client = HTTPVLLMWeightSyncClient(server.url, timeout=real_world.WAIT_S)
        client.init_weight_transfer_engine({})
        client.start_weight_update()
        checks.that(True, "init, start")
        checks.same(status_of(client.finish_weight_update)[0], 422, "finish without tensors")
        client.shutdown_weight_transfer_engine()
        checks.that(True, "shutdown")
        status, text = status_of(lambda: client.init_weight_transfer_engine(joining(2)))
        checks.that((status, "NCCL needs GPUs" in text) == (409, True), "a group, without a GPU", text[:200])


def one_update(client, info):
    client.start_weight_update()
    client.update_weights(info)
    client.finish_weight_update("step-1")


def sent(double, op, member):
    return json.loads(double.journal(op)[-1]["body"])[member]


def by_group(checks, client, double):
    asked = joining(2)
    client.init_weight_transfer_engine(asked)
    found = nccl_common.NCCLWeightTransferInitInfo(**sent(double, "init", "init_info"))
    checks.same(nccl_common.worker_init_payload(found), asked, "init_info of a group")
    one_update(client, TENSORS)
    info = sent(double, "update", "update_info")
    checks.same(vars(nccl_engine.NCCLWeightTransferUpdateInfo(**info)), TENSORS, "update_info")
    try:
        nccl_engine.NCCLWeightTransferUpdateInfo(**info, packed=True)
        checks.that(False, "packed in update_info, as 0.24 has it", "it was taken")
    except TypeError as e:
        checks.that(True, "packed in update_info, as 0.24 has it, is refused", e)


def by_handles(checks, client, double):
    """Of a trainer that says with each update that it is packed, as they did before 0.27."""
    client.init_weight_transfer_engine({})
    one_update(client, {**HANDLES, "packed": True})
    found = ipc_engine.IPCWeightTransferInitInfo(**sent(double, "init", "init_info"))
    checks.same(found.packed, True, "init_info of handles")
    info = vars(ipc_engine.IPCWeightTransferUpdateInfo(**sent(double, "update", "update_info")))
    checks.same({m: info[m] for m in TENSORS}, TENSORS, "update_info")
    checks.same((info["ipc_handles"], info["tensor_sizes"]), ({}, [2, 12]), "handles and sizes")


def to_vllm(args, checks):
    binary = pathlib.Path(args.baton).resolve().parent / "tests" / "fakes" / "fake_engine"
    options = ("--vllm-version", "0.32.0", "--weight-version", "step-0")
    with Double(str(binary), "vllm", *options) as double:
        with world.Server(args.baton, "--upstream", f"{double.url},vllm") as front:
            world.until(lambda: ask(front.url, "GET", "/readyz").status == 200, "baton is ready")
            client = HTTPVLLMWeightSyncClient(front.url, timeout=real_world.WAIT_S)
            by_group(checks, client, double)
            by_handles(checks, client, double)


def main():
    args = real_world.options()
    checks = world.Checks()
    for part in (to_baton, to_vllm):
        with checks.section(part.__name__):
            part(args, checks)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
