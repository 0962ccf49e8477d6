"""Sections "handed over" and "in windows" of test_sglang_real.py: baton receives each update itself,
on the GPU or in host memory, and hands it to SGLang. SGLang is killed when it is to copy, and
started again: it gets the version from baton, without the trainer."""

import time

import gpu_world as world
import sglang_engines as engines
import sglang_updates as updates
import test_ipc_torch as ipc
from http_tap import Tap
from sglang_updates import Scenario

TOLD_TO_COPY = "/update_weights_from_tensor"
HANDED_S = 60
PROVEN_S = 60


def scenarios():
    """By SGLang's routes in one request, by baton's own in one or three."""
    for flat in (False, True):
        for pause, held in ((None, 0), ("abort", 0), ("in_place", 2), (None, 2)):
            yield Scenario("tensor", flat, False, True, pause, held, 1)
        for n in (1, 3):
            yield Scenario("tensor", flat, True, None, None, 0, n)


MANIFEST = ("--manifest", ipc.CHECKPOINTS / f"{engines.FIRST}.safetensors")
OPTIONS = ("--stage", "cuda:0", *MANIFEST)
WINDOWS = ("--stage", "host", "--stage-window", 300000, *MANIFEST)  # 9 of them


def play_windows(play, play_all):
    """From host memory: flattened buckets, in two halves of a window that are used in turn."""
    play.drop_front(killed=False)
    play.front_options = WINDOWS
    try:
        play_all(play, scenarios())
        stage = play.front.status()["stage"] if play.front is not None else {"n_repairs": 0}
        play.checks.same(stage["n_repairs"], 0, "no SGLang kept a window")
    finally:
        play.front_options = ()
        play.drop_front(killed=False)


def play_handoff(play, play_all):
    """@play_all  of test_sglang_real: each scenario, from a full cache to the tokens after it"""
    play.drop_front(killed=False)
    play.front_options = OPTIONS
    try:
        play_all(play, scenarios())
        if play.args.match in "the engine is killed":
            title = f"{play.checks.title}: the engine is killed"
            with play.checks.section(title), play.repaired():
                play.begins()
                engine_dies(play)
        if play.args.match in "its checksums":
            with play.checks.section(f"{play.checks.title}: its checksums"), play.repaired():
                checksums(play)
    finally:
        play.front_options = ()
        play.drop_front(killed=False)


def engine_dies(play):
    checks, scenario = play.checks, Scenario("tensor", False, True, None, None, 0, 1)
    with Tap(play.engine.url) as tap:
        server = play.new_front(engine=tap)
        play.served_again(server)
        new = play.next_step()
        tap.before = lambda path: play.engine.kill() if path == TOLD_TO_COPY else None
        try:
            updates.push(play, server, scenario, new)
            told = ""
        except AssertionError as e:
            told = str(e)
        tap.before = lambda path: None
        checks.that(play.engine.child.poll() is not None, "it was killed in mid hand-off")
        checks.that("committed here" in told, "the trainer gets the error", told)
        play.start_engine()
        play.engine_is_up()
        began = time.monotonic()
        handed(server)
        checks.that(True, "it serves again without a trainer", f"{time.monotonic() - began:.1f} s")
        play.step = new
        play.served_again(server)
        play.serves(server, new, "without a trainer")
        play.step = play.next_step()
        updates.push(play, server, scenario, play.step)
        play.serves(server, play.step, "after the restart")
        play.drop_front(killed=False)


def checksums(play):
    """What SGLang's own checker says is equal to the committed bytes, where it has a parameter of the name."""
    checks, scenario = play.checks, Scenario("tensor", False, True, None, None, 0, 1)
    play.drop_front(killed=False)
    play.front_options = (*OPTIONS, "--prove", "checksums")
    play.begins()
    server = play.new_front()
    play.served_again(server)
    for _ in range(2):
        play.step = play.next_step()
        updates.push(play, server, scenario, play.step)

        def proof():
            return server.get("/v1/upstreams")["list"][0]["proof"] or {}

        world.until(lambda: proof().get("state") not in (None, "unproven"), "it is proven", PROVEN_S)
        found = proof()
        equal = (found["checksums"] or {}).get("committed") or {}
        checks.that(found["state"] == "proven" and equal.get("n_equal", 0) > 0 and equal["n_wrong"] == 0,
                    "its checksums are those of the committed bytes", str(found))
        play.serves(server, play.step, "with checksums")
    play.front_options = OPTIONS
    play.drop_front(killed=False)


def handed(server):
    def done():
        stage = server.status()["stage"]
        same = stage["handed_serial"] == stage["serial"]
        return same and server.get("/v1/upstreams")["n_serving"] == 1

    world.until(done, "the engine has the version", HANDED_S)
