"""Groups with every mix of outcomes, for tests of what adaptors make of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from wire import Arrays, group_facts, safetensors, sample_facts

from manyworlds_rl.decode import SAFETENSORS, decode_lease
from manyworlds_rl.types import Group


def arrays(member: int, segment: int = 0) -> Arrays:
    """Two prompt tokens, two sampled ones, one of the environment, one sampled under the next version."""
    base = 100 * member + 10 * segment
    return ([base, base + 1, base + 2, base + 3, base + 4, base + 5], [0, 0, 1, 1, 0, 1], [0, 0, -0.5, -0.25, 0, -1.0], [-1, -1, 3, 3, -1, 4])


def group_of(segments: Sequence[int], rewards: Sequence[float] | None = None, name: str = "g", **more: Any) -> Group:
    """A group of as many members as `segments` has entries; 0 stands for a member that failed."""
    given = [float(member % 3) for member in range(len(segments))] if rewards is None else rewards
    samples = [
        (sample_facts(name, member, segment, count, reward=given[member], **more), arrays(member, segment)) for member, count in enumerate(segments) for segment in range(count)
    ]
    usable = sum(count > 0 for count in segments)
    facts = group_facts(name, len(segments), usable=usable, outcome="complete" if usable == len(segments) else "partial")
    return decode_lease(safetensors([(facts, samples)]), SAFETENSORS).groups[0]


def mixes(most: int = 4) -> Iterator[tuple[int, ...]]:
    """Every group of 1 to `most` members that failed, have one segment, or three."""
    for size in range(1, most + 1):
        yield from itertools.product((0, 1, 3), repeat=size)
