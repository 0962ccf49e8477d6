"""Is the version register linearizable? Random clients push whole and partial versions and deltas, abort updates, give names, pause,
sleep, load adapters and generate, while servers are killed, stopped, removed and restarted from --state-dir. The history of
their calls is then checked:

   1  every token names one version, that some push brought, whose push was called before the token came and was not refused
   2  no read and no first token is older than what was answered before it was asked for; of a single server: or seen
   3  versions within a reply never go back; a serial names one content; serials follow the order of answered pushes
   4  nothing answered is lost over a restart: by rules 2 and 3
   5  tokens are those that the version alone computes, and logprobs within 1e-4 (of on_update continue: the first version's)
   6  a name is not older than one that was answered before it was asked for
   7  fleets: a request gets no older version than one that was seen before it was sent
   8  no token comes within a pause
   9  clients and servers end well, and answers say what they are
  10  a name that was refused is never seen
  11  fleets: /v1/status names no older version than one that was seen before it was asked for

Engines may be doubles of vLLM or SGLang (modes passed and staged), whose tokens show what made them: rule 1 finds stale
caches and torn weights, rule 5 tokens of another prompt, or of more versions than were named. Rule 11 in front of
batons is a known failure (docs/guarantees.md): it is counted, and fails nothing. The history is left in
WORK/history.json. A seed repeats the choices of the clients, but not the moments of their calls.

Usage: linear.py --baton PATH --model DIR --work DIR --mode single|fleet|stage|passed|staged [option...]
"""

import argparse
import collections
import json
import os
import signal
import sys
import time

import linear_doubles
from linear_check import KNOWN, Check
from linear_clients import clients_of
from linear_self_test import check_rules
from linear_tokens import check_tokens
from linear_world import CALL_S, World

SHOWN = 4  # violations of each rule
PATIENCE_S = 120  # beyond --seconds, until there is something to check


def end_servers(*_):
    """The servers end with this program."""
    sys.exit("ended by a signal")


def options_of(arguments):
    parser = argparse.ArgumentParser()
    for name in "baton", "model", "work", "mode":
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("seconds", 60.0), ("seed", 1), ("engines", 2), ("min-ready", 1), ("kill-every", 6.0),
                          ("slack-s", 0.25), ("cuda", ""), ("stage", "cuda:0"), ("on-update", ""), ("engine", "vllm"), ("fake-engine", "")):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--serve-arg", action="append", default=[], help="an option of the server, or of the one in front")
    parser.add_argument("--seeded", action="store_true", help="engines lose their disks, and read the version from each other")
    parser.add_argument("--self-test", action="store_true", help="broken histories and exchanged contents must be found")
    return parser.parse_args(arguments)


def answered(calls, options):
    """Is there anything to check?"""
    ops = {c["op"] for c in calls if c.get("status") == 200}
    return {"push", "generate"} <= ops and (not options.seeded or any(c.get("loses") and c["status"] for c in calls))


def run_clients(world, seconds):
    """What was wrong with how they ended"""
    world.wait_ready()
    clients = clients_of(world)
    for c in clients:
        c.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end or not answered(list(world.history.calls), world.options) and time.monotonic() < end + PATIENCE_S:
        if world.stop.wait(0.1):
            break
    world.stop.set()
    for c in clients:
        c.join(2 * CALL_S)
    return [f"client {c.name}: {'still waits' if c.is_alive() else repr(c.failure)}" for c in clients
            if c.is_alive() or c.failure]


def run_world(world, seconds):
    """[text]: what ended badly"""
    wrong = []
    try:
        wrong += run_clients(world, seconds)
    finally:
        world.stop.set()
        wrong += world.end()
    return wrong


def shown(call):
    return json.dumps({k: f"[{len(v)}]" if k in ("tokens", "at", "lps") else v for k, v in call.items()})[:700]


def report(check, options):
    """Prints what was found. Was any of it not known?"""
    print(f"seed {options.seed}, mode {options.mode} {options.engine if options.mode in linear_doubles.MODES else ''}")
    for rule, n in sorted(collections.Counter(v.rule for v in check.known()).items()):
        print(f"  known failure, rule {rule}, {n} times: {KNOWN[options.mode, rule]}")
    n_shown = collections.Counter()
    for v in check.unknown():
        n_shown[v.rule] += 1
        if n_shown[v.rule] <= SHOWN:
            print(f"  rule {v.rule}: {v.text}", *(f"      {shown(c)}" for c in v.calls), sep="\n")
    print("  violations by rule:", dict(n_shown))
    return bool(n_shown)


def main(arguments):
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, end_servers)
    os.makedirs(options.work, exist_ok=True)
    if options.self_test:
        print(f"{check_rules()} histories that break a rule, or none, are told apart")
    world = World(options)
    wrong = run_world(world, options.seconds)
    calls = world.history.calls
    with open(os.path.join(options.work, "history.json"), "w", encoding="utf-8") as f:
        json.dump(calls, f)
    count = collections.Counter((c["op"], str(c["status"])) for c in calls)
    print("calls:", ", ".join(f"{op} {status}: {n}" for (op, status), n in sorted(count.items())))
    check = Check(calls, options.mode, options.slack_s).run()
    if options.mode in linear_doubles.MODES:
        print(linear_doubles.check_tokens(check, options.self_test))
    else:
        print(check_tokens(world, check, options.self_test))
    for text in wrong:
        check.violation(9, text)
    for c in calls:
        if c.get("odd"):
            check.violation(9, f"an odd answer: {c['odd']}", c)
    n_versions, n_deltas = count["push", "200"], collections.Counter(
        (c["kind"] if c["how"] == "delta" else c["wrong"], str(c["status"])) for c in calls if "base" in c)
    if n_deltas:
        print("deltas:", ", ".join(f"{what} {status}: {n}" for (what, status), n in sorted(n_deltas.items())))
    if not answered(calls, options):
        check.violation(9, "no version was answered, or no generation, or no disk was lost: nothing was checked")
    restarts = [c for c in calls if c["op"] in ("kill", "term")]
    print(f"versions answered: {n_versions}, restarts: {len(restarts)}, without a disk: {sum(c['loses'] for c in restarts)}")
    return int(report(check, options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
