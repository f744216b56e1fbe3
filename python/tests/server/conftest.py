"""Tests against the real delivery service, started by test/interop/python/client.test.ts; its rollouts are simulated, by the names of their tasks (see there)."""

from __future__ import annotations

import os
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from manyworlds_rl import Client, Run, RunConfig


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make_run(client: Client, name: str) -> Iterator[Callable[..., Run]]:
    """A run with a live policy; it is ended with the test."""
    made: list[Run] = []

    def make(policy: bool = True, **config: Any) -> Run:
        wanted: RunConfig = {"group_size": 2, "batch_groups": 64, "admission": "at_lease", "partial": {"rule": "min_usable", "min": 1}, **config}  # type: ignore[typeddict-item]
        run = client.run(name, wanted)
        made.append(run)
        if policy:
            run.set_policy(0, model="m", endpoints=["http://127.0.0.1:1"])
        return run

    yield make
    for run in made:
        run.delete()


def restart_service() -> None:
    """The service is closed and opened again on the same directory and port."""
    urllib.request.urlopen(os.environ["MW_CONTROL"] + "/restart", data=b"").read()


def submissions(count: int, task: str = "/t/ok", prefix: str = "g") -> list[Any]:
    return [{"group_id": f"{prefix}{at}", "task": task} for at in range(count)]


def finish_when_ready(run: Run) -> None:
    """Finishing begins nothing more, so what was submitted is let through first."""
    while True:
        counts = run.status().groups
        if counts["waiting"] + counts["running"] == 0:
            break
        time.sleep(0.01)
    run.finish(wait=False)
