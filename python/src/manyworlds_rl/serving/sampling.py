"""Draws the next token of each row, and says with which probability it was drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Sampling:
    """SGLang's `sampling_params`, as far as they are known here."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    @staticmethod
    def of(fields: Mapping[str, Any], default_tokens: int) -> Sampling:
        """Raises `ValueError` for what would be sampled otherwise than asked."""
        for name in ("presence_penalty", "frequency_penalty"):
            if fields.get(name):
                raise ValueError(f"{name} is not known here")
        if fields.get("repetition_penalty", 1) != 1:
            raise ValueError("repetition_penalty is not known here")
        for name in ("json_schema", "regex", "ebnf"):
            if fields.get(name):
                raise ValueError(f"{name}: grammars are not known here")
        seed = fields.get("sampling_seed")
        return Sampling(
            max_new_tokens=max(1, int(fields.get("max_new_tokens") or default_tokens)),
            temperature=float(fields.get("temperature", 1.0)),
            top_p=float(fields.get("top_p", 1.0)),
            top_k=int(fields.get("top_k", -1)),
            min_p=float(fields.get("min_p", 0.0)),
            seed=None if seed is None else int(seed),
            stop_token_ids=tuple(int(token) for token in fields.get("stop_token_ids") or ()),
        )


def draw(logits: torch.Tensor, sampling: Sequence[Sampling], generators: Sequence[torch.Generator | None]) -> tuple[list[int], list[float]]:
    """
    One token for each row of `logits` (rows x vocabulary) and its logprob after temperature, top-k, top-p and min-p: what an off-policy correction needs. At temperature 0
    the best token is taken; its logprob is that of temperature 1, since the other would always be 0.
    """
    tokens: list[int] = []
    logprobs: list[float] = []
    for row, rule, generator in zip(logits.float(), sampling, generators):
        scaled = row if rule.temperature <= 0 else row / rule.temperature
        logs = torch.log_softmax(scaled, dim=-1)
        if rule.temperature <= 0:
            token = int(torch.argmax(logs))
        else:
            kept = _kept(logs, rule)
            if kept is not None:
                logs = torch.log_softmax(logs.masked_fill(~kept, float("-inf")), dim=-1)
            token = int(torch.multinomial(logs.exp(), 1, generator=generator))
        tokens.append(token)
        logprobs.append(float(logs[token]))
    return tokens, logprobs


def _kept(logs: torch.Tensor, rule: Sampling) -> torch.Tensor | None:
    """Which tokens may be drawn; None: all."""
    kept: torch.Tensor | None = None
    if 0 < rule.top_k < logs.numel():
        kept = logs >= torch.topk(logs, rule.top_k).values[-1]
    if rule.top_p < 1:
        ordered, order = torch.sort(logs.exp(), descending=True)
        # The first token that reaches the mass belongs to it.
        inside = torch.cumsum(ordered, 0) - ordered < rule.top_p
        mask = torch.zeros_like(inside).scatter(0, order, inside)
        kept = mask if kept is None else kept & mask
    if rule.min_p > 0:
        mask = logs >= logs.max() + torch.log(torch.tensor(rule.min_p))
        kept = mask if kept is None else kept & mask
    return kept
