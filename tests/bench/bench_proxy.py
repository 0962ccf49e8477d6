"""baton in front of an engine, against nginx and HAProxy as plain proxies in front of the same.

Usage: bench_proxy.py BATON FAKE_ENGINE PROXY_LOAD PROXY_UPSTREAM [ROUNDS [SECONDS [STREAMS [PARTS]]]]
PARTS: some of flood,tokens,requests,light,streams,memory; all by default. The proxy runs on one
processor, clients and upstream on another (or two). Every proxy opens a connection to the upstream
for each request. Rounds are interleaved; medians are printed and what baton's is of the others'.
"cpu" is the proxy's own processor time for each unit: it says what a proxy costs also where it is
not what limits. It judges nothing but that everything was answered, and whole.

  flood     streams as fast as they are taken, from the double (tests/fakes/engine.h): bytes/s
  tokens    500 streams, an event of 200 bytes each 50 ms: are tokens late?
  requests  63 clients, a POST of 200 bytes, an answer of 300: requests/s
  light     one small completion after another while STREAMS others hang: latency above direct
  streams   STREAMS streams at the same time, each compared byte for byte
  memory    of the proxy for each stream: quiet ones, and ones whose client does not read

NGINX and HAPROXY name other binaries than those of the PATH (LD_LIBRARY_PATH reaches them)."""

import json
import os
import resource
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from proxy_world import HAPROXY, NGINX, Load, Upstream, World, ask, cores, wait  # noqa: E402

PARTS = ("flood", "tokens", "requests", "light", "streams", "memory")
PATH, HANGING, OVER_S = "/v1/completions", "/v1/chat/completions", 120
PAD = 16  # makes an event of the double 200 bytes long, framing excluded
N_FLOOD, N_PACED, N_REQUESTS, N_STUFFED = 256, 500, 63, 1000
PACE_US, SLOW_US, LIGHT_PAUSE_US = 50000, 100000, 2000
LIGHT = {"prompt": "x", "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
SMALL = {"prompt": "x" * 160, "max_tokens": 16, "temperature": 0}


def stream(max_tokens):
    return {"stream": True, "prompt": "x", "max_tokens": max_tokens, "request_id": "bench"}


def checked(said, n=None):
    assert said["bad"] == 0 and said["status"] in (0, 200), said
    assert n is None or said["good"] == n, said
    return said


class Found:
    """Numbers by proxy, and their table."""

    def __init__(self, names, columns):
        self.columns, self.rows = columns, {name: [] for name in names}

    def add(self, name, *values):
        self.rows[name].append(values)

    def medians(self, name):
        return [statistics.median(column) for column in zip(*self.rows[name])]

    def show(self, what):
        print(f"\n{what}\n{'':10}" + "".join(f"{c:>22}" for c in self.columns))
        for name, rows in self.rows.items():
            cells = []
            for i, middle in enumerate(self.medians(name)):
                values = [r[i] for r in rows]
                cells.append(f"{middle:,.4g} ({min(values):,.4g}..{max(values):,.4g})")
            print(f"{name:10}" + "".join(f"{c:>22}" for c in cells))
        sys.stdout.flush()

    def ratios(self, column):
        """baton's of each other proxy's, from pairs of one round."""
        mine = [r[column] for r in self.rows["baton"]]
        for name in self.rows:
            theirs = [r[column] for r in self.rows[name]]
            if name not in ("baton", "direct") and all(theirs):
                ratio = statistics.median(a / b for a, b in zip(mine, theirs))
                print(f"  {self.columns[column]}: baton is {ratio:.2f} of {name}")
        sys.stdout.flush()


class Bench:
    def __init__(self, directory, baton, engine, load, upstream):
        Load.binary = load
        self.engine, self.upstream = engine, upstream
        self.world = World(baton, directory)
        self.rounds, self.seconds, self.n_streams = 3, 3.0, 4000

    def double(self, *options):
        return Upstream(self.engine, "--dialect", "vllm", "--pad", PAD, *options)

    def each(self, upstream, n_rounds, measure, **more):
        """measure(proxy) for each of them, in turn, all of them being there all the time."""
        proxies = [self.world.start(name, upstream.port, **more) for name in self.world.names]
        try:
            for proxy in proxies:
                proxy.wait_serving(PATH, '{"prompt":"x","max_tokens":1}')
            for _ in range(n_rounds):
                for proxy in proxies:
                    measure(proxy)
        finally:
            for proxy in proxies:
                proxy.__exit__()

    def flood(self):
        found = Found(self.world.names, ["MB/s", "cpu ns/KB"])

        def measure(proxy):
            said = checked(Load(proxy, N_FLOOD, PATH, stream(2000), "loop", self.seconds).end())
            found.add(proxy.name, said["bytes"] / said["seconds"] / 1e6, said["proxy_cpu_s"] / said["bytes"] * 1e12)
        with self.double() as upstream:
            self.each(upstream, self.rounds, measure)
        found.show(f"flood: {N_FLOOD} streams as fast as they are taken, events of 200 bytes")
        found.ratios(0)

    def tokens(self):
        found = Found(self.world.names, ["events/s", "p50 us late", "p99 us late", "cpu us/event"])

        def measure(proxy):
            said = checked(Load(proxy, N_PACED, PATH, stream(1), "loop", self.seconds).end())
            rate = said["bytes"] / 200 / said["seconds"]
            found.add(proxy.name, rate, said["token_us"]["p50"], said["token_us"]["p99"],
                      said["proxy_cpu_s"] / said["seconds"] / rate * 1e6)
        with Upstream(self.upstream, 10**6, 200, PACE_US) as upstream:
            self.each(upstream, self.rounds, measure)
        found.show(f"tokens: {N_PACED} streams, an event of 200 bytes each {PACE_US // 1000} ms")
        found.ratios(3)

    def requests(self):
        found = Found(self.world.names, ["requests/s", "cpu us/request"])

        def measure(proxy):
            said = checked(Load(proxy, N_REQUESTS, PATH, SMALL, "loop", self.seconds).end())
            found.add(proxy.name, said["good"] / said["seconds"], said["proxy_cpu_s"] / said["good"] * 1e6)
        with Upstream(self.upstream, 1, 200, 0) as upstream:
            self.each(upstream, self.rounds, measure)
        found.show(f"requests: {N_REQUESTS} clients")
        found.ratios(0)

    def light(self):
        names = self.world.names
        found = Found(names, ["p50 us alone", "p99 us alone", "cpu us", f"p50 us, {self.n_streams} hang",
                              "p99 us, they hang", "cpu us, they hang"])

        def once(proxy):
            said = checked(Load(proxy, 1, PATH, LIGHT, "loop", self.seconds, LIGHT_PAUSE_US).end())
            return said["whole_us"]["p50"], said["whole_us"]["p99"], said["proxy_cpu_s"] / said["good"] * 1e6

        def measure(proxy):
            alone = once(proxy)
            held = Load(proxy, self.n_streams, HANGING, CHAT, "wait", OVER_S)
            assert checked(held.held)["sent"] == self.n_streams, held.held
            reached(upstream, self.n_streams)
            found.add(proxy.name, *alone, *once(proxy))
            assert checked(held.end())["begun"] == 0
            reached(upstream, 0)
        with self.double() as upstream:
            hang = '{"on": "chat", "do": "hang", "times": 0}'
            assert ask(upstream.port, "POST", "/fault", hang)[0] == 200
            self.each(upstream, self.rounds, measure)
        found.show(f"light: one small completion after another, {LIGHT_PAUSE_US // 1000} ms apart")
        for name in names[1:]:
            added = [a - b for a, b in zip(found.medians(name), found.medians("direct"))]
            print(f"  {name}: added p50 {added[3] / 1e3:.3f} ms, added p99 {added[4] / 1e3:.3f} ms while they hang"
                  f" (alone {added[1] / 1e3:.3f} ms)")

    def streams(self):
        n_tokens = 32
        found = Found(self.world.names, ["whole", "seconds", "first p99 ms"])
        hashes = set()

        def measure(proxy):
            said = checked(Load(proxy, self.n_streams, PATH, stream(n_tokens), "once", OVER_S).end(), self.n_streams)
            assert said["same"] and said["bytes_min"] == said["bytes_max"], said
            hashes.add((said["hash"], said["bytes_max"]))
            found.add(proxy.name, said["good"], said["seconds"], said["first_us"]["p99"] / 1e3)
        with self.double("--interval-us", SLOW_US) as upstream:
            self.each(upstream, 1, measure)
        assert len(hashes) == 1, hashes
        found.show(f"streams: {self.n_streams} at once, {n_tokens} tokens {SLOW_US // 1000} ms apart, all compared")

    def memory(self):
        names = self.world.names[1:]
        n_stuffed = min(N_STUFFED, self.n_streams)
        columns = ["empty MiB", f"KiB each, {self.n_streams} quiet", f"KiB each, {n_stuffed} unread"]
        found = Found(names, columns)
        self.sizes = {name: [] for name in names}

        def measure(how, n, n_tokens):
            def one(proxy):
                if proxy.name == "direct":
                    return
                before = proxy.memory()
                load = Load(proxy, n, PATH, stream(n_tokens), how, OVER_S)
                assert checked(load.held)["begun"] == n, load.held
                if how == "stuff":
                    settle(proxy)
                self.sizes[proxy.name] += [before / 2**20, (proxy.memory() - before) / n / 1024]
                load.end()
            return one
        with self.double("--interval-us", 10**6) as upstream:
            self.each(upstream, 1, measure("hold", self.n_streams, 1000))
        with self.double() as upstream:
            self.each(upstream, 1, measure("stuff", n_stuffed, 100000))
        for name, (empty, quiet, _, unread) in self.sizes.items():
            found.add(name, empty, quiet, unread)
        found.show("memory: resident, of the proxy's process")


def reached(upstream, n):
    """Until n requests are under way there; 0: hardly any."""
    def connections():
        return json.loads(ask(upstream.port, "GET", "/state")[1])["connections"]
    wait(f"{n} hang", lambda: connections() >= n if n else connections() < 16)


def settle(proxy):
    """Until its memory has stopped growing: nobody reads, so it does."""
    last, calm = 0, 0
    while calm < 10:
        now = proxy.memory()
        calm = calm + 1 if now == last else 0
        last = now
        time.sleep(0.05)


def main():
    rest = sys.argv[5:]
    parts = rest[3].split(",") if len(rest) > 3 else PARTS
    assert all(p in PARTS for p in parts), parts
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory, *sys.argv[1:5])
        if rest:
            bench.rounds = int(rest[0])
        if len(rest) > 1:
            bench.seconds = float(rest[1])
        if len(rest) > 2:
            bench.n_streams = int(rest[2])
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert hard >= 2 * bench.n_streams + 1024, f"{hard} descriptors are too few"
        print(f"proxies on cpu {cores()[0]}, upstream on {cores()[1]}, clients on {cores()[2]};"
              f" {hard} descriptors each")
        print(NGINX + "\n" + HAPROXY)
        for part in parts:
            getattr(bench, part)()


if __name__ == "__main__":
    main()
