"""What a trainer holds: leases with groups that are not acknowledged yet, the names of what it consumed, and whether the run still lives. Without input or output."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ApiError, ManyworldsError, RunDeadError, RunStalledError, UnreachableError
from .types import Group, Lease

MAX_REMEMBERED = 65_536


class Ledger:
    """
    Names of consumed groups, as a part of the trainer's own checkpoint.

    A trainer that was killed between its checkpoint and the acknowledgement is given those groups again; what is in the ledger is then acknowledged and not trained twice.
    Holds the last 65,536 names; what was acknowledged before those is not delivered again anyway.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[str, None] = dict.fromkeys(names)

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, *group_ids: str) -> None:
        for group_id in group_ids:
            self._names.pop(group_id, None)
            self._names[group_id] = None
        while len(self._names) > MAX_REMEMBERED:
            del self._names[next(iter(self._names))]

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": list(self._names)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._names = dict.fromkeys(state["consumed"])


class Held:
    """Leases in hand; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lease_of: dict[str, str] = {}
        self._extend_at: dict[str, float] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._lease_of)

    def add(self, lease: Lease) -> None:
        if lease.lease_id is None:
            return
        with self._lock:
            for group in lease.groups:
                self._lease_of[group.group_id] = lease.lease_id
            self._extend_at[lease.lease_id] = time.monotonic() + heartbeat_s(lease.expires_at)

    def due(self) -> list[str]:
        """Leases that want to be extended now."""
        now = time.monotonic()
        with self._lock:
            return [lease for lease, at in self._extend_at.items() if at <= now]

    def next_due_s(self) -> float:
        now = time.monotonic()
        with self._lock:
            return max(0.0, min((at - now for at in self._extend_at.values()), default=60.0))

    def extended(self, lease_id: str, expires_at: float | None) -> None:
        """It expires then; None: it is not known whether it was extended."""
        with self._lock:
            if lease_id in self._extend_at:
                self._extend_at[lease_id] = time.monotonic() + (1.0 if expires_at is None else heartbeat_s(expires_at))

    def expired(self, lease_id: str) -> None:
        """The service extends it no more. Its groups come again, unless they are acknowledged before: late is as good, while nobody else has had them."""
        with self._lock:
            self._extend_at.pop(lease_id, None)

    def leases_of(self, group_ids: Iterable[str]) -> dict[str, list[str]]:
        """By lease, those that are held."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for group_id in group_ids:
                if group_id in self._lease_of:
                    found.setdefault(self._lease_of[group_id], []).append(group_id)
        return found

    def release(self, group_ids: Iterable[str]) -> dict[str, list[str]]:
        """Lets groups go: by lease, those that were held. Of a lease without groups nothing is extended."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for group_id in group_ids:
                lease = self._lease_of.pop(group_id, None)
                if lease is not None:
                    found.setdefault(lease, []).append(group_id)
            alive = set(self._lease_of.values())
            for lease in [lease for lease in self._extend_at if lease not in alive]:
                del self._extend_at[lease]
        return found


def heartbeat_s(expires_at: float | None) -> float:
    """A third of what is left, by this machine's clock; where that makes no sense, the clocks differ, and every second will do."""
    left = 0.0 if expires_at is None else expires_at / 1000 - time.time()
    return min(left / 3, 30.0) if left > 0 else 1.0


class Watch:
    """Says when there is no point in waiting any longer."""

    def __init__(self, run: str, stall_s: float) -> None:
        self.run = run
        self.stall_s = stall_s
        self._progress: float | None = None
        self._since = time.monotonic()

    def ended(self, lease: Lease) -> bool:
        """Whether an empty lease was the last. Raises `RunDeadError` for a run that failed or was closed, `RunStalledError` when nothing has ended in it for `stall_s`."""
        now = time.monotonic()
        if lease.last_progress_at != self._progress or lease.groups:
            self._progress, self._since = lease.last_progress_at, now
        if lease.groups:
            return False
        if lease.run_state in ("failed", "closed"):
            raise RunDeadError(self.run, lease.run_state, lease.reason)
        if lease.run_state == "finished":
            return True
        if now - self._since > self.stall_s:
            raise RunStalledError(self.run, now - self._since)
        return False


class Away:
    """Says how long a service that does not answer is waited for."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None

    def back(self) -> None:
        self._since = None

    def failed(self, error: ManyworldsError) -> float:
        """Seconds to wait after an error; raises it when it is no use."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        passing = isinstance(error, UnreachableError) or (isinstance(error, ApiError) and error.status >= 500)
        if not passing or now - self._since > self._limit_s:
            raise error
        return (error.retry_after if isinstance(error, ApiError) else None) or 1.0


def ids_of(groups: Iterable[Group | str]) -> list[str]:
    return [group if isinstance(group, str) else group.group_id for group in groups]
