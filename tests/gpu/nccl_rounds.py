"""Trainers that are killed and stopped at any moment of an init and an update, hundreds of times;
and what is told while an update is under way. Sections of test_nccl_torch.py."""

import collections
import os
import random
import signal
import statistics
import threading
import time
from unittest import mock

import gpu_world as world
import nccl_world as nccl

JOIN_S, UPDATE_S = 2, 2.0  # timeout_s of the inits, --update-timeout
SOUND_JOIN_S = 20  # of those that nobody disturbs: the first loads NCCL's kernels
REPLACED_S = 1.0  # an init first leaves the group that there was
N_TENSORS, REAL_NBYTES, FAKE_NBYTES = 64, 16 << 20, 16 << 10  # of the model
WARM_ROUNDS = 12  # after them everything is as large as it gets
SOUND_EVERY = 10  # a round in which nobody is disturbed
MAPPED_EVERY = 25  # a round after which the bytes are looked at by mapping them
N_READY = 3  # trainers that are made ready while one is played with
POKE_S = 0.3  # how long some of the stopped stay stopped
SLACKS = {"gpu_used": 64 << 20, "fds": 0, "threads": 0}
# ncclCommAbort (2.28.9) does not free a communicator whose ranks never knew of each other.
FORGOTTEN_NBYTES, FORGOTTEN_FDS = 1280 << 10, 4  # of each rank


class Pool:
    """Trainers that are ready when they are needed: a process with a context takes its time."""

    def __init__(self, args):
        self.args, self.queue = args, collections.deque()

    def take(self):
        while len(self.queue) <= N_READY:
            self.queue.append(nccl.Trainer(self.args))
        return self.queue.popleft().ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for trainer in self.queue:
            trainer.__exit__()


def model(args):
    nbytes = FAKE_NBYTES if args.small else REAL_NBYTES
    return [nccl.Spec(f"layers.{i}.weight", "bfloat16", (nbytes // 2,)) for i in range(N_TENSORS)]


class Round:
    """One trainer's life, and what became of its server."""

    def __init__(self, play, number, form, plan):
        self.play, self.number, self.form, self.plan = play, number, form, plan
        self.seed, self.wrong, self.timer = play.first_seed + number, [], None
        self.came_to = ""

    def disturb(self, trainer, delay_s):
        def strike():
            trainer.signal(self.plan["what"])
            if self.plan["what"] == signal.SIGSTOP and self.plan["goes_on"]:
                time.sleep(POKE_S)
                trainer.signal(signal.SIGCONT)

        self.timer = threading.Timer(delay_s, strike)
        self.timer.start()

    def judge(self, answer, deadline_s, what):
        limit_s = deadline_s + nccl.LATE_S + nccl.SLACK_S
        if answer.status == 0 or answer.took_s > limit_s:
            self.wrong.append(f"{what}: {answer}, {limit_s:.1f} s are allowed")
        elif answer.status >= 400 and not self.plan:
            self.wrong.append(f"{what}, undisturbed: {answer}")

    def dealing(self, call, *args):
        """A trainer that is disturbed may be dead; no other."""
        try:
            call(*args)
        except (AssertionError, OSError, EOFError) as e:
            if not self.plan:
                self.wrong.append(f"its trainer, undisturbed: {e}")

    def run(self, trainer):
        play, server = self.play, self.play.server
        trainer.ask(nccl.load, play.specs, self.seed)
        if self.number % 2:
            left = nccl.ask(server, "DELETE", nccl.GROUP)
            self.judge(left, 0, "DELETE")
        try:
            if self.init(trainer):
                self.update(trainer)
        finally:
            if self.timer is not None:
                self.timer.join(nccl.ANSWER_S)

    def init(self, trainer):
        play, timeout_s = self.play, JOIN_S if self.plan else SOUND_JOIN_S
        body = self.form(play.server, trainer, timeout_s=timeout_s)
        if self.plan.get("in") == "init":
            self.disturb(trainer, self.plan["share"] * play.life_s["init"])
        began = time.monotonic()
        answer = nccl.ask(play.server, "POST", nccl.INIT, body)
        self.judge(answer, timeout_s + REPLACED_S, "init")
        self.came_to = answer.code or "joined"
        if not self.plan and answer.status == 200:
            world.until(
                lambda: nccl.group(play.server)["state"] != "joining", "it joins", nccl.ANSWER_S
            )
            play.lives["init"].append(time.monotonic() - began)
        return answer.status == 200

    def update(self, trainer):
        play, specs = self.play, self.play.specs
        pending = nccl.Pending(
            play.server, nccl.UPDATE, nccl.wire(specs, weight_version=f"round-{self.number}")
        )
        if self.plan.get("in") == "update":
            self.disturb(trainer, self.plan["share"] * play.life_s["update"])
        self.dealing(trainer.tell, nccl.send, nccl.cut_each(specs))
        answer = pending.answer()
        self.judge(answer, UPDATE_S, "update")
        self.came_to = answer.code or "committed"
        if answer.status == 200:
            play.seed = self.seed
            if self.plan.get("what") != signal.SIGSTOP:
                play.life_s["update"] = min(play.life_s["update"], answer.took_s)
        if not self.plan:
            self.dealing(trainer.hear)  # of the join
            self.dealing(trainer.hear)
            play.lives["update"].append(answer.took_s)


class Play:
    def __init__(self, checks, args, server, specs, rng):
        self.checks, self.args, self.server, self.specs, self.rng = checks, args, server, specs, rng
        self.seed, self.first_seed, self.n = None, 1000, 0
        self.lives = {"init": [], "update": []}
        self.life_s = {"init": 0.5, "update": 0.2}
        self.came_to, self.wrong, self.times = collections.Counter(), [], []

    def plan(self):
        """Whom a signal meets, when, and which one."""
        return {
            "in": self.rng.choice(("init", "update")),
            "share": self.rng.random(),
            "what": self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)),
            "goes_on": self.rng.random() < 0.4,
        }

    def round(self, pool, sound=False):
        number, self.n = self.n, self.n + 1
        form = nccl.FORMS[number % len(nccl.FORMS)]
        plan = {} if sound else self.plan()
        one, began = Round(self, number, form, plan), time.monotonic()
        with pool.take() as trainer:
            one.run(trainer)
        self.times.append(time.monotonic() - began)
        what = f"{signal.Signals(plan['what']).name} in {plan['in']}" if plan else "undisturbed"
        self.came_to[f"{what}: {one.came_to}"] += 1
        self.wrong += [f"round {number}, {form.__name__}, {plan}: {w}" for w in one.wrong]
        if self.seed is not None:
            differing = nccl.wrong_sums(self.server, self.specs, self.seed)
            if self.args.torch and number % MAPPED_EVERY == 0:
                differing += nccl.wrong_mapped(self.server, self.specs, self.seed)
            if differing:
                self.wrong.append(f"round {number}: not the bytes of {self.seed}: {differing[:5]}")
        if sound and self.seed != one.seed:
            self.wrong.append(f"round {number}: nobody disturbed it, and it was not taken")

    def measure(self):
        for part, found in self.lives.items():
            if found:
                self.life_s[part] = min(found)


def usage(args, server):
    """When nothing is joined, and no trainer is there."""
    nccl.ask(server, "DELETE", nccl.GROUP)
    found = server.usage()
    found["gpu_used"] = 0
    if args.torch:
        import torch

        for index in server.devices:
            torch.cuda.synchronize(index)
            with torch.cuda.device(index):
                torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info(index)
            found["gpu_used"] += total - free
    return found


def n_unjoined(server):
    metrics = server.metrics()
    return metrics["baton_nccl_joins_begun_total"] - metrics["baton_nccl_joins_total"]


class Before:
    """What there was when all was as large as it gets."""

    def __init__(self, args, server):
        self.usage, self.open = usage(args, server), server.descriptors()
        self.n_unjoined = n_unjoined(server)

    def slacks(self, server):
        n = n_unjoined(server) - self.n_unjoined
        return {**SLACKS, "gpu_used": SLACKS["gpu_used"] + n * FORGOTTEN_NBYTES, "fds": SLACKS["fds"] + n * FORGOTTEN_FDS}


def no_growth(checks, args, server, before):
    slacks = before.slacks(server)

    def settled():
        now = usage(args, server)
        return all(now[k] - before.usage[k] <= slack for k, slack in slacks.items()) and now

    try:
        after = world.until(settled, "everything comes back", 20)
    except AssertionError:
        after = usage(args, server)
    print(f"    before {before.usage}\n    after  {after}", flush=True)
    more = dict(server.descriptors() - before.open)
    print(f"    descriptors more than before: {more}", flush=True)
    for name, slack in slacks.items():
        checks.that(
            after[name] - before.usage[name] <= slack,
            f"{name}: as after the first rounds",
            f"{before.usage[name]} -> {after[name]}, {slack:.0f} more are allowed",
        )


def play_rounds(checks, args, server, specs):
    play = Play(checks, args, server, specs, random.Random(args.seed))
    with Pool(args) as pool:
        for _ in range(2 * len(nccl.FORMS)):
            play.round(pool, sound=True)
        play.lives = {k: v[len(nccl.FORMS) :] for k, v in play.lives.items()}
        play.measure()
        print(f"    lives: {play.life_s}", flush=True)
        checks.same(play.wrong, [], "undisturbed rounds")
        for _ in range(WARM_ROUNDS):
            play.round(pool)
    before, began, n = Before(args, server), time.monotonic(), 0
    with Pool(args) as pool:
        while n < args.rounds and time.monotonic() < args.deadline and len(play.wrong) < 10:
            n += 1
            play.round(pool, sound=n % SOUND_EVERY == 0)
            if n % 20 == 0:
                used = {**server.usage(), "after_s": round(time.monotonic() - began)}
                print(f"    {n} rounds: {used}", flush=True)
        for _ in nccl.FORMS:
            play.round(pool, sound=True)
    print(f"    {statistics.mean(play.times):.2f} s a round, {max(play.times):.2f} s the longest")
    for what, count in sorted(play.came_to.items()):
        print(f"    {count:4} x {what}")
    if play.wrong:
        print(f"--- end of the server's log\n{server.tail()}", flush=True)
    checks.same(n, args.rounds, "rounds in the time that there was")
    checks.same(play.wrong, [], "answers in time, the bytes served, the next rounds")
    metrics = server.metrics()
    checks.that(
        metrics["baton_nccl_failures_total"] > 0 and metrics["baton_nccl_joins_total"] > 0,
        "groups that were joined, and that failed",
        {k: v for k, v in metrics.items() if k.startswith("baton_nccl_")},
    )
    checks.same(server.get("/v1/status")["live"], True, "it is live")
    no_growth(checks, args, server, before)


def rounds(checks, args):
    """Signals at any moment; --rounds of them, with --seed. Without NCCL's RAS, which tries for a
    minute and more to reach each trainer that is dead, with a descriptor for each."""
    specs, ms = model(args), str(int(UPDATE_S * 1000))
    without_ras = mock.patch.dict(os.environ, NCCL_RAS_ENABLE="0")
    with checks.section(f"{args.rounds} rounds, seed {args.seed}"), without_ras:
        with nccl.store(args, specs, "--update-timeout", ms, "--max-versions", "2") as server:
            with nccl.Health(server) as health:
                play_rounds(checks, args, server, specs)
            health.judge(checks, "rounds")


# --- while it is under way


def progress(checks, args):
    """A trainer that takes its time: what has come is told, and all else is answered."""
    specs = model(args)[:16]
    with checks.section("progress"), nccl.store(args, specs) as server, nccl.Health(
        server
    ) as health, nccl.trainer(args) as rank_0:
        nccl.enter(server, rank_0, nccl.by_store)
        rank_0.ask(nccl.load, specs, 1)
        update_id = server.post(nccl.START, {"weight_version": "slow"})["update_id"]
        look = lambda: server.get(f"{nccl.UPDATE}/{update_id}")  # noqa: E731
        body = nccl.wire(specs, update_id=update_id)
        pending = nccl.Pending(server, nccl.UPDATE, body)
        seen, sent, total = [], 0, nccl.total_of(specs)
        for i, cut in enumerate(nccl.cut_each(specs)):
            rank_0.ask(nccl.send, [cut])
            sent += cut[1]
            if i % 5 == 2:
                found = world.until(
                    lambda: [u for u in [look()] if u["nbytes_done"] >= sent],
                    "what was sent is told",
                    nccl.ANSWER_S,
                )[0]
                seen.append(found["nbytes_done"] == sent and found["tensor"] is not None)
                checks.that(
                    0 < found["nbytes_done"] < total and not pending.done(),
                    "bytes between none and all",
                    f"{found['nbytes_done']} of {total}, {found['tensor']}",
                )
        checks.same((pending.answer().status, all(seen)), (200, True), "exactly what was sent")
        done = server.post(nccl.FINISH, {"update_id": update_id})
        checks.same((done["phase"], done["nbytes_done"]), ("committed", total), "and then all")
        checks.same(nccl.wrong(args, server, specs, 1), [], "bytes")
        health.judge(checks, "progress")


def leftovers():
    """What killed trainers' NCCL leaves behind; not this server's, but it fills a machine."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return sum(n.startswith("nccl-") for n in names)
