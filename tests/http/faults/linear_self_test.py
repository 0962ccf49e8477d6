"""Each rule of linear_check.py finds a history that breaks it, and only that one."""

from linear_check import Check
from linear_tokens import Adapters


def push(label, inv, resp, serial=None, status=200, **more):
    return {"op": "push", "label": label, "inv": inv, "resp": resp, "serial": serial, "status": status, "content": 1,
            "partial": False, **more}


def rename(label, inv, resp, serial, status=200, **more):
    return {"op": "label", "label": label, "inv": inv, "resp": resp, "serial": serial, "if_serial": None, "status": status,
            **more}


def read(label, serial, inv):
    return {"op": "read", "label": label, "serial": serial, "inv": inv, "resp": inv + 0.1, "status": 200}


def reply(inv, *spans, on_update="recompute"):
    """Of ten tokens a span, one after the other: (version, serial)."""
    n = 10 * len(spans)
    return {"op": "generate", "inv": inv, "resp": inv + 1, "status": 200, "n": n, "tokens": [1] * n, "lps": [0.0] * n,
            "at": [inv + 0.5 * i / n for i in range(n)], "finish": "length", "on_update": on_update, "model": None,
            "boot": "b", "adapter": None, "prompt": [1],
            "spans": [{"version": v, "serial": s, "start": 10 * i, "end": 10 * i + 10} for i, (v, s) in enumerate(spans)]}


def call(op, inv, resp=None):
    return {"op": op, "inv": inv, "resp": resp, "status": 200 if resp else None}


A, B = push("a", 1, 2, 2), push("b", 3, 4, 3)
CASES = [  # (mode, rules that are broken, history)
    ("single", [], [A, B, read("a", 2, 2.5), read("b", 3, 5),
                    reply(2.8, ("a", 2), ("b", 3)), rename("b2", 5, 6, 3), read("b2", 3, 7)]),
    ("single", [1], [reply(1, ("x", 2))]),
    ("single", [1], [A, read("a", 2, 0.5)]),
    ("single", [1], [push("a", 1, 2, None, 409, never=True), read("a", 2, 3)]),
    ("single", [10], [A, rename("l", 2.5, 2.6, None, 409, never=True), read("l", 2, 2.55)]),
    ("stage", [10], [A, rename("l", 2.5, 2.6, None, 409, never=True), reply(2.55, ("l", 7))]),
    ("single", [2], [A, B, read("a", 2, 4.5)]),
    ("single", [2], [A, push("b", 3, None, None, None), read("b", 3, 5), read("a", 2, 6)]),  # seen, and lost again
    ("single", [2], [A, B, reply(4.5, ("a", 2))]),
    ("fleet", [2, 7], [A, B, reply(3.2, ("b", 1)), reply(4.5, ("a", 9))]),
    ("fleet", [7], [A, push("b", 3, 9, 3), reply(3.2, ("b", 1)), reply(4.5, ("a", 9))]),
    ("stage", [7], [A, push("b", 3, 9, 3), reply(3.2, ("b", 1)), reply(4.5, ("a", 9))]),
    ("stage", [11], [A, push("b", 3, 9, 3), reply(3.2, ("b", 1)), read("a", 2, 4.5)]),
    ("fleet", [11], [A, push("b", 3, 9, 3), reply(3.2, ("b", 1)), read("a", 2, 4.5)]),
    ("staged", [2], [A, push("b", 3, None, None, None), reply(3.2, ("b", None)), read("a", 2, 14)]),
    ("passed", [11], [A, push("b", 3, 9), reply(3.2, ("b", None)), read("a", None, 4.5), read("a", 1, 4.6)]),
    ("passed", [7], [A, push("b", 3, 9), reply(3.2, ("b", None)), reply(4.5, ("a", None))]),
    ("passed", [3], [A, B, reply(3.2, ("b", None), ("a", None))]),
    ("passed", [1], [A, reply(2.5, ("stale:a", None))]),
    ("staged", [1], [A, reply(2.5, ("torn", None))]),
    ("single", [3], [A, push("b", 3, 4, 2)]),
    ("single", [3], [push("a", 1, 2, 3), push("b", 3, 4, 2)]),  # a later one has a smaller serial
    ("single", [3], [A, read("a", 3, 2.5)]),
    ("single", [3], [A, rename("l", 2.2, 2.3, 2), read("l", 3, 2.5)]),
    ("single", [3], [A, push("b", 3, None, 3, None), reply(3.5, ("b", 3), ("a", 2))]),
    ("single", [3], [A, B, reply(2.8, ("a", 2), ("b", 3), on_update="finish")]),
    ("single", [6], [A, rename("l", 2.2, 2.3, 2), rename("m", 2.4, 2.5, 2), read("l", 2, 2.6)]),
    ("single", [8], [A, call("pause", 2.1, 2.2), reply(2.3, ("a", 2)), call("resume", 3, 3.1)]),
    ("single", [], [A, call("pause", 2.1, 2.2), call("resume", 2.3, 2.4), reply(2.3, ("a", 2))]),
]


def check_rules():
    """How many histories were checked"""
    for i, (mode, rules, history) in enumerate(CASES):
        found = sorted({v.rule for v in Check(history, mode, 0.25).run().found})
        assert found == rules, f"history {i}: rules {found} are broken, not {rules}"
    check_adapters()
    return len(CASES)


def check_adapters():
    """An adapter that is loaded while a server starts again may be of either process."""
    def load(content, inv, resp):
        return {"op": "load", "inv": inv, "resp": resp, "status": 200, "content": content, "revision": 1}
    kill = dict(call("kill", 3, 5), started=4.5)
    adapters = Adapters([load(1, 1, 2), kill, load(2, 4.1, 4.4), load(3, 6, 7)])
    contents = [adapters.content_of(dict(reply(inv, ("a", 2)), adapter={"revision": 1})) for inv in (1.5, 2.5, 8)]
    assert contents == [1, None, 3], contents
