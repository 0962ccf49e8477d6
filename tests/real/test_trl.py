"""TRL's VLLMClient, unmodified, against baton; against baton in front of two batons; and in front of
a real vLLM, and of two that are updated meanwhile, if VLLM_ENV names their environment or --only asks
for it; and TRL's trainers, with stand-ins for a GPU (trl_trainers).
Usage: test_trl.py --baton PROGRAM [--only alone,batons,grpo,async,vllm,labelled] [--record DIR]"""

import contextlib
import os
import pathlib
import sys
import tempfile
import threading
import types

import file_trainer
import real_world
import test_vllm
import trl_trainers
import vllm_engines
import vllm_versions
from real_world import CHAT, MODEL, ask, world
from trl.generation.vllm_client import VLLMClient

TOLERANCE = 1e-3
OF_BATON = {"transfer": None, "dtype": "torch.bfloat16", "greedy_n": 2}
OF_VLLM = {"transfer": "file", "dtype": "torch.float32", "greedy_n": 1}  # it refuses more
VLLM_ENV = os.environ.get("VLLM_ENV")  # else the environment that TRL's is built on


def case():
    golden = world.json.loads((world.MODEL / "golden.json").read_text())
    return golden["checkpoints"]["step-00100"]["cases"][0]


def before_training(checks, client, served):
    """What its trainers ask for before the first step."""
    checks.same(client.model, MODEL, "the model's name")
    checks.same(client.get_world_size(), served["world_size"], "the world size")
    info = client.get_server_info()
    transfer = (info["weight_transfer_config"] or {}).get("backend")
    checks.same(transfer, served["transfer"], "how weights are sent")
    model = info["model_config"]
    checks.same(model["dtype"], served["dtype"], "dtype")
    checks.same(model["logprobs_mode"], "raw_logprobs", "logprobs_mode")
    checks.same(info["parallel_config"]["data_parallel_size"], 1, "data_parallel_size")
    checks.that("lora_config" in info, "lora_config")


def generation(checks, client, served):
    golden, n, copies = case(), 8, served["greedy_n"]
    ids = golden["greedy_token_ids"][:n]
    made = client.generate(["In the beginning"], n=copies, temperature=0.0, max_tokens=n)
    checks.same(made["completion_ids"], [ids] * copies, "generate")
    checks.same(made["prompt_ids"], [golden["prompt_token_ids"]], "the prompt's tokens")
    off = max(abs(a[0] - b) for a, b in zip(made["logprobs"][0], golden["greedy_logprobs"]))
    checks.that(off < TOLERANCE, "logprobs", f"{off:.1e} off")
    more = client.generate(["In the beginning"], temperature=0.0, max_tokens=2, logprobs=100)
    checks.same(len(more["logprobs"][0][0]), 100, "100 logprobs a token")
    made = client.chat([CHAT], temperature=0.0, max_tokens=n)
    checks.same(made["completion_ids"], [ids], "chat")


def scoring(checks, client, served):
    """As a teacher of its distillation."""
    golden = case()
    prompt, ids = golden["prompt_token_ids"], golden["greedy_token_ids"]
    made = client.get_sequence_logprobs([prompt + ids], [len(prompt)])
    found = [x[0] for x in made["actual_logprobs"][0]]
    off = max(abs(a - b) for a, b in zip(found, golden["greedy_logprobs"]))
    checks.that(off < TOLERANCE and len(found) == len(ids), "logprobs", f"{off:.1e} off")
    checks.same({len(row) for row in made["logprobs"][0]}, {100}, "its default of 100 a token")


def update_frame(checks, client, served):
    """What stands around an update; and that an update without a tensor is refused."""
    client.reset_prefix_cache()
    checks.that(True, "reset_prefix_cache")
    try:
        client._start_weight_update()
        client._finish_weight_update()
        checks.that(False, "an update of nothing", "it was taken")
    except Exception as e:  # noqa: BLE001
        checks.that("422" in str(e), "an update of nothing is refused", str(e)[:200])
    client.session.post(f"{client.base_url}/resume")


def play(checks, where, url, **served):
    """Each of its calls; a section each."""
    client = VLLMClient(base_url=url)
    for part in (before_training, generation, scoring, update_frame):
        with checks.section(f"TRL, {where}{part.__name__}"):
            part(checks, client, served)


def ready(server):
    world.until(lambda: ask(server.url, "GET", "/readyz").status == 200, "baton is ready")
    return server.url


def alone(args, checks):
    with (
        real_world.embedded(args) as server,
        real_world.recorded(args, server, "trl-to-baton") as url,
    ):
        play(checks, "", url, world_size=1, **OF_BATON)


def batons(args, checks):
    with contextlib.ExitStack() as held:
        engines = [held.enter_context(real_world.embedded(args)) for _ in range(2)]
        front = real_world.in_front(args, *(f"{engine.url},baton" for engine in engines))
        url = ready(held.enter_context(front))
        play(checks, "in front of two batons, ", url, world_size=2, **OF_BATON)


class Engine(real_world.CpuEngine):
    """It scores with 100 logprobs of each token."""

    PYTHON = f"{VLLM_ENV}/bin/python" if VLLM_ENV else sys.executable
    OPTIONS = (*real_world.CpuEngine.OPTIONS, "--max-logprobs", "100")


def vllm(args, checks):
    with tempfile.TemporaryDirectory(prefix="baton-real-") as folder:
        engine = Engine("trl", pathlib.Path(folder), "file", 0)
        try:
            engine.start("step-00100")
            vllm_engines.await_ready([engine])
            with real_world.in_front(args, f"{engine.url},vllm") as front:
                play(checks, "in front of vLLM, ", ready(front), world_size=1, **OF_VLLM)
        finally:
            engine.kill()


class ByTrl(vllm_versions.Load):
    """TRL's clients. The versions of a reply are not among what it returns: a hook of the session
    keeps them."""

    def __init__(self, *args):
        super().__init__(*args)
        self.own = threading.local()

    def keep(self, response, **_):
        self.own.versions = response.json().get("weight_versions")

    def client(self):
        if not hasattr(self.own, "client"):
            self.own.client = VLLMClient(base_url=self.url)
            self.own.client.session.headers["X-Baton-Weight-Versions"] = "1"
            self.own.client.session.hooks["response"].append(self.keep)
        return self.own.client

    def ask(self, body):
        made = self.client().generate([body["prompt"]], temperature=0.0, max_tokens=body["max_tokens"],
                                      generation_kwargs={"ignore_eos": True})
        return {"weight_versions": self.own.versions, "choices": [{"token_ids": made["completion_ids"][0]}]}


class Two(test_vllm.Play):
    def __init__(self, *args):
        super().__init__(*args)
        for engine in self.by_ipc:
            engine.PYTHON = Engine.PYTHON


def labelled(args, checks):
    """Every completion says which versions made it, and those of two are found."""
    held = types.SimpleNamespace(**vars(args), n_gpus=1, trainer=file_trainer)
    with tempfile.TemporaryDirectory(prefix="baton-real-") as folder:
        play = Two(checks, held, pathlib.Path(folder))
        try:
            for engine in play.by_ipc:
                engine.start("step-00100")
            vllm_engines.await_ready(play.by_ipc)
            play.open_front(prove="none")
            _, mixed = vllm_versions.one_mode(play, play.server, "recompute", ByTrl)
            checks.that(mixed > 0, "completions of two checkpoints are found", mixed)
        finally:
            play.stop()


def main():
    args = real_world.options()
    checks = world.Checks()
    of_vllm = {"vllm": vllm, "labelled": labelled}
    ours = {"alone": alone, "batons": batons, "grpo": trl_trainers.grpo, "async": trl_trainers.async_grpo}
    wanted = args.only.split(",") if args.only else [*ours, *(of_vllm if VLLM_ENV else ())]
    for name, part in {**ours, **of_vllm}.items():
        if name not in wanted:
            checks.skip(name, "not asked for: --only, or VLLM_ENV for vllm and labelled")
            continue
        with checks.section(name):
            part(args, checks)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
