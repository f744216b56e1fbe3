#!/bin/bash
set -euo pipefail
cat > /app/sessionize <<'PY'
#!/usr/bin/python3
import json
import re
import sys
from datetime import datetime, timedelta, timezone

TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII)
EPOCH = datetime(1970, 1, 1)


def seconds(text):
    match = TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, clock, sign, hours, minutes = match.groups()
    offset = (int(hours) * 60 + int(minutes)) * 60 * (-1 if sign == "-" else 1) if sign else 0
    return int((datetime.fromisoformat(f"{day}T{clock}") - EPOCH).total_seconds()) - offset


by_user = {}
for number, line in enumerate(sys.stdin.buffer):
    try:
        event = json.loads(line)
        user, page = event["user"], event["page"]
        if not isinstance(user, str) or not isinstance(page, str):
            continue
        by_user.setdefault(user, []).append((seconds(event["at"]), number, page))
    except (ValueError, KeyError, TypeError):
        continue

visits = []
for user, events in by_user.items():
    events.sort()
    begin = 0
    for i in range(1, len(events) + 1):
        if i == len(events) or events[i][0] - events[i - 1][0] >= 1800:
            visits.append((events[begin][0], user, events[begin:i]))
            begin = i
visits.sort(key=lambda visit: visit[:2])
for start, user, events in visits:
    sys.stdout.buffer.write(json.dumps({
        "user": user,
        "start": (EPOCH + timedelta(seconds=start)).isoformat() + "Z",
        "seconds": events[-1][0] - start,
        "events": len(events),
        "entry": events[0][2],
        "exit": events[-1][2],
        "pages": len({event[2] for event in events}),
    }, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
PY
chmod 755 /app/sessionize
