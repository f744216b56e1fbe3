"""Trainers that take whole steps, killed and resumed: what a checkpoint holds was trained on once, nothing else is lost. As slime does it; miles' steps are the same code."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trainer_stubs
from conftest import submissions

from manyworlds_rl import ManyworldsError, Run, _steps
from manyworlds_rl.slime import generate_rollout


@pytest.fixture(autouse=True)
def _stubs() -> None:
    trainer_stubs.install()


class Trainer:
    """One life of a trainer: killed, nothing of it is left but what lies on the disk and at the service."""

    def __init__(self, run: Run, save: Path, source: Any = None, save_interval: int | None = None) -> None:
        _steps._open.clear()
        given = {"run": run.name, "model": "m", "endpoints": ["http://127.0.0.1:1"], "config": {} if source is not None else {"dataset": [{}]}}
        self.args = SimpleNamespace(manyworlds=given, rollout_batch_size=2, n_samples_per_prompt=2, hf_checkpoint="m", save=str(save), save_interval=save_interval)
        self.source = source

    def generate(self, step: int) -> list[str]:
        output = generate_rollout(self.args, step, self.source)
        return [group[0].metadata["manyworlds"]["group"] for group in output.samples]

    def kill(self) -> None:
        """A process that is gone extends nothing."""
        for steps in _steps._open.values():
            for held in (steps._stream, steps._collector):
                if held is not None:
                    held.close()
        _steps._open.clear()


class Prompts:
    def __init__(self) -> None:
        self.count = 0

    def get_samples(self, count: int) -> list[list[Any]]:
        self.count += count
        return [[SimpleNamespace(metadata={"task": "/t/ok"})] for _ in range(count)]


@pytest.fixture
def drawn(make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> Callable[[], Run]:
    """A run whose groups come as if the service drew them: the trainer takes any."""

    def make(**config: Any) -> Run:
        run = make_run(lease_s=30, max_staleness=1000, **config)
        run.submit(submissions(40))
        monkeypatch.setattr("manyworlds_rl.client.Client.run", lambda self, name, config=None: Run(self, name))
        return run

    return make


def consumed(run: Run) -> dict[str, int | None]:
    """By group the step that trained it, as the last word of the terminal log has it."""
    last = {record.group_id: record for record in run.terminal()}
    return {name: record.step for name, record in last.items() if record.outcome == "consumed"}


def test_killed_while_it_trains_a_step_it_gets_the_step_again(drawn: Callable[..., Run], tmp_path: Path) -> None:
    run = drawn()
    first = Trainer(run, tmp_path)
    steps = [first.generate(step) for step in range(3)]
    first.kill()
    # The checkpoint of step 1 was the last: step 2 is to be made.
    second = Trainer(run, tmp_path)
    again = second.generate(2)
    assert sorted(again) == sorted(steps[2])
    second.generate(3)
    assert consumed(run) == {**dict.fromkeys(steps[0], 0), **dict.fromkeys(steps[1], 1), **dict.fromkeys(steps[2], 2)}
    second.kill()


def test_killed_between_its_checkpoint_and_the_next_step_it_trains_nothing_twice(drawn: Callable[..., Run], tmp_path: Path) -> None:
    run = drawn()
    first = Trainer(run, tmp_path)
    steps = [first.generate(step) for step in range(3)]
    first.kill()
    # The checkpoint of step 2 was written, and then the end came: step 3 is to be made, and nobody has told the service of step 2.
    second = Trainer(run, tmp_path)
    after = second.generate(3)
    assert not set(after) & {name for step in steps for name in step}
    assert consumed(run) == {name: at for at, step in enumerate(steps) for name in step}
    second.kill()


def test_checkpoints_some_steps_apart_are_all_that_can_be_gone_back_to(drawn: Callable[..., Run], tmp_path: Path) -> None:
    run = drawn()
    first = Trainer(run, tmp_path, save_interval=4)
    steps = [first.generate(step) for step in range(11)]
    first.kill()
    second = Trainer(run, tmp_path, save_interval=4)
    assert sorted(second.generate(8)) == sorted(steps[8])
    second.kill()
    # Once more, to the checkpoint before; what came after it comes again, oldest first.
    third = Trainer(run, tmp_path, save_interval=4)
    assert sorted(third.generate(4)) == sorted(steps[4])
    assert run.status().policy.version == 4
    third.kill()


def test_what_the_service_has_let_go_is_an_error_that_says_what_to_do(drawn: Callable[..., Run], tmp_path: Path) -> None:
    run = drawn(retain_bytes=0)
    first = Trainer(run, tmp_path)
    for step in range(4):
        first.generate(step)
    first.kill()
    second = Trainer(run, tmp_path)
    with pytest.raises(ManyworldsError, match="another name"):
        second.generate(2)


@pytest.mark.parametrize("trained", [True, False])
def test_prompts_of_its_own_leave_nothing_behind(make_run: Callable[..., Run], tmp_path: Path, trained: bool) -> None:
    run = make_run(lease_s=0.5, max_staleness=1000, credits={"groups": 4, "bytes": 1 << 30})
    prompts = Prompts()
    # More lives than there are credits, were anything of them left.
    for life in range(4):
        first = Trainer(run, tmp_path, prompts)
        before = first.generate(2 * life)
        taken = first.generate(2 * life + 1)
        first.kill()
        if not trained:
            # Killed in the middle of the step, with a checkpoint of the one before.
            second = Trainer(run, tmp_path, prompts)
            assert not set(second.generate(2 * life + 1)) & {*before, *taken}
            second.kill()
    last = Trainer(run, tmp_path, prompts)
    last.generate(8)
    last.kill()
    deadline = time.monotonic() + 60
    while run.status().groups["leased"] > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    counts = run.status().groups
    assert counts["leased"] == 0
    assert counts["waiting"] + counts["running"] == 0
    assert set(consumed(run).values()) == set(range(8))
    assert len(consumed(run)) == 16
