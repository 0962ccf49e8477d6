"""Engines behind taps, which map what they are handed by CUDA IPC, and a server with --stage in front of them.

Arguments of the program: BATON MODEL FAKE_ENGINE LIBFAKECUDA LIBFAKECUDA_OF_ENGINES WORK ...
"""

import contextlib
import hashlib
import json
import os
import sys
import time

from fake_engine_world import Double
from fleet_world import Server, until
from handoff_tap import Tap

BATON, MODEL, ENGINE, FAKE, FOREIGN, WORK = sys.argv[1:7] or [""] * 6  # processes that fork trainers have none
TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "U8": "uint8"}
PROBE_MS = 50


def checkpoint(step):
    return os.path.join(MODEL, f"checkpoints/step-{step}.safetensors")


def content(step):
    """{name: (dtype, shape, sha256)} of a file."""
    with open(checkpoint(step), "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    return {name: (TORCH[t["dtype"]], tuple(t["shape"]), hashlib.sha256(data[8 + n:][slice(*t["data_offsets"])]).hexdigest())
            for name, t in head.items()}


class Stage(contextlib.ExitStack):
    """Engines behind taps, and a server in front of them."""

    def __init__(self, *kinds, options=(), gpus=None, stage="cuda:0", min_ready=None, probe_ms=PROBE_MS, ages=(), cuda=FAKE):
        super().__init__()
        self.doubles = [self.enter_context(Double(ENGINE, kind, "--weight-version", "old", *ages)) for kind in kinds]
        self.taps = [self.enter_context(Tap(FOREIGN, gpu, d)) for gpu, d in zip(gpus or [0] * len(kinds), self.doubles)]
        specs = [a for tap, d in zip(self.taps, self.doubles) for a in ("--upstream", f"{tap.url},{d.dialect}")]
        staged = ("--stage", stage, "--cuda-library", cuda, "--manifest", checkpoint("00000"), "--allow-path", MODEL)
        self.options = (*specs, "--min-ready", min_ready or len(kinds), *(staged if stage else ()), "--probe-interval", probe_ms, *options)
        self.serve()
        until("all serve", lambda: self.server.get("/v1/upstreams")["n_serving"] == len(kinds))

    def serve(self, port=0):
        self.server = self.enter_context(Server(BATON, os.path.join(WORK, "log"), *self.options, port=port))

    def push(self, step, label, status=200):
        got, said = self.server.ask("POST", "/v1/update_weights", {"path": checkpoint(step), "weight_version": label})
        assert got == status, (got, said)
        return said

    def has(self, step, label, *taps):
        """The engine's bytes, and what it reports."""
        for i in taps or range(len(self.taps)):
            self.taps[i].settle()
            assert self.taps[i].loaded == content(step), f"the bytes at {i} are not those of {step}"
            serves = self.doubles[i].ask("GET", "/weight_info" if self.doubles[i].dialect == "vllm" else "/model_info")[1]
            assert serves["weight_version"] == label, serves


def run_cases(cases):
    """Those that the command line names after the kind of engine, or all."""
    kind, *names = sys.argv[7:]
    for name in names or cases:
        began = time.monotonic()
        cases[name](kind)
        print(f"  {kind} {name}: {time.monotonic() - began:.2f} s", flush=True)
