"""Steps of trainers that take whole batches of groups: drawn by the service from its mix of tasks, or made from the trainer's own prompts."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from .client import Client, Run
from .collect import Collector
from .errors import ConflictError, ManyworldsError, NotFoundError
from .loop import GroupStream, groups
from .settings import Settings
from .types import Endpoint, Group, Submission

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepsKey:
    trainer: str
    settings: str

    @staticmethod
    def of(args: Any, trainer: str) -> StepsKey:
        """From what the trainer read out of its `--custom-config-path`."""
        given = getattr(args, "manyworlds", None)
        Settings.of(given, trainer)
        return StepsKey(trainer, json.dumps(given, sort_keys=True))


_open: dict[StepsKey, Steps] = {}


def steps_of(key: StepsKey) -> Steps:
    """One for each process and run: it holds leases from step to step."""
    if key not in _open:
        _open[key] = Steps(Settings.of(json.loads(key.settings), key.trainer))
    return _open[key]


class Steps:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run: Run = Client(settings.url, settings.api_key).run(settings.run, settings.config or None)
        self.draws_tasks = bool(settings.config.get("dataset"))
        self._stream: GroupStream | None = None
        self._collector: Collector | None = None
        self._taken: list[Group] = []
        self._failed = 0
        self._begun = False
        self._notes: Path | None = None
        # Names of groups are used once: a trainer that starts again submits what it repeats under new ones.
        self._life = secrets.token_hex(4)

    def begin(self, args: Any, step: int) -> None:
        """
        Acknowledges the step before: the trainer has it, or it would not ask for more. Then notes beside the trainer's checkpoints what is consumed, and tells of the policy, whose
        version is the step's number: these trainers update the engines once a step. A trainer that resumes goes back to the note of its first step.
        """
        notes = None if getattr(args, "save", None) is None else Path(args.save) / "manyworlds"
        restored = False
        if not self._begun:
            self._begun = True
            restored = self._resume(notes, step)
        self._acknowledge(step - 1)
        self._notes = notes
        # A note where the trainer has a checkpoint, and no second one for the same: the service keeps what was consumed since the last two.
        if notes is not None and not restored and step > 0 and step % (getattr(args, "save_interval", None) or 1) == 0:
            _write(notes / f"{step}.json", vars(self.run.checkpoint()))
        self.tell_policy(step, args)

    def _resume(self, notes: Path | None, step: int) -> bool:
        """What an earlier life of this trainer left: it goes back to where its checkpoint was, and what that has is not trained again. Whether there was a note to go back to."""
        note = None if notes is None else notes / f"{step}.json"
        taken = None if notes is None else notes / "taken.json"
        restored = step > 0 and note is not None and note.exists()
        if note is not None and restored:
            try:
                self.run.restore(json.loads(note.read_text()))
            except ConflictError as error:
                raise ManyworldsError(f"step {step} cannot be resumed in run {self.run.name}: {error}. Or give `run` another name: its groups begin anew") from error
        elif step > 0 and taken is not None and taken.exists():
            # It died after its checkpoint, before it asked for more. A lease whose time is over may still be acknowledged.
            last = json.loads(taken.read_text())
            if last["step"] == step - 1:
                for lease_id, names in last["leases"].items():
                    with contextlib.suppress(NotFoundError):
                        self.run.ack(lease_id, names, step=step - 1)
        if not self.draws_tasks:
            # Those have names that nobody will ask for again.
            self.run.cancel()
        return restored

    def _note_taken(self, step: int, leases: dict[str, list[str]]) -> None:
        if self._notes is not None:
            _write(self._notes / "taken.json", {"step": step, "leases": leases})

    def _acknowledge(self, step: int) -> None:
        taken, self._taken = self._taken, []
        if taken and self._stream is not None:
            self._stream.consumed(*taken, step=step)
        elif taken and self._collector is not None:
            self._collector.consumed(taken, step=step)

    def tell_policy(self, version: int, args: Any) -> None:
        """Where the engines are: the settings' word, else the trainer's router. A version that the service has passed already is no error: another process was faster."""
        endpoints: Sequence[str | Endpoint] | None = self.settings.endpoints
        host = getattr(args, "sglang_router_ip", None)
        if endpoints is None and host is not None:
            endpoints = [Endpoint(url=f"http://{host}:{args.sglang_router_port}", kind=self.settings.kind or "sglang")]
        model = self.settings.model or os.path.basename(str(getattr(args, "hf_checkpoint", "policy")).rstrip("/"))
        try:
            self.run.set_policy(version, model=model, endpoints=endpoints)
        except ConflictError:
            logger.info("run %s has a newer policy than version %d", self.run.name, version)

    def take(self, count: int, step: int) -> list[Group]:
        """`count` groups that the service drew from its mix of tasks."""
        if self._stream is None:
            self._stream = groups(self.run, at_once=count, stall_s=self.settings.stall_s)
        while len(self._taken) < count:
            group = self._stream.next(want=count - len(self._taken))
            if group is None:
                raise ManyworldsError(f"run {self.run.name} is finished: no more groups for step {step}")
            # One that is held past its lease's time comes again.
            if all(group.group_id != taken.group_id for taken in self._taken):
                self._taken.append(group)
        self._note_taken(step, self._stream.leases_of(self._taken))
        return list(self._taken)

    def run_prompts(self, get_samples: Callable[[int], list[list[Any]]], count: int, size: int, step: int) -> list[Group]:
        """Groups for the trainer's own prompts, whose `metadata["task"]` is a task's directory. Prompts whose group failed are replaced by further ones."""
        if self._collector is None:
            self._collector = Collector(self.run, stall_s=self.settings.stall_s)
        self._failed = attempt = 0
        while len(self._taken) < count:
            prompts = get_samples(count - len(self._taken))
            if not prompts:
                raise ManyworldsError(f"the data source has no more prompts for step {step}")
            names = [f"{step}.{attempt + index}.{self._life}" for index in range(len(prompts))]
            attempt += len(prompts)
            ends = self._collector.collect([submission_of(prompt[0], name, size) for prompt, name in zip(prompts, names)])
            self._taken += [end.group for end in ends if end.group is not None]
            self._failed += sum(end.group is None for end in ends)
            if attempt > 20 * count:
                raise ManyworldsError(f"{self._failed} of {attempt} groups of step {step} failed: {ends[-1].reason}. `mw show` says what went wrong in them")
        self._note_taken(step, self._collector.leases_of(self._taken))
        return list(self._taken)

    def metrics(self, taken: Sequence[Group]) -> dict[str, float]:
        """For the trainer's log."""
        expected = sum(group.expected for group in taken)
        return {
            "manyworlds/groups": float(len(taken)),
            "manyworlds/groups_failed": float(self._failed),
            "manyworlds/missing_rollouts": float(expected - sum(group.usable for group in taken)),
            "manyworlds/oldest_version": float(min((group.version_min for group in taken if group.version_min is not None), default=-1)),
            "manyworlds/tokens": float(sum(group.tokens for group in taken)),
        }


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(document))
    draft.replace(path)


def submission_of(prompt: Any, group_id: str, size: int) -> Submission:
    """A trainer's prompt as a group to be run. Raises ManyworldsError for a prompt that names no task."""
    metadata = getattr(prompt, "metadata", None) or {}
    task = metadata.get("task")
    if not isinstance(task, str):
        raise ManyworldsError(
            "a prompt without `task` in its metadata: give the absolute path of a task's directory (--metadata-key), or let the service draw tasks with `dataset`"
        )
    found = Submission(group_id=group_id, task=task, size=size)
    if "harness" in metadata:
        found["harness"] = [metadata["harness"]] if isinstance(metadata["harness"], str) else list(metadata["harness"])
    return found
