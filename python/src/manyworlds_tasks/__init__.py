"""
Tasks of Manyworlds as a taskset of verifiers v1, for trainers that own their tasks and send each to an environment server: prime-rl with `mw serve --zmq`.

A top-level module, since verifiers finds tasksets by such names: `env.taskset = { id = "manyworlds-tasks", inputs = ["/abs/worlds/terminal"] }`. See docs/trainers/prime-rl.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field
from verifiers.v1.configs.taskset import TasksetConfig
from verifiers.v1.task import Task, TaskData
from verifiers.v1.taskset import Taskset

__all__ = ["ManyworldsTaskset"]


class ManyworldsTasksConfig(TasksetConfig):  # type: ignore[misc]
    """`inputs`: task directories, or directories of them, at the same paths as where `mw serve` runs. `harness`: candidates, one is drawn for each rollout."""

    inputs: list[str] = Field(default_factory=list)
    harness: list[str] | None = None
    deadline_s: float | None = None


class ManyworldsTaskData(TaskData):  # type: ignore[misc]
    task: str
    harness: list[str] | None = None
    deadline_s: float | None = None


class ManyworldsTask(Task[ManyworldsTaskData]):  # type: ignore[misc]
    """What it is; where it runs, and how it is graded, is the server's."""

    @property
    def key(self) -> str:
        return str(self.data.task)


class ManyworldsTaskset(Taskset[ManyworldsTask, ManyworldsTasksConfig]):  # type: ignore[misc]
    def load(self) -> Iterator[ManyworldsTask]:
        for directory in directories(self.config.inputs):
            instruction = directory / "instruction.md"
            data = ManyworldsTaskData(
                name=f"{directory.parent.name}/{directory.name}",
                prompt=instruction.read_text() if instruction.exists() else None,
                task=str(directory),
                harness=self.config.harness,
                deadline_s=self.config.deadline_s,
            )
            yield ManyworldsTask(data, self.config.task)


def directories(inputs: list[str]) -> Iterator[Path]:
    """Directories with a `task.toml`, in order of their paths. Raises ValueError for an input that has none."""
    for given in inputs:
        root = Path(given).resolve()
        found = sorted(Path(place) for place, _, files in os.walk(root) if "task.toml" in files)
        if not found:
            raise ValueError(f"no task below {root}: a task is a directory with a task.toml")
        yield from found
