from grade import check, expect, own, rng, run, same, write

PROGRAM = "/app/ledger.py"


def show(cents):
    return "%s%d.%02d" % ("-" if cents < 0 else "", abs(cents) // 100, abs(cents) % 100)


def spell(cents):
    """One of the spellings of an amount that the instruction allows."""
    whole, fraction = divmod(abs(cents), 100)
    number = f"{whole:,}" if rng.random() < 0.5 else str(whole)
    if fraction:
        number += f".{fraction:02d}" if fraction % 10 or rng.random() < 0.5 else f".{fraction // 10}"
    elif rng.random() < 0.5:
        number += rng.choice([".00", ".0"])
    number = rng.choice(["", "$"]) + number
    if cents < 0:
        number = f"({number})" if rng.random() < 0.5 else f"-{number}"
    return rng.choice(["", " "]) + number + rng.choice(["", " "])


def quoted(field):
    return '"' + field.replace('"', '""') + '"' if rng.random() < 0.3 or any(c in field for c in ',"\r\n') else field


def journal(count, end="\n"):
    accounts = ["Cash", "Rent", "Zoë, travel", "éclair", 'the "big" one', "cash", "10", "9"]
    lines, totals = ["date,account,amount,memo"], {}
    for _ in range(count):
        account, cents = rng.choice(accounts), rng.choice([rng.randint(-99, 99), rng.randint(-10**9, 10**9), 0])
        memo = rng.choice(["plain", "with, comma", 'say "hi"', f"two{end}lines", ""])
        totals[account] = totals.get(account, 0) + cents
        lines.append(",".join(quoted(field) for field in ["2024-01-02", rng.choice(["", "  "]) + account, spell(cents), memo]))
        if rng.random() < 0.05:
            lines.append("")
    expected = "".join(f"{name}\t{show(totals[name])}\n" for name in sorted(totals)) + f"TOTAL\t{show(sum(totals.values()))}\n"
    return end.join(lines) + end, expected


def report(name, text):
    own("/app")
    return run([PROGRAM, write(name, text)])


@check("hidden journals add up to the cent")
def sums():
    for count, end in [(1, "\n"), (40, "\n"), (60, "\r\n"), (3000, "\n")]:
        text, expected = journal(count, end)
        same(report(f"journal-{count}.csv", text).text, expected, f"report on {count} entries")


@check("amounts that float cannot hold stay exact")
def exact():
    text = "date,account,amount,memo\n" + "2024-01-01,A,0.10,\n" * 3000 + "2024-01-01,B,90071992547409931.07,\n2024-01-01,A,-300,\n"
    same(report("exact.csv", text).text, "A\t0.00\nB\t90071992547409931.07\nTOTAL\t90071992547409931.07\n", "report")


@check("a journal without entries has a total of zero")
def empty():
    same(report("empty.csv", "date,account,amount,memo\n").text, "TOTAL\t0.00\n", "report")


@check("a bad amount is named, and nothing is printed")
def bad():
    own("/app")
    for amount in ["12.345", "abc", "", "1.2.3", "(-5", "1e3", "nan"]:
        path = write("bad.csv", f"date,account,amount,memo\n2024-01-01,Fine,1.00,\n2024-01-01,Broken,{amount},\n")
        result = run([PROGRAM, path], fail=False)
        same((result.code, result.out), (1, b""), f"exit code and output for amount {amount!r}")
        expect(b"Broken" in result.err and amount.encode() in result.err, f"the message does not name account and amount {amount!r}: {result.err!r}")
