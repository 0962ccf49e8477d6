"""Real vLLM servers for test_vllm_real.py and test_vllm_handoff.py: started side by side, asked for
tokens, killed, started again on the same port."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import gpu_world as world
import nccl_world as nccl
import test_ipc_torch as ipc
from dialects_world import MODEL, cases_of, must_answer

START_S = 200  # for an engine until it answers; side by side they take about 65 s
TOLERANCE = 0.02  # of a logprob: float32 here and there, but tensor cores in the attention
TOLERANCE_BF16 = 0.15  # where it computes in bfloat16
SHARED = 16  # tokens of a prompt that the prefix cache keeps: a block


def model_folder(into, step):
    """As vLLM wants it: the weights beside config.json."""
    folder = into / step
    if not folder.exists():
        folder.mkdir(parents=True)
        for name in ("config.json", "generation_config.json", "tokenizer.json"):
            shutil.copy(world.MODEL / name, folder)
        shutil.copy(ipc.CHECKPOINTS / f"{step}.safetensors", folder / "model.safetensors")
    return folder


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# Its kernels of adapters take no float32.
LORA_OPTIONS = ("--enable-lora", "--max-lora-rank", "64", "--dtype", "bfloat16")


class Engine:
    """@backend  of weight transfer: nccl or ipc. @gpu  its index. @more  other options"""

    SOFTWARE, SERVED, PYTHON, START_S = "vllm", MODEL, sys.executable, START_S
    OPTIONS = (
        *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
        *("--attention-backend", "TRITON_ATTN", "--block-size", str(SHARED)),
        *("--gpu-memory-utilization", "0.15", "--kv-cache-memory-bytes", str(1 << 30)),
    )
    ENVIRONMENT = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }

    def __init__(self, name, folder, backend, gpu, more=()):
        self.name, self.backend, self.gpu, self.folder = name, backend, gpu, folder
        self.more = more
        self.port, self.child, self.n_starts = free_port(), None, 0
        self.url = f"http://127.0.0.1:{self.port}"
        nccl.SERVERS.append(self)  # a watchdog that bites ends it too

    def model(self, step):
        return model_folder(self.folder, step)

    def command(self, step):
        command = [self.PYTHON, "-m", "vllm.entrypoints.openai.api_server", *self.OPTIONS]
        command += self.more
        command += ["--model", str(self.model(step)), "--served-model-name", self.SERVED]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        return command + ["--weight-transfer-config", json.dumps({"backend": self.backend})]

    def environment(self):
        return {**os.environ, **self.ENVIRONMENT, "CUDA_VISIBLE_DEVICES": str(self.gpu)}

    def start(self, step):
        self.n_starts += 1
        self.log = self.folder / f"{self.SOFTWARE}-{self.name}-{self.n_starts}.log"
        with open(self.log, "wb") as out:
            self.child = subprocess.Popen(
                self.command(step),
                stdout=out,
                stderr=out,
                env=self.environment(),
                start_new_session=True,
            )

    def ready(self):
        if self.child.poll() is not None:
            raise AssertionError(
                f"engine {self.name} ended with {self.child.returncode}: {self.tail()}"
            )
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def kill(self):
        """All of its processes, as a machine out of memory does it."""
        if self.child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(world.PATIENCE_S)


def await_ready(engines):
    for engine in engines:
        try:
            world.until(engine.ready, f"engine {engine.name} answers", engine.START_S)
        except AssertionError:
            print(f"--- end of the log of engine {engine.name}\n{engine.tail()}", flush=True)
            raise


# --- which weights generate?


def generate(server, prompt, n, model=MODEL):
    """(token ids, logprobs), or the answer that is not a 200. @model  or an adapter"""
    body = {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0.0}
    body.update(ignore_eos=True, logprobs=1, return_token_ids=True)
    answer = nccl.ask(server, "POST", "/v1/completions", body)
    if answer.status != 200:
        return answer
    choice = answer.body["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def questions(step):
    """(prompt, tokens and logprobs that follow): the goldens of a checkpoint, and again with a
    prompt that fills a block of the cache."""
    for case in cases_of(step):
        prompt, ids, logprobs = (
            case[k] for k in ("prompt_token_ids", "greedy_token_ids", "greedy_logprobs")
        )
        yield prompt, ids, logprobs
        yield prompt + ids[:SHARED], ids[SHARED:], logprobs[SHARED:]


def differs(found, ids, logprobs, tolerance=TOLERANCE):
    """"" when the tokens are the expected ones, up to a choice between two that are equally likely:
    there the rest has another prefix, and no golden."""
    if isinstance(found, nccl.Answer):
        return str(found)[:300]
    if len(found[0]) != len(ids) or len(found[1]) != len(ids):
        return f"{len(found[0])} tokens and {len(found[1])} logprobs, expected {len(ids)}"
    for i, (token, logprob) in enumerate(zip(*found)):
        if abs(logprob - logprobs[i]) > tolerance:
            return f"token {i}: a logprob of {logprob:.3f}, expected {logprobs[i]:.3f}"
        if token != ids[i]:
            return ""
    return ""


def wrong(server, step, tolerance=TOLERANCE):
    """What a server generates that is not that checkpoint's."""
    found = []
    for prompt, ids, logprobs in questions(step):
        what = differs(generate(server, prompt, len(ids)), ids, logprobs, tolerance)
        if what:
            found.append((prompt[:8], what))
    return found


def fill_cache(server, step):
    """Asks what will be asked of the next weights, so that a cache that outlives the update is
    found by it."""
    for prompt, ids, _ in questions(step):
        must_answer_tokens(generate(server, prompt, len(ids)))


def must_answer_tokens(found):
    if isinstance(found, nccl.Answer):
        must_answer(found, "a generation")
    return found
