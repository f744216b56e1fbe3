"""Requests over kept connections, blocking. One client may be used by several threads: each request has a connection of its own while it lasts."""

from __future__ import annotations

import http.client
import os
import select
import socket
import threading
import time
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ._calls import RETRIED, Address, Answer, Call, finish, pause_s, retry_after_of
from .errors import InvalidResponseError, UnreachableError

T = TypeVar("T")
MAX_IDLE = 8


class Transport:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()

    def __getstate__(self) -> Address:
        return self.address

    def __setstate__(self, address: Address) -> None:
        self.__init__(address)  # type: ignore[misc]

    def do(self, call: Call[T]) -> T:
        """Carries out a call. Raises `UnreachableError`, or the service's error."""
        body = call.body()
        attempt = 0
        while True:
            wait: float | None = None
            try:
                answer = self._once(call, body)
                if answer.status not in RETRIED or not call.idempotent or attempt >= self.address.retries:
                    return finish(call, answer)
                wait = retry_after_of(answer)
            except _Unsent as error:
                if attempt >= self.address.retries:
                    raise UnreachableError(f"no service at {self.address.url}: {error.__cause__}. Is `mw serve` running there?") from error.__cause__
            except (OSError, http.client.HTTPException) as error:
                if not call.idempotent or attempt >= self.address.retries:
                    raise UnreachableError(f"{call.method} {call.path} at {self.address.url} broke off: {error!r}") from error
            time.sleep(pause_s(attempt, wait))
            attempt += 1

    def _once(self, call: Call[Any], body: bytes) -> Answer:
        connection, kept = self._take()
        timeout_s = self.address.timeout_s + call.wait_s
        while True:
            try:
                if connection.sock is None:
                    connection.timeout = self.address.timeout_s
                    connection.connect()
                    socket_of(connection).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                socket_of(connection).settimeout(timeout_s)
            except OSError as error:
                connection.close()
                raise _Unsent from error
            try:
                answer = _exchange(connection, self._path(call), call, body, self.address.headers(call, body))
            except (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine):
                # A kept connection that the service closed in the meantime, most likely; whether the request arrived is not known.
                connection.close()
                if not kept or not call.idempotent:
                    raise
                kept = False
                continue
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)
            return answer

    def _path(self, call: Call[Any]) -> str:
        return urlsplit(self.address.url).path.rstrip("/") + call.path

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._pid != os.getpid():
                # After a fork these sockets are the parent's.
                self._idle, self._pid = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if not _is_stale(connection):
                    return connection, True
                connection.close()
        parts = urlsplit(self.address.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port), False

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:
            return
        with self._lock:
            if len(self._idle) < MAX_IDLE and self._pid == os.getpid():
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def socket_of(connection: http.client.HTTPConnection) -> socket.socket:
    if not isinstance(connection.sock, socket.socket):
        raise ConnectionError("the connection was closed")
    return connection.sock


def _is_stale(connection: http.client.HTTPConnection) -> bool:
    """Between answers there is nothing to read; what there is says that the service has closed the connection."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])


class _Unsent(Exception):
    """No connection: the request never left."""


def _exchange(connection: http.client.HTTPConnection, path: str, call: Call[Any], body: bytes, headers: list[tuple[str, str]]) -> Answer:
    connection.putrequest(call.method, path, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders(body or None)
    response = connection.getresponse()
    data = _read(response)
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, data)


def _read(response: http.client.HTTPResponse) -> bytearray:
    """The body, read once into memory that arrays can be written through."""
    if response.length is None:
        return bytearray(response.read())
    data = bytearray(response.length)
    view, position = memoryview(data), 0
    while position < len(data):
        count = response.readinto(view[position:])
        if count == 0:
            raise InvalidResponseError(f"the answer ended after {position} of {len(data)} bytes")
        position += count
    response.read()
    return data
