"""The trainer's loop: everything comes once, whatever dies and however long a step takes."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import finish_when_ready, restart_service, submissions

from manyworlds_rl import AsyncClient, Ledger, ManyworldsError, NotFoundError, Run, RunDeadError, RunStalledError, async_groups, groups


def test_groups_come_in_batches_until_the_run_is_finished(make_run: Callable[..., Run]) -> None:
    run = make_run()
    run.submit(submissions(21))
    finish_when_ready(run)
    seen: list[str] = []
    with groups(run, at_once=5, max_held=8) as stream:
        for step, batch in enumerate(stream.batches(4)):
            seen += [group.group_id for group in batch]
            stream.consumed(*batch[:-1], step=step, version=step)
            stream.reject(batch[-1], reason="filtered")
    assert sorted(seen) == sorted(f"g{at}" for at in range(21))
    outcomes = [record.outcome for record in run.terminal()]
    assert (outcomes.count("consumed"), outcomes.count("rejected")) == (15, 6)


def test_asyncio_is_the_same(make_run: Callable[..., Run]) -> None:
    run = make_run(lease_s=6)
    run.submit(submissions(21))
    finish_when_ready(run)
    ledger = Ledger(["g3"])

    async def train() -> list[str]:
        seen: list[str] = []
        async with AsyncClient() as client:
            async_run = await client.run(run.name)
            async with async_groups(async_run, at_once=5, max_held=8, ledger=ledger) as stream:
                step = 0
                async for batch in stream.batches(4):
                    # One and a half lives of a lease: the stream's task keeps it.
                    if step == 0:
                        await asyncio.sleep(9)
                    seen += [group.group_id for group in batch]
                    await stream.consumed(*batch[:-1], step=step, version=step)
                    await stream.reject(batch[-1])
                    step += 1
                assert stream.ended
        return seen

    assert sorted(asyncio.run(train())) == sorted(f"g{at}" for at in range(21) if at != 3)
    outcomes = [record.outcome for record in run.terminal()]
    assert (outcomes.count("consumed"), outcomes.count("rejected")) == (16, 5)
    assert len(ledger) == 16


def test_asyncio_neither_holds_nor_waits_without_end(make_run: Callable[..., Run], name: str) -> None:
    run = make_run(fail_after_dead_groups=2, quarantine_after=None, partial={"rule": "require_all"})
    run.submit(submissions(4))

    async def train() -> None:
        async with AsyncClient() as client:
            async_run = await client.run(name)
            async with async_groups(async_run, at_once=2, max_held=4) as stream:
                held = [await stream.next() for _ in range(4)]
                with pytest.raises(ManyworldsError, match="consumed"):
                    await stream.next()
                restart_service()
                await stream.consumed(*(group for group in held if group is not None))
                assert await stream.next(wait_s=0) is None
                run.submit(submissions(4, task="/t/broken", prefix="b"))
                with pytest.raises(RunDeadError, match="failed"):
                    await stream.next()

    asyncio.run(train())


def test_what_is_never_acknowledged_is_asked_for(make_run: Callable[..., Run]) -> None:
    run = make_run()
    run.submit(submissions(9))
    with groups(run, at_once=2, max_held=4) as stream:
        for _ in range(4):
            assert stream.next() is not None
        with pytest.raises(ManyworldsError, match="consumed"):
            stream.next()


def test_a_long_step_keeps_its_groups(make_run: Callable[..., Run]) -> None:
    run = make_run(lease_s=9)
    run.submit(submissions(1))
    extended = threading.Semaphore(0)
    with groups(run) as stream:
        extend = run.extend

        def counted(lease_id: str) -> float:
            expires = extend(lease_id)
            extended.release()
            return expires

        run.extend = counted  # type: ignore[method-assign]
        group = stream.next()
        assert group is not None
        # Four thirds of a lease's time.
        for _ in range(4):
            assert extended.acquire(timeout=60)
        assert run.lease(wait_s=0).groups == ()
        stream.consumed(group)
    assert run.status().groups["consumed"] == 1


def test_what_is_held_past_its_time_is_acknowledged_while_nobody_else_has_had_it(make_run: Callable[..., Run]) -> None:
    run = make_run(lease_s=0.5)
    run.submit(submissions(2))
    refused = threading.Event()
    extend = run.extend

    def late(lease_id: str) -> float:
        while run.status().groups["ready"] < 2:
            time.sleep(0.02)
        try:
            return extend(lease_id)
        except NotFoundError:
            refused.set()
            raise

    run.extend = late  # type: ignore[method-assign]
    finish_when_ready(run)
    with groups(run, at_once=2) as stream:
        held = [group for group in (stream.next(), stream.next()) if group is not None]
        assert refused.wait(60)
        stream.consumed(*held)
    assert run.status().groups["consumed"] == 2


def test_what_expired_comes_again_with_the_same_bytes(make_run: Callable[..., Run]) -> None:
    run = make_run(lease_s=0.5)
    run.submit(submissions(2))
    first = run.lease(min_groups=2, wait_s=30.0)
    again = run.lease(min_groups=2, wait_s=60.0)
    assert again.lease_id != first.lease_id
    assert {g.group_id for g in first.groups} == {g.group_id for g in again.groups}
    bytes_of = {s.sample_id: (s.token_ids.tobytes(), s.logprobs.tobytes()) for g in first.groups for s in g.samples}
    assert bytes_of == {s.sample_id: (s.token_ids.tobytes(), s.logprobs.tobytes()) for g in again.groups for s in g.samples}


def test_a_ledger_keeps_a_group_from_being_trained_twice(make_run: Callable[..., Run]) -> None:
    run = make_run(lease_s=0.5)
    run.submit(submissions(3))
    taken = run.lease(min_groups=3, wait_s=30.0)
    # Trained on two of them, wrote its checkpoint, died before it could acknowledge.
    ledger = Ledger()
    ledger.load_state_dict(json.loads(json.dumps({"consumed": [taken.groups[0].group_id, taken.groups[1].group_id]})))
    finish_when_ready(run)
    with groups(run, ledger=ledger) as stream:
        left = []
        for group in stream:
            left.append(group.group_id)
            stream.consumed(group)
    assert left == [taken.groups[2].group_id]
    assert run.status().groups["consumed"] == 3


def test_a_trainer_that_is_killed_at_any_moment_trains_everything_once(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(lease_s=1)
    count = 60
    most_steps = 8
    run.submit(submissions(count))
    finish_when_ready(run)
    draw = random.Random(3)
    kills = 0
    while True:
        command = [sys.executable, str(Path(__file__).with_name("killed_trainer.py")), run.name, str(tmp_path), str(most_steps)]
        trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert trainer.stdout is not None
        # Dies after some steps, at a moment within the next.
        for _ in range(draw.randint(1, most_steps)):
            if trainer.stdout.readline() == "":
                break
        time.sleep(draw.random() * 0.02)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()
        if trainer.returncode == 0:
            break
        kills += 1
        assert kills < 500
    assert kills >= count // 2 // most_steps
    state = json.loads((tmp_path / "checkpoint.json").read_text())
    # The checkpoint is what the training was: each group once, in it and at the service.
    assert sorted(state["trained"]) == sorted(f"g{at}" for at in range(count))
    records = run.terminal()
    assert len(records) == count
    assert all(record.outcome == "consumed" for record in records)


def test_the_service_may_go_away_for_a_while(make_run: Callable[..., Run]) -> None:
    run = make_run(lease_s=30)
    run.submit(submissions(12))
    finish_when_ready(run)
    seen: list[str] = []
    with groups(run, at_once=2) as stream:
        for at, group in enumerate(stream):
            if at in (3, 7):
                restart_service()
            seen.append(group.group_id)
            stream.consumed(group)
    assert sorted(set(seen)) == sorted(f"g{at}" for at in range(12))
    assert run.status().groups["consumed"] == 12


def test_a_dead_run_is_an_error_and_no_wait(make_run: Callable[..., Run]) -> None:
    run = make_run(fail_after_dead_groups=2, quarantine_after=None, partial={"rule": "require_all"})
    run.submit(submissions(4, task="/t/broken"))
    with groups(run) as stream, pytest.raises(RunDeadError, match="failed"):
        stream.next()


def test_a_run_in_which_nothing_ends_is_an_error_too(make_run: Callable[..., Run]) -> None:
    run = make_run(policy=False)
    run.submit(submissions(1))
    with groups(run, stall_s=0.2) as stream, pytest.raises(RunStalledError, match="nothing has ended"):
        stream.next()
