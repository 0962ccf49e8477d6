"""Section "handed over" of test_sglang_real.py: baton receives each update itself, on the GPU,
and hands it to SGLang. SGLang is killed when it is told to copy, and started again: it gets the
version from baton, without the trainer."""

import time

import gpu_world as world
import sglang_engines as engines
import sglang_updates as updates
import test_ipc_torch as ipc
from http_tap import Tap
from sglang_updates import Scenario

TOLD_TO_COPY = "/update_weights_from_tensor"
HANDED_S = 60


def scenarios():
    """By SGLang's routes in one request, by baton's own in one or three."""
    for flat in (False, True):
        for pause, held in ((None, 0), ("abort", 0), ("in_place", 2), (None, 2)):
            yield Scenario("tensor", flat, False, True, pause, held, 1)
        for n in (1, 3):
            yield Scenario("tensor", flat, True, None, None, 0, n)


OPTIONS = ("--stage", "cuda:0", "--manifest", ipc.CHECKPOINTS / f"{engines.FIRST}.safetensors")


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
        checks.that("committed here" in told, "the trainer is told", told)
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


def handed(server):
    def done():
        stage = server.status()["stage"]
        same = stage["handed_serial"] == stage["serial"]
        return same and server.get("/v1/upstreams")["n_serving"] == 1

    world.until(done, "the engine has the version", HANDED_S)
