"""The demo behind deploy/demo.sh. Usage: python3 deploy/demo [--dwell SECONDS] BATON MODEL_DIR

Every line that begins with "ok" was checked; the first that is not so ends the demo with exit code 1.
A terminal of at least 80 columns and 24 lines shows the streams; anything else, NO_COLOR and
TERM=dumb get lines only."""

import argparse
import os
import signal
import sys

import acts
import fleet
import show
from servers import CheckFailed, Server, check, until
from streams import Streams
import baton


def one_server(world, keep):
    server = keep(Server(world.binary, *world.options(0))).wait_until_it_serves()
    streams = Streams(server.url)
    world.show.watch(streams.list)
    try:
        streams.wait_for_text(until)
        streams.slow_down(world.show.step_ms, acts.LOAD_MAX)
        for act in (acts.updates, acts.refusals, acts.adapter):
            act(world, server, streams)
    finally:
        streams.stop()
    crossings = sum(len(s.crossings) for s in streams.list)
    world.figures.append(("tokens of the eight streams, none lost; generations across an update",
                          f"{streams.n_tokens()}; {crossings}"))
    world.figures.append(("sequences that ran beside the eight streams",
                          str(streams.load.n_sequences())))


def summary(world):
    width = max(len(what) for what, _ in world.figures)
    world.show.say("\nMeasured in this run, by a Python client on the same machine")
    for what, figure in world.figures:
        world.show.say(f"  {what:<{width}}  {figure}")


def run(args, view, servers):
    def keep(server):
        servers.append(server)
        return server

    world = acts.World(os.path.abspath(args.baton), os.path.abspath(args.model), view)
    one_server(world, keep)
    fleet.run(world, keep)
    killed = [s for s in servers if s.child.poll() is not None]
    for s in reversed(servers):
        check(s in killed or s.stop() == 0, "each server drains and ends with status 0 on SIGTERM")
    summary(world)


def parse():
    parser = argparse.ArgumentParser(prog="deploy/demo.sh", description="Shows what baton does.")
    parser.add_argument("--dwell", type=float, metavar="SECONDS",
                        help="how long each scene is shown (default: 4 on a screen, else 0.6)")
    parser.add_argument("baton")
    parser.add_argument("model")
    return parser.parse_args()


def main():
    args = parse()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    view = (show.Screen if show.can_show_screen() else show.Lines)(args.dwell)
    servers, failure = [], None
    try:
        run(args, view, servers)
        view.say("\nEvery line marked ok was checked; no process is left running.\n"
                 "Next: docs/quickstart.md, with a model of your own; http://127.0.0.1:8700/ of a "
                 "server shows all of this live.")
    except (CheckFailed, baton.BatonError) as e:
        failure = e
    except KeyboardInterrupt:
        failure = "interrupted"
    finally:
        view.close()
        for s in servers:
            s.child.kill()
            s.child.wait()
    if failure is None:
        return 0
    if isinstance(failure, Exception):
        for s in servers:
            print(s.read_log()[-1500:], file=sys.stderr)
    print(f"demo: FAILED: {failure}", file=sys.stderr)
    return 130 if failure == "interrupted" else 1


if __name__ == "__main__":
    sys.exit(main())
