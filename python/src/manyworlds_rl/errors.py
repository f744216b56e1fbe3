"""What can go wrong, as exceptions that say what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ManyworldsError(Exception):
    """The base of all errors of this package."""


class ApiError(ManyworldsError):
    """The service refused a request. `code` is stable, `fix` says what to do, `body` is the whole problem document (RFC 9457)."""

    def __init__(self, status: int, code: str, detail: str, fix: str | None = None, retry_after: float | None = None, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(status, code, detail, fix, retry_after, body)
        self.status = status
        self.code = code
        self.detail = detail
        self.fix = fix
        #: Seconds to wait before the same request may succeed; None where waiting does not help.
        self.retry_after = retry_after
        self.body: Mapping[str, Any] = body or {}

    def __str__(self) -> str:
        text = f"{self.detail} ({self.status} {self.code})"
        return text if self.fix is None else f"{text}. {self.fix}"


class AuthenticationError(ApiError):
    """401: no key, or a wrong one."""


class NotFoundError(ApiError):
    """404: no such run or lease. A lease that is not found is over: its groups may be with somebody else."""


class ConflictError(ApiError):
    """409: the name is known with other content, or the version went back."""


class InvalidRequestError(ApiError):
    """422: the body is not as the service wants it; the message names the field."""


class OverloadedError(ApiError):
    """429: no credits left. `credits` says what is free."""

    @property
    def credits(self) -> Mapping[str, int]:
        value = self.body.get("credits")
        return value if isinstance(value, dict) else {}


class UnreachableError(ManyworldsError):
    """The service does not answer: not there, gone, or slower than the time-out."""


class InvalidResponseError(ManyworldsError):
    """What came back is not what the protocol says; nothing of it is used."""


class RunDeadError(ManyworldsError):
    """The run delivers nothing more, although groups were waited for: it failed, or somebody closed it."""

    def __init__(self, run: str, state: str, reason: str | None) -> None:
        super().__init__(run, state, reason)
        self.run = run
        self.state = state
        self.reason = reason

    def __str__(self) -> str:
        why = "" if self.reason is None else f": {self.reason}"
        return f"run {self.run} is {self.state}{why}. `mw show` and the run's terminal log say which groups ended how; a run is made again under the same name once it is closed"


class RunStalledError(ManyworldsError):
    """The run is alive by its own account, but nothing has ended in it for longer than the trainer is willing to wait."""

    def __init__(self, run: str, idle_s: float) -> None:
        super().__init__(run, idle_s)
        self.run = run
        self.idle_s = idle_s

    def __str__(self) -> str:
        return f"nothing has ended in run {self.run} for {self.idle_s:.0f} s. Look at its status: no policy that is live, no credits, or rollouts that take longer than `stall_s`"


_BY_STATUS = {401: AuthenticationError, 403: AuthenticationError, 404: NotFoundError, 409: ConflictError, 422: InvalidRequestError, 429: OverloadedError}


def api_error(status: int, body: Mapping[str, Any], retry_after: float | None) -> ApiError:
    """The exception for a problem document."""
    kind = _BY_STATUS.get(status, ApiError)
    code = body.get("code")
    detail = body.get("detail") or body.get("title")
    fix = body.get("fix")
    return kind(
        status,
        code if isinstance(code, str) else "unknown",
        detail if isinstance(detail, str) else "the service refused the request",
        fix if isinstance(fix, str) else None,
        retry_after,
        body,
    )
