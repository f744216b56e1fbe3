"""The asyncio client of the delivery service. It keeps no loop: it works in whichever runs it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from . import _calls
from ._calls import RETRIED, Address, Answer, Call, finish, pause_s, retry_after_of
from .errors import InvalidResponseError, UnreachableError
from .types import Checkpoint, Credits, Endpoint, Lease, Policy, RunConfig, Status, Submission, TerminalRecord

T = TypeVar("T")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MAX_IDLE = 8
MAX_LINE = 1 << 16


class AsyncClient:
    """As `Client`, with coroutines. Connections belong to the loop that they were made in; in another loop, or after pickling, new ones are made."""

    def __init__(self, url: str | None = None, api_key: str | None = None, *, timeout_s: float = 60.0, retries: int = 4, encoding: str = "safetensors") -> None:
        self._address = Address.of(url, api_key, timeout_s, retries, encoding)
        self._idle: list[Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def __getstate__(self) -> Address:
        return self._address

    def __setstate__(self, address: Address) -> None:
        self._address, self._idle, self._loop = address, [], None

    @property
    def url(self) -> str:
        return self._address.url

    async def run(self, name: str, config: RunConfig | None = None) -> AsyncRun:
        await self.do(_calls.status(name) if config is None else _calls.create_run(name, config))
        return AsyncRun(self, name)

    async def do(self, call: Call[T]) -> T:
        body = call.body()
        attempt = 0
        while True:
            wait: float | None = None
            try:
                answer = await self._once(call, body)
                if answer.status not in RETRIED or not call.idempotent or attempt >= self._address.retries:
                    return finish(call, answer)
                wait = retry_after_of(answer)
            except _UnsentError as error:
                if attempt >= self._address.retries:
                    raise UnreachableError(f"no service at {self.url}: {error.__cause__}. Is `mw serve` running there?") from error.__cause__
            except (OSError, EOFError, asyncio.TimeoutError) as error:
                if not call.idempotent or attempt >= self._address.retries:
                    raise UnreachableError(f"{call.method} {call.path} at {self.url} broke off: {error!r}") from error
            await asyncio.sleep(pause_s(attempt, wait))
            attempt += 1

    async def _once(self, call: Call[Any], body: bytes) -> Answer:
        while True:
            connection, kept = await self._take()
            try:
                answer, again = await asyncio.wait_for(_exchange(connection, self._head(call, body), body), self._address.timeout_s + call.wait_s)
            except (ConnectionError, EOFError):
                connection[1].close()
                # A kept connection that the service closed in the meantime, most likely; whether the request arrived is not known.
                if kept and call.idempotent:
                    continue
                raise
            except BaseException:
                connection[1].close()
                raise
            if again and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
            else:
                connection[1].close()
            return answer

    def _head(self, call: Call[Any], body: bytes) -> bytes:
        parts = urlsplit(self._address.url)
        host = parts.netloc.rpartition("@")[2]
        lines = [f"{call.method} {parts.path.rstrip('/')}{call.path} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in self._address.headers(call, body)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _take(self) -> tuple[Connection, bool]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Connections of another loop cannot be used here, nor be closed from here.
            self._idle, self._loop = [], loop
        while self._idle:
            connection = self._idle.pop()
            if not connection[0].at_eof():
                return connection, True
            connection[1].close()
        parts = urlsplit(self._address.url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        try:
            return await asyncio.wait_for(asyncio.open_connection(parts.hostname, port, ssl=secure, limit=MAX_LINE), self._address.timeout_s), False
        except (OSError, asyncio.TimeoutError) as error:
            raise _UnsentError from error

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class _UnsentError(Exception):
    """No connection: the request never left."""


async def _exchange(connection: Connection, head: bytes, body: bytes) -> tuple[Answer, bool]:
    """One request and its answer, and whether the connection can be used again."""
    reader, writer = connection
    writer.write(head + body)
    await writer.drain()
    while True:
        status_line = await _line(reader)
        if not status_line:
            raise EOFError("the connection was closed before an answer")
        version, _, rest = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise InvalidResponseError(f"no HTTP answer: {status_line[:80]!r}")
        headers: dict[str, str] = {}
        while line := await _line(reader):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        status = int(rest[:3])
        if status >= 200:
            break
    again = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if status in (204, 304):
        return Answer(status, headers, bytearray()), again
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return Answer(status, headers, await _chunks(reader)), again
    if "content-length" in headers:
        return Answer(status, headers, await _exactly(reader, int(headers["content-length"]))), again
    return Answer(status, headers, bytearray(await reader.read())), False


async def _line(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readline()).decode("latin-1").rstrip("\r\n")
    except ValueError as error:
        raise InvalidResponseError("a header line that is too long") from error


async def _exactly(reader: asyncio.StreamReader, length: int) -> bytearray:
    data = bytearray(length)
    position = 0
    while position < length:
        piece = await reader.read(min(length - position, 1 << 20))
        if not piece:
            raise EOFError(f"the answer ended after {position} of {length} bytes")
        data[position : position + len(piece)] = piece
        position += len(piece)
    return data


async def _chunks(reader: asyncio.StreamReader) -> bytearray:
    data = bytearray()
    while True:
        size = int((await _line(reader)).partition(";")[0] or "-1", 16)
        if size < 0:
            raise EOFError("the answer ended within its chunks")
        if size == 0:
            while await _line(reader):
                pass
            return data
        data += await _exactly(reader, size)
        await _line(reader)


class AsyncRun:
    """As `Run`, with coroutines."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"AsyncRun({self.name!r} at {self.client.url})"

    async def status(self) -> Status:
        return await self.client.do(_calls.status(self.name))

    async def set_policy(self, version: int, *, state: str = "live", model: str | None = None, endpoints: Sequence[str | Endpoint] | None = None) -> Policy:
        return await self.client.do(_calls.policy(self.name, version, state, model, endpoints))

    @asynccontextmanager
    async def updating(self, version: int, *, model: str | None = None, endpoints: Sequence[str | Endpoint] | None = None) -> AsyncIterator[None]:
        """As `Run.updating`."""
        before = (await self.status()).policy.version
        if before is not None:
            await self.set_policy(before, state="updating")
        try:
            yield
        except BaseException:
            if before is not None:
                await self.set_policy(before)
            raise
        await self.set_policy(version, model=model, endpoints=endpoints)

    async def submit(self, groups: Iterable[Submission]) -> Credits:
        return await self.client.do(_calls.submit(self.name, groups))

    async def lease(
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
        return await self.client.do(_calls.lease(self.name, max_groups, min_groups, wait_s, current_version, max_staleness, max_bytes, consumer, group_ids))

    async def ack(
        self,
        lease_id: str,
        consumed: Sequence[str] = (),
        rejected: Sequence[tuple[str, str]] = (),
        *,
        trained_version: int | None = None,
        step: int | None = None,
        checkpoint: str | None = None,
    ) -> Credits:
        return await self.client.do(_calls.ack(lease_id, consumed, rejected, trained_version, step, checkpoint))

    async def extend(self, lease_id: str) -> float:
        return await self.client.do(_calls.extend(lease_id))

    async def cancel(self, group_ids: Sequence[str] | None = None, *, older_than_version: int | None = None) -> list[str]:
        return await self.client.do(_calls.cancel(self.name, group_ids, older_than_version))

    async def terminal(self, after: int = 0, limit: int = 1000) -> list[TerminalRecord]:
        return await self.client.do(_calls.terminal(self.name, after, limit))

    async def checkpoint(self) -> Checkpoint:
        return await self.client.do(_calls.checkpoint(self.name))

    async def restore(self, state: Checkpoint | Mapping[str, Any]) -> Status:
        return await self.client.do(_calls.restore(self.name, state))

    async def finish(self, *, wait: bool = True, poll_s: float = 1.0) -> Status:
        """Begins nothing more; with `wait`, returns when everything has ended."""
        status = await self.client.do(_calls.finish_run(self.name))
        while wait and status.state == "draining":
            await asyncio.sleep(poll_s)
            status = await self.status()
        return status

    async def delete(self) -> None:
        """Ends the run now and frees its name."""
        await self.client.do(_calls.delete_run(self.name))
