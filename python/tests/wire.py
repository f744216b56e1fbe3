"""Lease bodies as the service writes them, for tests of reading."""

from __future__ import annotations

import json
import struct
from typing import Any


def sample_facts(group_id: str, member: int, segment: int = 0, segments: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "sample_id": f"{group_id}/{member}/{segment}",
        "rollout_id": f"{group_id}/{member}",
        "group_id": group_id,
        "member": member,
        "attempt": 0,
        "segment_index": segment,
        "num_segments": segments,
        "is_last_segment": segment == segments - 1,
        "parent_prefix_len": 0,
        "prompt_len": 2,
        "reward": 1.0,
        "reward_components": {"reward": 1.0},
        "weight": 1 / segments,
        "usable": True,
        "status": "completed",
        "outcome": "scored",
        "stop_reason": "finished",
        "error": None,
        "harness": "bash",
        "seed": "0",
        "builder": "prefix-merge",
        "kind": "main",
        "temperature": 1.0,
        "top_p": None,
        "model": "m",
        "tokenizer": None,
        "image": None,
        "verifier": None,
        "turns": 1,
        "tool_errors": 0,
        "timings": {"queue_ms": 0, "boot_ms": 1, "generate_ms": 2, "tool_ms": 3, "reward_ms": 4},
        **more,
    }


def group_facts(group_id: str, expected: int, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "group": f"grp-{group_id}",
        "run": "run1",
        "epoch": 1,
        "task": "t",
        "family": "f",
        "task_digest": None,
        "dataset": None,
        "outcome": "complete",
        "expected": expected,
        "usable": expected,
        "attempts": expected,
        "version_min": 0,
        "version_max": 0,
        "accepted_at": 1.0,
        "started_at": 2.0,
        "ended_at": 3.0,
        "failures": [],
        "samples": expected,
        "tokens": 0,
        "bytes": 0,
        "metadata": {},
        **more,
    }


Arrays = tuple[list[int], list[int], list[float], list[int]]
WireGroup = tuple[dict[str, Any], list[tuple[dict[str, Any], Arrays]]]


def head(groups: list[Any], **more: Any) -> dict[str, Any]:
    return {"lease_id": "ls-1", "expires_at": 9.0, "run_state": "running", "reason": None, "last_progress_at": 5.0, "policy_version": 3, "groups": groups, **more}


def safetensors(groups: list[WireGroup], **more: Any) -> bytearray:
    samples = [sample for _, of_group in groups for sample in of_group]
    offsets = [0]
    for _, arrays in samples:
        offsets.append(offsets[-1] + len(arrays[0]))
    columns: list[list[Any]] = [[value for _, arrays in samples for value in arrays[index]] for index in range(4)]
    document = head([{**facts, "sample_facts": [facts_of for facts_of, _ in of_group]} for facts, of_group in groups], **more)
    header: dict[str, Any] = {"__metadata__": {"lease": json.dumps(document)}}
    data = b""
    for name, dtype, letter, values in (
        ("offsets", "I64", "q", offsets),
        ("token_ids", "I32", "i", columns[0]),
        ("logprobs", "F32", "f", columns[2]),
        ("versions", "I32", "i", columns[3]),
        ("loss_mask", "U8", "B", columns[1]),
    ):
        piece = struct.pack(f"<{len(values)}{letter}", *values)
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(struct.pack("<Q", len(text)) + text + data)


def msgpack(groups: list[WireGroup], **more: Any) -> bytearray:
    import msgpack as package

    def tensor(dtype: str, letter: str, values: Any) -> dict[str, Any]:
        return {"dtype": dtype, "shape": [len(values)], "data": struct.pack(f"<{len(values)}{letter}", *values)}

    def sample(facts: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
        kinds = (("token_ids", "int32", "i"), ("loss_mask", "uint8", "B"), ("logprobs", "float32", "f"), ("versions", "int32", "i"))
        return {**facts, **{name: tensor(dtype, letter, values) for (name, dtype, letter), values in zip(kinds, arrays)}}

    return bytearray(package.packb(head([{**facts, "samples": [sample(*one) for one in of_group]} for facts, of_group in groups], **more)))
