"""A trainer, baton that receives its updates on a GPU and hands them over (--stage), and two real
vLLM 0.20 to 0.27 on GPU 0. The trainer is vLLM's own code, unmodified: by CUDA IPC on GPU 0, by
NCCL from GPU 1 where there is one. Each update ends in the tokens and logprobs of the checkpoint that was pushed, also
where it goes through windows from host memory (--stage host: vLLM 0.24 and later). The trainer is
killed in mid transfer, an engine in mid hand-off. 200 updates under load: each token is of a
checkpoint that was served then, no request is lost, and nothing grows.

Usage: test_vllm_handoff.py --baton BATON [--only SECTION[,SECTION...]] [--budget-s S] [--out DIR]
Ends with 0, or 1 if a check failed, or 77 (skipped) where torch, vLLM or a GPU is missing. With
BATON_REQUIRE_GPU=1 what is missing is a failure."""

import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
import time

import gpu_world as world
import handoff_load
import nccl_world as nccl
import test_ipc_torch as ipc
import test_vllm_real as real
import vllm_engines as engines
from dialects_world import STEPS, say
from http_tap import Tap
from sglang_engines import Oracle

PACKED = {"packed": True, "packed_buffer_size_bytes": 4 << 20}  # of which one is enough
WINDOW = 1 << 20  # of which the model needs two
N_WARM, N_ROUNDS = 20, 200
ROUNDS_S = 180  # for all of them; one takes about 0.2 s
REPAIR_S = 60
SETTLE_S = 8  # until idle connections are closed: by vLLM after 5 s
MIB = 1 << 20
SLACKS = {  # by how much it may differ after N_ROUNDS updates
    "baton fds": 2,
    "baton maps": 16,
    "baton rss": 32 * MIB,
    "baton mapped": 0,
    "engines fds": 8,
    "engines rss": 256 * MIB,
    "trainer allocated": 0,
    "counters in /dev/shm": 2,
    "GPU used by others": 64 * MIB,
}


class Play(real.Play):
    """baton pauses the engines by itself; the trainer does not."""

    pauses = False

    def __init__(self, checks, args, folder):
        super().__init__(checks, args, folder)
        self.by_nccl, self.judge = [], None

    def judged(self):
        if self.judge is None:
            self.judge = handoff_load.Judge(Oracle(self.folder))
        return self.judge

    @contextlib.contextmanager
    def stage(self, behind, *more, where="cuda:0"):
        """A server that receives updates on GPU 0, or in host memory."""
        options = [o for e in behind for o in ("--upstream", f"{e.url},vllm")]
        options += ["--stage", where, "--manifest", ipc.CHECKPOINTS / f"{STEPS[0]}.safetensors"]
        options += ["--probe-interval", "500", "--min-ready", "1", *more]
        if self.args.cuda_library:
            options += ["--cuda-library", self.args.cuda_library]
        with world.Server(self.args.baton, *options) as server:
            nccl.SERVERS.append(server.child)  # a watchdog that bites ends it too
            self.await_front(server, len(behind))
            yield server

    def hand(self, server, kind, way, members):
        """An update; returns the checkpoint."""
        step = self.push(server, kind, way, members)
        took_s = server.status()["stage"]["last_handoff_s"]
        self.rows.append((self.checks.title, f"{way}: the hand-off alone", took_s * 1e3))
        return step

    def under_load(self, load, served):
        """What was asked meanwhile is answered, by checkpoints that were served then."""
        replies, judge = list(load.replies), self.judged()
        wrong = [w for w in (judge.wrong(r, served) for r in replies if not r.lost) if w]
        n_changed = sum(judge.changed_within(r) for r in replies if not r.lost)
        what = f"each token of {len(replies)} replies is of what was served"
        self.checks.that(replies and not wrong, what, wrong[:3] or f"{n_changed} of two versions")


def everywhere(server, behind):
    return [("it", server)] + [(f"engine {e.name}", e) for e in behind]


def n_serving(server):
    return server.get("/v1/upstreams")["n_serving"]


# --- sections


def by_ipc(play):
    behind = play.by_ipc
    with play.stage(behind) as server:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        for way, members in real.IPC_WAYS.items():
            play.serves(everywhere(server, behind), play.hand(server, "ipc", way, members), way)
        play.pauses, way = True, "the trainer pauses too"
        try:
            step = play.push(server, "ipc", way, PACKED)
        finally:
            play.pauses = False
        play.serves(everywhere(server, behind), step, way)


def from_host(play):
    """The version waits in host memory, and goes through small windows on the GPU."""
    behind, window = play.by_ipc, ("--stage-window", str(WINDOW))
    with play.stage(behind, *window, where="host") as server:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        with handoff_load.Load(server) as load:
            for way, members in real.IPC_WAYS.items():
                step = play.hand(server, "ipc", way, members)
                play.serves(everywhere(server, behind), step, way)
        play.checks.same(load.lost()[:3], [], "no request is lost")


def by_nccl(play):
    """NCCL refuses two ranks of one host on one GPU. Where there is only one, the trainer claims to
    be on another host: the same group, whose bytes go through a socket."""
    play.trainers.move(1 if play.args.n_gpus > 1 else 0, "of the trainer")
    behind = play.by_ipc
    try:
        with play.stage(behind, "--nccl-library", play.args.nccl_server) as server:
            play.join(server, "baton")
            for way, members in real.NCCL_WAYS.items():
                old = play.hand(server, "nccl", way, members)
                play.serves(everywhere(server, behind), old, way)
        with undisturbed(play, "nccl", "--nccl-library", play.args.nccl_server) as (server, old):
            kill_in_mid_transfer(play, server, "nccl", old)
    finally:
        play.trainers.move(0)


def trainer_dies(play):
    with undisturbed(play, "ipc") as (server, old):
        kill_in_mid_transfer(play, server, "ipc", old)


def enter(play, server, kind):
    if kind == "nccl":
        play.join(server, "baton")
    else:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})


@contextlib.contextmanager
def undisturbed(play, kind, *options):
    """A server, and what it serves, while the engines generate; what happens to the trainer
    meanwhile must disturb none of them. Another trainer's update follows."""
    checks, behind = play.checks, play.by_ipc
    with contextlib.ExitStack() as stack:
        taps = [stack.enter_context(Tap(e.url)) for e in behind]
        server = stack.enter_context(play.stage(taps, *options))
        enter(play, server, kind)
        old = play.hand(server, kind, "before the kill", PACKED)
        with handoff_load.Load(server) as load:
            n_before = [len(tap.calls) for tap in taps]
            yield server, old
        checks.same(n_serving(server), len(behind), "no engine is disturbed")
        came = [c for tap, n in zip(taps, n_before) for c in tap.calls[n:]]
        found = {c.path for c in came if c.method == "POST"}
        checks.same(sorted(found), ["/v1/completions"], "nothing but requests came to them")
        checks.same(load.lost()[:3], [], "no request is lost")
        play.under_load(load, handoff_load.Served(old))
        enter(play, server, kind)
        step = play.hand(server, kind, "by another trainer", PACKED)
        play.serves(everywhere(server, behind), step, "by another trainer")


def kill_in_mid_transfer(play, server, kind, old):
    """The update that was open then is aborted."""
    step, trainer, pending = next(play.steps), play.args.trainer, None
    columns = play.trainers.get().ask(trainer.load, step)
    play.checks.that(columns["names"], "there is something to send")
    say(server, "/start_weight_update", {})
    gate = tempfile.mkdtemp(dir=play.folder)
    members = {"packed": True, "packed_buffer_size_bytes": real.SMALL_BUFFER}
    if kind == "nccl":
        pending = play.nccl_update(server, columns, members, (gate, real.GATE_AT))
    else:
        sent = (server.url, members, (gate, real.GATE_AT))
        play.trainers.get().tell(trainer.send_by_ipc, *sent)
    world.until(lambda: os.path.exists(f"{gate}/reached"), "the trainer is in mid transfer")
    play.serves([("it", server)], old, "in mid transfer")
    play.trainers.drop()
    play.serves([("it", server)], old, "the trainer is dead")
    if pending is not None:
        answer = pending.answer()
        play.checks.that(answer.status != 200, "its request is answered with an error", answer)
    status = server.status()
    play.checks.same(status["stage"]["handed_serial"], status["stage"]["serial"], "nothing new")
    if status["update"] is not None:
        server.post("/v1/update_weights/abort", {"update_id": status["update"]["update_id"]})


def engine_dies(play):
    """When it gets the request to copy the weights. The other engine gets them; this one is started
    again, and gets them from baton."""
    checks, (victim, other) = play.checks, play.by_ipc
    with Tap(victim.url) as tap, play.stage([tap, other]) as server:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        old = play.hand(server, "ipc", "before the kill", PACKED)
        n_repairs = server.status()["stage"]["n_repairs"]
        tap.before = lambda path: victim.kill() if path == "/update_weights" else None
        with handoff_load.Load(server) as load:
            began = time.monotonic()
            step = play.push(server, "ipc", "an engine is killed", PACKED)
            served = handoff_load.Served(old)
            served.change(step, began, time.monotonic())
            tap.before = lambda path: None
            checks.that(victim.child.poll() is not None, "it was killed in mid hand-off")
            checks.same(n_serving(server), 1, "it is missed")
            play.serves([("it", server), ("the other", other)], step, "one is dead")
        lost = load.lost()
        few = len(lost) <= handoff_load.N_CLIENTS
        checks.that(few, "no request is lost but those that were in it", f"{len(lost)}: {lost[:1]}")
        play.under_load(load, served)
        repaired(play, server, step, n_repairs)


def repaired(play, server, step, n_repairs):
    checks, victim = play.checks, play.by_ipc[0]
    victim.start(next(s for s in STEPS if s != step))
    engines.await_ready([victim])
    began = time.monotonic()
    world.until(lambda: n_serving(server) == 2, "the engine is repaired", REPAIR_S)
    found = f"{time.monotonic() - began:.1f} s after it answers"
    checks.that(True, "it serves again without a trainer", found)
    play.serves(everywhere(server, play.by_ipc), step, "without a trainer")
    checks.same(server.status()["stage"]["n_repairs"] - n_repairs, 1, "by one repair")
    step = play.hand(server, "ipc", "after the restart", PACKED)
    play.serves(everywhere(server, play.by_ipc), step, "after the restart")


def many(play):
    """Updates one after the other, while clients ask."""
    behind = play.by_ipc
    with play.stage(behind) as server:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        step = play.hand(server, "ipc", "the first", PACKED)
        step = rounds(play, server, step, N_WARM, "to warm up")
        before = held(play, server)
        step = rounds(play, server, step, N_ROUNDS, f"{N_ROUNDS} under load")
        after = held(play, server)
        for name, slack in SLACKS.items():
            found = f"{before[name]} -> {after[name]}, {slack} more are allowed"
            play.checks.that(after[name] - before[name] <= slack, f"no growth: {name}", found)
        play.serves(everywhere(server, behind), step, "at the end")


def rounds(play, server, step, n, way):
    n_rows, served, end = len(play.rows), handoff_load.Served(step), time.monotonic() + ROUNDS_S
    handed, done = [], 0
    with handoff_load.Load(server) as load:
        while done < n and time.monotonic() < end:
            began = time.monotonic()
            step = play.push(server, "ipc", way, PACKED, cached=False)
            served.change(step, began, time.monotonic())
            handed.append(server.status()["stage"]["last_handoff_s"] * 1e3)
            done += 1
    pushed = [ms for _, _, ms in play.rows[n_rows:]]
    del play.rows[n_rows:]
    play.rows.append((play.checks.title, f"{way}: median", statistics.median(pushed)))
    play.rows.append((play.checks.title, f"{way}: the hand-off", statistics.median(handed)))
    play.checks.same(done, n, f"{way}: so many updates within {ROUNDS_S} s")
    play.checks.same(load.lost()[:3], [], f"{way}: no request is lost")
    play.under_load(load, served)
    return step


def held(play, server):
    """What must not grow, with no request under way."""
    time.sleep(SETTLE_S)
    trainer = play.trainers.get().ask(play.args.trainer.memory)
    found = {f"baton {k}": v for k, v in server.usage().items()}
    found["baton mapped"] = server.mapped()
    each = [handoff_load.usage(os.getpgid(e.child.pid)) for e in play.by_ipc]
    for name in each[0]:
        found[f"engines {name}"] = sum(one[name] for one in each)
    found["trainer allocated"] = trainer["allocated"]
    found["counters in /dev/shm"] = sum(1 for _ in pathlib.Path("/dev/shm").glob("torch_*"))
    found["GPU used by others"] = trainer["used"] - trainer["reserved"]
    return found


def adapters(play):
    """An engine with --enable-lora and an adapter, from a GPU and from host memory."""
    with real.engine_with_lora(play) as engine:
        for where in ("cuda:0", "host"):
            with play.stage([engine], where=where) as server:
                real.updates_under_an_adapter(play, server, engine)
                say(server, "/v1/unload_lora_adapter", {"lora_name": "shout"})


SECTIONS = {  # what is played, the GPUs that it takes, and whether vLLM's servers must be there
    "by ipc": (by_ipc, 1, True),
    "from host": (from_host, 1, True),
    "trainer dies": (trainer_dies, 1, True),
    "many updates": (many, 1, True),
    "engine dies": (engine_dies, 1, True),
    "by nccl": (by_nccl, 1, True),
    "adapters": (adapters, 1, False),
}


if __name__ == "__main__":
    sys.exit(real.main(SECTIONS, __doc__, Play))
