"""What slime and miles are given: fields that they have, in the lengths and types that their converters assert."""

from __future__ import annotations

import pickle

import pytest
import trainer_stubs
from groups import group_of, mixes

from manyworlds_rl import miles, slime


@pytest.fixture(autouse=True)
def _stubs() -> None:
    trainer_stubs.install()


@pytest.mark.parametrize("trainer", [slime, miles])
@pytest.mark.parametrize("segments", list(mixes(3)))
def test_samples_have_what_the_converters_assert(trainer: object, segments: tuple[int, ...]) -> None:
    size = len(segments) + 1
    samples = trainer.samples_of(group_of(segments), size, 5, 5 * size)  # type: ignore[attr-defined]
    rollouts = {sample.rollout_id: [one for one in samples if one.rollout_id == sample.rollout_id] for sample in samples}
    assert sorted(rollouts) == list(range(5 * size, 6 * size))
    for sample in samples:
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length >= 1
        assert sample.response_length < len(sample.tokens)
        assert set(sample.loss_mask) <= {0, 1}
        assert all(type(token) is int for token in sample.tokens)
        assert all(type(version) is str for version in sample.weight_versions)
        assert isinstance(sample.reward, float)
        assert isinstance(sample.status, trainer_stubs.Status)
        # Trained tokens without log probabilities raise in slime; environment tokens have 0.0 there.
        assert all(logprob == 0.0 for mask, logprob in zip(sample.loss_mask, sample.rollout_log_probs) if mask == 0)
        assert sample.remove_sample == (sample.status is trainer_stubs.Status.FAILED)
    for siblings in rollouts.values():
        assert len({sample.reward for sample in siblings}) == 1
        assert len({sample.index for sample in siblings}) == 1


def test_what_a_process_is_sent_can_be_sent() -> None:
    group = pickle.loads(pickle.dumps(group_of([1, 3])))
    assert [len(members) for members in group.members()] == [1, 3]
