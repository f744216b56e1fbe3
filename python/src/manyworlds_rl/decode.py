"""Bodies of leases: one safetensors file, one msgpack document, or JSON for people who debug. Decoding safetensors copies no array: samples are views of the body."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping
from typing import Any, Callable

from .errors import InvalidResponseError, ManyworldsError
from .types import ARRAYS, Group, Lease, Sample, list_in, make_group, make_lease, make_sample

SAFETENSORS = "application/x-safetensors"
MSGPACK = "application/msgpack"
JSON = "application/json"
#: By the names under which a client is told.
ENCODINGS: Mapping[str, str] = {"safetensors": SAFETENSORS, "msgpack": MSGPACK, "json": JSON}
#: Refused beyond: a header holds names and facts, not data.
MAX_HEADER_BYTES = 256 * 1024 * 1024

_DTYPES: Mapping[str, tuple[str, str, int]] = {
    "token_ids": ("I32", "i", 4),
    "loss_mask": ("U8", "B", 1),
    "logprobs": ("F32", "f", 4),
    "versions": ("I32", "i", 4),
    "offsets": ("I64", "q", 8),
}


def decode_lease(body: bytearray, content_type: str) -> Lease:
    """A lease from a response body, which the samples keep alive. Raises `InvalidResponseError` for anything that does not add up."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SAFETENSORS:
        return _decode_safetensors(body)
    if kind == MSGPACK:
        return _decode_document(_unpacked(body), _array_of_bytes)
    if kind == JSON:
        return _decode_document(_parsed(body), _array_of_numbers)
    raise InvalidResponseError(f"a lease came as {kind or 'an unknown type'}; {SAFETENSORS} was asked for. Is something between this client and the service?")


def read_safetensors(body: bytearray) -> tuple[dict[str, memoryview], Mapping[str, str]]:
    """Tensors of the names that leases use, as typed views of the body, and the metadata."""
    view = memoryview(body)
    if len(view) < 8:
        raise InvalidResponseError("a safetensors body of less than 8 bytes")
    length = int.from_bytes(view[:8], "little")
    if length > MAX_HEADER_BYTES or 8 + length > len(view):
        raise InvalidResponseError(f"a safetensors header of {length} bytes in a body of {len(view)}")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
        data = view[8 + length :]
        tensors = {name: _tensor(name, entry, data) for name, entry in header.items() if name in _DTYPES}
        metadata = header.get("__metadata__", {})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidResponseError(f"a safetensors body that cannot be read: {error}") from error
    return tensors, metadata


def _tensor(name: str, entry: Mapping[str, Any], data: memoryview) -> memoryview:
    dtype, letter, width = _DTYPES[name]
    start, end = entry["data_offsets"]
    shape = entry["shape"]
    if entry["dtype"] != dtype or len(shape) != 1 or not 0 <= start <= end <= len(data) or end - start != shape[0] * width:
        raise ValueError(f"tensor {name}: {entry}")
    return _native(data[start:end], letter, width)


def _native(piece: memoryview, letter: str, width: int) -> memoryview:
    """Little-endian bytes as numbers of this machine."""
    if sys.byteorder == "big" and width > 1:
        swapped = array(letter, bytes(piece))
        swapped.byteswap()
        return memoryview(swapped)
    return _cast(piece, letter)


def _cast(piece: memoryview, letter: str) -> memoryview:
    """An empty view cannot be cast."""
    return piece.cast(letter) if len(piece) > 0 else memoryview(array(letter))  # type: ignore[call-overload]


def _decode_safetensors(body: bytearray) -> Lease:
    tensors, metadata = read_safetensors(body)
    missing = [name for name in _DTYPES if name not in tensors]
    if missing or not isinstance(metadata, Mapping) or "lease" not in metadata:
        raise InvalidResponseError(f"a lease without {', '.join(missing) or 'its head'}")
    try:
        head = json.loads(metadata["lease"])
    except (ValueError, TypeError) as error:
        raise InvalidResponseError(f"a lease with a head that is no JSON: {error}") from error
    offsets = tensors["offsets"].tolist()
    total = len(tensors["token_ids"])
    if any(len(tensors[name]) != total for name in ARRAYS):
        raise InvalidResponseError("a lease whose arrays are of different lengths")
    if not offsets or offsets[0] != 0 or offsets[-1] != total or any(a > b for a, b in zip(offsets, offsets[1:])):
        raise InvalidResponseError("a lease whose offsets do not cover its tokens")
    groups: list[Group] = []
    position = 0
    for facts in _groups(head):
        samples: list[Sample] = []
        for sample_facts in list_in(facts, "sample_facts"):
            if position + 1 >= len(offsets):
                raise InvalidResponseError("a lease with more samples than offsets")
            start, end = offsets[position], offsets[position + 1]
            samples.append(make_sample(sample_facts, {name: tensors[name][start:end] for name in ARRAYS}))
            position += 1
        groups.append(make_group(facts, samples))
    if position + 1 != len(offsets):
        raise InvalidResponseError("a lease with more offsets than samples")
    return make_lease(head, groups)


def _parsed(body: bytearray) -> Any:
    try:
        return json.loads(bytes(body))
    except ValueError as error:
        raise InvalidResponseError(f"a lease that is no JSON: {error}") from error


def _unpacked(body: bytearray) -> Any:
    try:
        return msgpack().unpackb(body)
    except (ValueError, RecursionError) as error:
        raise InvalidResponseError(f"a lease that is no msgpack: {error or type(error).__name__}") from error


def msgpack() -> Any:
    """The package. Raises ManyworldsError where it is not installed."""
    try:
        import msgpack as package
    except ImportError as error:
        raise ManyworldsError("leases as msgpack need the package msgpack: pip install 'manyworlds-rl[msgpack]', or leave `encoding` out") from error
    return package


def _decode_document(head: Any, array_of: Callable[[str, Any], memoryview]) -> Lease:
    """A lease whose groups have `samples`: facts and arrays beside each other."""
    groups = []
    for facts in _groups(head):
        samples = []
        for sample in list_in(facts, "samples"):
            try:
                arrays = {name: array_of(name, sample[name]) for name in ARRAYS}
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise InvalidResponseError(f"a sample whose arrays cannot be read: {error}") from error
            samples.append(make_sample(sample, arrays))
        groups.append(make_group(facts, samples))
    return make_lease(head, groups)


def _array_of_numbers(name: str, values: Any) -> memoryview:
    return memoryview(array(ARRAYS[name][0], values))


def _array_of_bytes(name: str, tensor: Any) -> memoryview:
    """`{dtype, shape, data}`, little-endian."""
    letter, dtype = ARRAYS[name]
    data, width = tensor["data"], array(letter).itemsize
    if tensor["dtype"] != dtype or not isinstance(data, bytes) or tensor["shape"] != [len(data) // width] or len(data) % width != 0:
        raise ValueError(f"{name} is {tensor['dtype']} of shape {tensor['shape']}")
    return _native(memoryview(data), letter, width)


def _groups(head: Any) -> list[Mapping[str, Any]]:
    groups = head.get("groups") if isinstance(head, Mapping) else None
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        raise InvalidResponseError("a lease without groups")
    return groups
