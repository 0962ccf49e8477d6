"""A real SGLang server for test_sglang_real.py: started, asked for tokens, killed, started again on
the same port; and who says of which weights tokens are."""

import contextlib
import itertools
import os
import random
import socket
import urllib.error
import urllib.request

import gpu_world as world
import nccl_world as nccl
import vllm_engines as engines
from dialects_world import STEPS, cases_of

FIRST = STEPS[2]  # what an engine starts with; no update brings it
N = 8  # tokens of each answer
SURE = 0.02  # of a logprob in float32; how far bfloat16 is off is measured
OFF_MAX = 0.8  # and no more; tokens of another checkpoint are off by 1.5 and more
ASK_S = 20  # for what is served
KEPT_PORTS = (20000, 30000)
CPU_STUBS = world.ROOT / "tests" / "real" / "sglang_cpu"


def kept_port():
    """Free, and of none that the kernel gives away while an engine is not there yet, or not now."""
    while True:
        port = random.randrange(*KEPT_PORTS)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class Engine(engines.Engine):
    SOFTWARE, START_S = "sglang", 280
    OPTIONS = (
        *("--sampling-backend", "pytorch", "--disable-cuda-graph", "--grammar-backend", "none"),
        *("--mem-fraction-static", "0.1", "--max-total-tokens", "8192", "--skip-server-warmup"),
    )
    PLACE = ("--attention-backend", "triton")
    ENVIRONMENT = {"HF_HUB_OFFLINE": "1"}

    def __init__(self, *args):
        super().__init__(*args)
        self.port = kept_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self, step):
        return [
            *(self.PYTHON, "-W", "ignore", "-m", "sglang.launch_server"),
            *(*self.OPTIONS, *self.PLACE, "--model-path", str(self.model(step))),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--nccl-port", str(engines.free_port())),
        ]

    def environment(self):
        return {**os.environ, **self.ENVIRONMENT}

    def flush(self):
        """Asked straight: True when its cache is empty."""
        request = urllib.request.Request(f"{self.url}/flush_cache?timeout=5", b"", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=ASK_S) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def lives(self):
        """It goes on and generates; a rank that waits for a broadcast does not."""
        if self.child.poll() is not None:
            return False
        nccl.ask(self, "POST", "/continue_generation", {}, ASK_S)
        return not isinstance(generate(self, [40], 1), nccl.Answer)


class CpuEngine(Engine):
    """Stubs stand in for the kernels of a GPU, and gloo for NCCL."""

    START_S = 400
    PLACE = ("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32")

    def environment(self):
        return {
            **super().environment(),
            "PYTHONPATH": os.pathsep.join([str(CPU_STUBS), os.environ.get("PYTHONPATH", "")]),
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
            "OMP_NUM_THREADS": "2",
        }


# --- what is generated


class Tokens:
    def __init__(self, meta):
        tuples = meta["output_token_logprobs"]
        self.ids, self.logprobs = [t[1] for t in tuples], [t[0] for t in tuples]
        self.n_cached = meta.get("cached_tokens")


def generate(server, prompt, n=N, patience_s=ASK_S):
    """Tokens, or the answer that is not a 200."""
    body = {"input_ids": prompt, "return_logprob": True}
    body["sampling_params"] = {"max_new_tokens": n, "temperature": 0, "ignore_eos": True}
    answer = nccl.ask(server, "POST", "/generate", body, patience_s)
    return Tokens(answer.body["meta_info"]) if answer.status == 200 else answer


def prompts():
    """Of those that share a prefix the longer one comes first, and must find nothing in a cache."""
    for case in cases_of(STEPS[0]):
        yield case["prompt_token_ids"] + case["greedy_token_ids"][: engines.SHARED]
        yield case["prompt_token_ids"]


class Oracle:
    """transformers in float32: by which checkpoint is each token, and as likely as said?"""

    def __init__(self, folder):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(2)
        self.torch, self.tolerance = torch, dict.fromkeys(STEPS, SURE)
        self.models = {
            s: AutoModelForCausalLM.from_pretrained(
                engines.model_folder(folder, s), dtype=torch.float32
            ).eval()
            for s in STEPS
        }

    def off(self, step, prompt, tokens):
        """The most that a logprob is off, or a token less likely than the best."""
        with self.torch.no_grad():
            given = self.torch.tensor([prompt + tokens.ids])
            scores = self.models[step](given).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        own = [float(scores[i, t]) for i, t in enumerate(tokens.ids)]
        best = [float(x) for x in scores.max(-1).values]
        said = zip(own, tokens.logprobs, strict=True)
        return max([abs(a - b) for a, b in said] + [b - a for a, b in zip(own, best)])

    def wrong(self, step, prompt, tokens):
        """"" when they are that checkpoint's."""
        if isinstance(tokens, nccl.Answer):
            return str(tokens)[:200]
        if len(tokens.ids) != N:
            return f"{len(tokens.ids)} tokens, expected {N}"
        off = self.off(step, prompt, tokens)
        return "" if off <= self.tolerance[step] else f"{prompt[:4]}: {off:.2f} off"

    def wrongs(self, step, server):
        asked = ((p, generate(server, p)) for p in prompts())
        return [w for w in (self.wrong(step, p, t) for p, t in asked) if w]

    def measure(self, answers):
        """How far an engine alone is off, and that it still tells the checkpoints apart.
        @answers  {step: [(prompt, tokens)]}. Returns the pairs that look alike"""
        for step, asked in answers.items():
            most = max(self.off(step, p, t) for p, t in asked)
            self.tolerance[step] = max(SURE, 2 * most)
        return [
            (a, b)
            for a, b in itertools.permutations(answers, 2)
            if any(self.off(b, p, t) <= self.tolerance[b] for p, t in answers[a])
        ]
