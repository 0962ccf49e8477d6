"""A server in front of servers with real weights, all with keys, which has those seeded that lack its version.

Usage: fleet_seed.py BATON MODEL CLIENT_DIR WORK
"""

import contextlib
import json
import os
import sys

from fleet_world import Server, until

BATON, MODEL, CLIENT, WORK = sys.argv[1:5]
sys.path.insert(0, CLIENT)
import baton  # noqa: E402  (the client, from where the test was told)

CONTROL, WEIGHTS = "control-0123456789ab", "weights-0123456789ab"
KEYS = {name: os.path.join(WORK, name) for name in ("host", "control", "weights")}
AUTH = {"Authorization": f"Bearer {CONTROL}"}
LOG = os.path.join(WORK, "log")
N_JOIN = 5


def checkpoint(step):
    return os.path.join(MODEL, "checkpoints", step + ".safetensors")


def golden(step):
    with open(os.path.join(MODEL, "golden.json"), encoding="utf-8") as f:
        return json.load(f)["checkpoints"][step]["cases"][0]


def host(step=None, label="", port=0, peers="127.0.0.0/8", listen="127.0.0.1", options=()):
    weights = ["--weights", checkpoint(step), "--weight-version", label] if step else ["--weights", "none"]
    return Server(BATON, os.path.join(WORK, "hosts"), "--model", MODEL, *weights, "--api-key-file", KEYS["host"],
                  "--seed-cidr", peers, "--seed-key-file", KEYS["weights"], *options, host=listen, port=port)


def makes(server, step, label):
    """What is generated there is that checkpoint's."""
    case = golden(step)
    body = {"token_ids": case["prompt_token_ids"],
            "sampling_params": {"max_tokens": len(case["greedy_token_ids"]), "temperature": 0, "ignore_eos": True}}
    choice = server.good("POST", "/v1/generate", body, headers=AUTH)["choices"][0]
    assert choice["token_ids"] == case["greedy_token_ids"], f"{server.url} does not serve {step}"
    assert choice["weight_versions"][0]["version"] == label, choice["weight_versions"]


def spec(server):
    return f"{server.url},baton,key-file={KEYS['control']}"


def upstream_of(front, server):
    return front.upstreams()[server.url]


def serves(front, server):
    until(lambda: upstream_of(front, server), lambda: upstream_of(front, server)["state"] == "serving")


def seeded_from(server):
    return server.good("GET", "/v1/status", headers=AUTH)["seed"]["seeded_from"]


def asked():
    """The seeds that the front has asked for: (engine, from which)."""
    with open(LOG, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f if '"event":"fleet.seed"' in line]
    return [(r["upstream"], r["from"]) for r in lines if "error" not in r]


def main():
    for name, text in (("host", f"control {CONTROL}\nweights {WEIGHTS}\n"), ("control", CONTROL), ("weights", WEIGHTS)):
        with open(KEYS[name], "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(text)
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(host("step-00000", "step-0")) for _ in range(2))
        front = stack.enter_context(Server(BATON, LOG, "--upstream", spec(a), "--upstream", spec(b), "--probe-interval", "100", "--min-ready", "1"))
        serves(front, a)
        serves(front, b)

        # Before any update: one that joins without weights.
        c = stack.enter_context(host())
        front.post("/v1/upstreams", {"upstream": spec(c)})
        serves(front, c)
        makes(c, "step-00000", "step-0")
        assert seeded_from(c)["boot_id"] in (a.boot_id, b.boot_id)

        # After an update: one that restarts without weights, and one with others under the same label.
        baton.push(baton.load_file(checkpoint("step-00100")), front.url, weight_version="step-100")
        for lost in ((), ("step-00000", "step-100"), ("step-01500", "other")):
            port = c.port
            c.kill()
            c = stack.enter_context(host(*lost, port=port))
            until("it is seeded", lambda: seeded_from(c))
            serves(front, c)
            makes(c, "step-00100", "step-100")
            assert seeded_from(c)["boot_id"] in (a.boot_id, b.boot_id), lost
            assert upstream_of(front, c)["weight_version"] == "step-100"

        # Without a trainer the fleet grows, and no engine seeds many.
        before = len(asked())
        joined = [stack.enter_context(host()) for _ in range(N_JOIN - 1)]
        joined.insert(2, stack.enter_context(host(listen="0.0.0.0")))
        joined[2].url = f"http://127.0.0.2:{joined[2].port}"
        for server in joined:
            front.post("/v1/upstreams", {"upstream": spec(server)})
        for server in joined:
            serves(front, server)
            makes(server, "step-00100", "step-100")
        sources = [source for _, source in asked()[before:]]
        assert max(sources.count(f) for f in set(sources)) <= 2 + N_JOIN // 2, sources

        # One that may read from the sixth only tries the others before.
        last = stack.enter_context(host(peers="127.0.0.2/32"))
        front.post("/v1/upstreams", {"upstream": spec(last)})
        serves(front, last)
        makes(last, "step-00100", "step-100")
        assert seeded_from(last)["boot_id"] == joined[2].boot_id
        joined.append(last)

        # Updates are theirs too; who misses one is seeded.
        joined[0].kill()
        until("it is down", lambda: upstream_of(front, joined[0])["state"] == "down")
        baton.push(baton.load_file(checkpoint("step-01500")), front.url, weight_version="step-1500")
        joined[0] = stack.enter_context(host(port=joined[0].port))
        until("it is seeded", lambda: seeded_from(joined[0]))
        for server in (a, b, c, *joined):
            serves(front, server)
            makes(server, "step-01500", "step-1500")

        # Many at once read it one from the other, and the front says who from whom.
        many = [stack.enter_context(host(options=("--seed-rate", 600000, "--seed-connections", 1))) for _ in range(4)]
        for server in (a, b, c, *joined[1:]):
            front.post("/v1/upstreams/remove", {"upstream": server.url})
        for server in many:
            front.post("/v1/upstreams", {"upstream": spec(server)})
        reads = {}
        until(lambda: f"all read at the same time: {reads}",
              lambda: reads.update({s.url: upstream_of(front, s)["seeding_from"] for s in many}) or all(reads.values()))
        assert {reads[s.url] for s in many} > {s.url for s in many[:-1]}, f"each sends to one: {reads}"
        assert f'baton_upstream_seeding{{upstream="{many[0].url}",from="{reads[many[0].url]}"}} 1' in front.ask("GET", "/metrics")[1]
        for server in many:
            serves(front, server)
            makes(server, "step-01500", "step-1500")
    print("ok")


if __name__ == "__main__":
    main()
