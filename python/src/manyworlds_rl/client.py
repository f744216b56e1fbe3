"""The blocking client of the delivery service."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from . import _calls
from ._calls import Address, Call
from ._http import Transport
from .types import Checkpoint, Credits, Endpoint, Lease, Policy, RunConfig, Status, Submission, TerminalRecord

T = TypeVar("T")


class Client:
    """
    The service at `url` (or MW_URL), with its key (or MW_API_KEY).

    Requests that change nothing when they arrive twice are sent again after failures of the connection. Clients and runs pickle: a worker process makes connections of its own.
    `encoding`: how leases travel, `safetensors`, `msgpack` (needs the package msgpack) or `json`.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout_s: float = 60.0, retries: int = 4, encoding: str = "safetensors") -> None:
        self._transport = Transport(Address.of(url, api_key, timeout_s, retries, encoding))

    @property
    def url(self) -> str:
        return self._transport.address.url

    def run(self, name: str, config: RunConfig | None = None) -> Run:
        """
        The run of this name. With a configuration it is made, or found again when it was made with the same one.

        Raises `ConflictError` when it exists with another configuration, `NotFoundError` when no configuration is given and it does not exist.
        """
        self.do(_calls.status(name) if config is None else _calls.create_run(name, config))
        return Run(self, name)

    def do(self, call: Call[T]) -> T:
        return self._transport.do(call)

    def close(self) -> None:
        """Closes idle connections; the client can be used again."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Run:
    """One run. `groups()` in `manyworlds_rl.loop` is the loop that most trainers want; the methods here are the routes themselves."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"Run({self.name!r} at {self.client.url})"

    def status(self) -> Status:
        return self.client.do(_calls.status(self.name))

    def set_policy(self, version: int, *, state: str = "live", model: str | None = None, endpoints: Sequence[str | Endpoint] | None = None) -> Policy:
        """Versions only grow. While the state is `updating`, model calls of agents wait; `model` and `endpoints` must be given the first time."""
        return self.client.do(_calls.policy(self.name, version, state, model, endpoints))

    @contextmanager
    def updating(self, version: int, *, model: str | None = None, endpoints: Sequence[str | Endpoint] | None = None) -> Iterator[None]:
        """
        Holds the agents' model calls while the body loads new weights, and lets them go on under `version` after it. When the body fails, they go on under the old
        version: then the engines must still have the old weights.
        """
        before = self.status().policy.version
        if before is not None:
            self.set_policy(before, state="updating")
        try:
            yield
        except BaseException:
            if before is not None:
                self.set_policy(before)
            raise
        self.set_policy(version, model=model, endpoints=endpoints)

    def submit(self, groups: Iterable[Submission]) -> Credits:
        """All of them or none. Again with the same content changes nothing; raises `OverloadedError` over credits."""
        return self.client.do(_calls.submit(self.name, groups))

    def lease(
        self,
        max_groups: int = 8,
        *,
        min_groups: int = 1,
        wait_s: float = 30.0,
        current_version: int | None = None,
        max_staleness: int | None = None,
        max_bytes: int | None = None,
        consumer: str = "trainer",
        group_ids: Sequence[str] | None = None,
    ) -> Lease:
        """Groups to train on, until the lease expires; empty when none came in time. `run_state` says whether there is a point in asking again.

        With `group_ids` only those: what of them is over without samples is in `ended`.
        """
        return self.client.do(_calls.lease(self.name, max_groups, min_groups, wait_s, current_version, max_staleness, max_bytes, consumer, group_ids))

    def ack(
        self,
        lease_id: str,
        consumed: Sequence[str] = (),
        rejected: Sequence[tuple[str, str]] = (),
        *,
        trained_version: int | None = None,
        step: int | None = None,
        checkpoint: str | None = None,
    ) -> Credits:
        """Ends the hold on groups of a lease. `rejected` holds pairs of group and reason: stale, filtered, overlong, trainer_error."""
        return self.client.do(_calls.ack(lease_id, consumed, rejected, trained_version, step, checkpoint))

    def extend(self, lease_id: str) -> float:
        """When the lease expires now, in milliseconds since the epoch."""
        return self.client.do(_calls.extend(lease_id))

    def cancel(self, group_ids: Sequence[str] | None = None, *, older_than_version: int | None = None) -> list[str]:
        """Ends groups that are not finished: those named, those begun under older versions, or all."""
        return self.client.do(_calls.cancel(self.name, group_ids, older_than_version))

    def terminal(self, after: int = 0, limit: int = 1000) -> list[TerminalRecord]:
        return self.client.do(_calls.terminal(self.name, after, limit))

    def checkpoint(self) -> Checkpoint:
        return self.client.do(_calls.checkpoint(self.name))

    def restore(self, state: Checkpoint | Mapping[str, Any]) -> Status:
        """Makes what was consumed after this checkpoint deliverable again."""
        return self.client.do(_calls.restore(self.name, state))

    def finish(self, *, wait: bool = True, poll_s: float = 1.0) -> Status:
        """Begins nothing more; with `wait`, returns when everything has ended."""
        status = self.client.do(_calls.finish_run(self.name))
        while wait and status.state == "draining":
            time.sleep(poll_s)
            status = self.status()
        return status

    def delete(self) -> None:
        """Ends the run now and frees its name."""
        self.client.do(_calls.delete_run(self.name))
