import json
import struct
import zlib

from grade import check, expect, own, read_json, rng, run, same

PROGRAM = "/app/salvage"


def record(kind, payload, magic=b"WLOG", length=None, spoil=0):
    body = struct.pack("<BBH", kind, rng.randrange(256), len(payload) if length is None else length) + payload
    return magic + body + struct.pack("<I", zlib.crc32(body) ^ spoil)


def good(data, at):
    if data[at : at + 4] != b"WLOG" or at + 16 > len(data):
        return None
    kind, length = data[at + 4], data[at + 6] | data[at + 7] << 8
    end = at + 8 + length
    fits = length == 14 if kind == 1 else 4 <= length <= 4096 if kind == 2 else 5 <= length <= 4096 if kind == 3 else False
    if not fits or end + 4 > len(data) or zlib.crc32(data[at + 4 : end]) != struct.unpack_from("<I", data, end)[0]:
        return None
    try:
        text = "" if kind == 1 else data[at + 12 : end].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return kind, struct.unpack_from("<I", data, at + 8)[0], struct.unpack_from("<IHi", data, at + 12) if kind == 1 else text, end + 4


def expected(data):
    at, lost, count, seen, station, stations = 0, 0, 0, set(), "", {}
    while at < len(data):
        found = good(data, at)
        if found is None:
            # Only the magic's first byte can begin a record: the bytes before it are lost together.
            next_at = data.find(b"W", at + 1)
            next_at = len(data) if next_at < 0 else next_at
            lost, at = lost + next_at - at, next_at
            continue
        kind, number, rest, at = found
        count += 1
        if number in seen:
            continue
        seen.add(number)
        if kind == 3:
            station = rest
            continue
        entry = stations.setdefault(station, ([], []))
        entry[kind - 1].append((number, rest))
    numbers = sorted(seen)
    return {"records": count, "lost_bytes": lost, "missing": [[a + 1, b - 1] for a, b in zip(numbers, numbers[1:]) if b - a > 1], "stations": {
        name: {"readings": len(readings), "notes": [text for _, text in sorted(notes)],
               "min": min((r[1][2] for r in readings), default=None), "max": max((r[1][2] for r in readings), default=None), "last": max((r[1][0] for r in readings), default=None)}
        for name, (readings, notes) in stations.items()}}


def log(count):
    out, number = [b"WLO" if rng.random() < 0.3 else b""], rng.randrange(1000)
    for _ in range(count):
        number += rng.choice([1, 1, 1, 1, 2, 9])
        here = number - rng.randrange(1, 8) if rng.random() < 0.1 else number
        prefix = struct.pack("<I", max(here, 0))
        dice = rng.random()
        if dice < 0.1:
            item = record(3, prefix + rng.choice(["Säntis", "Zugspitze", "A", "-", "北"]).encode())
        elif dice < 0.3:
            # A note may hold what looks like a whole record: inside a good one it is text, and only damage sets it free.
            item = record(2, prefix + rng.choice([b"", "übel".encode(), b"WLOG", b"\"", record(2, struct.pack("<I", 7) + b"x") if rng.random() < 0.5 else b"y" * 300]))
        elif dice < 0.36:
            item = rng.choice([record(4, prefix), record(1, prefix), record(2, b"ab"), record(3, prefix), record(2, prefix + b"\xff\xfe"), record(2, prefix, spoil=1), record(2, prefix + b"z" * 4093),
                               record(2, prefix, magic=b"WLOg"), record(2, prefix, length=9), record(1, prefix + bytes(11)), record(0, prefix)])
        else:
            item = record(1, prefix + struct.pack("<IHi", rng.randrange(2**32), rng.randrange(2**16), rng.choice([rng.randint(-50000, 50000), -(2**31), 2**31 - 1])))
        damage = rng.random()
        if damage < 0.06:
            spot = rng.randrange(len(item))
            item = item[:spot] + bytes([item[spot] ^ 1 << rng.randrange(8)]) + item[spot + 1 :]
        elif damage < 0.1:
            item = item[: rng.randrange(len(item))]
        elif damage < 0.14:
            item += rng.choice([b"W", b"WWLOG", b"WLOGWLOG", bytes(rng.randrange(256) for _ in range(20))])
        out.append(item)
    return b"".join(out)


def compare(found, data, what):
    wanted = expected(data)
    expect(isinstance(found, dict) and isinstance(found.get("stations"), dict), f"{what}: not an object with stations")
    same(sorted(found), sorted(wanted), f"{what}: keys")
    for key in ("records", "lost_bytes", "missing"):
        same(found[key], wanted[key], f"{what}: {key}")
    same(sorted(found["stations"]), sorted(wanted["stations"]), f"{what}: station names")
    for name, entry in wanted["stations"].items():
        actual = dict(found["stations"][name])
        same(sorted(actual), sorted(entry), f"{what}: keys of {name!r}")
        for key in ("min", "max"):
            value = actual.pop(key)
            expect(value is None if entry[key] is None else isinstance(value, (int, float)) and abs(value * 1000 - entry[key]) < 0.01, f"{what}: {key} of {name!r} is {value!r}, not {entry[key]!r} thousandths")
        same(actual, {key: entry[key] for key in actual}, f"{what}: {name!r}")


def salvage(data, timeout=10):
    own("/app")
    text = run([PROGRAM], stdin=data, timeout=timeout).text
    try:
        return json.loads(text)
    except ValueError as error:
        expect(False, f"the output is not JSON: {error}: {text[:200]!r}")


@check("report.json is right for the shipped log")
def shipped():
    with open("/tests/damaged.wlog", "rb") as file:
        compare(read_json("/app/report.json"), file.read(), "damaged.wlog")


@check("hidden logs are salvaged")
def hidden():
    for count in [0, 1, 3, 20, 200, 200, 200, 2000]:
        data = log(count) if count else b""
        compare(salvage(data), data, f"hidden log of {count} records")


@check("a large log of junk and traps is read in time")
def large():
    data = log(3000) + b"WLOG" * 100000 + bytes(rng.randrange(256) for _ in range(300000)) + b"W" * 500000 + log(50)
    compare(salvage(data, timeout=30), data, "large log")
