"""Everything at once, for a given time: generations of every form, updates and broken ones, pauses, sleeps,
adapters, readers, hostile clients, on a server of its own; and a server in front of three others, of which
one is killed or stopped again and again. Afterwards both are idle, hold no more memory, descriptors and
threads than before, and stop cleanly.

Usage: soak.py BATON MODEL CLIENT_DIR WORK SECONDS SEED
What each thread does follows from the seed; how they meet does not.
"""

import json
import os
import random
import shutil
import sys
import time
import traceback

sys.path.insert(0, sys.argv[3])
import soak_actions
from soak_fleet import Fleet
from soak_world import Actor, Process, SoakWorld, Tally, Trouble, Truth, ask

BATON, MODEL, _, WORK = sys.argv[1:5]
SECONDS, SEED = float(sys.argv[5]), int(sys.argv[6])
WARM_SHARE, WARM_S_MAX = 0.2, 60  # before the first count of what it holds
QUIET_S = 120
FDS_MAX, THREADS_MAX = 8, 0  # more at the end than after the warm-up; idle connections upstream come and go
RSS_MAX = 96 << 20  # a sanitizer keeps what was freed
TEMPLATE = {"bos_token": None, "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}


class Soak:
    """One server, and all that is done to it."""

    def __init__(self, rng):
        with open(f"{MODEL}/golden.json", encoding="utf-8") as f:
            golden = json.load(f)["checkpoints"]
        cases = golden["step-00000"]["cases"]
        self.prompts, self.texts = [c["prompt_token_ids"] for c in cases], [c["prompt"] for c in cases]
        self.truth = Truth({(step, i): c["greedy_token_ids"] for step, g in golden.items()
                            for i, c in enumerate(g["cases"])})
        self.tally, self.loaded, self.doing = Tally(), {}, ""
        self.model, self.root = os.path.join(WORK, "model"), os.path.join(WORK, "root")
        shutil.copytree(MODEL, self.model)
        os.mkdir(self.root)
        with open(os.path.join(self.model, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(TEMPLATE, f)
        self.adapters = os.path.join(self.root, "adapters")
        shutil.copytree(os.path.join(MODEL, "adapters"), self.adapters)
        self.server = Process(BATON, WORK, "server", "--model", self.model, "--weights",
                              f"{MODEL}/checkpoints/step-00000.safetensors", "--weight-version", "step-0",
                              "--allow-path", self.root, "--engine-threads", 1, "--pin-timeout", 100000,
                              "--max-versions", 16)  # a pause may freeze a generation of each
        self.world = SoakWorld(self.truth, self.server.url, MODEL, self.root, rng, self.server.pid)
        self.world.look()

    def actors(self, rng):
        of = lambda name, actions: Actor(self, name, rng.random(), actions)  # noqa: E731
        return [of("changes", soak_actions.CHANGES), of("adapters", soak_actions.ADAPTERS),
                of("reads", soak_actions.READS), of("reads", soak_actions.READS),
                *[of("generates", soak_actions.GENERATES) for _ in range(3)]]

    def quiet(self):
        """Nothing runs any more, and nothing is left. (descriptors, threads, memory)"""
        w = self.world
        w.hang_up()
        end = time.monotonic() + QUIET_S
        while True:
            s = w.status()
            busy = [s["admission"]["generate"]["running"], s["admission"]["generate"]["waiting"],
                    s["weights"]["versions_alive"] - 1, s["http"]["connections"] - 1,
                    int(s["update"] is not None), int(s["pause"] is not None), s["adapters"]["loading"],
                    s["adapters"]["users"], s["adapters"]["older_revisions"], s["admission"]["detokenize"]["running"]]
            if not any(busy) and s["ready"]:
                break
            if time.monotonic() > end:
                raise Trouble(f"not quiet after {QUIET_S} s: {busy} {s}")
            time.sleep(0.05)
        w.check()
        soak_actions.ready(self, w.rng)
        return self.server.uses()

    def alone(self):
        """Each checkpoint again, without other clients: its output is the same as under load."""
        for checkpoint in self.world.checkpoints:
            label = self.world.new_label()
            answer = soak_actions.fault_sessions.push(self.world, "shm", checkpoint.rows, label)
            self.world.committed(answer, checkpoint.rows, label)
            for at, prompt in enumerate(self.prompts):
                reply = ask(self.server.port, "POST", "/v1/generate", {"token_ids": prompt, "sampling_params": {
                    "max_tokens": 24, "temperature": 0, "ignore_eos": True}})
                choice = reply.body["choices"][0]
                self.truth.check(choice["weight_versions"], choice["token_ids"], self.world.serial, at)

    def close(self):
        """Returns what it left in shared memory."""
        for checkpoint in self.world.checkpoints:
            self.world.unlink(checkpoint.shm)
        left = self.world.left_over()
        for name in left:
            self.world.unlink(name)
        return left


def go_on(actors, checks, seconds):
    """All of them, at once; the first trouble of any ends it."""
    end = time.monotonic() + seconds
    for a in actors:
        a.start()
    try:
        while time.monotonic() < end:
            for check in checks:
                check()
            for a in actors:
                a.check()
            time.sleep(0.2)
    finally:
        for a in actors:
            a.stopping = True
        for a in actors:
            a.join(300)
    for a in actors:
        a.check()
        if a.is_alive():
            raise Trouble(f"{a.name}, {a.doing}: it does not come to an end")


def main():
    rng, began = random.Random(SEED), time.monotonic()
    print(f"soak: {SECONDS:.0f} s, seed {SEED}", flush=True)
    shm = set(os.listdir("/dev/shm"))
    soak, fleet = Soak(rng), None
    try:
        fleet = Fleet(BATON, MODEL, WORK, soak.tally)
        warm = min(WARM_S_MAX, SECONDS * WARM_SHARE)
        checks = [soak.server.check, fleet.check]
        go_on(soak.actors(rng) + fleet.actors(rng), checks, warm)
        before, fleet_before = soak.quiet(), fleet.quiet()
        go_on(soak.actors(rng) + fleet.actors(rng), checks, SECONDS - warm)
        after, fleet_after = soak.quiet(), fleet.quiet()
        soak.alone()
        fleet.end()
        soak.server.end()
    except BaseException:
        traceback.print_exc()
        print(f"soak: failed after {time.monotonic() - began:.0f} s; seed {SEED}; the last case: {soak.doing}, "
              f"{soak.world.doing}", file=sys.stderr, flush=True)
        end_all(soak, fleet)
        os._exit(1)  # threads may wait for answers still
    left = soak.close()
    grown = [b - a for a, b in zip(before, after)]
    fleet_grown = [b - a for a, b in zip(fleet_before, fleet_after)]
    print("\n".join(soak.tally.lines()))
    for what, g, now in (("server", grown, after), ("front", fleet_grown, fleet_after)):
        print(f"{what}: {g[0]:+} descriptors, {g[1]:+} threads, {g[2] / 1e6:+.1f} MB since the warm-up; "
              f"at the end {now[0]}, {now[1]}, {now[2] / 1e6:.1f} MB")
        if g[0] > FDS_MAX or g[1] > THREADS_MAX or g[2] > RSS_MAX:
            raise Trouble(f"{what} holds more than before: {g}; seed {SEED}")
    ours = sorted(n for n in set(os.listdir("/dev/shm")) - shm if "baton" in n and str(os.getpid()) in n)
    if left or ours:
        raise Trouble(f"left in shared memory: {left} {ours}; seed {SEED}")
    print(f"{sum(soak.tally.n.values())} actions, serial {soak.world.serial}, seed {SEED}, "
          f"{time.monotonic() - began:.0f} s")


def end_all(soak, fleet):
    """After a failure: nothing goes on running."""
    soak.server.kill()
    if fleet is not None:
        fleet.kill()
    soak.close()


if __name__ == "__main__":
    main()
