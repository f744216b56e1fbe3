"""
As `loop`, with coroutines, for one event loop.

    async with async_groups(run, ledger=ledger) as stream:
        async for batch in stream.batches(8):
            await train(batch)
            await stream.consumed(*batch, step=step, version=version)

A task of the loop extends the leases: of a step that blocks the loop for longer than a lease lasts others get the groups, and so does this trainer when it asks for more before it
acknowledges them. Train in a thread or a process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Callable

from ._held import Ledger, ids_of
from ._leases import AsyncHeldLeases
from .aio import AsyncRun
from .errors import ApiError, UnreachableError
from .loop import Course
from .types import Group, Lease


def async_groups(
    run: AsyncRun,
    *,
    at_once: int = 8,
    max_held: int | None = None,
    ledger: Ledger | None = None,
    version: Callable[[], int] | None = None,
    max_staleness: int | None = None,
    max_bytes: int | None = None,
    consumer: str = "trainer",
    stall_s: float = 4 * 3600.0,
    unreachable_s: float = 600.0,
) -> AsyncGroupStream:
    """Groups of a run, in its order, until it is finished. The arguments are those of `groups`, and so are the errors."""
    return AsyncGroupStream(run, Course(run.name, at_once, max_held, ledger, version, max_staleness, max_bytes, consumer, stall_s, unreachable_s))


class AsyncGroupStream:
    """For one task that takes groups; any task may acknowledge them."""

    def __init__(self, run: AsyncRun, course: Course) -> None:
        self.run = run
        self._course = course
        self._leases = AsyncHeldLeases(run)

    @property
    def ledger(self) -> Ledger:
        return self._course.ledger

    @property
    def ended(self) -> bool:
        """The run is finished and everything of it was given out."""
        return self._course.finished and not self._course.ready

    async def __aiter__(self) -> AsyncIterator[Group]:
        while True:
            group = await self.next()
            if group is None:
                return
            yield group

    async def batches(self, count: int) -> AsyncIterator[list[Group]]:
        """Lists of `count` groups; the last one may be shorter."""
        while True:
            # By name: what is still held when its lease's time is over, as after a stall, comes again.
            batch: dict[str, Group] = {}
            while len(batch) < count:
                group = await self.next(want=count - len(batch))
                if group is None:
                    break
                batch[group.group_id] = group
            if not batch:
                return
            yield list(batch.values())

    async def next(self, want: int = 1, wait_s: float | None = None) -> Group | None:
        """As `GroupStream.next`."""
        course = self._course
        give_up = None if wait_s is None else time.monotonic() + wait_s
        while course.lacks():
            lease = await self._lease(course.ask(len(self._leases), want, give_up))
            self._leases.add(lease)
            known = course.take(lease)
            if known:
                await self._leases.acknowledge(known)
            if not course.lacks():
                break
            if give_up is not None and time.monotonic() >= give_up:
                return None
            if lease.run_state == "draining":
                if course.is_the_rest(await self.run.status(), len(self._leases)):
                    return None
                await asyncio.sleep(course.pause_s())
        return course.next()

    async def _lease(self, asked: dict[str, Any]) -> Lease:
        while True:
            try:
                return await self.run.lease(**asked)
            except (UnreachableError, ApiError) as error:
                await asyncio.sleep(self._course.failed(error))

    async def consumed(self, *done: Group | str, step: int | None = None, version: int | None = None, checkpoint: str | None = None) -> None:
        """As `GroupStream.consumed`."""
        names = ids_of(done)
        self.ledger.add(*names)
        await self._leases.acknowledge(names, trained_version=version, step=step, checkpoint=checkpoint)

    async def reject(self, *refused: Group | str, reason: str = "filtered") -> None:
        """These groups were not used: stale, filtered, overlong or trainer_error."""
        await self._leases.acknowledge([], [(name, reason) for name in ids_of(refused)])

    async def close(self) -> None:
        """Stops extending. What is not acknowledged goes back when its lease expires."""
        await self._leases.close()

    async def __aenter__(self) -> AsyncGroupStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
