"""What a viewer sees: lines, or a screen of streams in a terminal that can show one."""

import os
import shutil
import signal
import sys
import termios
import textwrap
import threading
import time

FRAME_S = 1 / 15
WIDTH_MIN, HEIGHT_MIN = 80, 24
PANE_WIDTH_MIN, CELLS_KEPT = 20, 1500
PALETTE = (33, 36, 32, 35, 34, 31)  # of versions, in the order in which they appear
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # other screen, no cursor, no wrap
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
FRAME_BEGIN, FRAME_END = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show whole frames


def can_show_screen():
    size = shutil.get_terminal_size((0, 0))
    return (sys.stdout.isatty() and "NO_COLOR" not in os.environ and
            os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and
            size.columns >= WIDTH_MIN and size.lines >= HEIGHT_MIN)


def shown(text):
    """Without what could control a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


class Lines:
    """One line for each thing that happened, as it happens."""

    DWELL_S, STEP_MS = 0.6, 3.0

    def __init__(self, dwell_s):
        self.begun, self.dwell_s = time.monotonic(), self.DWELL_S if dwell_s is None else dwell_s
        self.step_ms = self.STEP_MS * min(1.0, self.dwell_s / self.DWELL_S)

    def act(self, title):
        self.say(f"\n{title}")

    def say(self, line):
        print(shown(line), flush=True)

    def watch(self, streams, engines=None):
        """The streams that are shown from now on; `engines` returns a line for each engine."""

    def close(self):
        pass


class Pane:
    """The last lines of a stream, wrapped to a width."""

    def __init__(self, stream):
        self.stream, self.width, self.n, self.lines = stream, 0, 0, [[]]

    def read(self, width, height):
        """`height` lines, each a list of (character, cell)."""
        if width != self.width:
            self.width, self.lines = width, [[]]
            self.n = max(0, len(self.stream.cells) - CELLS_KEPT)
        cells = self.stream.cells[self.n:]
        self.n += len(cells)
        for cell in cells:
            for character in cell.text:
                self._put(character, cell)
        self.lines = self.lines[-height:]
        return self.lines

    def _put(self, character, cell):
        line = self.lines[-1]
        if character == "\n":
            if line:
                self.lines.append([])
        elif len(line) < self.width:
            line.append((character if character.isprintable() else " ", cell))
        else:
            at = next((i for i in range(len(line) - 1, 0, -1) if line[i][0] == " "), None)
            word = line[at + 1:] if at is not None and character != " " else []
            if word:
                del line[at:]
            self.lines.append(word if character == " " else word + [(character, cell)])


class Screen(Lines):
    """Streams side by side, each token in the colour of the version that made it; what happened is
    below them. Draws on a thread of its own, and sends only the rows that have changed."""

    DWELL_S, STEP_MS = 4.0, 20.0

    def __init__(self, dwell_s):
        super().__init__(dwell_s)
        self.title, self.said, self.panes, self.engines = "starting", [], [], None
        self.versions, self.rows, self.size, self.lock = {}, [], None, threading.Lock()
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        self.rule, self.bar, self.block = ("─", "│", "■") if utf8 else ("-", "|", "#")
        self.ended, self.thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
        self.echo = self._echo_off()
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # a stopped demo would leave its screen behind
        self._send(ENTER)
        self.thread.start()

    def act(self, title):
        self.said.append(f"\n{title}")
        self.title = title

    def say(self, line):
        self.said.append(shown(line))

    def watch(self, streams, engines=None):
        with self.lock:
            self.panes, self.engines = [Pane(s) for s in streams], engines

    def close(self):
        """Gives the terminal back as it was, and prints what happened."""
        if self.ended.is_set():
            return
        self.ended.set()
        self.thread.join(1)
        self._send(LEAVE)
        if self.echo is not None:
            termios.tcsetattr(0, termios.TCSANOW, self.echo)
        print("\n".join(self.said), flush=True)

    def _echo_off(self):
        try:
            before = termios.tcgetattr(0)
        except termios.error:
            return None
        now = list(before)
        now[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, now)
        return before

    def _send(self, text):
        sys.stdout.write(text)
        sys.stdout.flush()

    def _run(self):
        while not self.ended.wait(FRAME_S):
            with self.lock:
                self._draw()

    def _draw(self):
        size = shutil.get_terminal_size()
        if size != self.size:
            self.size, self.rows = size, [""] * size.lines
            self._send("\x1b[2J")
        rows = self._frame(size.columns, size.lines)
        changed = "".join(f"\x1b[{i + 1};1H{row}\x1b[0m\x1b[K" for i, row in enumerate(rows)
                          if row != self.rows[i])
        self.rows = rows
        if changed:
            self._send(FRAME_BEGIN + changed + FRAME_END)

    def _colour(self, version):
        if version is None:
            return 90
        return PALETTE[self.versions.setdefault(version, len(self.versions)) % len(PALETTE)]

    def _frame(self, width, height):
        n_columns = len(self.panes) if self.panes and width // len(self.panes) >= PANE_WIDTH_MIN else 4
        n_bands = max(1, -(-len(self.panes) // n_columns))
        engines = [shown(row) for row in self.engines()] if self.engines else []
        n_said = max(6, height // 3) + len(engines) // 2
        n_lines = max(1, (height - 3 - n_said - len(engines)) // n_bands - 1)
        body = []
        for i in range(0, len(self.panes), n_columns):
            body += self._band(self.panes[i:i + n_columns], width // n_columns, n_lines)
        rows = [self._head(width), self._legend(), *body]
        rows += [f"\x1b[90m{self.rule * width}", *engines]
        rows += self._said(width, height - len(rows))
        return (rows + [""] * height)[:height]

    def _head(self, width):
        clock = f"{time.monotonic() - self.begun:4.0f} s "
        return f"\x1b[7m{(' baton: ' + self.title)[:width - len(clock)]:<{width - len(clock)}}{clock}"

    def _legend(self):
        return " each token has the colour of the version that made it:  " + "  ".join(
            f"\x1b[{self._colour(v)}m{self.block} {v}\x1b[0m" for v in list(self.versions))

    def _band(self, panes, width, height):
        """Panes side by side: a line of heads, and the last lines of each text."""
        heads, columns = [], []
        for pane in panes:
            lines = pane.read(width - 2, height)
            last = next((c for c in reversed(pane.stream.cells) if c.version), None)
            name = f"{last.version} {'+ ' + last.adapter if last.adapter else ''}" if last else "-"
            heads.append(f"\x1b[{self._colour(last.version if last else None)};4m{name:<{width - 2}.{width - 2}}")
            columns.append([self._line(line, width - 2) for line in lines] +
                           [" " * (width - 2)] * (height - len(lines)))
        bar = f"\x1b[0;90m{self.bar}\x1b[0m "
        return [bar.join(row) for row in [heads, *zip(*columns)]]

    def _line(self, line, width):
        out, now = [], None
        for character, cell in line:
            style = f"\x1b[0;{'1;' if cell.adapter else ''}{self._colour(cell.version)}m"
            if style != now:
                out.append(style)
                now = style
            out.append(character)
        return "".join(out) + " " * (width - len(line))

    def _said(self, width, n):
        lines = []
        for said in self.said[-n:]:
            style = "\x1b[1m" if said.startswith("\n") else ""
            lines += [style + part for part in textwrap.wrap(
                said.strip("\n"), width - 1, subsequent_indent="      ", drop_whitespace=False,
                replace_whitespace=False)]
        return lines[-n:]
