"""
For trainers that say what is to be run, and wait for just that: groups are submitted and awaited by name, whatever becomes of them.

    with Collector(run) as collector:
        ends = collector.collect([{"group_id": "g1", "task": "/tasks/a", "size": 8}])
        ...
        collector.consumed([end.group_id for end in ends], step=step)

Any number of collectors, threads, tasks and processes may collect from one run: each leases its own groups alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ._held import Away, Watch, ids_of
from ._leases import AsyncHeldLeases, HeldLeases
from .aio import AsyncRun
from .client import Run
from .errors import ManyworldsError, OverloadedError, RunDeadError
from .types import Group, Lease, Status, Submission

#: How long one lease waits. It ends as soon as something is ready, or has ended otherwise.
WAIT_S = 20.0
#: Names that one lease can ask for.
MAX_NAMES = 4096


@dataclass(frozen=True)
class GroupEnd:
    """How an awaited group ended. `group` is None when nothing of it can be trained on: then `outcome` (failed, cancelled, expired, rejected, consumed) and `reason` say why."""

    group_id: str
    outcome: str
    reason: str | None
    group: Group | None


class _Awaited:
    """The ends of one call's groups, as leases bring them."""

    def __init__(self, run: str, names: Sequence[str], stall_s: float, unreachable_s: float) -> None:
        self.names = list(names)
        self.open: dict[str, None] = dict.fromkeys(names)
        self._ends: dict[str, GroupEnd] = {}
        self._watch = Watch(run, stall_s)
        self.away = Away(unreachable_s)

    def take(self, lease: Lease) -> None:
        """Raises when what is still awaited will never come."""
        self.away.back()
        for group in lease.groups:
            self._end(GroupEnd(group.group_id, group.outcome, None, group))
        for ended in lease.ended:
            self._end(GroupEnd(ended.group_id, ended.outcome, ended.reason, None))
        if self.open and self._watch.ended(lease):
            raise RunDeadError(self._watch.run, lease.run_state, "groups are awaited that it does not have")

    def _end(self, end: GroupEnd) -> None:
        if end.group_id in self.open:
            del self.open[end.group_id]
            self._ends[end.group_id] = end

    def ends(self) -> list[GroupEnd]:
        return [self._ends[name] for name in self.names]


def _too_many(status: Status, count: int) -> ManyworldsError | None:
    """A submission is refused although the run has nothing else to do: waiting would not help."""
    counts = status.groups
    if count <= status.credits.groups or counts["waiting"] + counts["running"] + counts["ready"] + counts["leased"] > 0:
        return None
    return ManyworldsError(f"{count} groups are awaited together, and the run has credits for {status.credits.groups}. Await fewer at once, or raise `credits`")


class Collector:
    """Blocking. A thread of its own extends the leases of what is not acknowledged yet."""

    def __init__(self, run: Run, *, version: int | None = None, stall_s: float = 4 * 3600.0, unreachable_s: float = 600.0, consumer: str = "trainer") -> None:
        self.run = run
        #: The trainer's version, for the staleness check of leases; set it as it grows.
        self.version = version
        self._consumer = consumer
        self._stall_s = stall_s
        self._unreachable_s = unreachable_s
        self._leases = HeldLeases(run)

    def collect(self, submissions: Iterable[Submission]) -> list[GroupEnd]:
        """Submits groups, waiting for credits where there are none, and returns their ends in the same order. Raises what makes waiting pointless."""
        wanted = list(submissions)
        awaited = _Awaited(self.run.name, [submission["group_id"] for submission in wanted], self._stall_s, self._unreachable_s)
        accepted = False
        while awaited.open:
            if self._leases.closed:
                raise ManyworldsError("this collector is closed")
            try:
                if accepted:
                    self._lease(awaited)
                else:
                    # All of it or nothing: callers that each held a part would wait for each other's credits.
                    self.run.submit(wanted)
                    accepted = True
            except OverloadedError as error:
                hopeless = _too_many(self.run.status(), len(wanted))
                if hopeless is not None:
                    raise hopeless from error
                self._leases.wait(error.retry_after or 1.0)
            except ManyworldsError as error:
                self._leases.wait(awaited.away.failed(error))
        return awaited.ends()

    def _lease(self, awaited: _Awaited) -> None:
        names = list(awaited.open)[:MAX_NAMES]
        lease = self.run.lease(len(names), wait_s=WAIT_S, current_version=self.version, consumer=self._consumer, group_ids=names)
        self._leases.add(lease)
        awaited.take(lease)

    def consumed(self, done: Iterable[Group | str], *, step: int | None = None, version: int | None = None, checkpoint: str | None = None) -> None:
        """Acknowledges delivered groups; until then they are held. Names of groups that were not delivered do no harm."""
        self._leases.acknowledge(ids_of(done), trained_version=version, step=step, checkpoint=checkpoint)

    def reject(self, refused: Iterable[Group | str], reason: str = "filtered") -> None:
        self._leases.acknowledge([], [(name, reason) for name in ids_of(refused)])

    def leases_of(self, held: Iterable[Group | str]) -> dict[str, list[str]]:
        """Which leases hold these groups: with that another process can acknowledge them, should this one die."""
        return self._leases.of(ids_of(held))

    def close(self) -> None:
        """Stops extending. What is not acknowledged goes back when its lease expires."""
        self._leases.close()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class AsyncCollector:
    """As `Collector`, for one event loop. Use it as `async with`."""

    def __init__(self, run: AsyncRun, *, version: int | None = None, stall_s: float = 4 * 3600.0, unreachable_s: float = 600.0, consumer: str = "trainer") -> None:
        self.run = run
        self.version = version
        self._consumer = consumer
        self._stall_s = stall_s
        self._unreachable_s = unreachable_s
        self._leases = AsyncHeldLeases(run)

    async def collect(self, submissions: Iterable[Submission]) -> list[GroupEnd]:
        """Submits groups, waiting for credits where there are none, and returns their ends in the same order. Any number of tasks may collect at the same time."""
        wanted = list(submissions)
        awaited = _Awaited(self.run.name, [submission["group_id"] for submission in wanted], self._stall_s, self._unreachable_s)
        accepted = False
        while awaited.open:
            try:
                if accepted:
                    await self._lease(awaited)
                else:
                    await self.run.submit(wanted)
                    accepted = True
            except OverloadedError as error:
                hopeless = _too_many(await self.run.status(), len(wanted))
                if hopeless is not None:
                    raise hopeless from error
                await asyncio.sleep(error.retry_after or 1.0)
            except ManyworldsError as error:
                await asyncio.sleep(awaited.away.failed(error))
        return awaited.ends()

    async def _lease(self, awaited: _Awaited) -> None:
        names = list(awaited.open)[:MAX_NAMES]
        lease = await self.run.lease(len(names), wait_s=WAIT_S, current_version=self.version, consumer=self._consumer, group_ids=names)
        self._leases.add(lease)
        awaited.take(lease)

    async def consumed(self, done: Iterable[Group | str], *, step: int | None = None, version: int | None = None, checkpoint: str | None = None) -> None:
        await self._leases.acknowledge(ids_of(done), trained_version=version, step=step, checkpoint=checkpoint)

    async def reject(self, refused: Iterable[Group | str], reason: str = "filtered") -> None:
        await self._leases.acknowledge([], [(name, reason) for name in ids_of(refused)])

    async def close(self) -> None:
        await self._leases.close()

    async def __aenter__(self) -> AsyncCollector:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
