"""bench_nccl.py's dead trainers: SIGKILL in the middle of an update, and how long it takes until
whoever waits is told. In four ways: somebody else asked for the update, and knows nothing (only the
deadline can end it); the same with a deadline that is short; the group came by a TCPStore, which is
in the trainer's process; the trainer itself had asked."""

import time
import traceback

import nccl_bench_ranks as ranks
import nccl_bench_world
from gpu_world import until
from nccl_bench_world import GROUP, START_S, UPDATE_S

SLACK_S = 1.0  # later than a deadline no answer may come
DIE_AT = 0.2  # of the model's bytes
JOB = "update"


class Ground:
    """A server with an update's deadline, and trainers that come and go."""

    def __init__(self, w, server, job, deadline_s):
        self.w, self.server, self.job, self.deadline_s = w, server, job, deadline_s
        self.limit_s = deadline_s + SLACK_S + 10

    def ready(self, trainer, join):
        """Of a new trainer: it has joined, and its update is ready to go."""
        seconds = join(trainer, self.server.port)
        trainer.call(START_S, ranks.connect, self.server.port, self.limit_s)
        trainer.call(START_S, ranks.learn, JOB, self.job)
        return seconds

    def group(self):
        return self.server.get(GROUP)

    def recover(self):
        """The same server, with a new trainer: (seconds to join, seconds for an update)."""
        with self.w.trainer() as trainer:
            joined_s = self.ready(trainer, self.w.join_by_id)
            _, first, done, found = trainer.call(UPDATE_S, ranks.update, JOB)
            if found["phase"] != "committed":
                raise AssertionError(f"after a death: {found}")
        return joined_s, done - first

    def kill_in(self, trainer, pending):
        """Once a part of the update has come. Returns (the clock, bytes that had come)."""
        over = self.w.nbytes * DIE_AT
        had = nccl_bench_world.await_bytes(self.server, pending, over, self.limit_s)
        at = time.monotonic()
        trainer.strike()
        return at, had

    def mortal(self):
        return self.w.trainer(**self.w.setting.dying)


def another_asks(ground, join):
    """The request's sender lives on, and gets its answer."""
    with ground.mortal() as trainer:
        ground.ready(trainer, join)
        port, request = ground.server.port, ground.job.requests[0]
        pending = nccl_bench_world.Pending(port, request, ground.limit_s)
        try:
            trainer.tell(ranks.broadcast_only, JOB, ground.limit_s)
            killed_at, had = ground.kill_in(trainer, pending)
            status, body, at = pending.answer()
        finally:
            pending.close()
    error = body.get("error") or {}
    if status == 200:
        raise AssertionError(f"a dead trainer's update succeeded: {body}")
    return {
        "killed_after_s": killed_at - pending.asked,
        "had_bytes": had,
        "answer_after_kill_s": at - killed_at,
        "answer_after_request_s": at - pending.asked,
        "status": status,
        "code": error.get("code"),
        "message": error.get("message"),
    }


def trainer_asks(ground, join):
    """Its own connection ends with it: when has the server given the update up?"""
    with ground.mortal() as trainer:
        ground.ready(trainer, join)
        asked = time.monotonic()
        trainer.tell(ranks.update, JOB)
        killed_at, had = ground.kill_in(trainer, None)
        until(
            lambda: ground.group()["state"] != "joined" and not ground.server.status()["update"],
            "the update is given up",
            ground.limit_s,
        )
        at = time.monotonic()
    error = ground.group()["error"] or {}
    return {
        "killed_after_s": killed_at - asked,
        "had_bytes": had,
        "answer_after_kill_s": at - killed_at,
        "answer_after_request_s": at - asked,
        "status": None,
        "code": error.get("code"),
        "message": error.get("message"),
    }


def one(ground, name, way, join, report):
    """A way to die, and whether the server is well afterwards."""
    row = way(ground, join)
    row["deadline_s"] = ground.deadline_s
    row["rejoin_s"], row["next_update_s"] = ground.recover()
    report.data.setdefault("killed", {})[name] = row
    late = row["answer_after_request_s"] - ground.deadline_s
    report.note(
        f"killed, {name}",
        f"told {row['answer_after_kill_s'] * 1e3:.0f} ms after SIGKILL with "
        f"{row['had_bytes'] / ground.w.nbytes:.2f} of the bytes, {row['code']} "
        f"(deadline {ground.deadline_s:g} s, {late:+.2f} s); joined again in "
        f"{row['rejoin_s']:.2f} s, next update in {row['next_update_s'] * 1e3:.0f} ms",
    )
    print(f"    {row['message']}", flush=True)
    if late > SLACK_S:
        raise AssertionError(f"told {late:.2f} s after the deadline")


def shortened(e):
    """What went wrong, in words that fit a table: how it begins, and how it ends."""
    text = f"{type(e).__name__}: {e}"
    return text if len(text) <= 600 else f"{text[:250]} ... {text[-340:]}"


def killed(w, report, make_job):
    """@make_job  makes the update, for a server's port"""
    wrong, ways = [], (
        ("its own request", w.setting.long_s, trainer_asks, w.join_by_id),
        ("by a store", w.setting.long_s, another_asks, w.join_by_store),
        ("nobody tells", w.setting.long_s, another_asks, w.join_by_id),
        ("short deadline", w.setting.short_s, another_asks, w.join_by_id),
    )
    for name, deadline_s, way, join in ways:
        try:
            with w.store(deadline_s) as server:
                ground = Ground(w, server, make_job(server.port), deadline_s)
                one(ground, name, way, join, report)
        except Exception as e:  # noqa: BLE001
            traceback.print_exc()
            wrong.append(f"{name}: {shortened(e)}")
    if wrong:
        raise AssertionError("; ".join(wrong))
