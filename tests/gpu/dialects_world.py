"""What the sections of test_dialects_torch.py share: a server that is taken for another, how it is
spoken to, what it must generate after an update, and what must not grow."""

import itertools
import json
import pathlib

import dialects_trainer as trainer_side
import gpu_world as world
import nccl_torch
import nccl_world as nccl
import test_ipc_torch as ipc

STEPS = ("step-00100", "step-01500", "step-00000")
MODEL = world.MODEL.name
CHUNK_NBYTES = 512 << 10  # of the small model, so that it comes in several
TOLERANCE = 1e-4  # of a logprob
MS_MAX = "30000"  # for whatever the server waits for
SLACKS = {"fds": 0, "mapped": 0, "allocated": 0, "maps": 16, "rss": 32 << 20, "gpu_used": 8 << 20}
RESERVED_SLACK = 20 << 20  # torch's allocator takes that much at once
NCCL_SLACK = 64 << 20  # on the GPUs; it keeps some


class Trainer(nccl.Trainer):
    def __init__(self, args):
        world.Worker.__init__(self)
        self.tell(trainer_side.be, args.cuda if args.fakes else None, args.nccl)


class Trainers(nccl_torch.Trainers):
    def get(self):
        if self.one is None:
            self.one = Trainer(self.args).ready()
        return self.one

    def drop(self):
        """It is killed; its counters of exports are nobody's then."""
        pid = self.one.pid if self.one is not None else None
        super().drop()
        for path in pathlib.Path("/dev/shm").glob(f"torch_{pid}_*"):
            path.unlink()


def serve(args, device, *options):
    """The model, on that GPU."""
    first = ipc.CHECKPOINTS / "step-00000.safetensors"
    return nccl.Server(
        args,
        *("--model", world.MODEL, "--weights", first, "--weight-version", "step-0"),
        *("--update-timeout", MS_MAX, "--join-timeout", MS_MAX, *options),
        devices=[device],
    )


# --- asking


def must_answer(answer, what):
    """With 200; and those of SGLang say so in the body too."""
    told = answer.body.get("success", True) if isinstance(answer.body, dict) else True
    if answer.status != 200 or told is not True:
        raise AssertionError(f"{what}: {answer}")
    return answer.body


def say(server, path, body=None, method="POST"):
    """A call that must succeed."""
    return must_answer(nccl.ask(server, method, path, body), f"{method} {path}")


def by_vllm(server, case):
    params = {"max_tokens": len(case["greedy_token_ids"]), "temperature": 0.0, "logprobs": 1}
    body = {
        "model": MODEL,
        "token_ids": case["prompt_token_ids"],
        "sampling_params": {**params, "ignore_eos": True},
    }
    choice = say(server, "/inference/v1/generate", body)["choices"][0]
    return choice["token_ids"], [t["logprob"] for t in choice["logprobs"]["content"]]


def by_sglang(server, case):
    params = {"max_new_tokens": len(case["greedy_token_ids"]), "temperature": 0.0}
    body = {
        "input_ids": case["prompt_token_ids"],
        "sampling_params": {**params, "ignore_eos": True},
        "return_logprob": True,
    }
    tuples = say(server, "/generate", body)["meta_info"]["output_token_logprobs"]
    return [t[1] for t in tuples], [t[0] for t in tuples]


# --- what is served


def cases_of(step):
    with open(world.MODEL / "golden.json", encoding="utf-8") as f:
        return json.load(f)["checkpoints"][step]["cases"]


def wrong_tokens(found, cases):
    """[(ids, logprobs)] against what transformers made of that checkpoint: what differs."""
    wrong = []
    for (ids, logprobs), case in zip(found, cases, strict=True):
        if ids != case["greedy_token_ids"]:
            wrong.append((case["prompt"], ids[:6], case["greedy_token_ids"][:6]))
        elif len(logprobs or ()) != len(ids):
            wrong.append((case["prompt"], f"logprobs of {len(ids)} tokens: {logprobs}"))
        else:
            worst = max(abs(a - b) for a, b in zip(logprobs, case["greedy_logprobs"]))
            if not worst < TOLERANCE:
                wrong.append((case["prompt"], f"a logprob is off by {worst:.2g}"))
    return wrong


class Stage:
    """A server, the trainer that speaks to it, and what is checked of both."""

    def __init__(self, checks, args, trainer, server):
        self.checks, self.args, self.trainer, self.server = checks, args, trainer, server

    def say(self, path, body=None, method="POST"):
        return say(self.server, path, body, method)

    def load(self, step, tied=False):
        """The trainer's next weights: names, dtypes and shapes, and the number of chunks."""
        return self.trainer.ask(trainer_side.load, step, CHUNK_NBYTES, tied)

    def meanwhile(self, path, body, send, *args):
        """The trainer broadcasts while the request is under way."""
        pending = nccl.Pending(self.server, path, body)
        self.trainer.tell(send, *args)
        found = must_answer(pending.answer(), f"POST {path}")
        self.trainer.hear()
        return found

    def let_go(self, what):
        """What was sent; the server must have counted down each export by now."""
        left = self.trainer.ask(trainer_side.let_go)
        if left:
            raise AssertionError(f"{what}: {left} exports are still held")

    def _differing(self, step):
        """Bytes on the GPU, as another process maps them; with the fakes, what the server tells."""
        path = ipc.CHECKPOINTS / f"{step}.safetensors"
        if self.args.fakes:
            tensors = nccl.baton.load_file(path)
            return [
                name
                for name, tensor in tensors.items()
                if self.server.get(f"/v1/weights/{name}") != bytes(tensor.data)
            ]
        index = self.server.devices[0]
        expected = ipc.expected_on_gpu(step, index)
        return world.differing(self.server.url, expected, device=f"cuda:{index}")

    def holds(self, step, what, label=None):
        """One version, that checkpoint's, and nothing of the trainer's."""
        self.checks.same(self._differing(step), [], f"{what}: the bytes that are served")
        alive = lambda: self.server.status()["weights"]["versions_alive"]  # noqa: E731
        world.until(lambda: alive() == 1, f"{what}: the version before goes", 10)
        self.checks.same(self.server.mapped(), 0, f"{what}: mappings left")
        if label is not None:
            found = self.server.status()["weights"]["weight_version"]
            self.checks.same(found, label, f"{what}: the version's name")

    def judge(self, found, step, what):
        wrong = wrong_tokens(found, cases_of(step))
        self.checks.same(wrong, [], f"{what}: tokens and logprobs of {step}")

    def serves(self, step, what, generate, label=None):
        self.judge([generate(self.server, case) for case in cases_of(step)], step, what)
        self.holds(step, what, label)

    # growth

    def gpu_used(self):
        """Of all GPUs, but for what torch keeps for itself in the trainer."""
        if self.args.fakes:
            return 0
        import torch

        used = 0
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            used += total - free
        return used - self.trainer.ask(trainer_side.memory)["reserved"]

    def usage(self):
        found = {**self.server.usage(), **self.trainer.ask(trainer_side.memory)}
        found.update(mapped=self.server.mapped(), gpu_used=self.gpu_used())
        return found

    def no_growth(self, rounds, warm=3, **slacks):
        """rounds(steps) is a round for each; first so many to warm up, then those that count."""
        steps = itertools.cycle(STEPS)
        rounds(list(itertools.islice(steps, warm)))
        before, n = self.usage(), max(self.args.rounds, warm)
        rounds(list(itertools.islice(steps, n)))
        world.until(
            lambda: self.server.usage()["fds"] <= before["fds"], "closed connections are gone", 30
        )
        after = self.usage()
        for name, slack in {**SLACKS, "reserved": RESERVED_SLACK, **slacks}.items():
            self.checks.that(
                after[name] - before[name] <= slack,
                f"no growth of {name}",
                f"{before[name]} -> {after[name]} in {n} rounds, {slack} more are allowed",
            )


# --- what is sent by NCCL


def specs_of(columns):
    return [nccl.Spec(*row) for row in columns]


def wire(columns, dtypes="dtype_names", **more):
    names, dtype_names, shapes = (list(column) for column in zip(*columns))
    return {"names": names, dtypes: dtype_names, "shapes": shapes, **more}
