"""Every route of the delivery service as a value: what is sent, whether it may be sent twice, and how the answer is read. Both clients carry them out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar, Union
from urllib.parse import quote, urlsplit

from .decode import ENCODINGS, JSON, MSGPACK, SAFETENSORS, decode_lease, msgpack
from .errors import AuthenticationError, InvalidResponseError, ManyworldsError, api_error
from .types import Begun, Checkpoint, Credits, Endpoint, ExecResult, Lease, Policy, RolloutEnd, RunConfig, Status, Submission, TerminalRecord, make, make_status, make_terminal

T = TypeVar("T")
Body = Union[bytearray, bytes]


@dataclass(frozen=True)
class Answer:
    status: int
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytearray


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    path: str
    read: Callable[[Answer], T]
    document: Any | None = None
    #: Media type of the answer; None: that in which the client takes leases.
    accept: str | None = JSON
    #: May be sent again when it is not known whether it arrived.
    idempotent: bool = True
    #: How long the service may take by the request itself, beyond the time-out.
    wait_s: float = 0.0

    def body(self) -> bytes:
        return b"" if self.document is None else json.dumps(self.document).encode()


@dataclass(frozen=True)
class Address:
    """Where the service is. Picklable, as the clients are: connections are made where they are used."""

    url: str
    api_key: str
    timeout_s: float = 60.0
    #: How often an idempotent request is sent again after a failure of the connection or a 502, 503 or 504.
    retries: int = 4
    #: The media type of leases.
    lease_type: str = SAFETENSORS

    @staticmethod
    def of(url: str | None, api_key: str | None, timeout_s: float, retries: int, encoding: str) -> Address:
        where = url or os.environ.get("MW_URL")
        if not where:
            raise ManyworldsError("no service: give `url`, or set MW_URL to what `mw serve` printed")
        parts = urlsplit(where)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ManyworldsError(f"no address of a service: {where!r}; it begins with http:// or https://")
        if encoding not in ENCODINGS:
            raise ManyworldsError(f"leases do not come as {encoding!r}: `encoding` is one of {', '.join(ENCODINGS)}")
        if ENCODINGS[encoding] == MSGPACK:
            msgpack()
        return Address(where.rstrip("/"), api_key or os.environ.get("MW_API_KEY", ""), timeout_s, retries, ENCODINGS[encoding])

    def __repr__(self) -> str:
        return f"Address(url={self.url!r})"

    def headers(self, call: Call[Any], body: bytes) -> list[tuple[str, str]]:
        found = [("Accept", f"{call.accept or self.lease_type}, application/problem+json"), ("User-Agent", "manyworlds-rl/0.1.0")]
        if self.api_key:
            found.append(("Authorization", f"Bearer {self.api_key}"))
        if call.document is not None:
            found.append(("Content-Type", JSON))
        if call.document is not None or call.method in ("POST", "PUT"):
            found.append(("Content-Length", str(len(body))))
        return found


#: Answers of something before the service, or of a service that is going down or coming up.
RETRIED = (502, 503, 504)


def pause_s(attempt: int, retry_after: float | None) -> float:
    """Seconds before the next attempt; the service's own word counts, within reason."""
    return min(retry_after if retry_after is not None else 0.1 * 2.0**attempt, 30.0)


def retry_after_of(answer: Answer) -> float | None:
    try:
        return max(0.0, float(answer.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def finish(call: Call[T], answer: Answer) -> T:
    """The result of a call, or the error that the service reported."""
    if 200 <= answer.status < 300:
        return call.read(answer)
    try:
        body = json.loads(bytes(answer.body)) if answer.body else {}
    except ValueError:
        body = {}
    error = api_error(answer.status, body if isinstance(body, dict) else {}, retry_after_of(answer))
    if isinstance(error, AuthenticationError) and error.fix is None:
        error.fix = "Give `api_key`, or set MW_API_KEY to the key that `mw serve` names"
    raise error


def _json(answer: Answer) -> Any:
    try:
        return json.loads(bytes(answer.body))
    except ValueError as error:
        raise InvalidResponseError(f"the service sent no JSON: {error}") from error


def _run(name: str, rest: str = "") -> str:
    return f"/v1/runs/{quote(name, safe='')}{rest}"


def _read_status(answer: Answer) -> Status:
    return make_status(_json(answer))


def _read_policy(answer: Answer) -> Policy:
    return make(Policy, _json(answer))


def _read_credits(answer: Answer) -> Credits:
    """Credits stand in the answer as they are, or under their name."""
    document = _json(answer)
    return make(Credits, document.get("credits", document) if isinstance(document, dict) else document)


def _read_lease(answer: Answer) -> Lease:
    return decode_lease(answer.body, answer.headers.get("content-type", ""))


def _read_expiry(answer: Answer) -> float:
    document = _json(answer)
    expires = document.get("expires_at") if isinstance(document, dict) else None
    if not isinstance(expires, (int, float)):
        raise InvalidResponseError("a lease was extended without saying until when")
    return float(expires)


def _read_cancelled(answer: Answer) -> list[str]:
    document = _json(answer)
    names = document.get("cancelled") if isinstance(document, dict) else None
    if not isinstance(names, list):
        raise InvalidResponseError("the service does not say what it cancelled")
    return [str(name) for name in names]


def _read_terminal(answer: Answer) -> list[TerminalRecord]:
    document = _json(answer)
    records = document.get("records") if isinstance(document, dict) else document
    if not isinstance(records, list):
        raise InvalidResponseError("the service sent no terminal records")
    return [make_terminal(record) for record in records]


def _read_checkpoint(answer: Answer) -> Checkpoint:
    return make(Checkpoint, _json(answer))


def create_run(name: str, config: RunConfig) -> Call[Status]:
    return Call("PUT", _run(name), _read_status, dict(config))


def status(name: str) -> Call[Status]:
    return Call("GET", _run(name, "/status"), _read_status)


def policy(name: str, version: int, state: str, model: str | None, endpoints: Sequence[str | Endpoint] | None) -> Call[Policy]:
    document = {
        "version": version,
        "state": state,
        "model": model,
        "endpoints": None if endpoints is None else [{"url": e} if isinstance(e, str) else dict(e) for e in endpoints],
    }
    return Call("PUT", _run(name, "/policy"), _read_policy, {key: value for key, value in document.items() if value is not None})


def submit(name: str, groups: Iterable[Submission]) -> Call[Credits]:
    return Call("POST", _run(name, "/groups"), _read_credits, {"groups": [dict(group) for group in groups]})


def lease(
    name: str,
    max_groups: int,
    min_groups: int,
    wait_s: float,
    current_version: int | None,
    max_staleness: int | None,
    max_bytes: int | None,
    consumer: str,
    group_ids: Sequence[str] | None = None,
) -> Call[Lease]:
    document = {
        "consumer": consumer,
        "max_groups": max_groups,
        "min_groups": min_groups,
        "wait_ms": min(60_000, max(0, round(wait_s * 1000))),
        "current_version": current_version,
        "max_staleness": max_staleness,
        "max_bytes": max_bytes,
        "group_ids": None if group_ids is None else list(group_ids),
    }
    # Not idempotent: a lease whose answer was lost holds its groups until it expires.
    return Call("POST", _run(name, "/lease"), _read_lease, {key: value for key, value in document.items() if value is not None}, None, idempotent=False, wait_s=wait_s)


def ack(
    lease_id: str,
    consumed: Sequence[str],
    rejected: Sequence[tuple[str, str]],
    trained_version: int | None,
    step: int | None,
    checkpoint: str | None,
) -> Call[Credits]:
    document = {
        "consumed": list(consumed),
        "rejected": [{"group_id": group_id, "reason": reason} for group_id, reason in rejected],
        "trained_version": trained_version,
        "step": step,
        "checkpoint": checkpoint,
    }
    return Call("POST", f"/v1/leases/{quote(lease_id, safe='')}/ack", _read_credits, {key: value for key, value in document.items() if value is not None})


def extend(lease_id: str) -> Call[float]:
    return Call("POST", f"/v1/leases/{quote(lease_id, safe='')}/extend", _read_expiry, {})


def cancel(name: str, group_ids: Sequence[str] | None, older_than_version: int | None) -> Call[list[str]]:
    if group_ids is not None:
        document: Any = {"group_ids": list(group_ids)}
    elif older_than_version is not None:
        document = {"older_than_version": older_than_version}
    else:
        document = {"all": True}
    return Call("POST", _run(name, "/cancel"), _read_cancelled, document)


def terminal(name: str, after: int, limit: int) -> Call[list[TerminalRecord]]:
    return Call("GET", _run(name, f"/terminal?after={after}&limit={limit}"), _read_terminal)


def checkpoint(name: str) -> Call[Checkpoint]:
    return Call("POST", _run(name, "/checkpoint"), _read_checkpoint, {})


def restore(name: str, state: Checkpoint | Mapping[str, Any]) -> Call[Status]:
    return Call("POST", _run(name, "/restore"), _read_status, dict(state) if isinstance(state, Mapping) else dict(vars(state)))


def finish_run(name: str) -> Call[Status]:
    return Call("POST", _run(name, "/finish"), _read_status, {})


def delete_run(name: str) -> Call[None]:
    return Call("DELETE", _run(name), lambda answer: None)


# --- rollouts that are driven from outside ------------------------------------------------------------------------


def begin_rollout(task: str, seed: str, group: str | None, ttl_s: float) -> Call[Begun]:
    document = {"task": task, "seed": seed, "group": group, "ttl_s": ttl_s}
    # Not idempotent: a rollout whose answer was lost is cancelled after its time. The machine may take as long as its image does.
    return Call(
        "POST",
        "/v1/rollouts",
        lambda answer: make(Begun, _json(answer)),
        {key: value for key, value in document.items() if value is not None},
        idempotent=False,
        wait_s=1800.0,
    )


def _rollout(rollout_id: str, rest: str = "") -> str:
    return f"/v1/rollouts/{quote(rollout_id, safe='')}{rest}"


def exec_in_rollout(rollout_id: str, command: str | Sequence[str], stdin: str | None, timeout_s: float | None) -> Call[ExecResult]:
    document: dict[str, Any] = {"command": command if isinstance(command, str) else list(command)}
    if stdin is not None:
        document["stdin"] = stdin
    if timeout_s is not None:
        document["timeout_s"] = timeout_s
    return Call("POST", _rollout(rollout_id, "/exec"), lambda answer: make(ExecResult, _json(answer)), document, idempotent=False, wait_s=(timeout_s or 3600.0))


def extend_rollout(rollout_id: str, ttl_s: float) -> Call[None]:
    return Call("POST", _rollout(rollout_id, "/extend"), lambda answer: None, {"ttl_s": ttl_s})


def end_rollout(rollout_id: str, stop_reason: str) -> Call[RolloutEnd]:
    return Call("POST", _rollout(rollout_id, "/end"), lambda answer: make(RolloutEnd, _json(answer)), {"stop_reason": stop_reason}, wait_s=3600.0)


def cancel_rollout(rollout_id: str) -> Call[RolloutEnd]:
    return Call("DELETE", _rollout(rollout_id), lambda answer: make(RolloutEnd, _json(answer)), wait_s=600.0)
