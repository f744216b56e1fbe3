import json
from datetime import datetime, timedelta

from grade import check, own, rng, run, same

PROGRAM = "/app/sessionize"
EPOCH = datetime(1970, 1, 1)
NOISE = ["", "   ", "{", "[]", "17", '"text"', "null", '{"user": "ann"}', '{"user": 1, "at": "2024-05-01T10:00:00Z", "page": "/"}', '{"user": "ann", "at": "2024-05-01 10:00:00", "page": "/"}',
         '{"user": "ann", "at": 1714557600, "page": "/"}', '{"user": "ann", "at": "2024-05-01T10:00:00Z", "page": null}', '{"user": "ann", "at": "2024-13-01T10:00:00Z", "page": "/"}',
         '{"user": "ann", "at": "2024-05-01T10:00:00", "page": "/"}', '{"user": null, "at": "2024-05-01T10:00:00Z", "page": "/"}']


def spell(moment):
    """A time in UTC seconds, in one of the forms."""
    minutes = rng.choice([None, 0, 120, -330, 845, -720])
    if minutes is None:
        return (EPOCH + timedelta(seconds=moment)).isoformat() + "Z"
    local = (EPOCH + timedelta(seconds=moment + minutes * 60)).isoformat()
    return f"{local}{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def stream(count, users, noise=0.05):
    base, events, lines = 1_709_161_200 + rng.randrange(10**6), [], []
    clock = {user: base + rng.randrange(4000) for user in users}
    for _ in range(count):
        user = rng.choice(users)
        clock[user] += rng.choice([0, 1, 60, 1799, 1800, 1801, rng.randrange(1, 5000)])
        events.append((user, clock[user], rng.choice(["/", "/docs", "/é", "/a?b=\"c\"", "/🎈", "/\\x"])))
    rng.shuffle(events)
    for user, moment, page in events:
        if rng.random() < noise:
            lines.append(rng.choice(NOISE))
        event = {"user": user, "at": spell(moment), "page": page}
        if rng.random() < 0.2:
            event["extra"] = {"user": "zoe"}
        lines.append(json.dumps(event, ensure_ascii=rng.random() < 0.5))
    return "\n".join(lines) + rng.choice(["", "\n"]), expected(events)


def expected(events):
    by_user, visits = {}, []
    for number, (user, moment, page) in enumerate(events):
        by_user.setdefault(user, []).append((moment, number, page))
    for user, items in by_user.items():
        items.sort()
        visit = []
        for item in items:
            if visit and item[0] - visit[-1][0] >= 1800:
                visits.append((user, visit))
                visit = []
            visit.append(item)
        visits.append((user, visit))
    visits.sort(key=lambda pair: (pair[1][0][0], pair[0]))
    return "".join(
        json.dumps({"user": user, "start": (EPOCH + timedelta(seconds=visit[0][0])).isoformat() + "Z", "seconds": visit[-1][0] - visit[0][0], "events": len(visit),
                    "entry": visit[0][2], "exit": visit[-1][2], "pages": len({page for _, _, page in visit})}, ensure_ascii=False, separators=(",", ":")) + "\n"
        for user, visit in visits)


@check("hidden streams give the right visits")
def hidden():
    own("/app")
    for count in [1, 2, 30, 300, 3000]:
        text, visits = stream(count, ["ann", "Ben", "zoë", "🦊", "a b", ""])
        same(run([PROGRAM], stdin=text).out.decode("utf-8", "replace"), visits, f"visits of {count} events")


@check("nothing in, nothing out")
def nothing():
    own("/app")
    for text in ["", "\n", "\n".join(NOISE)]:
        same(run([PROGRAM], stdin=text).out, b"", f"output for {text[:20]!r}")


@check("a large stream is done in time")
def large():
    own("/app")
    text, visits = stream(60000, [f"user{n}" for n in range(500)], 0)
    same(run([PROGRAM], stdin=text, timeout=20).text == visits, True, "visits of 60,000 events are right")
