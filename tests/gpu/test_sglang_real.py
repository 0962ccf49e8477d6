"""A real SGLang 0.5.16 on GPU 0, baton in front of it, and a trainer of SGLang's own pieces: groups
by NCCL (rank 0 on GPU 1), tensors by CUDA IPC, files; by SGLang's routes and by baton's own; each
pause mode, idle and with requests held. Each update ends in the tokens of the pushed checkpoint,
though the cache was filled with the same prompts by the one before. baton, engine and trainer are
killed in mid transfer: until the group is joined again and a whole update has come, nothing is
generated that no one checkpoint would. "handed over" and "in windows" are played where they are
asked for.

Usage: test_sglang_real.py --baton BATON [--only SECTION[,SECTION...]] [--match WORD] [--straight]
                           [--limit S] [--out DIR] [--device cuda|cpu]
--straight  also without baton. --device cpu tries this test where there is no GPU: gloo for NCCL.
Ends with 0, or 1 if a check failed, or 77 (skipped) where torch, SGLang or a GPU is missing; with
one GPU what needs two is left out. With BATON_REQUIRE_GPU=1 what is missing is a failure."""

import argparse
import contextlib
import importlib.util
import itertools
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time

import gpu_world as world
import nccl_torch
import nccl_world as nccl
import sglang_deaths
import sglang_engines as engines
import sglang_handoff
import sglang_trainer
import sglang_updates as updates
import test_nccl_torch
from dialects_world import STEPS, say
from sglang_updates import Scenario
from vllm_engines import await_ready

LONG = {"cuda": 300, "cpu": 150}  # tokens of a request that is held
HELD_S = {"cuda": 0.25, "cpu": 0.5}  # until it runs
SERVED_S = 120
START_S = 240  # of a trainer that imports SGLang


class Trainer(nccl.Trainer):
    def __init__(self, args):
        world.Worker.__init__(self, NCCL_CUMEM_ENABLE="0")  # as SGLang sets it for itself
        self.tell(sglang_trainer.be, args.device)


class Trainers(nccl_torch.Trainers):
    def get(self):
        if self.one is None:
            self.one = Trainer(self.args)
            self.version = self.one.hear(START_S)
        return self.one


class Front(world.Server):
    """baton in front of an engine; it can be killed."""

    def __init__(self, args, engine, *options):
        super().__init__(
            args.baton,
            *("--upstream", f"{engine.url},sglang", "--probe-interval", "500"),
            *("--update-timeout", str(updates.TIMEOUT_MS), "--join-timeout", "60000"),
            *options,
        )
        nccl.SERVERS.append(self.child)

    def heard(self):
        """What it knows of the engine is of now."""
        upstream = self.get("/v1/upstreams")["list"][0]
        last = upstream["last_heard_s"]
        return last is not None and last < 1 and upstream["state"] not in ("unknown", "down")

    def kill(self):
        self.child.kill()
        self.child.wait(world.PATIENCE_S)
        self.log.close()
        self.folder.cleanup()


class Play:
    """What the sections share: engine, baton, trainer, and which checkpoint is served."""

    def __init__(self, checks, args, folder):
        self.checks, self.args, self.folder = checks, args, folder
        kind = engines.Engine if args.device == "cuda" else engines.CpuEngine
        self.engine = kind("engine", folder, None, 0)
        self.trainers, self.front, self.group = Trainers(args), None, None
        self.front_options = ()
        self.alike = True  # until the judge has told the checkpoints apart
        self.labels, self.rows, self.step = itertools.count(1), [], engines.FIRST

    def next_step(self):
        return STEPS[1] if self.step == STEPS[0] else STEPS[0]

    def start_engine(self):
        self.engine.start(engines.FIRST)

    def engine_is_up(self):
        await_ready([self.engine])
        self.group, self.step = None, engines.FIRST

    def new_front(self, killed=False, engine=None):
        """Another baton; the one before is killed, or ends. @engine  what has its URL"""
        self.drop_front(killed)
        self.front = Front(self.args, engine or self.engine, *self.front_options)
        self.group = None
        world.until(self.front.heard, "baton has found the engine", SERVED_S)
        return self.front

    def drop_front(self, killed=True):
        front, self.front = self.front, None
        if front is not None and killed:
            front.kill()
        elif front is not None:
            front.__exit__(None)

    def drop_trainer(self):
        self.trainers.drop()
        self.group = None

    def n_failed(self):
        return sum(not row[0] for row in self.checks.rows)

    def begins(self):
        if time.monotonic() > self.args.deadline:
            raise AssertionError(f"not begun: {self.args.limit:.0f} s are over")

    @contextlib.contextmanager
    def repaired(self):
        """After a failure nothing is trusted; the engine is kept if it still generates."""
        n_failed, ok = self.n_failed(), False
        try:
            yield
            ok = self.n_failed() == n_failed
        finally:
            if not ok and time.monotonic() < self.args.deadline:
                self.repair()

    def repair(self):
        self.drop_trainer()
        if self.front is not None:
            print(f"--- end of baton's log\n{self.front.tail()}", flush=True)
        self.drop_front()
        if not self.engine.lives():
            print(f"--- end of the engine's log\n{self.engine.tail()}", flush=True)
            self.engine.kill()
            self.start_engine()
            self.engine_is_up()

    def stop(self):
        self.trainers.drop()
        self.engine.kill()
        self.drop_front()

    def serves(self, server, step, what):
        found = self.oracle.wrongs(step, server)
        self.checks.same(found, [], f"{what}: it generates what {step} does")

    def served_again(self, server):
        again = lambda: not isinstance(engines.generate(server, [40], 1), nccl.Answer)  # noqa: E731
        world.until(again, "generation is served", SERVED_S)


# --- one update, from a full cache to the tokens after it


def hold(play, server, n):
    """(threads, answers) of requests that are under way."""
    answers, threads, prompt = [], [], next(engines.prompts())
    for i in range(n):

        def ask(ids=(*prompt, 77 + i)):
            answers.append(engines.generate(server, list(ids), LONG[play.args.device], SERVED_S))

        threads.append(threading.Thread(target=ask, daemon=True))
        threads[-1].start()
    if n:
        time.sleep(HELD_S[play.args.device])
    return threads, answers


def play_one(play, server, scenario):
    checks, new = play.checks, play.next_step()
    if server is play.engine:
        say(server, "/continue_generation", {})
        world.until(play.engine.flush, "the engine's cache is empty", SERVED_S)
    play.served_again(server)
    for prompt in engines.prompts():  # what the old weights leave in the cache
        engines.generate(server, prompt)
    threads, answers = hold(play, server, scenario.held)
    began = time.monotonic()
    updates.pause(server, scenario)
    updates.push(play, server, scenario, new)
    updates.resume(server, scenario)
    ms = (time.monotonic() - began) * 1e3
    play.step = new
    refused = isinstance(first := engines.generate(server, next(engines.prompts())), nccl.Answer)
    if scenario.held == 0:
        found = first if refused else f"{first.n_cached} tokens of the first prompt"
        checks.that(not refused and not first.n_cached, "nothing is cached", found)
    if refused:
        checks.same(first.status, 503, "generation is refused until what was held has ended")
    else:
        play.serves(server, new, "at once")
    for thread in threads:
        thread.join(SERVED_S)
    answered = [a for a in answers if not isinstance(a, nccl.Answer)]
    checks.same(len(answered), scenario.held, "what was held is answered")
    if refused:  # by SGLang before 0.5.23, which empties no cache while it holds a request
        play.served_again(server)
    if scenario.held:
        play.serves(server, new, "when what was held has ended")
    play.rows.append((checks.title, ms, "503 while held" if refused else ""))


def play_all(play, scenarios, straight=False):
    section = play.checks.title
    for scenario in scenarios:
        title = f"{section}: {scenario.title()}"
        if play.args.match not in title:
            continue
        with play.checks.section(title), play.repaired():
            play.begins()
            server = play.engine if straight else play.front or play.new_front()
            if scenario.way == "nccl" and play.group is None:
                updates.join(play, server, scenario.v1)
            play_one(play, server, scenario)


# --- sections


def by_sglang(*ways):
    """Each pause, idle and held, flat or not; what is said of the flush and the number of requests
    go round."""
    flushes, ns = itertools.cycle((True, False, None)), itertools.cycle((1, 3))
    for flat, pause in itertools.product((False, True), ("abort", "in_place", "retract", None)):
        for held in (0, 2):
            for way in ways:
                yield Scenario(way, flat, False, next(flushes), pause, held, next(ns))


def by_baton(way):
    """baton's own routes: whole, or from start to finish."""
    ns = itertools.cycle((1, 3))
    for flat, (pause, held) in itertools.product(
        (False, True), ((None, 0), ("keep", 0), ("keep", 2), ("abort", 2))
    ):
        yield Scenario(way, flat, True, None, pause, held, next(ns))


def files():
    for pause, held in itertools.product(("abort", "in_place", "retract", None), (0, 2)):
        yield Scenario("disk", False, False, (True, None)[held > 0], pause, held, 1)
    yield Scenario("disk", False, False, False, None, 0, 1)
    for pause, held in ((None, 0), ("keep", 0), ("keep", 2), ("abort", 2)):
        yield Scenario("disk", False, True, None, pause, held, 1)


def nccl_through_baton(play):
    play_all(play, by_sglang("nccl"))
    if play.group is not None:
        with play.checks.section("nccl through baton: it is left, and joined by baton's route"):
            updates.leave(play, play.front)
    play_all(play, by_baton("nccl"))


def tensors_through_baton(play):
    play_all(play, itertools.chain(by_sglang("tensor"), by_baton("tensor")))


def disk_through_baton(play):
    play_all(play, files())


def handed_over(play):
    sglang_handoff.play_handoff(play, play_all)


def in_windows(play):
    sglang_handoff.play_windows(play, play_all)


def straight(play):
    """Where SGLang itself is wrong, what is through baton says nothing."""
    play.drop_front(killed=False)
    play.drop_trainer()
    ways = ("nccl", "tensor") if play.args.n_gpus > 1 else ("tensor",)
    tensors = [Scenario(w, f, False, True, "abort", 0, 1) for w in ways for f in (False, True)]
    play_all(play, [*tensors, Scenario("disk", False, False, True, None, 0, 1)], straight=True)


SECTIONS = {  # what is played, and the GPUs that it takes
    "nccl through baton": (nccl_through_baton, 2),
    "deaths": (sglang_deaths.play_deaths, 1),
    "tensors through baton": (tensors_through_baton, 1),
    "disk through baton": (disk_through_baton, 1),
    "handed over": (handed_over, 1),
    "in windows": (in_windows, 1),
    "straight": (straight, 1),
}
ASKED_FOR = ("handed over", "in windows", "straight")


# --- main


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--only", help="sections, by commas")
    parser.add_argument("--match", default="", help="scenarios with this word in their titles")
    parser.add_argument("--straight", action="store_true", help="also without baton")
    parser.add_argument("--limit", type=float, default=490, help="seconds for all of it")
    parser.add_argument("--out", help="a folder into which the engine's logs are copied")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args(argv)
    usual = [name for name in SECTIONS if name not in ASKED_FOR] + ["straight"] * args.straight
    args.names = args.only.split(",") if args.only else usual
    unknown = set(args.names) - set(SECTIONS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(SECTIONS)}")
    return args


def use_device(args):
    if args.device == "cuda":
        torch = world.need_gpus()
        args.n_gpus = torch.cuda.device_count()
        print(f"torch {torch.__version__}, {args.n_gpus} x {torch.cuda.get_device_name(0)}")
    else:
        args.n_gpus = 2  # gloo needs none
        path = os.pathsep.join([str(engines.CPU_STUBS), os.environ.get("PYTHONPATH", "")])
        os.environ["PYTHONPATH"] = path  # of the trainer
    if importlib.util.find_spec("sglang") is None:
        required = os.environ.get("BATON_REQUIRE_GPU") == "1"
        print(f"{'FAIL' if required else 'skipped'}: there is no sglang")
        sys.exit(1 if required else world.SKIPPED)


def alone(play):
    """The engine by itself, by each checkpoint; the judge must tell them apart."""
    engine, answers = play.engine, {}
    play.oracle = engines.Oracle(play.folder)
    play.engine_is_up()
    for step in (*STEPS[:2], engines.FIRST):
        path = str(engines.engines.model_folder(play.folder, step))
        say(engine, "/update_weights_from_disk", {"model_path": path, "flush_cache": True})
        answers[step] = [(p, engines.generate(engine, p)) for p in engines.prompts()]
    play.alike = play.oracle.measure(answers)
    play.checks.same(play.alike, [], "no checkpoint is taken for another")
    within = play.oracle.tolerance
    ok = max(within.values()) < engines.OFF_MAX
    play.checks.that(ok, "it is what transformers says", f"within {within}")


def run(play):
    checks, args, began = play.checks, play.args, time.monotonic()
    play.start_engine()
    play.trainers.get()
    print(f"SGLang {play.trainers.version}", flush=True)
    with checks.section("the engine alone"):
        alone(play)
        checks.that(True, "it is ready", f"{time.monotonic() - began:.0f} s")
    if play.alike:
        return  # nothing could be judged
    for name in args.names:
        play_section, n_gpus = SECTIONS[name]
        with checks.section(name):
            if n_gpus <= args.n_gpus:
                play_section(play)
                continue
            why = f"{n_gpus} GPUs are needed, and {args.n_gpus} is here"
            checks.skip(name, why)
            if os.environ.get("BATON_REQUIRE_GPU") == "1":
                checks.that(False, "it has what it needs", why)


def told(play):
    print(f"\n{'update':76} {'ms':>6}  (from the pause to the resume)")
    for title, ms, note in play.rows:
        print(f"{title:76} {ms:6.0f}  {note}")


def main():
    args = parse()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    use_device(args)
    args.deadline = time.monotonic() + args.limit
    checks = world.Checks()
    with tempfile.TemporaryDirectory(prefix="baton-sglang-") as folder:
        play = Play(checks, args, pathlib.Path(folder))
        try:
            with test_nccl_torch.Watchdog(checks, args.limit):
                run(play)
        finally:
            play.stop()
            if args.out:
                for log in pathlib.Path(folder).glob("*.log"):
                    shutil.copy(log, args.out)
    told(play)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
