"""
Rollouts that are driven from here: a machine for one attempt at a task, commands in it, and a grade from a fresh machine at the end.

    with DrivenRollout(client, "/tasks/a") as rollout:
        print(rollout.instruction)
        print(rollout.exec("ls").output)
        print(rollout.end().reward)

Who goes away without ending it lets it be cancelled after `ttl_s`; a thread of this process says until then that its driver lives.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from . import _calls
from .client import Client
from .errors import ManyworldsError, NotFoundError
from .types import Begun, ExecResult, RolloutEnd


class DrivenRollout:
    """Blocking. Begins when it is made: the machine is ready then."""

    def __init__(self, client: Client, task: str, *, seed: str = "0", group: str | None = None, ttl_s: float = 120.0) -> None:
        self.client = client
        self.ttl_s = ttl_s
        self.begun: Begun = client.do(_calls.begin_rollout(task, seed, group, ttl_s))
        self.ended: RolloutEnd | None = None
        _HEART.add(self)

    @property
    def instruction(self) -> str:
        return self.begun.instruction

    def exec(self, command: str | Sequence[str], *, stdin: str | None = None, timeout_s: float | None = None) -> ExecResult:
        """One command: a string for `/bin/sh -c`, or a list of arguments. It is not sent twice: a command that may have run is an error."""
        return self.client.do(_calls.exec_in_rollout(self.begun.rollout_id, command, stdin, timeout_s))

    def extend(self) -> None:
        self.client.do(_calls.extend_rollout(self.begun.rollout_id, self.ttl_s))

    def end(self, stop_reason: str = "finished") -> RolloutEnd:
        """Grades the work. Asked again it gives the same answer."""
        if self.ended is None:
            self.ended = self.client.do(_calls.end_rollout(self.begun.rollout_id, stop_reason))
            _HEART.remove(self)
        return self.ended

    def cancel(self) -> None:
        """Gives the machine back without a grade, unless it is ended."""
        if self.ended is None:
            _HEART.remove(self)
            with contextlib.suppress(NotFoundError):
                self.ended = self.client.do(_calls.cancel_rollout(self.begun.rollout_id))

    def __enter__(self) -> DrivenRollout:
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()


class _Heart:
    """One thread for all rollouts of this process, while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: weakref.WeakSet[DrivenRollout] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, rollout: DrivenRollout) -> None:
        with self._lock:
            self._living.add(rollout)
            self._wake.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._beat, name="manyworlds-rollouts", daemon=True)
                self._thread.start()

    def remove(self, rollout: DrivenRollout) -> None:
        with self._lock:
            self._living.discard(rollout)

    def _beat(self) -> None:
        while True:
            with self._lock:
                wait_s = min((rollout.ttl_s / 3 for rollout in self._living), default=30.0)
            if self._wake.wait(wait_s):
                # Another one, whose time may be shorter.
                self._wake.clear()
                continue
            with self._lock:
                living = [rollout for rollout in self._living if rollout.ended is None]
            for rollout in living:
                with contextlib.suppress(ManyworldsError):
                    rollout.extend()
            del living


_HEART = _Heart()
