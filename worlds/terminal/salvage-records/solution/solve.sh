#!/bin/bash
set -euo pipefail
cat > /app/salvage <<'PY'
#!/usr/bin/python3
import json
import struct
import sys
import zlib

data = sys.stdin.buffer.read()


def record(at):
    """(kind, sequence, rest of the payload, end) of a good record at this offset, or None."""
    if at + 12 > len(data):
        return None
    kind, _, length = struct.unpack_from("<BBH", data, at + 4)
    end = at + 8 + length
    if kind not in (1, 2, 3) or length > 4096 or length < 4 or end + 4 > len(data):
        return None
    if kind == 1 and length != 14 or kind == 3 and length == 4:
        return None
    if zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + 4], "little"):
        return None
    payload = data[at + 8 : end]
    rest = payload[4:]
    if kind != 1:
        try:
            rest = rest.decode("utf-8")
        except UnicodeDecodeError:
            return None
    return kind, int.from_bytes(payload[:4], "little"), rest, end + 4


records, good_bytes, at = [], 0, 0
while (at := data.find(b"WLOG", at)) >= 0:
    found = record(at)
    if found is None:
        at += 1
        continue
    records.append(found[:3])
    good_bytes += found[3] - at
    at = found[3]

seen, station, stations = set(), "", {}
for kind, number, rest in records:
    if number in seen:
        continue
    seen.add(number)
    if kind == 3:
        station = rest
        continue
    entry = stations.setdefault(station, {"values": [], "times": [], "notes": []})
    if kind == 2:
        entry["notes"].append((number, rest))
    else:
        time, _, value = struct.unpack("<IHi", rest)
        entry["values"].append(value)
        entry["times"].append(time)

numbers = sorted(seen)
json.dump({
    "records": len(records),
    "lost_bytes": len(data) - good_bytes,
    "missing": [[a + 1, b - 1] for a, b in zip(numbers, numbers[1:]) if b > a + 1],
    "stations": {name: {
        "readings": len(entry["values"]),
        "notes": [text for _, text in sorted(entry["notes"])],
        "min": min(entry["values"]) / 1000 if entry["values"] else None,
        "max": max(entry["values"]) / 1000 if entry["values"] else None,
        "last": max(entry["times"], default=None),
    } for name, entry in stations.items()},
}, sys.stdout)
print()
PY
chmod 755 /app/salvage
/app/salvage < /app/damaged.wlog > /app/report.json
