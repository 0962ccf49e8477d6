"""The reports to a service manager: a datagram socket, by path and abstract, and a whole life of a server.

Usage: notify.py BATON MODEL WORK
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time

WAIT_S = 60
WATCHDOG_S = 0.4


class Manager:
    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name[0] == "@" else name)
        self.seen = []

    def next(self, wanted, without=()):
        """The lines of the first datagram that has this one, as a mapping; none before it has one of `without`."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if not select.select([self.socket], [], [], 0.5)[0]:
                continue
            text = self.socket.recv(4096).decode()
            self.seen.append(text)
            lines = dict(line.split("=", 1) for line in text.splitlines())
            assert not set(lines) & set(without), self.seen
            if wanted in lines:
                return lines
        raise AssertionError(f"no {wanted} came: {self.seen}")


def live(baton, model, address, watchdog_pid):
    manager = Manager(address)
    env = dict(os.environ, NOTIFY_SOCKET=address, WATCHDOG_USEC=str(int(WATCHDOG_S * 1e6)))
    command = [baton, "serve", model, "--listen", "127.0.0.1:0", "--drain-delay", "600"]
    if watchdog_pid:  # of another process: these reports are not ours
        env["WATCHDOG_PID"] = "1"
    p = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        assert "reading" in manager.next("STATUS", ["READY", "WATCHDOG"])["STATUS"]
        ready = manager.next("READY", ["WATCHDOG"])
        assert ready["READY"] == "1" and "serving on" in ready["STATUS"], ready
        with open(f"/proc/{p.pid}/environ", "rb") as f:
            assert b"NOTIFY_SOCKET" in f.read()  # as it was started: what it has now is seen by its children only
        if not watchdog_pid:
            times = []
            for _ in range(4):
                assert manager.next("WATCHDOG")["WATCHDOG"] == "1"
                times.append(time.monotonic())
            apart = [b - a for a, b in zip(times, times[1:])]
            assert sum(apart) / len(apart) < WATCHDOG_S * 0.75, apart
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        p.send_signal(signal.SIGHUP)
        reloading = manager.next("RELOADING")
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert before <= int(reloading["MONOTONIC_USEC"]) <= now, reloading
        manager.next("READY")
        if watchdog_pid:
            assert not any("WATCHDOG" in text for text in manager.seen), manager.seen
        else:
            # A process that is stopped reports nothing.
            p.send_signal(signal.SIGSTOP)
            time.sleep(WATCHDOG_S)
            while select.select([manager.socket], [], [], 0)[0]:
                manager.socket.recv(4096)
            time.sleep(WATCHDOG_S)
            assert not select.select([manager.socket], [], [], 0)[0]
            p.send_signal(signal.SIGCONT)
            manager.next("WATCHDOG")
        p.send_signal(signal.SIGTERM)
        stopping = manager.next("STOPPING", ["READY"])
        assert stopping["STOPPING"] == "1" and "stopping" in stopping["STATUS"], stopping
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) > (600 + 30000) * 1000, stopping  # more than the drain may take
        if not watchdog_pid:
            manager.next("WATCHDOG")  # while it drains too
        assert p.wait(WAIT_S) == 0
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()


def main():
    baton, model, work = sys.argv[1:]
    live(baton, model, os.path.join(work, "notify.sock"), False)
    live(baton, model, f"@baton-test-{os.getpid()}", True)
    # No manager, or one that has gone: a server starts all the same.
    for address in ("", "nonsense", os.path.join(work, "nobody.sock")):
        env = dict(os.environ, NOTIFY_SOCKET=address, WATCHDOG_USEC="100000")
        p = subprocess.Popen([baton, "serve", model, "--listen", "127.0.0.1:0"], env=env, stderr=subprocess.PIPE, text=True)
        for line in p.stderr:
            if '"event":"serving"' in line:
                break
        p.send_signal(signal.SIGTERM)
        rest = p.stderr.read()
        assert p.wait(WAIT_S) == 0, rest
    print("ok")


main()
