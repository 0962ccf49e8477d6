"""A real vLLM with the weight-transfer routes of 0.20 to 0.27, and its own, unmodified trainer code
on GPU 0: straight to vLLM, to baton, and to baton in front of vLLM. By NCCL (engine on GPU 1) and
CUDA IPC (two engines on GPU 0), packed or not. Each update ends in the tokens and logprobs of the
checkpoint that was pushed; an engine is killed in mid transfer, and started again; one with
--enable-lora is updated while it has an adapter. What baton
receives itself and hands over (--stage) is in test_vllm_handoff.py.

Usage: test_vllm_real.py --baton BATON [--only SECTION[,SECTION...]] [--budget-s S] [--out DIR]
Ends with 0, or 1 if a check failed, or 77 (skipped) where torch, vLLM or a GPU is missing; with one
GPU what needs two is left out. With BATON_REQUIRE_GPU=1 what is missing is a failure."""

import argparse
import contextlib
import importlib.util
import itertools
import os
import pathlib
import shutil
import sys
import tempfile
import time
import types

import gpu_world as world
import nccl_torch
import nccl_world as nccl
import test_ipc_torch as ipc
import test_nccl_torch
import vllm_engines as engines
import vllm_trainer
import vllm_versions
from dialects_world import STEPS, must_answer, say, serve

SMALL_BUFFER = 300_000  # so that the small model comes in several
GATE_AT = 20  # the tensor before which a trainer waits, of 46
ANSWER_S = 90  # for an answer after an engine has died
HEARD_S = 2  # an engine that answered a probe so recently is there
NCCL_WAYS = {
    "packed": {"packed": True},
    "packed, small buffers": {
        "packed": True,
        "packed_buffer_size_bytes": SMALL_BUFFER,
        "packed_num_buffers": 2,
    },
    "each tensor": {"packed": False},
}
IPC_WAYS = {
    "each tensor": {"packed": False},
    "packed": {"packed": True},
    "packed, small buffers": {"packed": True, "packed_buffer_size_bytes": SMALL_BUFFER},
}


class Trainer(nccl.Trainer):
    def __init__(self, args, *place):
        world.Worker.__init__(self)
        self.tell(args.trainer.be, *place)

    def ready(self):
        self.version = self.hear(120)
        return self


class Trainers(nccl_torch.Trainers):
    gpu, host_id = 0, None

    def get(self):
        if self.one is None:
            self.one = Trainer(self.args, self.gpu, self.host_id).ready()
        return self.one

    def move(self, gpu, host_id=None):
        """The next one is on that GPU; for NCCL, on that host."""
        self.drop()
        self.gpu, self.host_id = gpu, host_id


class Play:
    """What the sections share: the trainer, the engines, which checkpoint comes next."""

    pauses = True  # the trainer does it, around its update

    def __init__(self, checks, args, folder):
        self.checks, self.args, self.folder = checks, args, folder
        self.trainers, self.steps = Trainers(args), itertools.cycle(STEPS[1:] + STEPS[:1])
        self.by_ipc = [engines.Engine(n, folder, "ipc", 0) for n in ("a", "b")]
        self.by_nccl = [engines.Engine("n", folder, "nccl", 1)] if args.n_gpus > 1 else []
        self.rows = []  # section, way, ms

    def all_engines(self):
        return self.by_ipc + self.by_nccl

    def stop(self):
        self.trainers.drop()
        for engine in self.all_engines():
            engine.kill()

    # a group

    def join(self, server, what):
        """vLLM's trainer and a server enter a new group."""
        n = say(server, "/get_world_size", method="GET")["world_size"]
        port = engines.free_port()
        info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1}
        body = {"init_info": {**info, "world_size": 1 + n}}
        pending = nccl.Pending(server, "/init_weight_transfer_engine", body)
        self.trainers.get().tell(self.args.trainer.join, port, 1 + n)
        must_answer(pending.answer(), f"{what}: the init")
        self.trainers.get().hear()

    # an update

    def open(self, server, step, cached=True):
        """Until the first byte may come. Returns names, dtype_names and shapes.
        @cached  it generates already, and fills its cache by the weights before"""
        columns = self.trainers.get().ask(self.args.trainer.load, step)
        if cached:
            engines.fill_cache(server, step)
        if self.pauses:
            say(server, "/pause?mode=keep")
        say(server, "/start_weight_update", {})
        return columns

    def nccl_update(self, server, columns, members, gate=None):
        """The request whose answer is under way, while the trainer broadcasts."""
        body = {"update_info": {**columns, **members}}
        pending = nccl.Pending(server, "/update_weights", body)
        self.trainers.get().tell(self.args.trainer.send_by_nccl, members, gate)
        return pending

    def push(self, server, kind, way, members, cached=True):
        """A whole update that must succeed; returns the checkpoint."""
        step = next(self.steps)
        columns = self.open(server, step, cached)
        began = time.monotonic()
        if kind == "nccl":
            must_answer(self.nccl_update(server, columns, members).answer(), "the update")
        else:
            self.trainers.get().tell(self.args.trainer.send_by_ipc, server.url, members)
        self.trainers.get().hear()
        say(server, "/finish_weight_update", {})
        self.rows.append((self.checks.title, way, (time.monotonic() - began) * 1e3))
        if self.pauses:
            say(server, "/resume")
        return step

    def serves(self, servers, step, what, *tolerance):
        for name, server in servers:
            found = engines.wrong(server, step, *tolerance)
            self.checks.same(found, [], f"{what}: {name} generates what {step} does")

    def ways(self, server, kind, behind=()):
        """Each way, pushed to a server; it and those behind it must generate by the new weights."""
        servers = [("it", server)] + [(f"engine {e.name}", e) for e in behind]
        for way, members in (NCCL_WAYS if kind == "nccl" else IPC_WAYS).items():
            self.serves(servers, self.push(server, kind, way, members), way)

    # baton in front

    @contextlib.contextmanager
    def front(self, behind, *more):
        options = [*(o for e in behind for o in ("--upstream", f"{e.url},vllm")), *more]
        with world.Server(self.args.baton, *options, "--probe-interval", "500") as server:
            nccl.SERVERS.append(server.child)
            self.await_front(server, len(behind))
            yield server

    def await_front(self, server, n_ready):
        def up():
            states = [u["state"] for u in server.get("/v1/upstreams")["list"]]
            return states.count("serving") >= n_ready

        world.until(up, f"{n_ready} engines are ready behind baton", 60)


# --- sections


def oracle(play):
    """The judge must tell the checkpoints apart, or all that follows says nothing."""
    for a, b in itertools.permutations(STEPS, 2):
        pairs = zip(engines.questions(a), engines.questions(b), strict=True)
        same = [
            qa[0]
            for qa, qb in pairs
            if len(qa[1]) == len(qb[1]) and not engines.differs(qa[1:], *qb[1:])
        ]
        play.checks.same(same, [], f"{a} is not taken for {b}")


def nccl_to_baton(play):
    with serve(play.args, 1) as server:
        play.join(server, "baton")
        play.ways(server, "nccl")


def ipc_to_baton(play):
    with serve(play.args, 0) as server:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        play.ways(server, "ipc")


def nccl_to_vllm(play):
    engine = play.by_nccl[0]
    play.join(engine, "vLLM")
    play.ways(engine, "nccl")


def ipc_to_vllm(play):
    engine = play.by_ipc[0]
    say(engine, "/init_weight_transfer_engine", {"init_info": {}})
    play.ways(engine, "ipc")


def nccl_through_baton(play):
    with play.front(play.by_nccl) as server:
        play.join(server, "through baton")
        play.ways(server, "nccl", play.by_nccl)


def ipc_through_baton(play):
    with play.front(play.by_ipc) as server:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        play.ways(server, "ipc", play.by_ipc)


def versions(play):
    for mode in vllm_versions.MODES:
        with play.front(play.by_ipc, "--on-update", mode) as server:
            vllm_versions.one_mode(play, server, mode)


def killed(play, server, kind, victim, old):
    """An engine dies when a part of the tensors has been sent: the trainer hears of it, and nothing
    is generated by a mixture of two checkpoints."""
    checks, trainer, step = play.checks, play.trainers.get(), next(play.steps)
    gate = tempfile.mkdtemp(dir=play.folder)
    columns = play.open(server, step)
    members = {"packed": True, "packed_buffer_size_bytes": SMALL_BUFFER}
    pending = None
    if kind == "nccl":
        pending = play.nccl_update(server, columns, members, (gate, GATE_AT))
    else:
        trainer.tell(play.args.trainer.send_by_ipc, server.url, members, (gate, GATE_AT))
    world.until(lambda: os.path.exists(f"{gate}/reached"), "the trainer is in mid transfer")
    victim.kill()
    began = time.monotonic()
    pathlib.Path(gate, "open").touch()
    refused = [answer_of_update(play, pending)]
    refused.append(str(nccl.ask(server, "POST", "/finish_weight_update", {})))
    took_s = time.monotonic() - began
    checks.that(any(r[:3] != "200" for r in refused), "the trainer is told", refused)
    checks.that(took_s < ANSWER_S, "soon", f"{took_s:.1f} s")
    checks.that(True, "and resumes", nccl.ask(server, "POST", "/resume"))
    one_of(play, server, (old, step))


def answer_of_update(play, pending):
    if pending is not None:
        play.trainers.drop()  # it may wait for a rank that is no more
        return str(pending.answer())
    try:
        play.trainers.get().hear(ANSWER_S)
        return "200"
    except AssertionError as e:
        return str(e).strip().splitlines()[-1]


def one_of(play, server, steps):
    """Generation is refused, or all of it is by one checkpoint."""
    prompt, ids, _ = next(engines.questions(steps[0]))
    first = engines.generate(server, prompt, len(ids))
    if isinstance(first, nccl.Answer):
        play.checks.that(first.status in (502, 503), "no mixture: generation is refused", first)
        return
    found = {s: engines.wrong(server, s) for s in steps}
    play.checks.that(not all(found.values()), "no mixture: it is by one checkpoint", found)


def back(play, server, kind, behind):
    """The engine that was killed serves again, and takes part in the next update."""

    def heard(upstream):
        return upstream["last_heard_s"] is not None and upstream["last_heard_s"] < HEARD_S

    world.until(
        lambda: all(heard(u) for u in server.get("/v1/upstreams")["list"]),
        "baton has found the engine again",
        60,
    )
    if kind == "nccl":
        play.join(server, "after the restart")
    else:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
    way = "after a kill and a restart"
    step = play.push(server, kind, way, {"packed": True}, cached=False)
    servers = [("it", server)] + [(f"engine {e.name}", e) for e in behind]
    play.serves(servers, step, way)


def deaths(play):
    """Both ways at once, since an engine takes a minute to start."""
    with contextlib.ExitStack() as stack:
        fronts = []
        for kind, behind in (("ipc", play.by_ipc), ("nccl", play.by_nccl)):
            if not behind:
                continue
            server = stack.enter_context(play.front(behind))
            if kind == "nccl":
                play.join(server, "through baton")
            else:
                say(server, "/init_weight_transfer_engine", {"init_info": {}})
            old = play.push(server, kind, "before the kill", {"packed": True})
            fronts.append((kind, behind, server, old))
        for kind, behind, server, old in fronts:
            with play.checks.section(f"{kind}, an engine is killed"):
                killed(play, server, kind, behind[0], old)
        for kind, behind, _, _ in fronts:
            behind[0].start(STEPS[0])
        engines.await_ready([behind[0] for _, behind, _, _ in fronts])
        for kind, behind, server, _ in fronts:
            with play.checks.section(f"{kind}, started again"):
                back(play, server, kind, behind)


# adapters

SHOUT = world.MODEL / "adapters" / "shout"


@contextlib.contextmanager
def engine_with_lora(play):
    engine = engines.Engine("lora", play.folder, "ipc", 0, engines.LORA_OPTIONS)
    try:
        engine.start(STEPS[0])
        engines.await_ready([engine])
        yield engine
    finally:
        engine.kill()


def load_shout(server):
    say(server, "/v1/load_lora_adapter", {"lora_name": "shout", "lora_path": str(SHOUT)})


def shouts(play, servers, oracle, step, what):
    """@oracle  baton's own engine, with the same adapter over the same checkpoint"""
    for prompt, ids, _ in engines.questions(step):
        expected = engines.generate(oracle, prompt, len(ids), "shout")
        for name, server in servers:
            found = engines.generate(server, prompt, len(ids), "shout")
            found = engines.differs(found, *expected, engines.TOLERANCE_BF16)
            play.checks.same(found, "", f"{what}: {name} generates by the adapter over {step}")


def updates_under_an_adapter(play, server, engine):
    """The trainer sends the names of a checkpoint. After each update the base model and the adapter
    are right at once: before it the caches were filled by both."""
    weights = ipc.CHECKPOINTS / f"{STEPS[0]}.safetensors"
    own = ("--model", world.MODEL, "--weights", weights, "--allow-path", world.MODEL)
    servers, steps = [("it", server), ("the engine", engine)], play.steps
    say(server, "/init_weight_transfer_engine", {"init_info": {}})
    load_shout(server)
    with world.Server(play.args.baton, *own) as oracle:
        load_shout(oracle)
        for (way, members), step in zip(IPC_WAYS.items(), (STEPS[1], STEPS[0], STEPS[1])):
            for prompt, ids, _ in engines.questions(step):
                engines.must_answer_tokens(engines.generate(server, prompt, len(ids), "shout"))
            play.steps = iter([step])
            play.push(server, "ipc", way, members)
            play.serves(servers, step, way, engines.TOLERANCE_BF16)
            say(oracle, "/v1/update_weights", {"path": str(ipc.CHECKPOINTS / f"{step}.safetensors")})
            shouts(play, servers, oracle, step, way)
    play.steps = steps


def adapters_through_baton(play):
    with engine_with_lora(play) as engine, play.front([engine]) as server:
        updates_under_an_adapter(play, server, engine)


# --- main


SECTIONS = {  # what is played, the GPUs that it takes, and whether vLLM's servers must be there
    "oracle": (oracle, 1, False),
    "ipc to baton": (ipc_to_baton, 1, False),
    "nccl to baton": (nccl_to_baton, 2, False),
    "ipc to vLLM": (ipc_to_vllm, 1, True),
    "nccl to vLLM": (nccl_to_vllm, 2, True),
    "ipc through baton": (ipc_through_baton, 1, True),
    "nccl through baton": (nccl_through_baton, 2, True),
    "versions": (versions, 1, True),
    "deaths": (deaths, 1, True),
    "adapters through baton": (adapters_through_baton, 1, False),
}


def parse(sections, about):
    parser = argparse.ArgumentParser(description=about.partition("\n\n")[0])
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--only", default=",".join(sections), help="sections, by commas")
    parser.add_argument("--budget-s", type=float, default=490, help="time for all of it")
    parser.add_argument("--out", help="a folder into which the engines' logs are copied")
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(sections)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(sections)}")
    args.sections = sections
    return args


def use_gpus(args):
    torch = world.need_gpus()
    if importlib.util.find_spec("vllm") is None:
        required = os.environ.get("BATON_REQUIRE_GPU") == "1"
        print(f"{'FAIL' if required else 'skipped'}: there is no vllm")
        sys.exit(1 if required else world.SKIPPED)
    args.trainer = vllm_trainer
    args.cuda_library, args.cuda, args.torch, args.small = None, "libcuda.so.1", True, False
    args.nccl = args.nccl_server = nccl.torch_nccl()
    args.n_gpus = torch.cuda.device_count()
    print(f"torch {torch.__version__}, {args.n_gpus} x {torch.cuda.get_device_name(0)}")


def left_out(checks, args, name):
    if time.monotonic() > args.deadline:
        checks.that(False, "begins within the budget", f"{args.budget_s} s are over")
        return True
    if args.sections[name][1] <= args.n_gpus:
        return False
    why = f"{args.sections[name][1]} GPUs are needed, and {args.n_gpus} is here"
    if os.environ.get("BATON_REQUIRE_GPU") == "1":
        checks.that(False, "it has what it needs", why)
    checks.skip(name, why)
    return True


def run(play):
    """The engines start while baton alone is asked."""
    checks, args = play.checks, play.args
    names, waited = args.only.split(","), False
    if any(args.sections[name][2] for name in names):
        for engine in play.all_engines():
            engine.start(STEPS[0])
    print(f"vLLM {play.trainers.get().version}, its trainer on GPU {play.trainers.gpu}", flush=True)
    for name in names:
        if args.sections[name][2] and not waited:
            with checks.section("engines"):
                began, waited = time.monotonic(), True
                engines.await_ready(play.all_engines())
                checks.that(True, "all answer", f"{time.monotonic() - began:.0f} s more")
                for engine in play.all_engines():
                    checks.same(engines.wrong(engine, STEPS[0]), [], f"engine {engine.name} alone")
        with checks.section(name):
            if not left_out(checks, args, name):
                args.sections[name][0](play)


def told(play):
    print(f"\n{'section':28} {'way':32} {'ms':>8}  (from /update_weights to /finish_weight_update)")
    for title, way, ms in play.rows:
        print(f"{title:28} {way:32} {ms:8.0f}")


def main(sections, about, kind=Play):
    args = parse(sections, about)
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    use_gpus(args)
    args.deadline = time.monotonic() + args.budget_s
    checks = world.Checks()
    with tempfile.TemporaryDirectory(prefix="baton-vllm-") as folder:
        play = kind(checks, types.SimpleNamespace(**vars(args)), pathlib.Path(folder))
        try:
            with test_nccl_torch.Watchdog(checks, args.budget_s):
                run(play)
        finally:
            play.stop()
            if args.out:
                for log in pathlib.Path(folder).glob("*.log"):
                    shutil.copy(log, args.out)
    told(play)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main(SECTIONS, __doc__))
