"""Every route of the program, at a server's listeners: which keys are accepted, and with which error
others are refused. A route that is not in ROLES fails this test, so that no route is added without a role.

Usage: keys.py PRINT_CONTRACT WATCH_KEY GENERATE_KEY CONTROL_KEY WEIGHTS_KEY LISTENER...
LISTENER: data|control|health|both=HOST:PORT or =unix:PATH, what is answered there
"""

import http.client
import json
import socket
import subprocess
import sys

WAIT_S = 60
RANK = {"health": 0, "page": 0, "viewer": 1, "generate": 2, "control": 3}  # each includes those before it
BESIDE = "weights"  # includes no role, and no role includes it
ANSWERED = {"both": {*RANK, BESIDE}, "data": {"health", "viewer", "generate"},
            "control": {"health", "page", "viewer", "control", BESIDE}, "health": {"health"}}

# Role -> the paths that take it; METHOD:PATH where the methods of a path differ. Health is what anybody may know: that the server is there, and
# whether it would serve. Watch reads counters and states; of the model's bytes it tells nothing.
ROLES = {
    "health": """
        /health /ping /health/live /livez /v2/health/live /health/ready /readyz /v2/health/ready
        /health_generate /liveness
    """,
    "page": """
        / /docs /openapi.json
    """,
    "viewer": """
        /version /v1/status /v1/events /v1/generations /v1/upstreams /v1/upstreams/ready /metrics
        /is_paused /is_sleeping /load /get_world_size /weight_info
        /get_server_info /server_info /get_model_info /model_info /get_weight_version
        /get_load /v1/loads
    """,
    "generate": """
        /v1/models /v1/models/{id} /v1/generate /v1/rollouts /inference/v1/generate /v1/completions
        /v1/chat/completions /v1/chat/completions/render
        /tokenize /detokenize
        /generate /skyrl/v1/generate /finish_session
        /v1/responses /v1/messages /v1/chat/completions/batch /v1/systemone /cohere/v2/chat /invocations
        /generative_scoring /v1/score /score /v1/rerank /v2/rerank /rerank /v1/classify /classify
        /v1/embeddings /v2/embed /encode /pooling /v1/audio/transcriptions /v1/audio/translations
        /v1/completions/render /v1/completions/derender /v1/chat/completions/derender
        /v1/responses/render /v1/messages/render /v1/messages/count_tokens /cohere/v2/chat/render
        /v1/tokenize /v1/detokenize /parse_function_call /separate_reasoning /tokenizer_info
        /v1/responses/{response_id}
    """,
    "control": """
        POST:/v1/upstreams /v1/upstreams/prove /v1/upstreams/remove /v1/upstreams/resync
        /v1/update_weights/start /v1/update_weights /v1/update_weights/finish
        /v1/update_weights/abort /v1/update_weights/renew /v1/update_weights/verify
        /v1/update_weights/{id}
        /v1/weights/plans /v1/weights /v1/weights/diff /v1/weights/{name} /v1/weights/label
        /v1/weights/check
        /v1/weights/handles /v1/weights/handles/renew /v1/weights/handles/{lease_id}
        /v1/preflight /v1/weight_transfer/init /v1/weight_transfer
        /v1/pause /v1/resume /v1/sleep /v1/wake /v1/reset_cache /v1/abort_requests
        /v1/load_lora_adapter /v1/unload_lora_adapter /v1/lora_adapters
        /pause /resume /sleep /wake_up /release_kv_cache_memory /abort_requests
        /inference/v1/abort_requests
        /reset_prefix_cache /reset_mm_cache /reset_encoder_cache
        /init_weight_transfer_engine /shutdown_weight_transfer_engine /start_weight_update /start_draft_weight_update
        /update_weights /finish_weight_update /update_weight_version
        /weight_checker /weights_checker /collective_rpc
        /skyrl/v1/load_lora_adapter /fetch_weights
        /destroy_weights_update_group /init_weights_update_group
        /areal_pause_generation /areal_continue_generation /areal_update_weights
        /areal_init_weights_update_group /areal_set_update_weight_meta /areal_update_weights_xccl
        /areal_update_weights_lora /areal_set_update_weight_meta_lora /areal_update_weights_lora_xccl
        /begin_weight_update /end_weight_update /slow_down /set_internal_state /start_profile
        /stop_profile /post_process_weights /pull_weights /v1/weights/seed
        /update_weights_from_distributed /update_weights_from_disk /update_weights_from_ipc
        /update_weights_from_tensor /get_weights_by_name
        /pause_generation /continue_generation /flush_cache
        /release_memory_occupation /resume_memory_occupation /abort_request
        /load_lora_adapter /unload_lora_adapter /load_lora_adapter_from_tensors
        /init_broadcaster
    """,
    BESIDE: """
        /v1/weights/leases /v1/weights/leases/renew /v1/weights/leases/{lease_id} /v1/weights/file
        /v1/lora_adapters/{name}
    """,
}
KEYS = ("viewer", "generate", "control", BESIDE)
ROLE_OF = {path: role for role, paths in ROLES.items() for path in paths.split()}


class Wrong(AssertionError):
    pass


def must(true, what):
    must.n += 1
    if not true:
        raise Wrong(what)


must.n = 0


class Peer:
    """One kept-alive connection to a listener."""

    def __init__(self, spec):
        self.kind, _, self.at = spec.partition("=")
        self.connection = None

    def _connect(self):
        if self.at.startswith("unix:"):
            c = http.client.HTTPConnection("localhost", timeout=WAIT_S)
            c.sock = socket.socket(socket.AF_UNIX)
            c.sock.settimeout(WAIT_S)
            c.sock.connect(self.at[5:])
        else:
            c = http.client.HTTPConnection(self.at, timeout=WAIT_S)
        return c

    def ask(self, method, path, key=None, body=None):
        if self.connection is None or self.connection.sock is None:
            self.connection = self._connect()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key is not None:
            headers["Authorization"] = "Bearer " + key
        self.connection.request(method, path, body=body, headers=headers)
        answer = self.connection.getresponse()
        if answer.headers.get("Content-Type", "").startswith("text/event-stream"):  # it does not end by itself
            first = answer.readline()
            answer.close()
            self.connection.close()
            return answer.status, answer.headers, first
        return answer.status, answer.headers, answer.read()


def routes(program):
    """(method, path) -> (role, form) of all."""
    listed = json.loads(subprocess.run([program], check=True, capture_output=True).stdout)["routes"]
    out = {}
    for row in listed:
        path = row["path"]
        must(path in ROLE_OF, f"{path} is not in the table of this test: who may call it?")
        for method in row["methods"]:
            role = ROLE_OF.get(f"{method}:{path}", ROLE_OF[path])
            must(role == row["role"], f"{method} {path} takes {row['role']}, and {role} in the table of this test")
            concrete = path.split("{")[0] + ("x" if "{" in path else "")
            out.setdefault((method, concrete), (row["role"], row["form"]))
    must(len(out) > 50, f"only {len(out)} routes")
    return out


def check_form(form, status, raw, where):
    """The error is worded as the route's clients read it."""
    body = json.loads(raw)
    error = body["error"]
    must(error["message"], where)
    if form == 0:
        must(error["code"] == {401: "unauthorized", 403: "forbidden", 404: "not_found"}[status], where)
    elif form == 1:
        must(error["code"] == status, where)
    else:
        must(body["success"] is False and body["message"] == error["message"], where)


def check_refused(peer, method, path, form, key, wanted):
    status, headers, raw = peer.ask(method, path, key, None if method in ("GET", "HEAD") else b"{")
    where = f"{peer.kind} {method} {path} with {key!r}: {status} {raw[:200]!r}, wanted {wanted}"
    # SGLang's clients know no 404; whoever may not come in is told so all the same.
    must(status == wanted or (form > 1 and wanted == 404 and status == 400), where)
    must((headers["WWW-Authenticate"] == 'Bearer realm="baton"') == (status == 401), where)
    if method != "HEAD" and status == wanted:
        check_form(form, status, raw, where)
    must(key is None or key.encode() not in raw, where)


def check_let_in(peer, method, path, key):
    """Whatever is answered, it is no refusal: a body that is no JSON changes nothing."""
    body = None if method in ("GET", "HEAD", "DELETE") else b"{"
    status, headers, raw = peer.ask(method, path, key, body)
    where = f"{peer.kind} {method} {path} with {key!r}: {status} {raw[:200]!r}"
    must(status not in (401, 403), where)
    must(status == 200 or b"on this listener" not in raw, where)  # the status has what others were told
    must((headers["WWW-Authenticate"] is None) == (path != "/"), where)  # the page asks for a key of its own
    must(key is None or key.encode() not in raw, where)


def check_route(peer, method, path, role, form, keys):
    wrong = "x" * len(keys["control"])
    if role not in ANSWERED[peer.kind]:
        for key in (None, wrong, keys["control"]):
            check_refused(peer, method, path, 0 if peer.kind == "health" else form, key, 404)
        return
    if role in ("health", "page"):
        check_let_in(peer, method, path, None)
        check_let_in(peer, method, path, wrong)
        return
    check_refused(peer, method, path, form, None, 401)
    check_refused(peer, method, path, form, wrong, 401)
    for has in KEYS:
        if has == role if BESIDE in (has, role) else RANK[has] >= RANK[role]:
            check_let_in(peer, method, path, keys[has])
        else:
            check_refused(peer, method, path, form, keys[has], 403)


def main():
    keys = dict(zip(KEYS, sys.argv[2:6]))
    table = routes(sys.argv[1])
    for spec in sys.argv[6:]:
        peer = Peer(spec)
        for (method, path), (role, form) in table.items():
            if peer.kind == "health" and (form != 0 or path == "/liveness"):
                continue  # a dialect's path is not even known there
            check_route(peer, method, path, role, form, keys)
    print(f"{len(table)} routes, {must.n} checks")


if __name__ == "__main__":
    main()
