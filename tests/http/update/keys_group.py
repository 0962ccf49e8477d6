"""A request without the control key cannot affect a trainer's group: its tensor lists are not used for an
update by the group. Usage: as transfer_odd.py says."""

import http.client
import json
import os
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3])

from ipc_world import WAIT_S, Answer, Server, must  # noqa: E402
from transfer_world import (GIB, UPDATE, Groups, cut_vllm, digest, group, join, push,  # noqa: E402
                            refuse, wire)

CONTROL, GENERATE = "control-0123456789abcdef", "generate-0123456789abcdef"


def ask(server, method, path, body=None, key=CONTROL):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    headers = {"Authorization": "Bearer " + key} if key else {}
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    out = Answer(answer.status, answer.getheader("Content-Type"), answer.read())
    connection.close()
    return out


def works(world, server, trainer, label):
    data = world.data()
    body = wire(world.specs, packed=True, expected_digest=digest(world.specs), weight_version=label)
    push(server, trainer, body, cut_vllm(world.specs, data, GIB), data, label)


def main():
    Server.ask = ask
    world = Groups(*sys.argv[1:8], seed=os.urandom(4).hex())
    keys = os.path.join(world.folder, "keys")
    with open(keys, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(f"control {CONTROL}\ngenerate {GENERATE}\n")
    body = wire(world.specs, packed=True, weight_version="nobody's")
    try:
        with world.serve("--api-key-file", keys) as server, world.nccl_trainer() as trainer:
            join(server, trainer)
            works(world, server, trainer, "first")
            for key, status in ((None, 401), (GENERATE, 403), ("x" * 24, 401)):
                for sent in (body, {**body, "weight_version": "x" * (1 << 20)}):
                    answer = ask(server, "POST", UPDATE, sent, key)
                    must(answer.status == status, f"{key}: {answer}")
                must(group(server)["state"] == "joined", f"{key}: {group(server)}")
                works(world, server, trainer, f"after {status}")
            # The same from one who has the key: not understood, and so in doubt.
            answer = ask(server, "POST", f"{UPDATE}?weight_version=x", body)
            must(answer.status == 400, f"{answer}")
            refuse(server, body, 409, "conflict", "its bytes arrive next", path=UPDATE)
    finally:
        shutil.rmtree(world.folder)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
