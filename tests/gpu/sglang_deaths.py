"""Who is killed in mid transfer, section of test_sglang_real.py: baton, the engine, the trainer. A
part of the tensors is in the engine then. What generates is one checkpoint, or nothing does; when
all are there again, the group is joined and the next whole update ends in its tokens."""

import pathlib
import tempfile
import time

import gpu_world as world
import nccl_world as nccl
import sglang_engines as engines
import sglang_trainer as trainer_side
import sglang_updates as updates
from sglang_updates import Scenario

GATE_AT = 3  # the tensor of the second request before which the trainer waits
SOON_S = updates.TIMEOUT_MS / 1000 + 15
REFUSED_S = 5  # whoever does not answer generates nothing either
N_REFUSED = 3  # prompts, then it is clear


def scenario_of(play):
    way = "nccl" if play.args.n_gpus > 1 else "tensor"
    return Scenario(way, False, False, True, "abort", 0, 3)


class Half:
    """An update of three requests: the first has come, the second is under way."""

    def __init__(self, play, server, step):
        self.play, self.server, self.scenario = play, server, scenario_of(play)
        self.gate = tempfile.mkdtemp(dir=play.folder)
        self.columns = play.trainers.get().ask(trainer_side.load, step)
        first, self.second, self.third = updates.parts(len(self.columns["names"]), 3)
        updates.pause(server, self.scenario)
        self.send(first)

    def request(self, part):
        return updates.request(self.play, self.scenario, self.columns, part, {"flush_cache": False})

    def send(self, part):
        request = self.request(part)
        pending = nccl.Pending(self.server, *request)
        updates.broadcast(self.play, self.scenario, part)
        updates.must_end(self.play, self.scenario, pending)

    def is_open(self):
        return self.scenario.way == "nccl"

    def until_gate(self):
        """The trainer broadcasts the second part, until it waits."""
        if self.is_open():
            updates.broadcast(self.play, self.scenario, self.second, (self.gate, GATE_AT))
            reached = lambda: pathlib.Path(self.gate, "reached").exists()  # noqa: E731
            world.until(reached, "the trainer is in mid transfer")

    def stop_there(self):
        pending = nccl.Pending(self.server, *self.request(self.second))
        self.until_gate()
        return pending

    def open_gate(self):
        pathlib.Path(self.gate, "open").touch()


def one_of(play, server, steps, what):
    """All that is generated is by one of these checkpoints; or nothing is."""
    fits, n, refused = set(steps), 0, []
    for prompt in engines.prompts():
        tokens = engines.generate(server, prompt, patience_s=REFUSED_S)
        if isinstance(tokens, nccl.Answer):
            refused.append(str(tokens)[:200])
        else:
            n += 1
            fits = {s for s in fits if not play.oracle.wrong(s, prompt, tokens)}
        if len(refused) == N_REFUSED:
            break
    found = f"{n} answers, by {sorted(fits)}; {refused[:1]}"
    play.checks.that(n == 0 or fits, f"{what}: none but whole checkpoints generate", found)


def rejoin(play, server, what):
    """And the next whole update is as if nothing had been."""
    scenario, step = scenario_of(play), play.next_step()
    if scenario.way == "nccl":
        updates.join(play, server)
    updates.pause(server, scenario)
    began = time.monotonic()
    updates.push(play, server, scenario, step)
    updates.resume(server, scenario)
    play.step = step
    ms = 1e3 * (time.monotonic() - began)
    play.rows.append((f"deaths: {what}, then {scenario.title()}", ms, ""))
    play.serves(server, step, f"{what}, the next update")


def baton_dies(play):
    """With nothing under way: its group is forgotten, and said to be."""
    server, step = play.new_front(killed=True), play.step
    play.served_again(server)
    one_of(play, server, {step}, "baton came back")
    if scenario_of(play).way == "nccl":
        columns = play.trainers.get().ask(trainer_side.load, play.next_step())
        members = {"flush_cache": True, "weight_version": "by nobody"}
        request = updates.request(play, scenario_of(play), columns, (0, 1), members)
        answer = nccl.ask(server, "POST", *request)
        told = "group" in str(answer.body)
        play.checks.that(answer.status == 400 and told, "it is told to join first", answer)
        one_of(play, server, {step}, "after the refusal")
    rejoin(play, server, "baton came back")


def baton_dies_in_mid_transfer(play):
    half = Half(play, play.front, play.next_step())
    pending = half.stop_there()
    play.front.child.kill()
    half.open_gate()
    if half.is_open():
        play.trainers.get().hear()  # the engine takes what it was asked to take
    pending.answer()
    server = play.new_front(killed=True)
    one_of(play, server, (), "baton came back")
    rejoin(play, server, "baton was killed in mid transfer")


def engine_dies(play):
    """It is started again on its port, and baton as well."""
    old, step = play.step, play.next_step()
    half = Half(play, play.front, step)
    pending = half.stop_there()
    play.engine.kill()
    began = time.monotonic()
    half.open_gate()
    answers = [pending.answer(), nccl.ask(play.front, "POST", *half.request(half.third))]
    answers.append(nccl.ask(play.front, "POST", "/continue_generation", {}))
    took_s = time.monotonic() - began
    refused = [str(a)[:150] for a in answers if a.status != 200]
    play.checks.that(refused, "the trainer is told", refused)
    play.checks.that(took_s < SOON_S, "soon", f"{took_s:.1f} s")
    play.drop_trainer()
    one_of(play, play.front, {old, step}, "the engine is away")
    play.start_engine()
    play.drop_front()
    play.engine_is_up()
    server = play.new_front()
    play.served_again(server)
    one_of(play, server, {engines.FIRST}, "engine and baton came back")
    rejoin(play, server, "the engine was killed in mid transfer")


def trainer_dies(play):
    """baton lives on; the engine waits for ever, so that it is killed too, and started again."""
    old, step = play.step, play.next_step()
    half = Half(play, play.front, step)
    with nccl.hanging_post(play.front, *half.request(half.second)):
        half.until_gate()
        play.drop_trainer()
    one_of(play, play.front, {old, step}, "the trainer is away")
    play.engine.kill()
    play.start_engine()
    play.engine_is_up()
    world.until(play.front.heard, "baton has found the engine again")
    one_of(play, play.front, (), "the engine came back with what it started with")
    if scenario_of(play).way != "nccl":  # where a new group ends it
        told_of_what_was_open(play)
    rejoin(play, play.front, "the trainer was killed in mid transfer")


def told_of_what_was_open(play):
    """The update of the dead trainer ends with the next one's first request."""
    columns = play.trainers.get().ask(trainer_side.load, play.next_step())
    updates.pause(play.front, scenario_of(play))
    request = updates.request(play, scenario_of(play), columns, (0, 1), {"flush_cache": False})
    answer = nccl.ask(play.front, "POST", *request)
    told = answer.status == 502 and "restarted" in str(answer.body)
    play.checks.that(told, "the next trainer is refused once: an update was left open", answer)


CASES = {
    "baton is killed": baton_dies,
    "baton is killed in mid transfer": baton_dies_in_mid_transfer,
    "the engine is killed in mid transfer": engine_dies,
    "the trainer is killed in mid transfer": trainer_dies,
}


def play_deaths(play):
    for name, case in CASES.items():
        if play.args.match not in name:
            continue
        with play.checks.section(f"deaths: {name}"), play.repaired():
            play.begins()
            if play.front is None:
                play.new_front()
            if play.group is None or play.step == engines.FIRST:
                rejoin(play, play.front, "before")
            case(play)
