"""What an answer must contain to be the success of a route: docs/protocol.md and the OpenAPI file. A
status of 200 alone is not one: a proxy's login page has it too."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Mapping, Optional

from .errors import BatonError

SHOWN_MAX = 60  # characters of a wrong value
NOT_BATON = "this is not an answer of a baton server"
Shape = Callable[[Any, Any], bool]  # of the member, and of the request's member of that name


def _is_count(value: Any, _: Any = None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any, _: Any = None) -> bool:
    return isinstance(value, str) and value != ""


def _or_null(shape: Shape) -> Shape:
    return lambda value, sent: value is None or shape(value, sent)


SHAPES: Dict[str, Shape] = {
    "a text": _is_text,
    "a text or null": _or_null(_is_text),
    "a number": _is_count,
    "a number above 0": lambda v, _: _is_count(v) and v > 0,
    "true or false": lambda v, _: isinstance(v, bool),
    "true": lambda v, _: v is True,
    "an object": lambda v, _: isinstance(v, dict),
    "an object or null": _or_null(lambda v, _: isinstance(v, dict)),
    "an array": lambda v, _: isinstance(v, list),
    "that of the request": lambda v, sent: _is_text(v) and v == sent,
}  # any other: one of these words, with | between them

UPDATE = {"update_id": "that of the request", "nbytes_done": "a number"}
COMMITTED = {"phase": "committed", "serial": "a number above 0", "weight_version": "a text",
             "nbytes_done": "a number"}
# "METHOD path": {member: shape}. "a.b" is a member of a member, "a?.b" one that is not looked for
# where `a` is null, "a.*.b" one of each element of an array.
ROUTES: Dict[str, Dict[str, str]] = {
    "GET /readyz": {"ready": "true"},
    "GET /v1/status": {"version": "a text", "ready": "true or false", "weights": "an object",
                       "update": "an object or null", "update?.nbytes_done": "a number",
                       "update?.nbytes_total": "a number"},
    "POST /v1/update_weights": dict(COMMITTED, update_id="a text"),
    "POST /v1/update_weights?update_id": dict(UPDATE, phase="open|receiving"),
    "POST /v1/update_weights/start": {"update_id": "a text", "phase": "open"},
    "POST /v1/update_weights/verify": dict(UPDATE, phase="verified"),
    "POST /v1/update_weights/finish": dict(COMMITTED, update_id="that of the request"),
    "POST /v1/update_weights/abort": dict(UPDATE, phase="aborted"),
    "POST /v1/update_weights/renew": dict(UPDATE, phase="a text"),
    "GET /v1/update_weights/*": {"update_id": "a text", "phase": "a text",
                                 "nbytes_done": "a number"},
    "POST /v1/weights/plans": {"plan_id": "a text", "covers_manifest": "true or false",
                               "n_missing": "a number"},
    "POST /v1/weight_transfer/init": {"state": "joined", "bootstrap": "a text or null"},
    "GET /v1/weight_transfer": {"state": "a text", "bootstrap": "a text or null",
                                "error": "an object or null", "error?.message": "a text"},
    "DELETE /v1/weight_transfer": {"state": "a text"},
    "GET /v1/weights/handles": {
        "lease_id": "a text", "lease_s": "a number above 0", "weight_version": "a text",
        "serial": "a number", "boot_id": "a text", "names": "an array", "dtypes": "an array",
        "shapes": "an array", "devices": "an array", "devices.*.uuid": "a text",
        "devices.*.slabs": "an array", "devices.*.slab": "an array", "devices.*.offset": "an array"},
    "POST /v1/weights/handles/renew": {"lease_id": "that of the request",
                                       "lease_s": "a number above 0"},
    "DELETE /v1/weights/handles/*": {"lease_id": "a text"},
}
MISSING = object()


def _at(value: Any, path: str) -> Iterator[Any]:
    name, _, rest = path.partition(".")
    if not path:
        yield value
    elif name == "*":
        for element in value if isinstance(value, list) else ():
            yield from _at(element, rest)
    else:
        value = value.get(name.rstrip("?"), MISSING) if isinstance(value, dict) else MISSING
        if not (value is None and name.endswith("?")):
            yield from _at(value, rest)


def _route(method: str, path: str, sent: Mapping[str, Any]) -> Dict[str, str]:
    route = f"{method} {path.partition('?')[0]}"
    if route == "POST /v1/update_weights" and "update_id" in sent:
        route += "?update_id"
    return ROUTES[route if route in ROUTES else route.rpartition("/")[0] + "/*"]


def _wrong(members: Dict[str, str], sent: Mapping[str, Any], answer: Any) -> Optional[str]:
    if not isinstance(answer, dict):
        return "it is not a JSON object"
    for member, shape in members.items():
        for value in _at(answer, member):
            fits = SHAPES[shape](value, sent.get(member)) if shape in SHAPES else \
                isinstance(value, str) and value in shape.split("|")
            if not fits:
                found = "missing" if value is MISSING else ascii(value)[:SHOWN_MAX]
                return f"{member} is {found}, expected {shape}"
    return None


def check_success(where: str, method: str, path: str, sent: Optional[Mapping[str, Any]],
                  answer: Any) -> None:
    """Raises BatonError, unless the answer is what the route answers when it has done its work.
    @sent: the request's members, of which an answer repeats some."""
    wrong = _wrong(_route(method, path, sent or {}), sent or {}, answer)
    if wrong is not None:
        raise BatonError(f"{where}: {NOT_BATON}: {wrong}; check the URL", code="bad_answer")


def check_open(url: str, update: Dict[str, Any]) -> Dict[str, Any]:
    """The update object of a session that tensors were sent into, unless that has been aborted."""
    if update["phase"] not in ("open", "receiving", "verifying", "verified", "committed"):
        error = update.get("error")
        why = error.get("message") if isinstance(error, dict) else "no reason is given"
        raise BatonError(f"{url}: update {update['update_id']} is {update['phase']}: {why}",
                         code="conflict")
    return update
