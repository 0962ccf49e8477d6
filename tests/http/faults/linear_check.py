"""The rules of linear.py, over a history of calls. What is seen of a version is the names and serials of tokens and of
/v1/status; a push or a label counts from its call on, and as done from its answer on."""

import bisect
import collections

LEASE_S = 4  # of a pause
FLEETS, STAGES = ("fleet", "passed"), ("stage", "staged")  # in front of engines: without and with --stage
# docs/guarantees.md, "Known limits of a fleet".
LAGS = "/v1/status lags behind the tokens of a baton until that has answered its commit"
KNOWN = {("fleet", 11): LAGS, ("stage", 11): LAGS}

LOST_S = 10  # an update whose front was killed is ended by another

Seen = collections.namedtuple("Seen", "asked at label serial call kind")  # asked None: not the start of a reply
Violation = collections.namedtuple("Violation", "rule text calls")


def is_done(call):
    return call["status"] == 200 and call["resp"] is not None


class Greatest:
    """Of points (time, value, call): the greatest value of those before a time."""

    def __init__(self, points):
        self.times, self.best, best = [], [], (float("-inf"), None)
        for time, value, call in sorted(points, key=lambda p: p[0]):
            best = max(best, (value, call), key=lambda p: p[0])
            self.times.append(time)
            self.best.append(best)

    def before(self, time):
        i = bisect.bisect_left(self.times, time)
        return self.best[i - 1] if i else (float("-inf"), None)


class Check:
    """@slack_s  how long after a pause's answer a token may still arrive"""

    def __init__(self, calls, mode, slack_s):
        self.calls, self.mode, self.slack_s, self.found = calls, mode, slack_s, []
        self.initial = {"id": 0, "op": "push", "label": "initial", "inv": -1.0, "resp": 0.0, "status": 200, "serial": None,
                        "content": 0, "partial": False}
        self.pushes = {"initial": self.initial, **{c["label"]: c for c in calls if c["op"] == "push"}}
        self.renames = {c["label"]: c for c in calls if c["op"] == "label"}
        self.seen = [*self._reads(), *self._tokens()]
        self.order, self.contents = {}, {}  # serial -> push, serial -> (content, part of another or None)

    def _reads(self):
        for c in self.calls:
            if c["op"] == "read" and c["status"] == 200 and c["serial"] and c["label"]:
                yield Seen(c["inv"], c["resp"], c["label"], c["serial"], c, "read")

    def _tokens(self):
        for c in self.calls:
            for s in c["spans"] if c["op"] == "generate" and c.get("spans") else []:
                if s["end"] > s["start"]:
                    at = c["at"][min(s["start"], len(c["at"]) - 1)]
                    yield Seen(c["inv"] if s["start"] == 0 else None, at, s["version"], s.get("serial"), c, "token")

    def violation(self, rule, text, *calls):
        self.found.append(Violation(rule, text, calls))

    def run(self):
        self.names_exist()
        if self.mode not in FLEETS:  # whose serials are those of its engines
            self.serials_name_one_push()
            self.serials_follow_answers()
            self.find_contents()
        if self.mode == "single":
            self.versions_never_go_back_by_serial()
            self.labels_never_go_back()
        else:
            self.versions_never_go_back_by_label()
        self.replies_are_whole()
        self.pauses_hold()
        return self

    def known(self):
        return [v for v in self.found if (self.mode, v.rule) in KNOWN]

    def unknown(self):
        return [v for v in self.found if (self.mode, v.rule) not in KNOWN]

    # ---- rules 1 and 10 ----

    def names_exist(self):
        for s in self.seen:
            source = self.pushes.get(s.label) or self.renames.get(s.label)
            if source is None:
                self.violation(1, f"{s.kind} of a version '{s.label}' that nobody pushed", s.call)
            elif source["inv"] > s.at:
                self.violation(1, f"{s.kind} of '{s.label}' before it was asked for", s.call, source)
            elif source.get("never"):
                rule = 10 if source["op"] == "label" else 1
                self.violation(rule, f"{s.kind} has the name '{s.label}', whose {source['op']} was refused", s.call, source)

    # ---- rules 3 and 4: serials ----

    def serials_name_one_push(self):
        for c in self.calls:
            if c["op"] == "push" and is_done(c) and c.get("serial"):
                if self.order.setdefault(c["serial"], c) is not c:
                    self.violation(3, f"serial {c['serial']} of two pushes", c, self.order[c["serial"]])
        for s in self.seen:
            if self.mode not in STAGES or s.kind != "token":  # tokens have the serial of the engine
                self._check_serial(s)

    def _check_serial(self, s):
        push, rename = self.pushes.get(s.label), self.renames.get(s.label)
        if push is not None:
            if push.get("serial") not in (None, s.serial):
                self.violation(3, f"'{s.label}' seen with serial {s.serial}, answered with {push['serial']}", s.call, push)
            elif self.order.setdefault(s.serial, push) is not push:
                self.violation(3, f"serial {s.serial} is '{s.label}' and '{self.order[s.serial]['label']}'", s.call, push)
        elif rename is not None:
            for member in "serial", "if_serial":
                if rename.get(member) not in (None, s.serial):
                    self.violation(3, f"name '{s.label}' seen with serial {s.serial}, given to {rename[member]}",
                                   s.call, rename)

    def serials_follow_answers(self):
        """Later pushes have greater serials: also over a restart."""
        answered = Greatest((p["resp"], serial, p) for serial, p in self.order.items() if is_done(p))
        for serial, p in self.order.items():
            greater, other = answered.before(p["inv"])
            if greater >= serial:
                self.violation(3, f"serial {serial} was pushed after {greater} was answered", p, other)

    def find_contents(self):
        """Of each serial; not of a part over one that is not known."""
        for serial, p in sorted(self.order.items()):
            if not p["partial"]:
                self.contents[serial] = (p["content"], None)
            elif self.contents.get(serial - 1) is not None:
                self.contents[serial] = (self.contents[serial - 1][0], p["content"])

    # ---- rules 2, 4, 6, 7 and 11: nothing goes back ----

    def versions_never_go_back_by_serial(self):
        best = Greatest([*((p["resp"], serial, p) for serial, p in self.order.items() if is_done(p)),
                         *((s.at, s.serial, s.call) for s in self.seen)])
        for s in self.seen:
            serial, call = best.before(s.asked) if s.asked is not None else (0, None)
            if serial > s.serial:
                self.violation(2, f"{s.kind} asked at {s.asked:.3f} got serial {s.serial}, though {serial} was answered "
                                  "or seen before", s.call, call)

    def versions_never_go_back_by_label(self):
        """A push is later than another one if it was called after that was answered."""
        answered = Greatest((p["resp"], p["inv"], p) for p in self.pushes.values() if is_done(p))
        noticed = Greatest((s.at, self.pushes[s.label]["inv"], s) for s in self.seen if s.label in self.pushes)
        for s in self.seen:
            push = self.pushes.get(s.label)
            if s.asked is None or push is None or push["resp"] is None:
                continue
            called, other = answered.before(s.asked)
            if called > push["resp"]:
                self.violation(2, f"{s.kind} asked at {s.asked:.3f} got '{s.label}', though '{other['label']}' was "
                                  "answered before, and pushed after it", s.call, push, other)
            called, before = noticed.before(s.asked)
            if called > push["resp"]:
                rule = self._rule_of(s, before)
                self.violation(rule, f"{s.kind} asked at {s.asked:.3f} got '{s.label}', though '{before.label}' was "
                                     f"seen at {before.at:.3f}", s.call, before.call, push)

    def _rule_of(self, seen, before):
        """Known is only what was asked while the update that made the later version has not ended: none is known of
        one that was never answered LOST_S after it was seen."""
        ended = is_done(self.pushes[before.label])  # and not before this was asked, by rule 2
        if not ended and seen.asked >= before.at + LOST_S:
            return 2
        return {"token": 7, "read": 11}[seen.kind]

    def labels_never_go_back(self):
        """Names of one serial."""
        of_serial = collections.defaultdict(list)
        for c in self.renames.values():
            if is_done(c):
                of_serial[c["serial"]].append((c["resp"], c["inv"], c))
        latest = {serial: Greatest(points) for serial, points in of_serial.items()}
        for s in self.seen:
            source = self.pushes.get(s.label) or self.renames.get(s.label)
            if s.asked is None or s.serial not in latest or source is None or source["resp"] is None:
                continue
            called, other = latest[s.serial].before(s.asked)
            if called > source["resp"]:
                self.violation(6, f"{s.kind} asked at {s.asked:.3f} has the name '{s.label}', though '{other['label']}' "
                                  "was answered after it", s.call, source, other)

    # ---- rule 3: within a reply ----

    def replies_are_whole(self):
        for c in self.calls:
            if c["op"] == "generate" and c.get("spans"):
                for text in self._faults_of(c):
                    self.violation(3, text, c)

    def _is_older(self, one, other):
        """It was answered before the other was asked for."""
        one, other = (self.pushes.get(s["version"]) for s in (one, other))
        return one is not None and other is not None and one["resp"] is not None and one["resp"] < other["inv"]

    def _faults_of(self, c):
        spans, n = c["spans"], len(c["tokens"])
        serials = [s["serial"] for s in spans if s.get("serial") is not None]
        ends = [0, *(s["end"] for s in spans)]
        return [text for text, wrong in {
            "spans do not cover the tokens": [s["start"] for s in spans] != ends[:-1] or ends[-1] != n,
            "versions go back within a reply": serials != sorted(serials),
            "older versions come after newer ones": any(self._is_older(b, a) for a, b in zip(spans, spans[1:])),
            "on_update finish, and two versions": c["on_update"] == "finish" and len(set(serials)) > 1,
            "logprobs and tokens differ in number": len(c["lps"]) not in (0, n),
            f"finish_reason length with {n} of {c['n']} tokens": c["finish"] == "length" and n != c["n"],
        }.items() if wrong]

    # ---- rule 8 ----

    def pauses_hold(self):
        """From the answer of a pause to what may end it."""
        pause = None
        for c in sorted((c for c in self.calls if c["op"] in ("pause", "resume", "kill", "term")), key=lambda c: c["inv"]):
            if c["op"] == "pause" and is_done(c):
                pause = c
            elif pause is not None:
                self._check_pause(pause, c)
                pause = None

    def _check_pause(self, pause, ends):
        since, until = pause["resp"] + self.slack_s, min(ends["inv"], pause["resp"] + LEASE_S)
        for g in self.calls:
            inside = [round(t, 3) for t in g["at"] if since < t < until] if g["op"] == "generate" and g.get("at") else []
            if inside:
                self.violation(8, f"tokens at {inside[:3]} within a pause answered at {pause['resp']:.3f}, which was open "
                                  f"until {ends['inv']:.3f}", g, pause, ends)


def pushes_as_seen(check):
    """By engine's process and serial: the push that was seen there."""
    pushed = {}
    for c in check.calls:
        for s in c["spans"] if c["op"] == "generate" and c.get("spans") else []:
            push = check.pushes.get(s["version"])
            other = pushed.setdefault((c["boot"], s["serial"]), push) if push is not None else None
            if other is not push and check.mode != "single":
                check.violation(3, f"serial {s['serial']} of one process is '{push['label']}' and '{other['label']}'", c)
    return pushed
