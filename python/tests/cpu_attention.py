"""TRL's packed attention on a CPU: what its kernel computes, sequence by sequence, by PyTorch. For tests alone; TRL itself needs a GPU here."""

from __future__ import annotations

from typing import Any

import torch
import trl.experimental.async_grpo.async_grpo_trainer as async_grpo_trainer
import trl.experimental.async_grpo.packing as packing


class Kernel:
    @staticmethod
    def flash_attn_varlen_func(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_ends: torch.Tensor, key_ends: torch.Tensor, *_: Any, softmax_scale: float | None = None, **__: Any
    ) -> torch.Tensor:
        """Tokens x heads x width; the queries of a sequence are its last tokens."""
        out = torch.empty_like(query)
        repeats = query.shape[1] // key.shape[1]
        for at in range(len(query_ends) - 1):
            queries, keys = slice(int(query_ends[at]), int(query_ends[at + 1])), slice(int(key_ends[at]), int(key_ends[at + 1]))
            q = query[queries].transpose(0, 1)
            k, v = (part[keys].repeat_interleave(repeats, 1).transpose(0, 1) for part in (key, value))
            mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
            out[queries] = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=softmax_scale)[0].transpose(0, 1)
        return out


def install() -> None:
    packing._flash_attn = lambda: Kernel
    # The peak of a device that is not there.
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
