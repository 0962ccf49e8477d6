"""CUDA IPC updates against raw copies of the same bytes and against the torch receiver in the form
that SkyRL uses, on one GPU, in one run.

Usage: bench_ipc.py --baton BATON [--out FILE.json] [--quick] [--only PART[,PART...]]
Parts: first (the whole model from unsynced), steady (half of it, again and again), slope (cost per
tensor at equal bytes), checksums, finite (what it costs to look for NaN in the pass that makes
them: a server with --non-finite allow beside it, by turns), generation (on the mirror of the small
model).

The clock runs from the first request (start) to the reply of finish, HTTP and JSON included; the
requests are written beforehand. The trainer is this process: one bucket of random finite numbers,
exported once. After each measurement some tensors of what is served are compared with the bucket.
Ends with 0, or 1 if bytes were wrong, or 77 without a GPU."""

import argparse
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
import gpu_world as world  # noqa: E402
import ipc_wire as wire  # noqa: E402
from gpu_world import baton  # noqa: E402

GIB = 1 << 30
MODES = {  # name -> (what it sends, how)
    "one after the other": ("columns", "wait"),
    "one after the other, plan_id": ("plans", "wait"),
    "4 connections": ("columns", 4),
    "8 connections": ("columns", 8),
    "8 connections, plan_id": ("plans", 8),
    "one request": ("columns", "whole"),
    "one request, plan_id": ("plans", "whole"),
}
TARGETS = {"steady": 0.8, "checksums": 0.7, "receiver": 5.0, "slope_us": 0.5}


class Setting:
    """Sizes of a run."""

    def __init__(self, quick):
        self.bucket_nbytes = GIB
        self.layers, self.half = (4, 2) if quick else (48, 24)
        self.n_warm, self.n_runs = (1, 3) if quick else (3, 10)
        self.slope_nbytes = 2 * 10**9 if quick else 8 * 10**9
        self.slope_counts = (100, 1000, 18867) if quick else (100, 1000, 18867, 108000)
        self.generate_s = 3.0 if quick else 8.0


class Trainer:
    """The bucket, exported once, and raw copies out of it."""

    def __init__(self, torch, nbytes):
        self.torch = torch
        self.bucket = torch.randint(0, 128, (nbytes,), dtype=torch.uint8, device="cuda:0")
        self.target = torch.empty_like(self.bucket)
        _, self.args = world.export(self.bucket)
        self.handles = world.pickled({world.uuid_of(0): self.args})
        torch.cuda.synchronize()

    def raw(self, buckets):
        """Each bucket's bytes into one reused buffer, by one copy each: (wall, GPU) seconds."""
        torch = self.torch
        pairs = [(self.target[:n], self.bucket[:n]) for n in map(wire.length_of, buckets)]
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began = time.perf_counter()
        first.record()
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
        last.record()
        torch.cuda.synchronize()
        return time.perf_counter() - began, first.elapsed_time(last) / 1e3

    def checksums(self, buckets):
        """Of each tensor, aligned with its bucket's columns."""
        return [
            baton.gpu_checksums([self.bucket[at : at + n] for _, _, at, n in bucket])
            for bucket in buckets
        ]


# --- the torch receiver, in a process of its own


def receiver_start(state, buckets, args):
    """Parameters of the right shapes. `args` as exported, but with no counter and no event: it is
    spared both."""
    import torch

    state.torch, state.buckets = torch, buckets
    state.args = list(args)
    state.args[11:15] = [b"/torch_1_1_1", 0, bytes(64), False]
    state.parameters = [
        [torch.empty(shape, dtype=torch.bfloat16, device="cuda:0") for _, shape, _, _ in bucket]
        for bucket in buckets
    ]
    torch.cuda.synchronize()


def receiver_run(state):
    """One handle rebuilt for each bucket, one copy_ for each tensor. Returns seconds."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    torch = state.torch
    torch.cuda.synchronize()
    began = time.perf_counter()
    for bucket, parameters in zip(state.buckets, state.parameters):
        packed = rebuild_cuda_tensor(*state.args).view(torch.bfloat16)
        at = 0
        for parameter in parameters:
            numel = parameter.numel()
            parameter.copy_(packed[at : at + numel].view(parameter.shape))
            at += numel
        torch.cuda.synchronize()
        del packed
    return time.perf_counter() - began


def receiver_check(state, expected):
    """checksum of some of them, by (bucket, place)."""
    return [baton.gpu_checksums([world.raw_of(state.parameters[b][i])])[0] for b, i in expected]


def receiver_stop(state):
    state.parameters = None
    state.torch.cuda.empty_cache()


# --- requests


def bucket_bodies(trainer, buckets, plans, sums):
    """What each bucket says, as columns or by plan_id."""
    bodies = []
    for i, bucket in enumerate(buckets):
        body = {"plan_id": plans[i]} if plans else wire.columns(bucket)
        if sums:
            body["checksums"] = sums[i]
        body["packed"] = True
        body["ipc_handles_pickled"] = trainer.handles
        bodies.append(body)
    return bodies


def prepare(trainer, connection, buckets, what, how, sums=None):
    """Requests that only lack an update's id."""
    plans = None
    if what == "plans":
        plans = [
            connection.post(
                "/v1/weights/plans",
                {"names": c["names"], "shapes": c["shapes"], "dtypes": c["dtype_names"]},
            )["plan_id"]
            for c in map(wire.columns, buckets)
        ]
    bodies = bucket_bodies(trainer, buckets, plans, sums)
    if how == "whole":
        return [
            wire.Ready(wire.PATH, {"buckets": bodies, "weight_version": "bench"}, with_id=False)
        ]
    return [wire.Ready(wire.PATH, body) for body in bodies]


class Served:
    """A server with a manifest of bfloat16 tensors, and the buckets that they come in."""

    def __init__(self, args, trainer, named, bucket_nbytes, *options):
        self.trainer, self.named = trainer, named
        self.buckets = wire.cut(named, bucket_nbytes)
        self.nbytes = wire.total_of(named)
        self.folder = tempfile.TemporaryDirectory()
        manifest = world.write_manifest(self.folder.name, [(n, "bfloat16", s) for n, s in named])
        self.server = world.Server(
            args.baton,
            "--engine",
            "none",
            "--manifest",
            manifest,
            "--device",
            "cuda:0",
            "--json-body-max",
            256 << 20,
            *options,
        )
        self.wire = wire.Wire(self.server.port, 8)

    def __enter__(self):
        return self

    def __exit__(self, *about):
        self.wire.close()
        self.server.__exit__(*about)
        self.folder.cleanup()

    def ready(self, mode, sums=None):
        what, how = MODES[mode]
        return prepare(self.trainer, self.wire, self.buckets, what, how, sums), how

    def update(self, requests, how):
        """One update: (seconds, what the server says of it)."""
        began = time.perf_counter()
        if how == "whole":
            answer = self.wire.whole(requests)
        elif how == "wait":
            answer = self.wire.session(requests, pipelined=False)
        else:
            every, self.wire.connections = self.wire.connections, self.wire.connections[:how]
            try:
                answer = self.wire.session(requests, pipelined=True)
            finally:
                self.wire.connections = every
        took = time.perf_counter() - began
        update = json.loads(answer)
        if update["phase"] != "committed" or update["nbytes_done"] != self.nbytes:
            raise AssertionError(f"not a whole update: {update}")
        return took, update

    def wipe_is_seen(self):
        """Changes the bucket, so that what an earlier update brought would be found out."""
        torch = self.trainer.torch
        self.trainer.bucket.bitwise_xor_(0x5A)
        torch.cuda.synchronize()

    def wrong(self):
        """Tensors at both ends and in the middle of each bucket that are not the bucket's bytes."""
        torch, out = self.trainer.torch, []
        with baton.attach(self.server.url) as served:
            for bucket in self.buckets:
                for k in {0, 1, len(bucket) // 2, len(bucket) - 1} & set(range(len(bucket))):
                    name, shape, at, nbytes = bucket[k]
                    tensor = served.tensors[name]
                    if tuple(tensor.shape) != tuple(shape) or not torch.equal(
                        world.raw_of(tensor), self.trainer.bucket[at : at + nbytes]
                    ):
                        out.append(name)
                    del tensor
        return out


# --- measuring


def spread(seconds):
    return {
        "median_ms": statistics.median(seconds) * 1e3,
        "min_ms": min(seconds) * 1e3,
        "max_ms": max(seconds) * 1e3,
        "n": len(seconds),
    }


def timing_of(updates):
    keys = updates[0]["timing"]
    return {
        k: statistics.median(u["timing"][k] for u in updates)
        for k in keys
        if isinstance(keys[k], (int, float))
    }


def interleave(setting, actions):
    """Every action by turns, warm-ups first. @actions  name -> function returning seconds or
    (seconds, more). Returns name -> [results]."""
    out = {name: [] for name in actions}
    for i in range(setting.n_warm + setting.n_runs):
        for name, action in actions.items():
            got = action()
            if i >= setting.n_warm:
                out[name].append(got)
    return out


def start_receiver(trainer, buckets):
    worker = world.Worker()
    worker.ask(receiver_start, buckets, trainer.args)
    return worker


def check_receiver(trainer, worker, buckets):
    places = [(b, len(bucket) // 2) for b, bucket in enumerate(buckets)]
    found = worker.ask(receiver_check, places)
    wanted = [
        baton.gpu_checksums([trainer.bucket[buckets[b][i][2] :][: buckets[b][i][3]]])[0]
        for b, i in places
    ]
    return found == wanted


def first(args, setting, trainer, report):
    """The whole model, from unsynced: two versions of it would not fit."""
    named = wire.qwen3_30b_a3b(setting.layers)
    rows, raw = {}, []
    buckets = wire.cut(named, setting.bucket_nbytes)
    for mode in (
        "one after the other",
        "8 connections",
        "8 connections, plan_id",
        "one request, plan_id",
    ):
        with Served(args, trainer, named, setting.bucket_nbytes) as served:
            requests, how = served.ready(mode)
            trainer.raw(buckets)
            raw.append(trainer.raw(buckets)[0])
            took, update = served.update(requests, how)
            raw.append(trainer.raw(buckets)[0])
            rows[mode] = dict(spread([took]), timing=update["timing"])
            report.wrong += served.wrong()
    with start_receiver(trainer, buckets) as worker:
        times = [worker.ask(receiver_run) for _ in range(1 + 3)][1:]
        if not check_receiver(trainer, worker, buckets):
            report.wrong.append("torch receiver")
    report.part("first", named, buckets, spread(raw), spread(times), rows)


def steady(args, setting, trainer, report):
    """Half of the model, version after version."""
    named = wire.qwen3_30b_a3b(setting.half)
    with Served(args, trainer, named, setting.bucket_nbytes) as served, start_receiver(
        trainer, served.buckets
    ) as worker:
        actions = {
            "raw": lambda: trainer.raw(served.buckets),
            "receiver": lambda: worker.ask(receiver_run),
        }
        for mode in MODES:
            requests, how = served.ready(mode)
            actions[mode] = lambda r=requests, h=how: served.update(r, h)
        found = interleave(setting, actions)
        if not check_receiver(trainer, worker, served.buckets):
            report.wrong.append("torch receiver")
        verify_each(served, report)
        rows = {
            mode: dict(
                spread([t for t, _ in found[mode]]), timing=timing_of([u for _, u in found[mode]])
            )
            for mode in MODES
        }
        raw = dict(
            spread([wall for wall, _ in found["raw"]]),
            gpu_ms=statistics.median(gpu for _, gpu in found["raw"]) * 1e3,
        )
        report.part("steady", named, served.buckets, raw, spread(found["receiver"]), rows)


def verify_each(served, report):
    """One more update in each mode, of other bytes: what is served must be those."""
    for mode in MODES:
        served.wipe_is_seen()
        requests, how = served.ready(mode)
        served.update(requests, how)
        report.wrong += [f"{mode}: {name}" for name in served.wrong()]


def checksums(args, setting, trainer, report):
    """The same, each tensor proven on the way."""
    named = wire.qwen3_30b_a3b(setting.half)
    modes = ("8 connections", "8 connections, plan_id", "one request, plan_id")
    with Served(args, trainer, named, setting.bucket_nbytes) as served:
        sums = trainer.checksums(served.buckets)
        actions = {"raw": lambda: trainer.raw(served.buckets)}
        for mode in modes:
            requests, how = served.ready(mode, sums)
            actions[mode] = lambda r=requests, h=how: served.update(r, h)
        found = interleave(setting, actions)
        report.wrong += served.wrong()
        rows = {
            mode: dict(
                spread([t for t, _ in found[mode]]), timing=timing_of([u for _, u in found[mode]])
            )
            for mode in modes
        }
        raw = spread([wall for wall, _ in found["raw"]])
        report.part("checksums", named, served.buckets, raw, None, rows)
        report.data["checksums"]["made_on"] = found[modes[0]][0][1].get("checksums_on")
        print(f"  summed on: {report.data['checksums']['made_on']}")


def finite(args, setting, trainer, report):
    """Checksums made by a server that looks for NaN meanwhile, and by one that does not."""
    named = wire.qwen3_30b_a3b(max(1, setting.half // 3))  # two servers, two versions in each
    mode = "8 connections, plan_id"
    with Served(args, trainer, named, setting.bucket_nbytes) as looks, Served(
        args, trainer, named, setting.bucket_nbytes, "--non-finite", "allow"
    ) as blind:
        sums = trainer.checksums(looks.buckets)
        actions = {"raw": lambda: trainer.raw(looks.buckets)}
        for policy, served in (("refuse", looks), ("allow", blind)):
            requests, how = served.ready(mode, sums)
            actions[policy] = lambda s=served, r=requests, h=how: s.update(r, h)
        found = interleave(setting, actions)
        report.wrong += looks.wrong() + blind.wrong()
    took = {policy: [t for t, _ in found[policy]] for policy in ("refuse", "allow")}
    raw = spread([wall for wall, _ in found["raw"]])
    rows = {f"--non-finite {policy}": spread(times) for policy, times in took.items()}
    report.part("finite", named, looks.buckets, raw, None, rows)
    rates = sorted(a / r for r, a in zip(took["refuse"], took["allow"]))
    report.data["finite"]["refuse_to_allow"] = statistics.median(rates)
    print(
        f"  checksum for each tensor, refuse / allow: {statistics.median(rates):.3f} of the rate"
        f" ({rates[0]:.3f} to {rates[-1]:.3f} in {len(rates)} turns)",
        flush=True,
    )


def slope_of(points):
    """Least squares: microseconds for each tensor, and milliseconds for none."""
    xs, ys = [n for n, _ in points], [ms for _, ms in points]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    up = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope = up / sum((x - mean_x) ** 2 for x in xs)
    return {"us_per_tensor": slope * 1e3, "fixed_ms": mean_y - slope * mean_x}


def slope(args, setting, trainer, report):
    """Equal bytes in more and more tensors."""
    modes = ("8 connections", "8 connections, plan_id", "one request, plan_id")
    rows, points = {}, {mode: [] for mode in modes}
    for count in setting.slope_counts:
        named = wire.equal_tensors(count, setting.slope_nbytes)
        with Served(args, trainer, named, setting.bucket_nbytes) as served:
            actions = {"raw": lambda: trainer.raw(served.buckets)[0]}
            for mode in modes:
                requests, how = served.ready(mode)
                actions[mode] = lambda r=requests, h=how: served.update(r, h)[0]
            found = interleave(setting, actions)
            report.wrong += served.wrong()
        rows[count] = {name: spread(times) for name, times in found.items()}
        for mode in modes:
            points[mode].append((count, rows[count][mode]["median_ms"]))
    report.slope(rows, {mode: slope_of(at) for mode, at in points.items()})


# --- generation while updates run


def stream(port, n_tokens, stop=lambda: False):
    """Seconds between the tokens of one streamed generation, and the versions that made it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps(
        {
            "token_ids": [40, 77, 258],
            "stream": True,
            "sampling_params": {"max_tokens": n_tokens, "temperature": 0, "ignore_eos": True},
        }
    )
    connection.request("POST", "/v1/generate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise AssertionError(answer.read()[:500])
    gaps, last = [], None
    while not stop():
        line = answer.readline()
        if not line or b"[DONE]" in line:
            break
        if line.startswith(b"data:") and b'"token_ids"' in line:
            now = time.perf_counter()
            if last is not None:
                gaps.append(now - last)
            last = now
    connection.close()
    return gaps


def push_back_to_back(state, url, checkpoints, seconds):
    """Updates of the small model, each as soon as the one before is committed. Returns how many."""
    from safetensors.torch import load_file
    import torch

    sets = [load_file(path, device="cuda:0") for path in checkpoints]
    bucket = torch.empty(4 << 20, dtype=torch.uint8, device="cuda:0")
    _, args = world.export(bucket)
    connection = wire.Connection(int(url.rsplit(":", 1)[1]))
    requests = [
        wire.Ready(
            wire.PATH,
            dict(world.vllm_packed_body(list(s.items()), args, 0), weight_version=f"set-{i}"),
            with_id=False,
        )
        for i, s in enumerate(sets)
    ]
    state.connection.send("pushing")
    n, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        world.pack(list(sets[n % len(sets)].items()), bucket)
        torch.cuda.synchronize()
        connection.ask(requests[n % len(sets)].parts(b""))
        n += 1
    return n


def generation(args, setting, trainer, report):
    """The longest gap between two tokens, with updates and without."""
    checkpoints = [
        str(world.MODEL / "checkpoints" / f"{s}.safetensors") for s in ("step-00100", "step-01500")
    ]
    with world.Server(
        args.baton, "--model", world.MODEL, "--weights", checkpoints[0], "--device", "cuda:0"
    ) as server, world.Worker() as pusher:
        stream(server.port, 100)
        quiet, busy = [], []
        end = time.monotonic() + setting.generate_s
        while time.monotonic() < end:
            quiet += stream(server.port, 900)
        pusher.tell(push_back_to_back, server.url, checkpoints, setting.generate_s)
        if pusher.connection.recv() != "pushing":
            raise AssertionError("the trainer could not begin")
        while not pusher.connection.poll(0):
            busy += stream(server.port, 900, stop=lambda: pusher.connection.poll(0))
        report.generation(quiet, busy, pusher.hear())


# --- the report


def quantile(values, part):
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def driver_version():
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return asked.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


class Report:
    def __init__(self, torch, server_version):
        self.wrong, self.data = [], {}
        self.data["versions"] = {
            "gpu": torch.cuda.get_device_name(0),
            "driver": driver_version(),
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            "baton": server_version,
        }
        print(", ".join(f"{k} {v}" for k, v in self.data["versions"].items()), flush=True)

    def part(self, title, named, buckets, raw, receiver, rows):
        total = wire.total_of(named)
        print(f"\n{title}: {len(named)} tensors, {total / 1e9:.2f} GB, {len(buckets)} buckets")
        print(
            f"  {'':32} {'median ms':>9} {'min':>8} {'max':>8} {'GB/s':>7} {'of raw':>7}"
            f" {'x torch':>7}"
        )
        base = {"raw copies of the same bytes": raw}
        if receiver:
            base["torch receiver, SkyRL's form"] = receiver
        for name, row in {**base, **rows}.items():
            ratio = raw["median_ms"] / row["median_ms"]
            faster = receiver["median_ms"] / row["median_ms"] if receiver else None
            row.update(of_raw=ratio, times_receiver=faster)
            print(
                f"  {name:32} {row['median_ms']:9.2f} {row['min_ms']:8.2f} {row['max_ms']:8.2f}"
                f" {total / row['median_ms'] / 1e6:7.0f} {ratio:7.2f}"
                f" {f'{faster:7.1f}' if faster else '':>7}",
                flush=True,
            )
            if "timing" in row:
                print(f"  {'':32} server: {json.dumps(row['timing'])}")
        self.data[title] = {
            "n_tensors": len(named),
            "nbytes": total,
            "n_buckets": len(buckets),
            "raw": raw,
            "receiver": receiver,
            "modes": rows,
        }

    def slope(self, rows, slopes):
        print("\nslope: equal bytes in more and more tensors, median ms")
        modes = list(next(iter(rows.values())))
        print(f"  {'tensors':>8} " + " ".join(f"{m:>24}" for m in modes))
        for count, row in rows.items():
            print(f"  {count:8} " + " ".join(f"{row[m]['median_ms']:24.2f}" for m in modes))
        for mode, fit in slopes.items():
            print(
                f"  {mode}: {fit['us_per_tensor']:.3f} us a tensor, {fit['fixed_ms']:.2f} ms more",
                flush=True,
            )
        self.data["slope"] = {"rows": rows, "fit": slopes}

    def generation(self, quiet, busy, n_updates):
        row = {"n_updates": n_updates}
        for name, gaps in (("without", quiet), ("with", busy)):
            row[name] = {
                "n_tokens": len(gaps),
                "median_ms": statistics.median(gaps) * 1e3,
                "p99_ms": quantile(gaps, 0.99) * 1e3,
                "max_ms": max(gaps) * 1e3,
            }
        row["max_to_median"] = row["with"]["max_ms"] / row["without"]["median_ms"]
        row["max_to_max"] = row["with"]["max_ms"] / row["without"]["max_ms"]
        print(f"\ngeneration on the mirror, {n_updates} updates meanwhile: gap between tokens")
        for name in ("without", "with"):
            print(f"  {name:8} {json.dumps(row[name])}")
        print(
            f"  longest with updates: {row['max_to_median']:.1f} of the median without, "
            f"{row['max_to_max']:.2f} of the longest without",
            flush=True,
        )
        self.data["generation"] = row

    def verdict(self):
        """The ratios that were asked for, beside what was found."""
        rows = []
        for part, target in (
            ("first", TARGETS["steady"]),
            ("steady", TARGETS["steady"]),
            ("checksums", TARGETS["checksums"]),
        ):
            if part in self.data:
                best = max(self.data[part]["modes"].items(), key=lambda m: m[1]["of_raw"])
                rows.append((f"{part}: of raw copies ({best[0]})", best[1]["of_raw"], ">=", target))
                if best[1]["times_receiver"]:
                    rows.append(
                        (
                            f"{part}: times the torch receiver ({best[0]})",
                            best[1]["times_receiver"],
                            ">=",
                            TARGETS["receiver"],
                        )
                    )
        for mode, fit in self.data.get("slope", {}).get("fit", {}).items():
            rows.append((f"us a tensor ({mode})", fit["us_per_tensor"], "<=", TARGETS["slope_us"]))
        print(f"\n{'what':64} {'found':>8} {'wanted':>8}")
        for what, found, sign, target in rows:
            met = found >= target if sign == ">=" else found <= target
            print(f"{what:64} {found:8.2f} {sign:>3} {target:4} {'' if met else 'NOT MET'}")
        print(
            "bytes: "
            + (f"WRONG: {self.wrong[:8]}" if self.wrong else "as sent, wherever looked at")
        )
        self.data["wrong"] = self.wrong


PARTS = {
    "first": first,
    "steady": steady,
    "checksums": checksums,
    "finite": finite,
    "slope": slope,
    "generation": generation,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baton", required=True, help="the program to measure")
    parser.add_argument("--out", help="where to write the numbers as JSON")
    parser.add_argument("--quick", action="store_true", help="smaller, under a minute")
    parser.add_argument("--only", default=",".join(PARTS))
    args = parser.parse_args()
    torch = world.need_gpus()
    version = subprocess.run([args.baton, "--version"], capture_output=True, text=True, check=False)
    report = Report(torch, version.stdout.strip())
    setting, began = Setting(args.quick), time.monotonic()
    trainer = Trainer(torch, setting.bucket_nbytes)
    failed = []
    for name in args.only.split(","):
        at = time.monotonic()
        try:
            PARTS[name](args, setting, trainer, report)
        except Exception as e:  # noqa: BLE001  # one part that fails costs the others nothing
            world.traceback.print_exc()
            failed.append(f"{name}: {type(e).__name__}: {e}"[:500])
        torch.cuda.empty_cache()
        print(f"  ({name}: {time.monotonic() - at:.1f} s)", flush=True)
    report.verdict()
    report.data["failed"] = failed
    print(
        "\n".join(f"FAILED {f}" for f in failed) or "no part failed",
        f"in {time.monotonic() - began:.0f} s",
    )
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(report.data, f, indent=1)
    return 1 if failed or report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
