"""A missing member trains nothing and moves no baseline, whatever the others are; and nothing that is not finite comes through."""

from __future__ import annotations

import math

import pytest
from groups import group_of, mixes

from manyworlds_rl._slime_like import normalised, sample_fields
from manyworlds_rl.rollouts import neutral_reward, rollouts_of


@pytest.mark.parametrize("segments", list(mixes()))
@pytest.mark.parametrize("short", [0, 2])
def test_every_mix_of_outcomes(segments: tuple[int, ...], short: int) -> None:
    group = group_of(segments)
    size = len(segments) + short
    rollouts = rollouts_of(group, size)
    there = [float(member % 3) for member, count in enumerate(segments) if count > 0]
    assert len(rollouts) == size
    assert [rollout.reward for rollout in rollouts if rollout.usable] == there
    assert [len(rollout.segments) for rollout in rollouts if rollout.usable] == [count for count in segments if count > 0]
    for rollout in rollouts:
        assert rollout.segments
        assert any(segment.trained for segment in rollout.segments) == rollout.usable
        for segment in rollout.segments:
            assert len(segment.response_ids) == len(segment.mask) == len(segment.logprobs) == len(segment.versions) >= 1
    if there:
        everything = [rollout.reward for rollout in rollouts]
        assert math.isclose(sum(everything) / size, sum(there) / len(there))
    assert neutral_reward(rollouts) == pytest.approx(sum(there) / len(there) if there else 0.0)


def test_a_sequence_is_cut_where_the_policy_began() -> None:
    segment = rollouts_of(group_of([1]))[0].segments[0]
    assert (segment.prompt_ids, segment.response_ids) == ([0, 1], [2, 3, 4, 5])
    assert (segment.mask, segment.logprobs, segment.versions) == ([1, 1, 0, 1], [-0.5, -0.25, 0.0, -1.0], [3, 3, -1, 4])
    assert rollouts_of(group_of([3]))[0].versions == [3, 4]


def test_nothing_that_is_not_finite_comes_through() -> None:
    group = group_of([1, 1, 1], [1.0, math.nan, 0.0])
    assert [rollout.usable for rollout in rollouts_of(group)] == [True, True, False]
    broken = group_of([1, 1], [1.0, 1.0])
    broken.samples[1].logprobs[2] = math.inf
    assert [rollout.usable for rollout in rollouts_of(broken)] == [True, False]
    silent = group_of([1, 1], [1.0, math.inf])
    for fields in sample_fields(silent, 2, 0, 0):
        assert math.isfinite(fields["reward"])
        assert all(map(math.isfinite, fields["rollout_log_probs"]))


def test_more_rollouts_than_the_trainer_takes_are_no_silent_choice() -> None:
    with pytest.raises(ValueError, match="group_size: 2"):
        rollouts_of(group_of([1, 1, 1]), 2)


class Row:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize("segments", list(mixes(3)))
def test_rewards_are_normalised_by_group_and_rollout(segments: tuple[int, ...]) -> None:
    """One vote a rollout, however many segments it has; stand-ins have none and get nothing; groups beside each other do not mix."""
    rows = [Row(**fields) for fields in sample_fields(group_of(segments), len(segments), 0, 0)]
    others = [Row(**fields) for fields in sample_fields(group_of([1, 3], [10.0, 20.0]), 2, 1, 100)]
    raw, found = normalised(rows + others, scale=False)
    assert raw == [row.reward for row in rows + others]  # type: ignore[attr-defined]
    assert found[len(rows) :] == [-5.0, 5.0, 5.0, 5.0]
    there = {row.rollout_id: value for row, value in zip(rows, found) if not row.remove_sample}  # type: ignore[attr-defined]
    assert sum(there.values()) == pytest.approx(0.0)
    for row, value in zip(rows, found):
        assert value == (0.0 if row.remove_sample else there[row.rollout_id])  # type: ignore[attr-defined]
    _, scaled = normalised(others, scale=True)
    assert scaled[0] == pytest.approx(-(0.5**0.5), abs=1e-3)


def test_siblings_share_what_tells_that_they_belong_together() -> None:
    rows = list(sample_fields(group_of([3, 0, 1]), 3, 7, 21))
    assert [row["rollout_id"] for row in rows] == [21, 21, 21, 22, 23]
    assert [row["group_index"] for row in rows] == [7] * 5
    assert {row["reward"] for row in rows[:3]} == {0.0}
    assert [row["remove_sample"] for row in rows] == [False, False, False, False, True]
    assert [row["status"] for row in rows] == ["COMPLETED"] * 4 + ["FAILED"]
    assert rows[0]["weight_versions"] == ["3", "4"]
    assert rows[4]["weight_versions"] == []
    assert len(rows[0]["tokens"]) == 6
    assert rows[0]["response_length"] == 4 == len(rows[0]["loss_mask"]) == len(rows[0]["rollout_log_probs"])
