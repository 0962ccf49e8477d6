"""A batch of rollouts as tensors against the JSON replies of the same sequences: bytes, and the time in which
Python has arrays.

Usage: bench_rollouts.py BATON MODEL_DIR CLIENT_DIR [PROMPTS [N]]      (default 16 prompts, 8 samples)

The server generates once, with routed experts; the replies are compared in three forms: tensors; JSON as
/v1/generate writes it, with routes in base64; the same with routes as nested lists, as vLLM documents them. Then
the same again with routes of the shape of Qwen3-30B-A3B (48 layers, 8 of 128 experts, random) in place of the tiny
model's. A row is one token of prompt or response; padding is counted in the bytes, not in the rows. Read means:
from the bytes of the body to all arrays of the batch (for JSON: parsed and padded by assemble_rollouts of
client/baton). Everything is in memory: no network is timed, which would add to what has more bytes."""

import base64
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

import numpy

BATON, MODEL, CLIENT = sys.argv[1:4]
N_PROMPTS, N = [int(a) for a in sys.argv[4:6]] + [16, 8][len(sys.argv[4:6]):]
sys.path.insert(0, CLIENT)
import baton  # noqa: E402

BIG = (48, 8, 128)  # layers, experts of a token, experts
TIMES = 7


def serve(log):
    child = subprocess.Popen([BATON, "serve", "--listen", "127.0.0.1:0", "--model", MODEL], stderr=log)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with open(log.name) as f:
            for line in f:
                if '"event":"serving"' in line:
                    return child, f"http://127.0.0.1:{json.loads(line)['port']}"
        time.sleep(0.05)
    child.kill()
    sys.exit("the server does not serve")


def median_s(read):
    found = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        read()
        found.append(time.perf_counter() - begin)
    return sorted(found)[TIMES // 2]


def tensors_of(batch):
    """The body that a server writes for this batch."""
    head, offset = {"__metadata__": {"baton.rollouts": json.dumps(batch.metadata)}}, 0
    names = {"int32": "I32", "float32": "F32", "int16": "I16", "uint8": "U8", "bool": "BOOL"}
    for name, a in batch.items():
        head[name] = {"dtype": names[a.dtype.name], "shape": list(a.shape), "data_offsets": [offset, offset + a.nbytes]}
        offset += a.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in batch.values())


def with_routes(replies, change):
    return [dict(r, choices=[dict(c, routed_experts=change(c["routed_experts"])) for c in r["choices"]])
            for r in replies]


def big_routes(value):
    layers, top_k, n = BIG
    rows = value["shape"][0]
    ids = numpy.random.default_rng(rows).random((rows, layers, n)).argpartition(top_k, 2)[:, :, :top_k]
    return {"data": base64.b64encode(ids.astype("u1").tobytes()).decode(), "shape": [rows, layers, top_k],
            "dtype": "uint8"}


def compare(what, prompts, replies, body, n_experts):
    def assemble(texts):
        return baton.assemble_rollouts(prompts, [json.loads(t) for t in texts], return_routed_experts=True,
                                       n_experts=n_experts)

    nested = with_routes(replies, lambda v: baton.decode_routed_experts(v).tolist())
    forms = {name: [json.dumps(r, separators=(",", ":")) for r in of]
             for name, of in (("JSON, nested lists", nested), ("JSON, base64", replies))}
    batch = baton.read_rollouts(body)
    for name, texts in forms.items():
        found = assemble(texts)
        assert all(batch[k].tobytes() == found[k].tobytes() for k in batch), f"{name} has other values"
    n_rows = int(batch["attention_mask"].sum())
    read_s = median_s(lambda: baton.read_rollouts(body))
    print(f"{what}: {len(batch['groups'])} sequences, {n_rows} rows, {batch['input_ids'].size - n_rows} of padding")
    copy_s = median_s(lambda: [a.copy() for a in baton.read_rollouts(body).values()])
    print(f"  tensors: {len(body) / n_rows:.0f} bytes a row, read in {read_s * 1e3:.3f} ms, and copied once in "
          f"{copy_s * 1e3:.1f} ms")
    for name, texts in forms.items():
        nbytes, s = sum(map(len, texts)), median_s(lambda texts=texts: assemble(texts))
        print(f"  {name}: {nbytes / n_rows:.0f} bytes a row, read in {s * 1e3:.1f} ms: {nbytes / len(body):.2f} x the "
              f"bytes, {s / read_s:.0f} x the time to read, {s / copy_s:.0f} x that to read and copy")


def main():
    rng = random.Random(7)
    prompts = [[rng.randrange(3, 1000) for _ in range(rng.randint(40, 80))] for _ in range(N_PROMPTS)]
    sampling = {"n": N, "max_tokens": 160, "seed": 7, "logprobs": 1}
    with tempfile.NamedTemporaryFile("w") as log:
        child, url = serve(log)
        try:
            body = baton.request(url, "POST", "/v1/rollouts", {"prompts": prompts, "sampling_params": sampling,
                                                               "return_routed_experts": True})
            replies = [baton.request(url, "POST", "/v1/generate", {"token_ids": p, "sampling_params": sampling,
                                                                   "return_routed_experts": True}) for p in prompts]
        finally:
            child.terminate()
            child.wait()
    compare(os.path.basename(MODEL), prompts, replies, body, baton.read_rollouts(body).metadata["n_experts"])
    replies = with_routes(replies, big_routes)
    body = tensors_of(baton.assemble_rollouts(prompts, replies, return_routed_experts=True, n_experts=BIG[2]))
    compare("routes of Qwen3-30B-A3B's shape", prompts, replies, body, BIG[2])


if __name__ == "__main__":
    main()
