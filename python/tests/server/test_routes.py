"""Every route, by both clients."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import submissions

from manyworlds_rl import AsyncClient, Client, ConflictError, InvalidRequestError, ManyworldsError, NotFoundError, OverloadedError, Run, UnreachableError
from manyworlds_rl._calls import Call


class Blocking:
    """An asyncio object whose coroutines are run to their ends, so that one test is for both clients."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.inner, self.loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(member):
            return member
        return lambda *args, **more: self._wrap(self.loop.run_until_complete(member(*args, **more)))

    def _wrap(self, value: Any) -> Any:
        return Blocking(value, self.loop) if type(value).__module__ == "manyworlds_rl.aio" else value


@pytest.fixture(params=["blocking", "asyncio"])
def either(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "blocking":
        with Client() as client:
            yield client
        return
    loop = asyncio.new_event_loop()
    client = AsyncClient()
    yield Blocking(client, loop)
    loop.run_until_complete(client.close())
    loop.close()


def test_from_a_run_to_its_end(either: Any, name: str) -> None:
    config = {"group_size": 3, "batch_groups": 64}
    with pytest.raises(NotFoundError):
        either.run(name)
    run = either.run(name, config)
    assert either.run(name, config).name == name
    with pytest.raises(ConflictError):
        either.run(name, {"group_size": 4})
    with pytest.raises(InvalidRequestError, match="group_size"):
        either.run(f"{name}-x", {"group_size": "three"})
    assert run.status().policy.version is None
    assert run.set_policy(0, model="m", endpoints=["http://127.0.0.1:1"]).state == "live"

    run.submit([{"group_id": "a", "task": "/t/ok", "metadata": {"row": 7}}])
    run.submit([{"group_id": "a", "task": "/t/ok", "metadata": {"row": 7}}])
    with pytest.raises(ConflictError):
        run.submit([{"group_id": "a", "task": "/t/other"}])
    lease = run.lease(wait_s=30.0)
    (group,) = lease.groups
    assert (group.group_id, group.expected, group.usable, group.metadata["row"]) == ("a", 3, 3, 7)
    assert group.rewards() == [0, 1, 0]
    sample = group.samples[1]
    assert list(sample.loss_mask) == [0, 0, 0, 1, 1, 1, 1, 1]
    assert list(sample.versions) == [-1, -1, -1, 0, 0, 0, 0, 0]
    assert run.extend(lease.lease_id) >= lease.expires_at
    checkpoint = run.checkpoint()
    before = run.status().credits
    after = run.ack(lease.lease_id, ["a"], trained_version=1, step=5, checkpoint="step-5")
    assert after.groups == before.groups + 1
    (record,) = run.terminal()
    assert (record.group_id, record.outcome, record.step, record.checkpoint, record.consumer) == ("a", "consumed", 5, "step-5", "trainer")

    run.set_policy(3)
    with pytest.raises(ConflictError):
        run.set_policy(2)
    run.restore(vars(checkpoint))
    again = run.lease(wait_s=30.0, max_staleness=10, current_version=0)
    assert [g.group_id for g in again.groups] == ["a"]
    assert again.groups[0].samples[1].token_ids.tobytes() == sample.token_ids.tobytes()
    run.ack(again.lease_id, rejected=[("a", "filtered")])
    assert [r.outcome for r in run.terminal()] == ["consumed", "restored", "rejected"]

    run.set_policy(4, state="updating")
    run.submit([{"group_id": "b", "task": "/t/slow"}])
    assert run.cancel(["b"]) == ["b"]
    assert run.terminal(after=3)[0].outcome == "cancelled"
    assert run.finish().state == "finished"
    run.delete()
    with pytest.raises(NotFoundError):
        run.status()


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_every_encoding_says_what_safetensors_say(make_run: Callable[..., Run], encoding: str) -> None:
    run = make_run()
    run.submit(submissions(3))
    binary = run.lease(min_groups=3, wait_s=30.0)
    run.client.do(Call("POST", f"/v1/leases/{binary.lease_id}/release", lambda answer: None, {}))
    with Client(encoding=encoding) as client:
        other_run = client.run(run.name)
        plain = pickle.loads(pickle.dumps(other_run)).lease(min_groups=3, wait_s=30.0)
    assert len(binary.groups) == 3
    for one, other in zip(binary.groups, plain.groups):
        for a, b in zip(one.samples, other.samples):
            assert [x.tolist() for x in (a.token_ids, a.loss_mask, a.logprobs, a.versions)] == [x.tolist() for x in (b.token_ids, b.loss_mask, b.logprobs, b.versions)]
            assert pickle.loads(pickle.dumps(a)) == a == b

    async def again() -> int:
        async with AsyncClient(encoding=encoding) as client:
            mine = await client.run(run.name)
            return len((await mine.lease(wait_s=0)).groups)

    run.client.do(Call("POST", f"/v1/leases/{plain.lease_id}/release", lambda answer: None, {}))
    assert asyncio.run(again()) == 3


def test_an_encoding_that_is_none_is_named() -> None:
    with pytest.raises(ManyworldsError, match="safetensors, msgpack, json"):
        Client("http://127.0.0.1:1", encoding="yaml")


def test_credits_are_told(make_run: Callable[..., Run]) -> None:
    run = make_run(credits={"groups": 2, "bytes": 1 << 20})
    with pytest.raises(OverloadedError) as caught:
        run.submit(submissions(3))
    assert caught.value.credits["groups"] == 2
    assert caught.value.retry_after is not None


def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1.*mw serve"):
        Client("http://127.0.0.1:1", "key", retries=1).run("x")


def test_a_policy_update_that_fails_leaves_the_old_version(make_run: Callable[..., Run]) -> None:
    run = make_run()
    with run.updating(1):
        assert run.status().policy.state == "updating"
    assert (run.status().policy.version, run.status().policy.state) == (1, "live")
    with pytest.raises(RuntimeError, match="weights"), run.updating(2):
        raise RuntimeError("no weights")
    assert (run.status().policy.version, run.status().policy.state) == (1, "live")


def lease_in_child(run: Run, results: Any) -> None:
    lease = run.lease(wait_s=30.0)
    results.put(lease)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_clients_and_leases_cross_processes(make_run: Callable[..., Run], method: str) -> None:
    run = make_run()
    run.submit(submissions(1))
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=lease_in_child, args=(run, results))
    child.start()
    lease = results.get(timeout=120)
    child.join()
    run.ack(lease.lease_id, [group.group_id for group in lease.groups])
    assert run.status().groups["consumed"] == 1
