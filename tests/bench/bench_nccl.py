"""NCCL updates against raw ncclBroadcast of the same bytes, between GPUs of one host, in one run.

Usage: bench_nccl.py --baton BATON [--out FILE.json] [--quick | --tiny] [--only PART[,PART...]]
                     [--gpus N] [--budget-s S] [--nccl-library FILE]
Parts: first (the whole model from unsynced, server after server), steady (again and again),
checksums (the same, each tensor proven), each (one broadcast for each tensor), killed (a trainer
that dies in mid-update: how long until somebody is told), generation (on the mirror of the small
model), bytes (is what is served what was sent?).

The trainer is a process on GPU 0; one server has all the other GPUs, a rank on each. Raw means: the
trainer and a peer process on each of those GPUs broadcast the same bytes in pieces of one bucket,
enqueued one behind the other, after all have met; from the trainer's first call until the last rank
has them. A baton update is clocked twice, until the answer that says that it is committed is there:
from the trainer's first call of ncclBroadcast, and from before its first request is sent. HTTP and
JSON are in both, writing the requests is in neither, and nor is packing: the trainer's tensors lie
back to back in its memory, and each broadcast is a view of that. Ratios are those of the best raw
run to the median.

Ends with 0, or 1 if a part failed or bytes were wrong, or 77 without two GPUs."""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
import bench_ipc  # noqa: E402
import gpu_world as world  # noqa: E402
import ipc_wire as wire  # noqa: E402
import nccl_bench_faults  # noqa: E402
import nccl_bench_ranks as ranks  # noqa: E402
import nccl_bench_wire  # noqa: E402
import nccl_bench_world  # noqa: E402
from bench_ipc import driver_version, spread, timing_of  # noqa: E402
from gpu_world import baton  # noqa: E402
from nccl_bench_world import GIB, START_S, UPDATE_S  # noqa: E402

MODES = {  # name -> (how requests are sent, what describes their tensors)
    "one request": ("whole", "columns"),
    "one request, plan_id": ("whole", "plans"),
    "a request a bucket": ("step", "columns"),
    "a request a bucket, plan_id": ("step", "plans"),
    "a request a bucket, in a line": ("line", "columns"),
    "a request a bucket, in a line, plan_id": ("line", "plans"),
}
TARGET = 0.95
READ_NBYTES_MAX = 32 << 20  # of a tensor that is read back over HTTP
PART_S = 55  # for any one part; whatever hangs ends here
GRACE_S = 3  # of the budget, for the table


class Setting:
    """Sizes of a run."""

    def __init__(self, size):
        self.bucket_nbytes, self.peer_nbytes = GIB, 4 * GIB
        self.n_warm, self.n_runs, self.n_each = 1, 6, 2
        self.generate_s, self.long_s, self.short_s = 3.5, 8.0, 2.0
        self.dying = {}  # environment of a trainer that is to be killed
        self.named = wire.qwen3_30b_a3b(48)
        if size != "full":
            self.n_runs, self.generate_s = 3, 2.0
            self.named = wire.qwen3_30b_a3b(4)
        if size == "tiny":
            self.named = nccl_bench_wire.smaller(wire.qwen3_30b_a3b(1), 32)
            self.bucket_nbytes, self.peer_nbytes = 256 << 10, 1 << 20
            self.long_s = 4.0
            # Of the fakes: too small to be killed in time, it waits for it.
            self.dying = {"FAKENCCL_STALL_AFTER_BYTES": str(wire.total_of(self.named) // 2)}


# --- updates


def described(connection, bucket, what):
    """How a request says which tensors it means."""
    columns = nccl_bench_wire.columns(bucket, False)
    if what == "columns":
        return columns
    members = {
        "names": columns["names"],
        "shapes": columns["shapes"],
        "dtypes": columns["dtype_names"],
    }
    return {"plan_id": connection.post("/v1/weights/plans", members)["plan_id"]}


def sums_of(content, bucket):
    return [content.checksum(at, nbytes) for _, _, at, nbytes in bucket]


def bucket_request(connection, bucket, what, content):
    """One broadcast: with sizes, as SkyRL says it; a plan has them already."""
    body = nccl_bench_wire.columns(bucket, True) if what == "columns" else None
    if body is None:
        body = described(connection, bucket, what)
        body["bucket_nbytes"] = nccl_bench_wire.span(bucket)[1]
    if content:
        body["checksums"] = sums_of(content, bucket)
    return wire.Ready(wire.PATH, {**body, "transport": "nccl", "packed": True})


def make_job(w, connection, how, what, content=None):
    """@content  given: a checksum for each tensor"""
    spans = [nccl_bench_wire.span(b) for b in w.buckets]
    if how != "whole":
        requests = [bucket_request(connection, b, what, content) for b in w.buckets]
        return nccl_bench_wire.Job(how, requests, [[s] for s in spans])
    body = described(connection, w.tensors, what)
    body.update(transport="nccl", packed=True, bucket_nbytes=w.setting.bucket_nbytes)
    body["weight_version"] = "bench"
    if content:
        body["checksums"] = sums_of(content, w.tensors)
    return nccl_bench_wire.whole_job(body, spans)


def each_job(w, connection, what):
    """Not packed: as many broadcasts as tensors."""
    body = described(connection, w.tensors, what)
    body.update(transport="nccl", weight_version="bench")
    return nccl_bench_wire.whole_job(body, [(at, n) for _, _, at, n in w.tensors])


class Joined:
    """A server for the model, with the trainer in a group with it."""

    def __init__(self, w, trainer, **options):
        self.w, self.trainer, self.options = w, trainer, options

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.server = stack.enter_context(self.w.store(**self.options))
            self.connection = stack.enter_context(nccl_bench_world.connected(self.server.port))
            self.join_s = self.w.join_by_id(self.trainer, self.server.port)
            self.trainer.call(START_S, ranks.connect, self.server.port, UPDATE_S + 5)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *about):
        return self.stack.__exit__(*about)

    def learn(self, name, job):
        self.trainer.call(START_S, ranks.learn, name, job)

    def learn_mode(self, mode, content=None):
        self.learn(mode, make_job(self.w, self.connection, *MODES[mode], content))

    def update(self, name):
        """(seconds from the first broadcast, from the first request, the server's words)."""
        asked, first, done, found = self.trainer.call(UPDATE_S + 10, ranks.update, name)
        if found["phase"] != "committed" or found["nbytes_done"] != self.w.nbytes:
            raise AssertionError(f"not a whole update: {found}")
        return done - first, done - asked, found


def row_of(updates):
    return {
        "broadcast": spread([u[0] for u in updates]),
        "request": spread([u[1] for u in updates]),
        "timing": timing_of([u[2] for u in updates]),
    }


def by_turns(n_warm, n_runs, actions):
    """Every action in each round. Returns name -> [what it returned], without the first rounds."""
    out = {name: [] for name in actions}
    for i in range(n_warm + n_runs):
        for name, action in actions.items():
            got = action()
            if i >= n_warm:
                out[name].append(got)
    return out


def compare(w, joined, peers, names, raw_name, report, title, n_warm, n_runs):
    """Updates beside raw broadcasts, in turns."""
    actions = {"raw": lambda: peers.run(raw_name)}
    for name in names:
        actions[name] = lambda n=name: joined.update(n)
    found = by_turns(n_warm, n_runs, actions)
    raw = spread(found.pop("raw"))
    report.part(title, w, raw, {name: row_of(rows) for name, rows in found.items()})


# --- parts


def first(w, report):
    """Nothing is served before: staging is allocated, and the group's first broadcasts connect.
    There is room for the raw broadcasts to come to memory of their own, as the updates do."""
    rows, raw = {}, []
    with w.trainer() as trainer, w.group_of_peers(trainer, w.nbytes) as peers:
        peers.learn("pieces", nccl_bench_wire.pieces(w.nbytes, w.setting.bucket_nbytes))
        for mode in ("one request", "one request, plan_id", "a request a bucket, plan_id"):
            with Joined(w, trainer) as joined:
                joined.learn_mode(mode)
                raw.append(peers.run("pieces"))
                rows[mode] = row_of([joined.update(mode)])
                raw.append(peers.run("pieces"))
                report.data.setdefault("join_s", []).append(joined.join_s)
            trainer.call(START_S, ranks.leave)
        report.part("first", w, spread(raw), rows)


def steady(w, report):
    """Version after version, in each form."""
    with w.trainer() as trainer, w.group_of_peers(trainer) as peers, Joined(w, trainer) as joined:
        peers.learn("pieces", nccl_bench_wire.pieces(w.nbytes, w.setting.bucket_nbytes))
        for mode in MODES:
            joined.learn_mode(mode)
        s = w.setting
        compare(w, joined, peers, MODES, "pieces", report, "steady", s.n_warm, s.n_runs)
        free, total = peers.every[1].call(START_S, ranks.memory)
        report.memory(w, total - free, total)


def checksums(w, report):
    """Each tensor proven on the way, and not."""
    modes = ("one request, plan_id", "a request a bucket, plan_id")
    with w.trainer() as trainer, w.group_of_peers(trainer) as peers, Joined(w, trainer) as joined:
        peers.learn("pieces", nccl_bench_wire.pieces(w.nbytes, w.setting.bucket_nbytes))
        names = []
        for mode in modes:
            joined.learn_mode(mode)
            with_sums = f"{mode}, checksums"
            joined.learn(with_sums, make_job(w, joined.connection, *MODES[mode], w.content))
            names += [mode, with_sums]
        s = w.setting
        compare(w, joined, peers, names, "pieces", report, "checksums", s.n_warm, s.n_runs)


def each(w, report):
    """One broadcast for each tensor, beside raw ones of the same lengths."""
    names = {"a broadcast a tensor": "columns", "a broadcast a tensor, plan_id": "plans"}
    with w.trainer() as trainer, w.group_of_peers(trainer) as peers, Joined(w, trainer) as joined:
        peers.learn("tensors", [(at, n) for _, _, at, n in w.tensors])
        for name, what in names.items():
            joined.learn(name, each_job(w, joined.connection, what))
        compare(w, joined, peers, names, "tensors", report, "each", 1, w.setting.n_each)


def killed(w, report):
    nccl_bench_faults.killed(w, report, lambda port: make_killed(w, port))


def make_killed(w, port):
    with nccl_bench_world.connected(port) as connection:
        return make_job(w, connection, "whole", "plans")


def differing(w, server, content):
    """Tensors at the ends and in the middle of each bucket, as the server gives them out."""
    wrong, n = [], 0
    for bucket in w.buckets:
        for k in sorted({0, len(bucket) // 2, len(bucket) - 1}):
            name, _, at, nbytes = bucket[k]
            if nbytes > READ_NBYTES_MAX:
                continue
            n += 1
            if server.get(f"/v1/weights/{urllib.parse.quote(name)}") != content.data(at, nbytes):
                wrong.append(name)
    return wrong, n


def served_bytes(w, report):
    """An update of other bytes in each form, every tensor's checksum computed here and compared by
    the server on each rank; some are read back besides. A wrong checksum must be refused."""
    with w.trainer() as trainer, Joined(w, trainer) as joined:
        n_read = 0
        for mode in ("one request", "a request a bucket", "a request a bucket, in a line"):
            content = nccl_bench_wire.Content(mode)
            trainer.call(START_S, ranks.fill, content.base)
            joined.learn_mode(mode, content)
            joined.update(mode)
            wrong, n = differing(w, joined.server, content)
            report.wrong += [f"{mode}: {name}" for name in wrong]
            n_read += n
        served = joined.server.status()["weights"]["serial"]
        joined.learn_mode("one request", nccl_bench_wire.Content("other bytes"))
        try:
            joined.update("one request")
            report.wrong.append("wrong checksums were accepted")
        except AssertionError as e:
            if "answered 422" not in str(e):
                raise
        if joined.server.status()["weights"]["serial"] != served:
            report.wrong.append("an update that was refused is served")
        report.note(
            "bytes",
            f"{len(w.tensors)} checksums right in each of 3 forms, on {w.n_ranks - 1} ranks; "
            f"{n_read} tensors read back; wrong checksums refused",
        )


# --- generation while updates run


def small_jobs(trainer, connection, checkpoints):
    """Updates of the small model: each checkpoint's tensors lie one behind the other."""
    at, names = 0, []
    for i, path in enumerate(checkpoints):
        named, begun = list(baton.load_file(path).items()), at
        body = {
            "names": [n for n, _ in named],
            "dtypes": [t.dtype for _, t in named],
            "shapes": [list(t.shape) for _, t in named],
        }
        plan_id = connection.post("/v1/weights/plans", body)["plan_id"]
        trainer.call(START_S, ranks.write, at, b"".join(bytes(t.data) for _, t in named))
        at += sum(t.nbytes for _, t in named)
        body = {"plan_id": plan_id, "transport": "nccl", "packed": True}
        body["weight_version"] = f"set-{i}"
        names.append(f"set-{i}")
        job = nccl_bench_wire.whole_job(body, [(begun, at - begun)])
        trainer.call(START_S, ranks.learn, names[-1], job)
    return names


def generation(w, report):
    """The longest gap between two tokens, with updates and without."""
    checkpoints = [
        str(world.MODEL / "checkpoints" / f"{s}.safetensors") for s in ("step-00100", "step-01500")
    ]
    seconds = w.setting.generate_s
    with w.trainer(64 << 20) as trainer, w.server(
        *("--model", world.MODEL, "--weights", checkpoints[0])
    ) as server, nccl_bench_world.connected(server.port) as connection:
        w.join_by_id(trainer, server.port)
        trainer.call(START_S, ranks.connect, server.port, UPDATE_S)
        names = small_jobs(trainer, connection, checkpoints)
        bench_ipc.stream(server.port, 100)
        quiet, busy = [], []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            quiet += bench_ipc.stream(server.port, 900)
        trainer.tell(ranks.push_back_to_back, names, seconds)
        if not trainer.connection.poll(START_S) or trainer.connection.recv() != "pushing":
            raise AssertionError("the trainer could not begin")
        while not trainer.connection.poll(0):
            busy += bench_ipc.stream(server.port, 900, stop=lambda: trainer.connection.poll(0))
        report.generation(quiet, busy, trainer.hear(START_S))


# --- the report


def rounded(timing):
    return ", ".join(f"{k} {v:.2f}" for k, v in timing.items())


class Report(bench_ipc.Report):
    """Its generation() as it is; the rest by two clocks."""

    def __init__(self, versions):
        self.wrong, self.data, self.lines = [], {"versions": versions}, []
        self.data["command"] = " ".join(["python3", *sys.argv])
        print(", ".join(f"{k} {v}" for k, v in versions.items()), flush=True)

    def part(self, title, w, raw, rows):
        print(f"\n{title}: {len(w.tensors)} tensors, {w.nbytes / 1e9:.2f} GB, {w.n_ranks} ranks")
        print(
            f"  {'':38} {'from the first broadcast':^40} {'from the request':^16}\n"
            f"  {'':38} {'median ms':>9} {'min':>8} {'max':>8} {'GB/s':>5} {'of raw':>6}"
            f" {'median ms':>9} {'of raw':>6}"
        )
        best = raw["min_ms"]
        speed = w.nbytes / 1e6
        print(
            f"  {'raw':38} {raw['median_ms']:9.2f} {best:8.2f} {raw['max_ms']:8.2f}"
            f" {speed / best:5.0f}   (GB/s: the best of {raw['n']})"
        )
        for name, row in rows.items():
            sent, asked = row["broadcast"], row["request"]
            row["of_raw"] = best / sent["median_ms"]
            row["of_raw_from_request"] = best / asked["median_ms"]
            print(
                f"  {name:38} {sent['median_ms']:9.2f} {sent['min_ms']:8.2f} {sent['max_ms']:8.2f}"
                f" {speed / sent['median_ms']:5.0f} {row['of_raw']:6.3f}"
                f" {asked['median_ms']:9.2f} {row['of_raw_from_request']:6.3f}"
                f"   {rounded(row['timing'])}",
                flush=True,
            )
        self.data[title] = {
            "n_tensors": len(w.tensors),
            "nbytes": w.nbytes,
            "n_ranks": w.n_ranks,
            "raw": raw,
            "raw_gb_s": speed / best,
            "modes": rows,
        }

    def note(self, what, text):
        """A line of the table at the end."""
        self.lines.append((what, text))
        print(f"  {what}: {text}", flush=True)

    def memory(self, w, used, total):
        self.data["memory"] = {"used": used, "total": total}
        self.note(
            "memory",
            f"{used / 1e9:.1f} of {total / 1e9:.1f} GB of one of the server's GPUs, with two "
            f"versions of {w.nbytes / 1e9:.2f} GB, a peer process and its buffers",
        )

    def verdict(self, failed):
        print(f"\n{'ratio to the best raw run':60} {'broadcast':>9} {'request':>8}")
        for part in ("first", "steady", "checksums", "each"):
            if part not in self.data:
                continue
            gb_s = self.data[part]["raw_gb_s"]
            for name, row in self.data[part]["modes"].items():
                asked_for = part == "steady" and name.startswith("one request")
                met = "" if not asked_for or row["of_raw"] >= TARGET else f"NOT {TARGET}"
                print(
                    f"{f'{part}: {name} (raw: {gb_s:.0f} GB/s)':60} {row['of_raw']:9.3f}"
                    f" {row['of_raw_from_request']:8.3f} {met}"
                )
        for what, text in self.lines:
            print(f"{what}: {text}")
        if "generation" in self.data:
            row = self.data["generation"]
            print(
                f"longest gap between tokens: {row['with']['max_ms']:.2f} ms with "
                f"{row['n_updates']} updates, {row['without']['max_ms']:.2f} ms without"
            )
        print(f"bytes: {f'WRONG: {self.wrong[:8]}' if self.wrong else 'as sent, where looked at'}")
        print("\n".join(f"FAILED {f}" for f in failed) or "no part failed")
        print(f"command: {self.data['command']}", flush=True)
        self.data.update(wrong=self.wrong, failed=failed, notes=self.lines)


# --- the run

PARTS = {
    "steady": steady,
    "first": first,
    "bytes": served_bytes,
    "killed": killed,
    "generation": generation,
    "checksums": checksums,
    "each": each,
}


class Stopped(BaseException):
    """Somebody wants this to end."""


class Late(BaseException):
    """Nothing on the way may take it for an error of its own."""


@contextlib.contextmanager
def limited(seconds):
    """What takes longer fails, wherever it waits."""

    def ring(*_):
        raise Late(f"not done within {seconds:.0f} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_part(name, w, report, left_s):
    """None, or what went wrong."""
    began = time.monotonic()
    try:
        with limited(min(PART_S, left_s)):
            PARTS[name](w, report)
    except (Exception, Late) as e:  # noqa: BLE001  # one that fails costs the others nothing
        traceback.print_exc()
        return f"{name}: {nccl_bench_faults.shortened(e)}"
    finally:
        print(f"  ({name}: {time.monotonic() - began:.1f} s)", flush=True)
    return None


def run(args, w, report):
    """What failed."""
    end, failed = time.monotonic() + args.budget_s - GRACE_S, []
    try:
        for name in args.only.split(","):
            left_s = end - time.monotonic()
            if left_s < 5:
                failed.append(f"{name}: not run: --budget-s {args.budget_s} is used up")
                continue
            wrong = run_part(name, w, report, left_s)
            failed += [wrong] if wrong else []
    except (Stopped, KeyboardInterrupt):
        failed.append("it was stopped")
    return failed


def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baton", required=True, help="the program to measure")
    parser.add_argument("--out", help="where to write the numbers as JSON")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick")
    tiny = "a model of megabytes, to see whether all of it runs; the fakes will do"
    size.add_argument("--tiny", dest="size", action="store_const", const="tiny", help=tiny)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--gpus", type=int, help="how many, the trainer's counted; default: all")
    parser.add_argument("--budget-s", type=float, default=150, help="for all of it")
    parser.add_argument("--nccl-library", help="for all ranks; default: torch's, else the system's")
    parser.add_argument("--cuda-library", default="libcuda.so.1")
    args = parser.parse_args()
    for name in args.only.split(","):
        if name not in PARTS:
            parser.error(f"part '{name}' is not one of {', '.join(PARTS)}")
    return args


def find_gpus(args):
    """Their names; the end of this process when there are not two."""
    names = nccl_bench_world.gpus(args.cuda_library)[: args.gpus]
    if len(names) >= 2:
        return names
    required = os.environ.get("BATON_REQUIRE_GPU") == "1"
    print(f"{'FAIL' if required else 'skipped'}: {len(names)} GPUs, two are needed")
    sys.exit(1 if required else world.SKIPPED)


def main():
    args = arguments()
    names = find_gpus(args)
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # broadcasts do not use it; its set-up takes memory
    os.environ.pop("NCCL_COMM_BLOCKING", None)
    args.nccl_library = args.nccl_library or nccl_bench_world.find_nccl()
    signal.signal(signal.SIGTERM, stop)
    began = time.monotonic()
    asked = subprocess.run(
        [args.baton, "--version"], capture_output=True, text=True, check=False, timeout=30
    )
    report = Report(
        {
            "gpus": f"{len(names)} x {names[0]}",
            "driver": driver_version(),
            "nccl": nccl_bench_world.nccl_version(args.nccl_library),
            "library": args.nccl_library,
            "baton": asked.stdout.strip(),
        }
    )
    w = nccl_bench_world.World(args, names, Setting(args.size or "full"))
    failed = run(args, w, report)
    report.verdict(failed)
    print(f"in {time.monotonic() - began:.0f} s")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(report.data, f, indent=1)
    return 1 if failed or report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
