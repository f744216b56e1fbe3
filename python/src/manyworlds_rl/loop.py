"""
The loop of a trainer that takes whatever group is ready next.

    with groups(run, ledger=ledger) as stream:
        for batch in stream.batches(8):
            train(batch)
            stream.consumed(*batch, step=step, version=version)

A thread extends the leases while a step runs, however long it takes. A trainer that is killed loses its leases after their time, and the same groups come again.
With asyncio: `aio_loop.async_groups`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from ._held import Away, Ledger, Watch, ids_of
from ._leases import HeldLeases
from .client import Run
from .errors import ApiError, ManyworldsError, UnreachableError
from .types import Group, Lease, Status

__all__ = ["GroupStream", "Ledger", "groups"]


def groups(
    run: Run,
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
) -> GroupStream:
    """
    Groups of a run, in its order, until it is finished.

    `at_once`: groups asked for in one lease. `max_held`: groups that may be held without being acknowledged (4 * `at_once`); beyond, asking for more is an error.
    `version`: the trainer's version now, for the staleness check of the lease. `stall_s`: how long nothing may end in the run before `RunStalledError`.
    `unreachable_s`: how long the service may be away. A run that failed raises `RunDeadError`.
    """
    return GroupStream(run, Course(run.name, at_once, max_held, ledger, version, max_staleness, max_bytes, consumer, stall_s, unreachable_s))


class Course:
    """Where a stream stands: what came, what may be asked for, and when asking is over. Without input or output."""

    def __init__(
        self,
        run: str,
        at_once: int,
        max_held: int | None,
        ledger: Ledger | None,
        version: Callable[[], int] | None,
        max_staleness: int | None,
        max_bytes: int | None,
        consumer: str,
        stall_s: float,
        unreachable_s: float,
    ) -> None:
        self.run = run
        self.ledger = Ledger() if ledger is None else ledger
        self.ready: deque[Group] = deque()
        self.finished = False
        self._at_once = at_once
        self._max_held = max_held or 4 * at_once
        self._version = version
        self._more: dict[str, Any] = {"max_staleness": max_staleness, "max_bytes": max_bytes, "consumer": consumer}
        self._watch = Watch(run, stall_s)
        self._away = Away(unreachable_s)
        self._asked = 0.0
        self._wait_s = 0.0

    def lacks(self) -> bool:
        """More is to be asked for. What came again, and was consumed since then, is no more."""
        while self.ready and self.ready[0].group_id in self.ledger:
            self.ready.popleft()
        return not self.ready and not self.finished

    def ask(self, held: int, want: int, give_up: float | None) -> dict[str, Any]:
        """Arguments of the next lease. Raises when too much is held."""
        if held >= self._max_held:
            raise ManyworldsError(f"{held} groups of run {self.run} are held and not acknowledged. Call `consumed` or `reject` for what was used, or raise `max_held`")
        self._asked = time.monotonic()
        self._wait_s = max(0.0, min(30.0, self._watch.stall_s, float("inf") if give_up is None else give_up - self._asked))
        count = min(max(self._at_once, want), self._max_held - held)
        return {"max_groups": count, "wait_s": self._wait_s, "current_version": None if self._version is None else self._version(), **self._more}

    def failed(self, error: ManyworldsError) -> float:
        """Seconds to wait after an error; raises it when it is no use."""
        return self._away.failed(error)

    def take(self, lease: Lease) -> list[str]:
        """Groups that were trained on in an earlier life of this trainer: they are to be acknowledged."""
        self._away.back()
        self.finished = self._watch.ended(lease)
        known = [group.group_id for group in lease.groups if group.group_id in self.ledger]
        self.ready.extend(group for group in lease.groups if group.group_id not in self.ledger)
        return known

    def pause_s(self) -> float:
        """Before a lease of a run that is about to be finished, whose rest others hold: the service does not wait for them, and what they give back may come."""
        return max(0.0, min(1.0, self._asked + self._wait_s - time.monotonic()))

    @staticmethod
    def is_the_rest(status: Status, held: int) -> bool:
        """Nothing more comes unless this stream lets go of what it holds."""
        counts = status.groups
        return counts["waiting"] + counts["running"] + counts["ready"] == 0 and 0 < counts["leased"] <= held

    def next(self) -> Group | None:
        return self.ready.popleft() if self.ready else None


class GroupStream:
    def __init__(self, run: Run, course: Course) -> None:
        self.run = run
        self._course = course
        self._leases = HeldLeases(run)

    @property
    def ledger(self) -> Ledger:
        return self._course.ledger

    @property
    def ended(self) -> bool:
        """The run is finished and everything of it was given out."""
        return self._course.finished and not self._course.ready

    def __iter__(self) -> Iterator[Group]:
        while True:
            group = self.next()
            if group is None:
                return
            yield group

    def batches(self, count: int) -> Iterator[list[Group]]:
        """Lists of `count` groups; the last one may be shorter."""
        while True:
            # By name: what is still held when its lease's time is over, as after a stall, comes again.
            batch: dict[str, Group] = {}
            while len(batch) < count:
                group = self.next(want=count - len(batch))
                if group is None:
                    break
                batch[group.group_id] = group
            if not batch:
                return
            yield list(batch.values())

    def next(self, want: int = 1, wait_s: float | None = None) -> Group | None:
        """The next group; None when the run is finished, when all that is left of it is held here already, or when none came within `wait_s`."""
        course = self._course
        give_up = None if wait_s is None else time.monotonic() + wait_s
        while course.lacks():
            lease = self._lease(course.ask(len(self._leases), want, give_up))
            self._leases.add(lease)
            known = course.take(lease)
            if known:
                self._leases.acknowledge(known)
            if not course.lacks():
                break
            if give_up is not None and time.monotonic() >= give_up:
                return None
            if lease.run_state == "draining":
                if course.is_the_rest(self.run.status(), len(self._leases)):
                    return None
                self._leases.wait(course.pause_s())
        return course.next()

    def _lease(self, asked: dict[str, Any]) -> Lease:
        while True:
            try:
                return self.run.lease(**asked)
            except (UnreachableError, ApiError) as error:
                if self._leases.closed:
                    raise
                self._leases.wait(self._course.failed(error))

    def consumed(self, *done: Group | str, step: int | None = None, version: int | None = None, checkpoint: str | None = None) -> None:
        """
        The trainer has used these groups: they are in the ledger, and never come again. `step`, `version` (the first that was trained on them) and `checkpoint` are kept
        for the lineage. Save the ledger with the checkpoint that holds the step.
        """
        names = ids_of(done)
        self.ledger.add(*names)
        self._leases.acknowledge(names, trained_version=version, step=step, checkpoint=checkpoint)

    def reject(self, *refused: Group | str, reason: str = "filtered") -> None:
        """These groups were not used: stale, filtered, overlong or trainer_error."""
        self._leases.acknowledge([], [(name, reason) for name in ids_of(refused)])

    def leases_of(self, held: Iterable[Group | str]) -> dict[str, list[str]]:
        """Which leases hold these groups: with that another process can acknowledge them, should this one die."""
        return self._leases.of(ids_of(held))

    def close(self) -> None:
        """Stops extending. What is not acknowledged goes back when its lease expires."""
        self._leases.close()

    def __enter__(self) -> GroupStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
