"""TRL's worker against the service, in the hands of a trainer that fetches ahead, as TRL's does. TRL itself is in test/interop/python/trl-async.test.ts."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from types import ModuleType
from typing import Any

import pytest
from conftest import submissions

from manyworlds_rl import Client, Run
from manyworlds_rl.trl import RolloutWorker

FIELDS = "prompt completion input_ids completion_mask old_log_probs advantage model_version group_id metrics enqueued_at"
STEP = 4


@pytest.fixture(autouse=True)
def _trl(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trl", "trl.experimental", "trl.experimental.async_grpo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("trl.experimental.async_grpo.async_rollout_worker")
    module.RolloutSample = make_dataclass("RolloutSample", FIELDS.split())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def make_worker(make_run: Callable[..., Run], name: str) -> Iterator[Callable[..., RolloutWorker]]:
    made: list[RolloutWorker] = []

    def make(count: int = 20, lease_s: float = 30.0, **options: Any) -> RolloutWorker:
        run = make_run(lease_s=lease_s, max_staleness=1000)
        run.submit(submissions(count))
        worker = RolloutWorker(name, endpoints=["http://127.0.0.1:1"], at_once=2, **options)
        worker._run = run
        made.append(worker)
        # As TRL does: the first weights go out before the worker begins.
        worker.update_model_version(1)
        worker.start()
        return worker

    yield make
    for worker in made:
        worker.stop()


def take(worker: RolloutWorker, count: int) -> list[Any]:
    rows = []
    while len(rows) < count:
        try:
            rows.append(worker.rollout_buffer.get(timeout=0.5))
        except queue.Empty:
            worker.check_health(60.0)
    return rows


def consumed(worker: RolloutWorker) -> dict[str, int | None]:
    return {record.group_id: record.trained_version for record in worker.run.terminal() if record.outcome == "consumed"}


def test_what_was_only_fetched_does_not_count_as_trained_on(make_worker: Callable[..., RolloutWorker]) -> None:
    worker = make_worker(step_samples=STEP)
    # The first step's, and the micro-batch after it.
    take(worker, 2 * STEP)
    worker.update_model_version(2)
    assert consumed(worker) == {"g0": 2, "g1": 2}
    take(worker, STEP)
    worker.update_model_version(3)
    assert consumed(worker) == {"g0": 2, "g1": 2, "g2": 3, "g3": 3}


def test_where_steps_have_no_fixed_size_a_version_later(make_worker: Callable[..., RolloutWorker]) -> None:
    worker = make_worker()
    take(worker, 2 * STEP)
    worker.update_model_version(2)
    assert consumed(worker) == {}
    take(worker, 3)
    worker.update_model_version(3)
    # The last of three samples is half a group.
    assert set(consumed(worker)) == {"g0", "g1", "g2", "g3"}


def test_a_trainer_that_stops_taking_stops_the_leases(make_worker: Callable[..., RolloutWorker]) -> None:
    worker = make_worker(count=40, queue_samples=STEP)
    take(worker, 1)
    held = 0
    while held != (now := worker.run.status().groups["leased"]) or worker.rollout_buffer.qsize() < STEP:
        held = now
        time.sleep(1.0)
    assert worker.rollout_buffer.qsize() == STEP
    # What is in the queue, half a group before it, and one lease.
    assert held <= 6


def test_a_trainer_that_dies_leaves_everything_that_no_version_has(make_worker: Callable[..., RolloutWorker], name: str) -> None:
    worker = make_worker(count=6, lease_s=6.0, step_samples=STEP)
    rows = take(worker, 2 * STEP)
    worker.update_model_version(2)
    worker.stop()
    with Client() as client:
        run = client.run(name)
        again: set[str] = set()
        deadline = time.monotonic() + 60
        while len(again) < 4 and time.monotonic() < deadline:
            lease = run.lease(8, wait_s=1.0)
            again |= {group.group_id for group in lease.groups}
            if lease.lease_id is not None:
                run.ack(lease.lease_id, [group.group_id for group in lease.groups])
    assert again == {"g2", "g3", "g4", "g5"}
    assert len(rows) == 2 * STEP
