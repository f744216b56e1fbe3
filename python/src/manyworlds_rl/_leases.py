"""Leases in hand, extended until what they hold is acknowledged: by a thread of its own, or a task of the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ._held import Held
from .aio import AsyncRun
from .client import Run
from .errors import ManyworldsError, NotFoundError
from .types import Lease

#: Groups that are not used, each with its reason.
Rejected = Sequence[tuple[str, str]]


class HeldLeases:
    """Of one run; all methods may be called from any thread."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._held = Held()
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._heart: threading.Thread | None = None

    def __len__(self) -> int:
        """Groups that are held."""
        return len(self._held)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def wait(self, seconds: float) -> None:
        """Sleeps, but not past the end."""
        self._closed.wait(seconds)

    def add(self, lease: Lease) -> None:
        self._held.add(lease)
        if lease.lease_id is None:
            return
        with self._starting:
            if self._heart is None:
                self._heart = threading.Thread(target=self._beat, name=f"manyworlds-leases-{self.run.name}", daemon=True)
                self._heart.start()
        self._wake.set()

    def of(self, group_ids: Iterable[str]) -> dict[str, list[str]]:
        """Those of these groups that are held, by lease."""
        return self._held.leases_of(group_ids)

    def acknowledge(self, consumed: Sequence[str], rejected: Rejected = (), **lineage: Any) -> None:
        """Lets groups go, with `trained_version`, `step` and `checkpoint` for the lineage. Groups of leases that had expired, and that somebody else has had since, come again."""
        for lease_id, done, refused in _parts(self._held, consumed, rejected):
            try:
                self.run.ack(lease_id, done, refused, **lineage)
            except NotFoundError:
                self._held.expired(lease_id)

    def _beat(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            for lease_id in self._held.due():
                try:
                    self._held.extended(lease_id, self.run.extend(lease_id))
                except NotFoundError:
                    self._held.expired(lease_id)
                except ManyworldsError:
                    self._held.extended(lease_id, None)
            self._wake.wait(self._held.next_due_s())

    def close(self) -> None:
        """Stops extending. What is not acknowledged goes back when its lease expires."""
        self._closed.set()
        self._wake.set()
        if self._heart is not None:
            self._heart.join(timeout=5.0)


class AsyncHeldLeases:
    """As `HeldLeases`, for one event loop."""

    def __init__(self, run: AsyncRun) -> None:
        self.run = run
        self._held = Held()
        self._heart: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, lease: Lease) -> None:
        self._held.add(lease)
        if self._heart is None and lease.lease_id is not None:
            self._heart = asyncio.get_running_loop().create_task(self._beat())

    async def acknowledge(self, consumed: Sequence[str], rejected: Rejected = (), **lineage: Any) -> None:
        for lease_id, done, refused in _parts(self._held, consumed, rejected):
            try:
                await self.run.ack(lease_id, done, refused, **lineage)
            except NotFoundError:
                self._held.expired(lease_id)

    async def _beat(self) -> None:
        while True:
            for lease_id in self._held.due():
                try:
                    self._held.extended(lease_id, await self.run.extend(lease_id))
                except NotFoundError:
                    self._held.expired(lease_id)
                except ManyworldsError:
                    self._held.extended(lease_id, None)
            # A lease that comes meanwhile wants its first beat after a third of its time, at the earliest.
            await asyncio.sleep(min(0.25, self._held.next_due_s()))

    async def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
            self._heart = None


def _parts(held: Held, consumed: Sequence[str], rejected: Rejected) -> Iterator[tuple[str, list[str], list[tuple[str, str]]]]:
    """What each lease is told."""
    for lease_id, names in held.release([*consumed, *(name for name, _ in rejected)]).items():
        mine = set(names)
        yield lease_id, [name for name in consumed if name in mine], [pair for pair in rejected if pair[0] in mine]
