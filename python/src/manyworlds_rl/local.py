"""
`mw` as a process of this one, for notebooks and tests.

    with serve(data="/tmp/mw") as server:
        client = server.client()

`mw` is looked for on the PATH, or named by MW_BIN.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from .client import Client
from .errors import ManyworldsError

STOP_S = 30.0


class Process:
    """A running `mw`. What it says on its standard error is kept, the last 400 lines of it."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str] | None = None, mw: str | None = None) -> None:
        program = mw or os.environ.get("MW_BIN") or shutil.which("mw")
        if program is None:
            raise ManyworldsError("there is no `mw` on the PATH; name it by MW_BIN or `mw=`")
        self.args = [program, *args]
        # A session of its own: Ctrl-C in a notebook reaches this process alone, which then stops it in order.
        self.process = subprocess.Popen(
            self.args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}, start_new_session=True
        )
        self._errors: deque[str] = deque(maxlen=400)
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        stream = self.process.stderr
        if stream is not None:
            for line in stream:
                self._errors.append(line)

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def read_line(self) -> str:
        """The next line of its output; empty at the end."""
        return "" if self.process.stdout is None else self.process.stdout.readline()

    def wait(self, timeout_s: float | None = None) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> int:
        """Asks it to end, then makes it. Returns its exit code."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(timeout=5.0)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.returncode

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


class Server(Process):
    """`mw serve` on a free port of loopback, with a key of its own."""

    def __init__(self, data: str, *, port: int = 0, args: Sequence[str] = (), env: Mapping[str, str] | None = None, mw: str | None = None) -> None:
        super().__init__(["serve", "--data", data, "--port", str(port), "--json", *args], env, mw)
        lines: list[str] = []
        while not lines or not lines[-1].startswith("}"):
            line = self.read_line()
            if line == "":
                code = self.stop()
                raise ManyworldsError(f"`{' '.join(self.args)}` ended with {code}: {self.errors.strip() or 'it said nothing'}")
            lines.append(line)
            if line.startswith("{") and line.rstrip().endswith("}"):
                break
        said = json.loads("".join(lines))
        self.url: str = said["url"]
        key_file = said.get("keyFile")
        self.api_key = self._key(key_file, env)
        # Nobody reads the rest, and a full pipe would stop it.
        threading.Thread(target=self._drain, daemon=True).start()

    def _key(self, key_file: str | None, env: Mapping[str, str] | None) -> str:
        if key_file is None:
            return (env or {}).get("MW_API_KEY") or os.environ.get("MW_API_KEY", "")
        with open(key_file, encoding="utf-8") as file:
            return file.read().strip()

    def _drain(self) -> None:
        with contextlib.suppress(ValueError):
            while self.read_line():
                pass

    def client(self, **options: Any) -> Client:
        return Client(self.url, self.api_key, **options)

    def __enter__(self) -> Server:
        return self


def serve(data: str, **options: Any) -> Server:
    """Starts `mw serve --data DATA` and waits until it listens."""
    return Server(data, **options)


def train(args: Sequence[str], *, env: Mapping[str, str] | None = None, mw: str | None = None) -> Process:
    """Starts `mw train` with these arguments; `read_line` gives its output."""
    return Process(["train", *args], env, mw)
