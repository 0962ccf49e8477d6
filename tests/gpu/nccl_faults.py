"""Groups that are never whole, and trainers that die, stop and send too little: an answer in time,
the old version serves, the next init works. Sections of test_nccl_torch.py."""

import base64
import signal

import gpu_world as world
import nccl_torch
import nccl_world as nccl

JOIN_S = 2  # timeout_s of inits that must fail
UPDATE_S = 2.5  # --update-timeout
STORE_TELLS_S = 1.0  # a trainer's store that hung up is noticed within this, aborts included
LARGE = (8, 512 << 20, 64 << 10)  # tensors in whose middle a trainer dies: count, bytes, of fakes


def fault_specs(args):
    n, real, fake = LARGE
    nbytes = fake if args.small else real
    odd = [("first.u8", "uint8", (3,)), ("second.bf16", "bfloat16", (5, 7))]
    large = [(f"large{i}.bf16", "bfloat16", (nbytes // 2,)) for i in range(n)]
    last = [("empty.f32", "float32", (0, 4)), ("last.f32", "float32", (1021,))]
    return [nccl.Spec(*row) for row in odd + large + last]


def stage_of(checks, args, specs):
    stage = nccl.Stage(
        checks, args, specs, "--update-timeout", str(int(UPDATE_S * 1000)), "--max-versions", "2"
    )
    stage.update_s = UPDATE_S
    return stage


def play_all(checks, args, specs, scenarios):
    with stage_of(checks, args, specs) as stage:
        for title, play, *rest in scenarios:
            stage.scenario(title, play, *rest)


# --- joining


def refused_in_time(stage, body, what, codes=("timeout",), words=()):
    """The init fails, by its own deadline."""
    answer = nccl.ask(stage.server, "POST", nccl.INIT, body)
    nccl.in_time(stage.checks, answer, JOIN_S, what)
    stage.checks.that(
        answer.code in codes and all(w in answer.message for w in words),
        f"{what}: why",
        answer,
    )
    stage.checks.same(nccl.group(stage.server)["state"], "failed", f"{what}: the group")
    return answer


def over(stage, what):
    stage.unchanged(what)
    stage.renew(what)


def _post_id(server, unique_id, **more):
    text = base64.b64encode(unique_id).decode()
    return nccl.invitation(server, nccl_unique_id=text, **{"timeout_s": JOIN_S, **more})


def _post_store(server, port, **more):
    at = {"master_address": "127.0.0.1", "master_port": port, "timeout_s": JOIN_S}
    return nccl.invitation(server, **at, **more)


def never_joins(stage):
    with nccl.trainer(stage.args) as rank_0:
        words = ("NCCL_CUMEM_ENABLE", stage.args.nccl_version)
        body = _post_id(stage.server, rank_0.ask(nccl.mint))
        refused_in_time(stage, body, "id, nobody joins", words=words)
    over(stage, "nobody joined")


def no_id(stage):
    with nccl.trainer(stage.args) as rank_0:
        body = _post_store(stage.server, rank_0.ask(nccl.open_store))
        refused_in_time(stage, body, "store without an id", words=("broadcast_from/0/0",))
    over(stage, "no id came")


def no_first_collective(stage):
    with nccl.trainer(stage.args) as rank_0:
        body = _post_store(stage.server, rank_0.ask(nccl.open_store), group_name="late")
        answer = nccl.ask(stage.server, "POST", nccl.INIT, body)
        stage.checks.same(
            (answer.status, answer.body.get("state")), (200, "joining"), "the init answers at once"
        )
        allowed_s = JOIN_S + nccl.LATE_S + nccl.SLACK_S
        world.until(
            lambda: nccl.group(stage.server)["state"] == "failed", "it is given up", allowed_s
        )
        message = nccl.group(stage.server)["error"]["message"]
        stage.checks.that("first collective" in message, "what it waited for is named", message)
    over(stage, "no first collective")


def other_world(stage, theirs, ours):
    """Both sides know of another number of ranks."""
    size = stage.server.world_size
    with nccl.trainer(stage.args) as rank_0:
        unique_id = rank_0.ask(nccl.mint)
        rank_0.tell(nccl.join, unique_id, size + theirs)
        body = _post_id(stage.server, unique_id, world_size=size + ours)
        refused_in_time(
            stage, body, f"worlds of {size + theirs} and {size + ours}", ("timeout", "nccl_error")
        )
    over(stage, "other worlds")


def rank_twice(stage):
    """Rank 0 never comes, and somebody else is rank 1 too: as many ranks as the world has."""
    with nccl.trainer(stage.args) as rank_0, nccl.trainer(stage.args) as other:
        unique_id = rank_0.ask(nccl.mint)
        other.tell(nccl.join, unique_id, stage.server.world_size, True, 1)
        body = _post_id(stage.server, unique_id)
        refused_in_time(stage, body, "rank 1 twice", ("timeout", "nccl_error"))
    over(stage, "a rank twice")


def killed_before_init(stage, by_store):
    with nccl.trainer(stage.args) as rank_0:
        if by_store:
            body = _post_store(stage.server, rank_0.ask(nccl.open_store))
        else:
            body = _post_id(stage.server, rank_0.ask(nccl.mint))
        rank_0.kill()
        what = "killed before the init"
        codes = ("timeout", "nccl_error", "source_unreadable")
        refused_in_time(stage, body, what, codes)
    over(stage, what)


def killed_inside_init(stage, by_store):
    """While the ranks that are there wait for one more."""
    what, server = "killed inside the init", stage.server
    with nccl.trainer(stage.args) as rank_0:
        size = server.world_size
        if by_store:
            body = _post_store(server, rank_0.ask(nccl.open_store), world_size=size + 1)
            rank_0.tell(nccl.stateless, size, size + 1)
        else:
            unique_id = rank_0.ask(nccl.mint)
            rank_0.tell(nccl.join, unique_id, size + 1)
            body = _post_id(server, unique_id, world_size=size + 1)
        pending = nccl.Pending(server, nccl.INIT, body)
        world.until(lambda: nccl.group(server)["bootstrap"] is not None, "it joins", nccl.ANSWER_S)
        rank_0.kill()
        answer = pending.answer()
    nccl.in_time(stage.checks, answer, JOIN_S, what)
    codes = ("timeout", "nccl_error", "source_unreadable")
    stage.checks.that(answer.code in codes, f"{what}: why", answer)
    over(stage, what)


def stopped_inside_init(stage):
    what, server = "stopped inside the init", stage.server
    with nccl.trainer(stage.args) as rank_0:
        unique_id = rank_0.ask(nccl.mint)
        rank_0.signal(signal.SIGSTOP)
        rank_0.until_stopped()
        refused_in_time(stage, _post_id(server, unique_id), what, ("timeout", "nccl_error"))
        rank_0.signal(signal.SIGCONT)
    over(stage, what)


def joining(checks, args):
    specs = [nccl.Spec(f"w{i}", "bfloat16", (100 + i,)) for i in range(7)]
    play_all(
        checks,
        args,
        specs,
        [
            ("the trainer never joins", never_joins),
            ("the trainer brings no id", no_id),
            ("no first collective", no_first_collective),
            ("the trainer's world is larger", other_world, 1, 0),
            ("the trainer's world is smaller", other_world, 0, 1),
            ("a rank twice", rank_twice),
            ("killed before init, id", killed_before_init, False),
            ("killed before init, store", killed_before_init, True),
            ("killed inside init, id", killed_inside_init, False),
            ("killed inside init, store", killed_inside_init, True),
            ("stopped inside init", stopped_inside_init),
        ],
    )


# --- updating


def judge_failed(stage, answer, what, deadline_s, codes):
    """An update by the group that has to have failed, and the group with it."""
    nccl.in_time(stage.checks, answer, deadline_s, what)
    stage.checks.that(
        answer.code in codes and "the group has failed" in answer.message, f"{what}: why", answer
    )
    found = nccl.group(stage.server)
    stage.checks.that(
        found["state"] == "failed" and found["error"] is not None, f"{what}: the group", found
    )
    refused = nccl.ask(stage.server, "POST", nccl.UPDATE, nccl.wire(stage.specs))
    stage.checks.same(
        (refused.status, refused.code), (409, "conflict"), f"{what}: no update by that group"
    )


def broken(stage, form, cuts, fault):
    """An update in which the trainer does what `fault` says (nccl_world.send)."""
    server, what, fault = stage.server, stage.checks.title, dict(fault)
    goes_on = fault.get("what") == signal.SIGSTOP
    dies = "at" in fault and not goes_on
    stored = form is not nccl.by_id
    with nccl.trainer(stage.args) as rank_0:
        nccl.enter(server, rank_0, form)
        rank_0.ask(nccl.load, stage.specs, 9000)
        body = nccl.wire(stage.specs, weight_version="never", **fault.pop("members", {}))
        pending = nccl.Pending(server, nccl.UPDATE, body)
        rank_0.tell(nccl.send, fault.pop("cuts", cuts), **fault)
        answer = pending.answer()
        codes = ("timeout", "nccl_error", *(["source_unreadable"] if stored and dies else []))
        judge_failed(stage, answer, what, UPDATE_S, codes)
        if stored and dies:
            stage.checks.that(
                answer.took_s <= STORE_TELLS_S + nccl.SLACK_S,
                "its store tells it before the deadline",
                f"{answer.code} after {answer.took_s:.2f} s of {STORE_TELLS_S + nccl.SLACK_S}",
            )
        if goes_on:
            rank_0.signal(signal.SIGCONT)
            stage.unchanged("when it goes on")
    over(stage, what)


def goes_on_in_time(stage):
    """Stopped inside a broadcast, and continued before the deadline: nothing has happened."""
    server, specs = stage.server, stage.specs
    cuts, seed = nccl.cut_each(specs), next(stage.seeds)
    with nccl.trainer(stage.args) as rank_0:
        nccl.enter(server, rank_0, next(stage.forms))
        rank_0.ask(nccl.load, specs, seed)
        pending = nccl.Pending(server, nccl.UPDATE, nccl.wire(specs, weight_version="stopped"))
        rank_0.tell(nccl.send, cuts, at=3, what=signal.SIGSTOP)
        rank_0.until_stopped()
        stage.checks.that(not pending.done(), "the update waits while its trainer is stopped")
        rank_0.signal(signal.SIGCONT)
        answer = pending.answer()
        stage.checks.same(
            (answer.status, answer.body.get("phase")), (200, "committed"), "and is taken then"
        )
        rank_0.hear()
    stage.took(seed, "after a stop")


def never_sends(stage):
    """Nothing comes; meanwhile what is under way is told, and another group is refused."""
    server, what = stage.server, "nothing is sent"
    with nccl.trainer(stage.args) as rank_0, nccl.trainer(stage.args) as other:
        nccl.enter(server, rank_0, nccl.by_id)
        invitation = _post_id(server, other.ask(nccl.mint))
        pending = nccl.Pending(server, nccl.UPDATE, nccl.wire(stage.specs, packed=True))
        nccl.until_receiving(server)
        found = server.get("/v1/status")["update"] or {}
        refused = nccl.ask(server, "POST", nccl.INIT, invitation)
        stage.checks.that(
            found.get("nbytes_done") == 0 and found.get("deadline_left_s", 99) <= UPDATE_S,
            "the update under way",
            found,
        )
        stage.checks.same(
            (refused.status, refused.code), (409, "conflict"), "another init meanwhile"
        )
        judge_failed(stage, pending.answer(), what, UPDATE_S, ("timeout",))
    over(stage, what)


def client_goes(stage):
    server, what = stage.server, "the request's connection is cut"
    with nccl.trainer(stage.args) as rank_0:
        nccl.enter(server, rank_0, nccl.by_id)
        with nccl.hanging_post(server, nccl.UPDATE, nccl.wire(stage.specs, packed=True)):
            nccl.until_receiving(server)
        world.until(
            lambda: nccl.group(server)["state"] == "failed", "the group ends", UPDATE_S
        )
        stage.checks.same(nccl.group(server)["error"]["code"], "client_gone", f"{what}: why")
    over(stage, what)


def group_left(stage):
    server, what = stage.server, "the group is left"
    with nccl.trainer(stage.args) as rank_0:
        nccl.enter(server, rank_0, nccl.by_store)
        pending = nccl.Pending(server, nccl.UPDATE, nccl.wire(stage.specs, packed=True))
        nccl.until_receiving(server)
        left = nccl.ask(server, "DELETE", nccl.GROUP)
        stage.checks.that(
            left.status == 200 and left.body["state"] == "none" and left.took_s <= 2.0, what, left
        )
        answer = pending.answer()
        stage.checks.same((answer.status, answer.code), (409, "conflict"), "the update under way")
    over(stage, what)


def updating(checks, args):
    specs = fault_specs(args)
    each, half = nccl.cut_each(specs), nccl.total_of(specs) // 2
    halves = nccl.cut_vllm(specs, half)
    packed = {"members": {"packed": True, "bucket_nbytes": half}}
    middle, stop = len(each) // 2, signal.SIGSTOP
    before, between = {"at": 0, "inside": False}, {"at": middle, "inside": False}
    with stage_of(checks, args, specs) as stage:
        for title, form, cuts, fault in (
            ("killed before, id", nccl.by_id, each, before),
            ("killed between, id", nccl.by_id, each, between),
            ("killed between, store", nccl.by_store, each, between),
            ("killed inside, id", nccl.by_id, each, {"at": middle}),
            ("killed inside, store", nccl.by_store, each, {"at": middle}),
            ("killed inside, torch group", nccl.by_torch, each, {"at": middle}),
            ("killed inside a large one", nccl.by_id, halves, dict(packed, at=0)),
            ("stopped before", nccl.by_torch, halves, dict(before, what=stop, **packed)),
            ("stopped between", nccl.by_store, each, dict(between, what=stop)),
            ("stopped inside", nccl.by_id, each, {"at": middle, "what": stop}),
            ("a broadcast too few", nccl.by_torch, each, {"cuts": each[:-1]}),
        ):
            stage.scenario(title, broken, form, cuts, fault)
        for title, play in (
            ("stopped for a while", goes_on_in_time),
            ("nothing is sent", never_sends),
            ("the client goes", client_goes),
            ("the group is left", group_left),
        ):
            stage.scenario(title, play)
        for form in nccl_torch.FORMS if args.torch else ():
            stage.scenario(f"torch dies, {form}", nccl_torch.dies, form)


# --- refused


def refused(checks, args):
    """What is refused costs the group nothing for a trainer that broadcasts what was accepted."""
    specs = [nccl.Spec(f"w{i}", "bfloat16", (1000 + i,)) for i in range(7)]
    with stage_of(checks, args, specs) as stage:
        stage.scenario("a refused plan", refused_plan)


def refused_plan(stage):
    server, specs, checks = stage.server, stage.specs, stage.checks
    seed, other = next(stage.seeds), [nccl.Spec(s.name, s.dtype, (5,)) for s in stage.specs]
    with nccl.trainer(stage.args) as rank_0:
        nccl.enter(server, rank_0, nccl.by_id)
        for what, body, param, statuses in (
            (
                "another digest",
                nccl.wire(specs, expected_digest="0" * 64),
                "/expected_digest",
                (409,),
            ),
            (
                "other shapes",
                nccl.wire(other, packed=True, expected_digest=nccl.digest(other)),
                None,
                (400, 422),
            ),
            (
                "a tensor is missing",
                nccl.wire(specs[1:], packed=True, expected_digest=nccl.digest(specs[1:])),
                None,
                (422,),
            ),
            ("no digest, after that", nccl.wire(specs, packed=True), None, (409,)),
        ):
            answer = nccl.ask(server, "POST", nccl.UPDATE, body)
            checks.that(
                answer.status in statuses and param in (None, answer.error.get("param")),
                f"{what}: refused",
                answer,
            )
        checks.same(nccl.group(server)["state"], "joined", "the group is as it was")
        stage.unchanged("after what was refused")
        answer = nccl.push(server, rank_0, specs, seed, expected_digest=nccl.digest(specs))
        checks.same(answer.body["phase"], "committed", "with expected_digest, the same group")
    stage.took(seed, "after what was refused")
    stage.renew("after what was refused")
