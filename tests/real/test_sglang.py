"""A real SGLang on the CPU behind baton: updates from disk and by tensors, flat or not, in one
request or in three, in each pause mode, idle and with requests held. Each ends in the tokens of the
pushed checkpoint, though the cache was filled with the same prompts by the one before.

Usage: test_sglang.py --baton PROGRAM [--only WORD] [--record DIR]"""

import contextlib
import itertools
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import types

import real_world
import sglang_engines
import sglang_trainer
import sglang_updates
from real_world import ask, vllm_engines, world

STEPS = ("step-01500", "step-00100")
N = 8  # tokens of each golden: a CPU makes few in a second
LONG = 150
SCENARIOS = (  # kind, flush_cache (None: not said), pause, requests held, requests that carry it
    ("tensor", True, "abort", 0, 1),
    ("tensor", True, "abort", 2, 1),
    ("tensor", True, "in_place", 0, 1),
    ("tensor", True, "in_place", 2, 1),
    ("tensor", True, "retract", 2, 1),
    ("tensor", True, None, 0, 1),
    ("tensor", True, None, 2, 1),
    ("tensor", False, "abort", 0, 1),
    ("tensor flat", True, "abort", 0, 1),
    ("tensor", True, "abort", 0, 3),
    ("disk", True, "abort", 0, 1),
    ("disk", None, None, 2, 1),
)


class Engine(sglang_engines.CpuEngine):
    def model(self, step):
        return real_world.untied(step)


class Trainer:
    """SGLang's own pieces of a trainer."""

    def __init__(self):
        from safetensors.torch import load_file

        self.state = types.SimpleNamespace()
        sglang_trainer.be(self.state, "cpu")
        self.named = {
            s: list(load_file(real_world.untied(s) / "model.safetensors").items()) for s in STEPS
        }

    def update(self, url, kind, step, flush, label, n):
        said = {} if flush is None else {"flush_cache": flush}
        if kind == "disk":
            path = str(real_world.untied(step))
            body = {"model_path": path, "weight_version": label, **said}
            return must(ask(url, "POST", "/update_weights_from_disk", body))
        self.state.named, flat = self.named[step], kind == "tensor flat"
        n_tensors = len(self.state.named)
        for first, last in sglang_updates.parts(n_tensors, n):
            text = sglang_trainer.serialized(self.state, first, last, flat)
            body = {"serialized_named_tensors": [text]}
            if flat:
                body["load_format"] = "flattened_bucket"
            body.update(said if last == n_tensors else {"flush_cache": False})
            if last == n_tensors:
                body["weight_version"] = label
            must(ask(url, "POST", "/update_weights_from_tensor", body))
        sglang_trainer.let_go(self.state)
        return None


def must(reply):
    told = reply.body.get("success", True) if isinstance(reply.body, dict) else True
    if reply.status != 200 or told is not True:
        raise AssertionError(str(reply))
    return reply


def generate(url, prompt, n):
    body = {"input_ids": prompt, "return_logprob": True}
    body["sampling_params"] = {"max_new_tokens": n, "temperature": 0, "ignore_eos": True}
    meta = must(ask(url, "POST", "/generate", body)).body["meta_info"]
    tuples = meta["output_token_logprobs"]
    return [t[1] for t in tuples], [t[0] for t in tuples]


def questions(step):
    return [(p, ids[:N], logprobs[:N]) for p, ids, logprobs in vllm_engines.questions(step)]


def wrong(url, step):
    found = [
        (prompt[:8], vllm_engines.differs(generate(url, prompt, len(ids)), ids, logprobs))
        for prompt, ids, logprobs in questions(step)
    ]
    return [f for f in found if f[1]]


def short(url):
    body = {"input_ids": [40], "sampling_params": {"max_new_tokens": 1}}
    return ask(url, "POST", "/generate", body)


def served_again(url):
    world.until(lambda: short(url).status == 200, "generation is served", real_world.WAIT_S)


def play(checks, engine, url, trainer, serial, new, scenario):
    kind, flush, pause, n_held, n = scenario
    served_again(url)
    for prompt, ids, _ in questions(new):  # what the old weights leave in the cache
        generate(url, prompt, len(ids))
    held, threads = [], []

    def hold(prompt):
        with contextlib.suppress(Exception):
            held.append(generate(url, prompt, LONG))

    prompt = questions(new)[0][0]
    for i in range(n_held):
        threads.append(threading.Thread(target=hold, args=(prompt + [77 + i],), daemon=True))
        threads[-1].start()
    if n_held:
        time.sleep(0.5)  # until they run
    if pause:
        must(ask(url, "POST", "/pause_generation", {"mode": pause}))
    trainer.update(url, kind, new, flush, f"r{serial}-{new}", n)
    if pause or kind.startswith("tensor"):  # baton reads no names of a CPU's: no end is seen
        must(ask(url, "POST", "/continue_generation", {}))
    refused = n_held and short(url).status == 503
    if not refused:
        checks.same(wrong(url, new), [], f"it generates what {new} does")
    for thread in threads:
        thread.join(real_world.WAIT_S)
    checks.same(len(held), n_held, "what was held is answered")
    if refused:  # by SGLang before 0.5.23, which empties no cache while it holds a request
        served_again(url)
    if n_held:
        checks.same(wrong(url, new), [], "and when what was held has ended")
    checks.that(engine.child.poll() is None, "the engine lives")


def proof(checks, server, engine, folder):
    """The canary of one engine: finite, or it is fenced. On a CPU SGLang has no checksums."""
    good, bad = real_world.untied(STEPS[0]), folder / "nan"
    shutil.copytree(good, bad)
    real_world.not_finite(STEPS[0], bad)
    for path, state in ((good, "proven"), (bad, "not_finite"), (good, "proven")):
        body = {"model_path": str(path), "weight_version": path.name, "flush_cache": False}
        must(ask(server.url, "POST", "/pause_generation", {"mode": "abort"}))
        must(ask(server.url, "POST", "/update_weights_from_disk", body))
        must(ask(server.url, "POST", "/continue_generation", {}))
        (found,) = real_world.await_proofs(server, state)
        sums = "unproven" if path == bad else "unknown"  # what is fenced is not asked for them
        told = (found["n_compared"], found["checksums"]["state"])
        checks.same(told, (0, sums), f"{path.name} is {state}")
    checks.same(wrong(server.url, STEPS[0]), [], "it is healed")
    checks.that(engine.child.poll() is None, "the engine lives")


def title(scenario):
    kind, flush, pause, held, n = scenario
    said = {True: "flush", False: "no flush", None: "flush not said"}[flush]
    more = (f", {held} held" if held else "") + (f", in {n} requests" if n > 1 else "")
    return f"{kind}, {said}, {pause or 'no pause'}{more}"


def main():
    args = real_world.options()
    checks = world.Checks()
    with tempfile.TemporaryDirectory(prefix="baton-real-") as folder:
        engine = Engine("sglang", pathlib.Path(folder), None, 0)
        try:
            engine.start(STEPS[1])
            vllm_engines.await_ready([engine])  # without it there is nothing to ask
            with checks.section("engine"):
                checks.same(wrong(engine.url, STEPS[1]), [], "the engine alone")
            trainer = Trainer()
            with (
                real_world.recorded(args, engine, "baton-to-sglang") as upstream,
                real_world.in_front(args, f"{upstream},sglang") as server,
            ):
                ready = lambda: ask(server.url, "GET", "/readyz").status == 200  # noqa: E731
                world.until(ready, "baton is ready")
                steps = itertools.cycle(STEPS)
                for serial, scenario in enumerate(SCENARIOS):
                    if args.only in title(scenario):
                        with checks.section(title(scenario)):
                            new = next(steps)
                            play(checks, engine, server.url, trainer, serial, new, scenario)
                if args.only in "proof":
                    with checks.section("proof"):
                        proof(checks, server, engine, pathlib.Path(folder))
        finally:
            engine.kill()
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
