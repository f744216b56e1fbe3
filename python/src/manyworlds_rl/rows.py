"""
For trainers that ask row by row. Rows of one prompt that are asked for together become one group at the service, so that members can be replaced and the baseline of
those that are there can be kept clean; each row then gets its own rollout.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from .aio import AsyncClient
from .collect import AsyncCollector, GroupEnd
from .errors import ConflictError, ManyworldsError
from .rollouts import Rollout, neutral_reward, rollouts_of, stand_in
from .settings import ROW_DRIVEN, Settings
from .types import Submission


@dataclass(frozen=True)
class Row:
    """A row's rollout. When it is not `usable`, `reason` says why, and the rollout is a stand-in that trains nothing."""

    rollout: Rollout
    group_id: str
    reason: str | None


@dataclass
class _Gathering:
    """Rows of one prompt, from the first of them until the loop has let the others arrive."""

    task: asyncio.Task[list[Row]] | None = None
    rows: int = 0
    gone: int = 0
    group_id: str = field(default_factory=lambda: secrets.token_hex(8))


class Rows:
    """One for each event loop and run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._gathering: dict[str, _Gathering] = {}
        self._collector: AsyncCollector | None = None
        self._opening = asyncio.Lock()
        self._version: int | None = None

    async def row(self, prompt: str, submission: Mapping[str, Any], version: int | None = None) -> Row:
        """The rollout of one row. `prompt` names what the rows of a group have in common; `submission` needs `task`. When all rows of a group are cancelled, so is the group."""
        gathering = self._gathering.setdefault(prompt, _Gathering())
        position = gathering.rows
        gathering.rows += 1
        if gathering.task is None:
            gathering.task = asyncio.ensure_future(self._gather(prompt, gathering, dict(submission), version))
        waiting = gathering.task
        try:
            return (await asyncio.shield(waiting))[position]
        except asyncio.CancelledError:
            gathering.gone += 1
            if gathering.gone == gathering.rows and not waiting.done():
                waiting.cancel()
            raise

    async def group(self, name: str, size: int, submission: Mapping[str, Any], version: int | None = None) -> list[Row]:
        """All rollouts of a group, exactly `size`. `name` is used once."""
        collector = await self._open(version)
        group_id = f"{name}.{secrets.token_hex(4)}"
        try:
            wanted = cast(Submission, {**submission, "group_id": group_id, "size": size})
            (end,) = await collector.collect([wanted])
        except asyncio.CancelledError:
            # Nobody waits any more: its machines need not go on.
            await asyncio.shield(collector.run.cancel([group_id]))
            raise
        if end.group is not None:
            # The trainer never says when it has trained on a row; handing it over is the last that is known.
            await collector.consumed([end.group], step=version)
        return _rows_of(end, size)

    async def _gather(self, prompt: str, gathering: _Gathering, submission: dict[str, Any], version: int | None) -> list[Row]:
        # All rows of a batch are started before any of them goes on, so one turn of the loop brings them together.
        await asyncio.sleep(0)
        self._gathering.pop(prompt, None)
        return await self.group(gathering.group_id, gathering.rows, submission, version)

    async def _open(self, version: int | None) -> AsyncCollector:
        async with self._opening:
            if self._collector is None:
                settings = self.settings
                run = await AsyncClient(settings.url, settings.api_key).run(settings.run, {**ROW_DRIVEN, **settings.config} if settings.config else None)
                self._collector = AsyncCollector(run, stall_s=settings.stall_s)
            # Without a word about versions the first is 0: nothing runs before there is a policy.
            await self._move_to(self._collector, 0 if version is None and self._version is None and self.settings.endpoints is not None else version)
            return self._collector

    async def _move_to(self, collector: AsyncCollector, version: int | None) -> None:
        if version is None or (self._version is not None and version <= self._version):
            return
        # A conflict: another process of the trainer was faster.
        with suppress(ConflictError):
            await collector.run.set_policy(version, model=self.settings.model, endpoints=self.settings.endpoints)
        self._version = version

    async def close(self) -> None:
        if self._collector is not None:
            await self._collector.close()


_open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Rows]] = weakref.WeakKeyDictionary()


def rows_of(settings: Mapping[str, Any], trainer: str) -> Rows:
    """The `Rows` of the running loop for these settings."""
    here = _open.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(settings, sort_keys=True, default=str)
    if key not in here:
        here[key] = Rows(Settings.of(settings, trainer))
    return here[key]


def submission_of_row(row: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """What a dataset row says about its task: `task`, else the same in its `extra_info` or `metadata`. `harness`, `sampling` and `deadline_s` are taken along."""
    places = [row, *(row[name] for name in ("extra_info", "metadata") if isinstance(row.get(name), Mapping))]
    found = {key: place[key] for place in reversed(places) for key in ("task", "harness", "sampling", "deadline_s") if place.get(key) is not None}
    if not isinstance(found.get("task"), str):
        raise ManyworldsError(f"{trainer}: a row without `task`. Give each row the absolute path of a task's directory, as a column `task` or in `extra_info`")
    if isinstance(found.get("harness"), str):
        found["harness"] = [found["harness"]]
    return found


def _rows_of(end: GroupEnd, size: int) -> list[Row]:
    if end.group is None:
        reason = end.reason or f"the group {end.outcome}"
        return [Row(stand_in(member, neutral_reward([])), end.group_id, reason) for member in range(size)]
    causes = ", ".join(f"{failure.count} {failure.cls} {failure.code}" for failure in end.group.failures)
    return [Row(rollout, end.group_id, None if rollout.usable else causes or "missing") for rollout in rollouts_of(end.group, size)]
