"""Reading of leases: what comes out is what was written, and whatever does not add up is refused whole."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from wire import Arrays, WireGroup, group_facts, head, msgpack, safetensors, sample_facts

from manyworlds_rl.decode import JSON, MSGPACK, SAFETENSORS, decode_lease
from manyworlds_rl.errors import InvalidResponseError
from manyworlds_rl.types import Lease, Sample

A: Arrays = ([1, 2, 3, 4], [0, 0, 1, 1], [0, 0, -0.5, -0.25], [-1, -1, 2, 3])
B: Arrays = ([7, 8, 9], [0, 0, 1], [0, 0, -1.5], [-1, -1, 3])


GROUPS: list[WireGroup] = [
    (group_facts("a", 3, usable=2, outcome="partial"), [(sample_facts("a", 0, reward=0.0), A), (sample_facts("a", 2), B)]),
    (group_facts("b", 1), [(sample_facts("b", 0, 0, 2), B), (sample_facts("b", 0, 1, 2), A)]),
]


def two_groups() -> bytearray:
    return safetensors(GROUPS)


def arrays_of(sample: Sample) -> Arrays:
    return (list(sample.token_ids), list(sample.loss_mask), list(sample.logprobs), list(sample.versions))


def test_a_lease_is_read_without_copies() -> None:
    body = two_groups()
    lease = decode_lease(body, SAFETENSORS)
    assert [len(group.samples) for group in lease.groups] == [2, 2]
    first = lease.groups[0].samples[0]
    assert arrays_of(first) == A
    assert first.oldest_version == 2
    assert lease.groups[0].rewards() == [0.0, None, 1.0]
    assert [len(segments) for segments in lease.groups[1].members()] == [2]
    assert first.token_ids.obj is body
    assert first.numpy()["logprobs"].tolist() == [0, 0, -0.5, -0.25] if has_numpy() else True


def has_numpy() -> bool:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True


def test_failed_members_are_no_zeros() -> None:
    group = decode_lease(two_groups(), SAFETENSORS).groups[0]
    advantages = group.advantages()
    assert advantages[1] is None
    assert advantages[0] == pytest.approx(-1, abs=1e-4)
    assert advantages[2] == pytest.approx(1, abs=1e-4)


def test_samples_pickle() -> None:
    lease: Lease = pickle.loads(pickle.dumps(decode_lease(two_groups(), SAFETENSORS)))
    assert arrays_of(lease.groups[1].samples[1]) == A
    assert lease.groups[0].samples[0].timings["reward_ms"] == 4


def test_an_empty_lease() -> None:
    lease = decode_lease(safetensors([], lease_id=None, expires_at=None, run_state="failed", reason="why"), SAFETENSORS)
    assert (lease.lease_id, lease.run_state, lease.reason, lease.groups) == (None, "failed", "why", ())


def test_json_is_the_same() -> None:
    sample = dict(zip(("token_ids", "loss_mask", "logprobs", "versions"), A), **sample_facts("a", 0))
    body = bytearray(json.dumps(head([{**group_facts("a", 1), "samples": [sample]}])).encode())
    assert arrays_of(decode_lease(body, "application/json; charset=utf-8").groups[0].samples[0]) == A
    with pytest.raises(InvalidResponseError):
        decode_lease(bytearray(body.replace(b"[1, 2, 3, 4]", b'[1, "x", 3, 4]')), JSON)


def test_fields_of_a_newer_service_are_ignored_and_missing_ones_named() -> None:
    lease = decode_lease(safetensors([(group_facts("a", 1, more=1), [(sample_facts("a", 0, more=[2]), A)])], more={}), SAFETENSORS)
    assert lease.groups[0].group_id == "a"
    without = sample_facts("a", 0)
    del without["reward"]
    with pytest.raises(InvalidResponseError, match="reward"):
        decode_lease(safetensors([(group_facts("a", 1), [(without, A)])]), SAFETENSORS)


def test_a_page_of_a_proxy_is_refused() -> None:
    with pytest.raises(InvalidResponseError, match="text/html"):
        decode_lease(bytearray(b"<html>"), "text/html")


def test_msgpack_is_the_same() -> None:
    assert decode_lease(msgpack(GROUPS), MSGPACK) == decode_lease(two_groups(), SAFETENSORS)
    (facts, [sample, *_]) = GROUPS[0]
    body = msgpack([(facts, [sample])])
    with pytest.raises(InvalidResponseError, match="int32"):
        decode_lease(bytearray(body.replace(b"\xa5int32\xa5shape\x91\x04", b"\xa5int32\xa5shape\x91\x03")), MSGPACK)


@pytest.mark.parametrize(("whole", "kind"), [(safetensors(GROUPS), SAFETENSORS), (msgpack(GROUPS), MSGPACK)])
def test_garbage_is_refused_and_nothing_else(whole: bytearray, kind: str) -> None:
    draw = random.Random(7)
    refused = 0
    for _ in range(3000):
        body = bytearray(whole)
        if draw.random() < 0.3:
            del body[draw.randrange(len(body)) :]
        else:
            for _ in range(draw.randrange(1, 4)):
                body[draw.randrange(len(body))] = draw.randrange(256)
        try:
            for group in decode_lease(body, kind).groups:
                for sample in group.samples:
                    assert len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs) == len(sample.versions)
        except InvalidResponseError:
            refused += 1
    assert refused > 300
