"""deploy/demo in a pseudo-terminal, without one, interrupted, and with a claim that is false.

Usage: demo.py BATON MODEL WORK
"""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

BATON, MODEL, WORK = sys.argv[1:4]
DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "demo")
COMMAND = [sys.executable, "-B", DEMO, "--dwell", "0.1", BATON]
LIMIT_S, COLUMNS, LINES = 120, 100, 30
PAIRS = ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h"), (b"\x1b[?7l", b"\x1b[?7h"),
         (b"\x1b[?2026h", b"\x1b[?2026l"))
N_CLAIMS = 15


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(p) for p in f.read().split()]
    except FileNotFoundError:
        return []


def alive(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return BATON.encode() in f.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Terminal:
    """The demo in a pseudo-terminal."""

    def __init__(self, model=MODEL, columns=COLUMNS, lines=LINES, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", **environment})
            for name in ("NO_COLOR", "COLUMNS", "LINES"):
                if name not in environment:
                    os.environ.pop(name, None)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.execv(sys.executable, [*COMMAND, model])
        self.before, self.servers = termios.tcgetattr(self.fd), set()

    def read(self, interrupt_at=None):
        """All output, and the exit status. ^C is typed when interrupt_at has been seen."""
        out, deadline = b"", time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            try:
                piece = os.read(self.fd, 65536)
            except OSError:
                break
            out += piece
            self.servers.update(children_of(self.pid))
            if interrupt_at is not None and interrupt_at in out:
                interrupt_at = None
                os.write(self.fd, b"\x03")
        else:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"the demo did not end in {LIMIT_S} s")
        _, status = os.waitpid(self.pid, 0)
        return out, os.waitstatus_to_exitcode(status)

    def check_restored(self, out):
        for begin, end in PAIRS:
            assert out.count(begin) == out.count(end) > 0, (begin, out.count(begin), out.count(end))
            assert out.rfind(begin) < out.rfind(end), f"{end} comes last"
        left = out.rsplit(b"\x1b[?1049l", 1)[1]
        assert b"\x1b" not in left, f"plain text follows: {left[:200]}"
        assert termios.tcgetattr(self.fd) == self.before, "the terminal's settings are as they were"
        assert self.servers and not any(alive(p) for p in self.servers), "no server is left"


def check_claims(text):
    lines = [line for line in text.splitlines() if line.startswith("  ok  ")]
    assert len(lines) >= N_CLAIMS, text
    for words in ("step-100 came by shm", "checksum_mismatch", "incomplete_update", "trainer killed (-9)",
                  "are capitals", "a quorum", "serves again"):
        assert words in text, f"{words!r} is not in {text}"
    assert "Every line marked ok was checked" in text and "Traceback" not in text, text


def test_screen():
    terminal = Terminal()
    out, status = terminal.read()
    assert status == 0, out[-3000:].decode(errors="replace")
    terminal.check_restored(out)
    screen, left = out.split(b"\x1b[?1049l")
    for colour in (b"\x1b[0;33m", b"\x1b[0;36m", b"\x1b[0;32m", b"\x1b[0;1;32m"):
        assert colour in screen, f"three versions and the adapter are seen: {colour}"
    assert b" engine 3: serving" in screen, "the fleet is seen"
    check_claims(left.decode().replace("\r\n", "\n"))


def test_interrupt():
    terminal = Terminal()
    out, status = terminal.read(interrupt_at=b"step-0 is served")
    assert status == 130, (status, out[-2000:])
    terminal.check_restored(out)


def test_lines():
    done = subprocess.run([*COMMAND, MODEL], capture_output=True, text=True, timeout=LIMIT_S, check=False,
                          env={**os.environ, "TERM": "xterm"}, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout, "no escape sequences"
    check_claims(done.stdout)


def test_plain_terminals_and_a_false_claim():
    """A model whose golden text is wrong: the demo fails at its first claim, in each kind of terminal."""
    wrong = os.path.join(WORK, "wrong")
    os.mkdir(wrong)
    for name in os.listdir(MODEL):
        os.symlink(os.path.join(os.path.abspath(MODEL), name), os.path.join(wrong, name))
    with open(os.path.join(MODEL, "golden.json"), encoding="utf-8") as f:
        golden = json.load(f)
    golden["checkpoints"]["step-00000"]["cases"][0]["greedy_text"] += "?"
    os.unlink(os.path.join(wrong, "golden.json"))
    with open(os.path.join(wrong, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f)
    for kind in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"columns": 60}):
        check_false_claim(wrong, **kind)


def check_false_claim(model, **kind):
    terminal = Terminal(model=model, **kind)
    out, status = terminal.read()
    assert status == 1 and b"demo: FAILED: step-0 writes" in out, (status, out)
    if kind:
        assert b"\x1b" not in out, f"no escape sequences with {kind}: {out[:200]}"
    else:
        terminal.check_restored(out)


for test in (test_screen, test_interrupt, test_lines, test_plain_terminals_and_a_false_claim):
    began = time.monotonic()
    test()
    print(f"{test.__name__}: {time.monotonic() - began:.1f} s", flush=True)
