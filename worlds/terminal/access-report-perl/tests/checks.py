from grade import check, own, rng, run, same, write

PROGRAM = "/app/report.pl"


def log(count):
    """Lines, and what they add up to."""
    lines, stats, skipped = [], {}, 0
    paths = ["/", "/a", "/a/b", "/B", "/search", "/%C3%A9", "*", "/10", "/9", "/x_y"]
    for _ in range(count):
        path, status = rng.choice(paths), rng.choice([200, 204, 304, 404, 499, 500, 500, 503, 599, 600])
        size, micros = rng.choice(["-", "0", str(rng.randrange(10**9))]), rng.choice([rng.randrange(10), rng.randrange(3000), rng.randrange(10**8), 100150, 50, 49, 250])
        suffix = "" if path == "*" else rng.choice(["", "", "?q=1", "#top", "?a=/b#c", "#a?b"])
        user = rng.choice(["-", "alice", "bob smith", 'the "one"'])
        host = rng.choice(["10.0.0.1", "2001:db8::7", "host.example"])
        method, protocol = rng.choice(["GET", "POST", "HEAD", "OPTIONS", "PURGE"]), rng.choice(["HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/3"])
        lines.append(f'{host} - {user} [11/Mar/2024:06:25:24 +0000] "{method} {path}{suffix} {protocol}" {status} {size} {micros}' + rng.choice(["", "", "\r"]))
        entry = stats.setdefault(path, [0, 0, 0, []])
        entry[0] += 1
        entry[1] += 500 <= status <= 599
        entry[2] += 0 if size == "-" else int(size)
        entry[3].append(micros)
        if rng.random() < 0.05:
            skipped += 1
            lines.append(rng.choice(["", "noise", '1.1.1.1 - - [t] "-" 408 - 20', '1.1.1.1 - - [t] "GET x HTTP/1.1" 200 1 1', '1.1.1.1 - - [t] "GET / HTTP/1.1" 200 1',
                                     '1.1.1.1 - - [t] "get / HTTP/1.1" 200 1 1', '1.1.1.1 - - [t] "GET / SPDY/3" 200 1 1', '1.1.1.1 - - [t] "GET / HTTP/1.1" 200 1 1 extra']))
    expected = ""
    for path in sorted(stats, key=lambda p: (-stats[p][0], p.encode())):
        requests, errors, size, latency = stats[path]
        micros = sorted(latency)[(95 * requests + 99) // 100 - 1]
        tenths = (micros + 50) // 100
        expected += f"{path} {requests} {errors} {size} {tenths // 10}.{tenths % 10}\n"
    return "\n".join(lines) + "\n", expected, skipped


def compare(result, expected, skipped):
    same(result.text, expected, "report")
    same(result.err.decode().strip().split("\n")[-1], f"skipped {skipped}" if skipped else "", "last line on standard error")


@check("hidden logs, on standard input")
def standard_input():
    own("/app")
    for count in [1, 7, 19, 20, 21, 100, 101, 2000]:
        text, expected, skipped = log(count)
        compare(run([PROGRAM], stdin=text), expected, skipped)


@check("hidden logs, by name")
def files():
    own("/app")
    one, two = log(50)[0], log(60)[0]
    joined = run([PROGRAM], stdin=one + two)
    named = run([PROGRAM, write("one.log", one), write("two.log", two)])
    same(named.out, joined.out, "report on two files")
    text, expected, skipped = log(300)
    compare(run([PROGRAM, write("three.log", text)]), expected, skipped)
