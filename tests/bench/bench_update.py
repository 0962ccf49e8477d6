"""How fast weights come in, as ratios to a warm memcpy of the same bytes by one thread, in one run.

Usage: bench_update.py BATON CLIENT_DIR [MIB [N_TENSORS]]      (default 1024 MiB in 256 tensors)

First each door as the client uses it: the median of what the server measured (receive) and of
the whole call. Then an update in as many tensors as Qwen3-30B-A3B has, named by their plan_id,
against one tensor of equal bytes: both read the same shared memory object, which is kept and
written anew each time as a trainer's would be. Then what the number of tensors costs where bytes
cost nothing: the first acceptance of such a plan, the acceptance of its plan_id, and what GET /health
on another connection notices of plans that come without a pause.
Everything is taken by turns, so that a busy moment of the machine meets all of it. The first updates
go to fresh memory and are left out. What is served in the end is compared with what was sent. Needs
nothing but Python, memory for six times MIB, and MIB of /dev/shm."""

import json
import os
import statistics
import sys
import time

import ipc_wire as wire
from update_world import Memory, Prober, Server, Shared, columns, joined_checksum, offsets, plan_request

sys.path.insert(0, sys.argv[2] if len(sys.argv) > 2 else "client")
import baton  # noqa: E402

N_WARM, N_RUNS = 3, 9
N_STARTS = 5  # servers whose first plan is timed
N_SMALL = 40
PROBE_S = 3.0
CUT = 8  # of each dimension, so that 61 GB become about one
UPDATE = wire.PATH


def median_ms(seconds):
    return statistics.median(seconds) * 1e3


def ratio(of, to):
    """Median of what one took against the other, round by round."""
    return statistics.median(a / b for a, b in zip(of, to))


# --- the doors


def doors(binary, memory, n):
    numel = memory.nbytes // n // 2
    named = [(f"layer.{i}.weight", (numel,)) for i in range(n)]
    raw = memoryview(memory.bytes)
    tensors = {name: baton.Tensor("BF16", shape, raw[2 * i * numel:2 * (i + 1) * numel])
               for i, (name, shape) in enumerate(named)}
    print(f"{memory.nbytes / 1e6:.0f} MB in {n} tensors, as the client pushes them")
    print(f"{'door':6} {'receive GB/s':>12} {'of memcpy':>9} {'call ms':>9} {'server ms':>9} "
          f"{'of --non-finite allow':>22}")
    with Server(binary, named) as server, Server(binary, named, "--non-finite", "allow") as blind:
        for s in server, blind:
            with open(weights_of(s), "wb") as f:
                f.write(baton.host.safetensors_head(list(tensors.items()), False)[0])
                f.write(raw[:server.nbytes])
        for via in ("shm", "body", "path"):
            door(server, blind, tensors, via, memory)
            name = named[-1][0]
            if server.tensors()[name]["checksum"] != baton.checksum(tensors[name].data):
                raise SystemExit(f"{via}: what is served is not what was sent")


def weights_of(server):
    return os.path.join(server.folder.name, "weights.safetensors")


def push(server, tensors, via):
    return baton.push(weights_of(server) if via == "path" else tensors, server.url, via=via,
                      checksums=False)["timing"]


def looking(server, blind, tensors, via):
    """How fast receiving with a look for what is not finite is, of receiving without; by turns."""
    rounds = [[push(s, tensors, via)["receive_ms"] for s in (server, blind)] for _ in range(N_RUNS)]
    return ratio([b for _, b in rounds], [a for a, _ in rounds])


def door(server, blind, tensors, via, memory):
    copies, receive, calls, sums = [], [], [], []
    for _ in range(N_WARM + N_RUNS):
        copies.append(memory.copy_s() * server.nbytes / memory.nbytes)
        push(blind, tensors, via)
        began = time.perf_counter()
        timing = push(server, tensors, via)
        calls.append(time.perf_counter() - began)
        receive.append(timing["receive_ms"] / 1e3)
        sums.append(sum(timing.values()) / 1e3)
    got = server.nbytes / statistics.median(receive[N_WARM:])
    print(f"{via:6} {got / 1e9:12.2f} {ratio(copies[N_WARM:], receive[N_WARM:]):9.2f} "
          f"{median_ms(calls[N_WARM:]):9.1f} {median_ms(sums[N_WARM:]):9.1f} "
          f"{looking(server, blind, tensors, via):22.3f}")


# --- many tensors against one


def scaled(nbytes):
    """The tensors of Qwen3-30B-A3B, each dimension a CUT-th, the vocabulary what fills up."""
    named = [(name, tuple(dim // CUT for dim in shape)) for name, shape in wire.qwen3_30b_a3b()]
    vocab, hidden = named[0][1]
    rows = (nbytes - wire.total_of(named)) // (2 * 2 * hidden) + vocab
    if rows < 1:
        return wire.equal_tensors(len(named), nbytes)
    return [(name, (rows, hidden) if shape == (vocab, hidden) else shape) for name, shape in named]


def by_plan_id(server, shared):
    """The request of a whole update that names its plan."""
    plan_id = server.ask(plan_request(server.named))[1]["plan_id"]
    body = {"plan_id": plan_id, "shm": shared.range(server.nbytes)}
    return wire.Ready(UPDATE, body, with_id=False)


def by_words(server, shared):
    """The same, with names, dtypes and shapes in it."""
    body = {**columns(server.named), "shm": shared.range(server.nbytes)}
    return wire.Ready(UPDATE, body, with_id=False)


def committed(answer, nbytes):
    if answer["phase"] != "committed" or answer["nbytes_done"] != nbytes:
        raise SystemExit(f"not a whole update: {answer}")
    return answer


def many_against_one(binary, memory):
    named = scaled(memory.nbytes)
    nbytes = wire.total_of(named)
    at = offsets(named)
    copies, many_s, one_s = [], [], []
    shared = Shared(memory)
    try:
        with Server(binary, named) as many, Server(binary, [("all.weight", (nbytes // 2,))]) as one:
            asks = [(many, by_plan_id(many, shared), many_s), (one, by_plan_id(one, shared), one_s)]
            for i in range(N_WARM + N_RUNS):
                shared.write(at)
                copies.append(memory.copy_s() * nbytes / memory.nbytes)
                for server, request, seconds in asks[:: 1 if i % 2 else -1]:
                    took, answer = server.ask(request)
                    committed(answer, nbytes)
                    seconds.append(took)
            check_served(many, one, shared, at)
    finally:
        shared.close()
    copies, many_s, one_s = copies[N_WARM:], many_s[N_WARM:], one_s[N_WARM:]
    print(f"\n{nbytes / 1e6:.0f} MB by shm into recycled memory, from the request to its answer; "
          f"memcpy {nbytes / statistics.median(copies) / 1e9:.2f} GB/s")
    print(f"one tensor                {ratio(copies, one_s):6.2f} of memcpy, {median_ms(one_s):6.1f} ms")
    print(f"{len(named):,} by plan_id         {ratio(copies, many_s):6.2f} of memcpy, "
          f"{median_ms(many_s):6.1f} ms, {ratio(many_s, one_s):.2f} x one tensor")


def check_served(many, one, shared, at):
    """Both serve what the object holds: some tensors of the many are summed here, and the one must
    have the sum that all of the many make together."""
    served = many.tensors()
    sums = []
    for i, (name, shape) in enumerate(many.named):
        nbytes = wire.nbytes_of(shape)
        if i % 997 == 0 and nbytes < 1 << 20:
            if served[name]["checksum"] != baton.checksum(shared.bytes[at[i] : at[i] + nbytes]):
                raise SystemExit(f"{name}: what is served is not what was sent")
        sums.append((nbytes, served[name]["checksum"]))
    if one.tensors()["all.weight"]["checksum"] != joined_checksum(sums):
        raise SystemExit("the one tensor is not the many")


# --- what tensors cost without bytes


def first_plans(binary):
    """POST to reply of the first plan that a server sees, and of others after it."""
    named, first, later = wire.qwen3_30b_a3b(), [], []
    for _ in range(N_STARTS):
        with Server(binary, named) as server:
            first.append(server.ask(plan_request(named))[0])
            later += [server.ask(plan_request(named[i:] + named[:i]))[0] for i in (1, 2, 3)]
    print(f"\na plan of {len(named):,} tensors: first acceptance {median_ms(first):.1f} ms, at most "
          f"{max(first) * 1e3:.1f}; of others after it {median_ms(later):.1f} ms")


def small_updates(binary):
    """Updates of as many tensors as before, of 4 bytes each: what naming them costs."""
    named = [(name, (2,)) for name, _ in wire.qwen3_30b_a3b()]
    memory = Memory(wire.total_of(named))
    shared = Shared(memory)
    whole, accepted, again, starts, chunks = [], [], [], [], []
    try:
        with Server(binary, named) as server:
            request, words = by_plan_id(server, shared), by_words(server, shared)
            for _ in range(N_SMALL):
                shared.write(offsets(named))
                took, answer = server.ask(request)
                whole.append(took)
                accepted.append(without_its_work(took, answer, server.nbytes))
                took, answer = server.ask(words)
                again.append(without_its_work(took, answer, server.nbytes))
                in_session(server, request, starts, chunks)
    finally:
        shared.close()
    print(f"an update of {len(named):,} tensors of 4 bytes by plan_id: {median_ms(whole):.2f} ms from request to "
          f"answer, of it {median_ms(accepted):.2f} accepting it")
    print(f"with names, dtypes and shapes: accepting it {again[0] * 1e3:.2f} ms the first time, "
          f"{median_ms(again[1:]):.2f} when they are said again")
    print(f"the same in a session: start {median_ms(starts):.2f} ms, the tensors' acceptance "
          f"{median_ms(chunks):.2f} ms, {median_ms([a + b for a, b in zip(starts, chunks)]):.2f} together")


def without_its_work(took, answer, nbytes):
    """What of a call was not the update itself."""
    return took - sum(committed(answer, nbytes)["timing"].values()) / 1e3


def in_session(server, request, starts, chunks):
    took, answer = server.ask(wire.Wire.START)
    starts.append(took)
    update_id = answer["update_id"].encode()
    members = json.loads(request.tail)
    took, answer = server.ask(wire.Ready(UPDATE, members), update_id)
    chunks.append(took - answer["timing"]["receive_ms"] / 1e3)
    committed(server.ask(wire.Wire.FINISH, update_id)[1], server.nbytes)


def apart(server):
    """The front's loop on one processor, the server's other threads and this process on another:
    what a request then waits for is the loop. Returns the loop's, which the prober shares."""
    cores = sorted(os.sched_getaffinity(0))
    first, second = cores[0], cores[-1]
    for task in os.listdir(f"/proc/{server.child.pid}/task"):
        with open(f"/proc/{server.child.pid}/task/{task}/comm", encoding="ascii") as f:
            os.sched_setaffinity(int(task), {first if f.read().startswith("http/") else second})
    os.sched_setaffinity(0, {second})
    return {first}


def health_beside_plans(binary):
    named, n = wire.qwen3_30b_a3b(), 0
    mine = os.sched_getaffinity(0)
    with Server(binary, named) as server:
        requests = [plan_request(named[i:] + named[:i]) for i in range(8)]
        cores = apart(server)
        with Prober(server.port, cores) as alone:
            time.sleep(PROBE_S)
        with Prober(server.port, cores) as beside:
            end = time.monotonic() + PROBE_S
            while time.monotonic() < end:
                server.ask(requests[n % len(requests)])
                n += 1
    os.sched_setaffinity(0, mine)
    told = [f"p50 {p.quantile(0.5) * 1e3:.2f}, p99 {p.quantile(0.99) * 1e3:.2f} ms" for p in (alone, beside)]
    print(f"GET /health on another connection, the loop on a processor of its own: {told[0]}; beside "
          f"{n / PROBE_S:.0f} such plans a second {told[1]}")


def main():
    binary = sys.argv[1]
    mib = int(sys.argv[3]) if len(sys.argv) > 3 else 1024
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 256
    memory = Memory(mib << 20)
    doors(binary, memory, n)
    many_against_one(binary, memory)
    first_plans(binary)
    small_updates(binary)
    health_beside_plans(binary)


if __name__ == "__main__":
    main()
