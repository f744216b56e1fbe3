"""
The generation loop: waiting requests become a batch, one forward pass a token, until all of it has ended.

New weights may come between any two tokens. What is being generated then ends as aborted, with what it has; the gateway asks for the rest under the new weights, so that no token
is ever sampled from a cache of old weights.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .sampling import Sampling, draw


@dataclass(frozen=True)
class Piece:
    """What came since the piece before. `finish` is None until the last: stop, length or abort."""

    ids: list[int]
    logprobs: list[float]
    finish: str | None
    version: str


@dataclass
class Ask:
    """One request. `deliver` is called from the generating thread and must not block."""

    rid: str
    prompt_ids: list[int]
    sampling: Sampling
    deliver: Callable[[Piece], None]
    cancelled: bool = False
    produced: int = 0


class Generator:
    """Owns the thread that runs the model. `model` is any transformers model for causal language modelling with a key-value cache."""

    def __init__(self, model: Any, *, version: int = 0, max_batch: int = 64, max_batch_tokens: int = 65_536) -> None:
        self.model = model
        self.version = version
        # transformers renames the argument; either is understood by a version that knows both.
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._max_batch = max_batch
        self._max_batch_tokens = max_batch_tokens
        self._queue: deque[Ask] = deque()
        self._running: list[Ask] = []
        self._state = threading.Condition()
        #: Held for each forward pass, and while weights change.
        self._weights = threading.RLock()
        self._updating = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="manyworlds-generate", daemon=True)
        self._thread.start()

    def submit(self, ask: Ask) -> None:
        with self._state:
            if self._closed:
                ask.deliver(Piece([], [], "abort", str(self.version)))
                return
            self._queue.append(ask)
            self._state.notify_all()

    def abort(self, rid: str | None) -> None:
        """Ends the requests whose id begins with this; None: all."""
        with self._state:
            for ask in [*self._queue, *self._running]:
                if rid is None or ask.rid.startswith(rid):
                    ask.cancelled = True
            self._state.notify_all()

    @contextmanager
    def updating(self, version: int) -> Iterator[Any]:
        """The body changes the weights of the model that it is given. Running generations end as aborted; new ones wait for it. A body that fails keeps the version."""
        with self._state:
            self._updating += 1
            for ask in self._running:
                ask.cancelled = True
        try:
            with self._weights:
                yield self.model
                self.version = version
        finally:
            with self._state:
                self._updating -= 1
                self._state.notify_all()

    def close(self) -> None:
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join(timeout=30.0)

    def _work(self) -> None:
        while True:
            with self._state:
                while not self._closed and (not self._queue or self._updating > 0):
                    self._state.wait()
                if self._closed:
                    left = [*self._queue]
                    self._queue.clear()
                else:
                    left = []
                    self._running = self._next_batch()
            if self._closed:
                for ask in left:
                    ask.deliver(Piece([], [], "abort", str(self.version)))
                return
            try:
                self._generate(self._running)
            except Exception as error:
                for ask in self._running:
                    ask.deliver(Piece([], [], f"error: {error!r}", str(self.version)))
            with self._state:
                self._running = []

    def _next_batch(self) -> list[Ask]:
        """In order, as many as fit: padded length times rows is bounded, and one request always fits."""
        batch: list[Ask] = []
        longest = 0
        while self._queue and len(batch) < self._max_batch:
            ask = self._queue[0]
            longest = max(longest, len(ask.prompt_ids) + ask.sampling.max_new_tokens)
            if batch and longest * (len(batch) + 1) > self._max_batch_tokens:
                break
            batch.append(self._queue.popleft())
        return batch

    def _generate(self, asks: list[Ask]) -> None:
        generators = [self._generator(ask.sampling.seed) for ask in asks]
        with self._weights:
            width = max(len(ask.prompt_ids) for ask in asks)
            device = next(self.model.parameters()).device
            # Padded at the left, so that the last column is everybody's last token.
            ids = torch.zeros((len(asks), width), dtype=torch.long, device=device)
            mask = torch.zeros_like(ids)
            for row, ask in enumerate(asks):
                ids[row, width - len(ask.prompt_ids) :] = torch.tensor(ask.prompt_ids, dtype=torch.long, device=device)
                mask[row, width - len(ask.prompt_ids) :] = 1
        cache: Any = None
        rows = list(range(len(asks)))
        step = ids
        while rows:
            with self._weights:
                version = str(self.version)
                if any(asks[row].cancelled for row in rows):
                    # Either somebody hung up, or the weights changed: then all of them are cancelled.
                    rows, step, mask, cache = self._drop(asks, rows, step, mask, cache, [row for row in rows if asks[row].cancelled])
                    continue
                logits, cache = self._forward(step, mask, cache)
                tokens, logprobs = draw(logits, [asks[row].sampling for row in rows], [generators[row] for row in rows])
            ended: list[int] = []
            for row, token, logprob in zip(rows, tokens, logprobs):
                ask = asks[row]
                ask.produced += 1
                stopped = token in ask.sampling.stop_token_ids
                finish = "stop" if stopped else "length" if ask.produced >= ask.sampling.max_new_tokens else None
                ask.deliver(Piece([token], [logprob], finish, version))
                if finish is not None:
                    ended.append(row)
            step = torch.tensor([[token] for token in tokens], dtype=torch.long, device=ids.device)
            mask = torch.cat([mask, torch.ones((len(rows), 1), dtype=mask.dtype, device=mask.device)], dim=1)
            if ended:
                rows, step, mask, cache = self._drop(asks, rows, step, mask, cache, ended, told=True)

    def _forward(self, step: torch.Tensor, mask: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -step.shape[1] :]
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                output = self.model(input_ids=step, attention_mask=mask, position_ids=positions, use_cache=True, **{self._cache_name: cache})
        finally:
            self.model.train(training)
        return output.logits[:, -1], output[self._cache_name]

    def _drop(
        self, asks: list[Ask], rows: list[int], step: torch.Tensor, mask: torch.Tensor, cache: Any, gone: list[int], told: bool = False
    ) -> tuple[list[int], torch.Tensor, torch.Tensor, Any]:
        """The batch without these rows."""
        if not told:
            for row in gone:
                asks[row].deliver(Piece([], [], "abort", str(self.version)))
        kept = [at for at, row in enumerate(rows) if row not in gone]
        if not kept:
            return [], step, mask, None
        index = torch.tensor(kept, dtype=torch.long, device=mask.device)
        if cache is not None:
            cache.batch_select_indices(index)
        return [rows[at] for at in kept], step[index], mask[index], cache

    def _generator(self, seed: int | None) -> torch.Generator | None:
        if seed is None:
            return None
        generator = torch.Generator(device=next(self.model.parameters()).device)
        generator.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
        return generator
