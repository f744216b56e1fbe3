import os
import re
import sqlite3

from grade import check, expect, own, read, rng, run, same, scratch, write

PROGRAM = "/app/stock"
ITEMS = ["bolt", "washer, large", "größe", "-x", "10", "9", "it's"]


def stock(file, *arguments, fail=True):
    own("/app")
    return run([PROGRAM, *arguments], env={"STOCK_FILE": file}, fail=fail)


def movements(path):
    name = write(f"copies/{rng.getrandbits(40)}.db", read(path))
    for suffix in ("-wal",):
        if os.path.exists(path + suffix):
            write(name + suffix, read(path + suffix))
    try:
        db = sqlite3.connect(name)
        db.execute("PRAGMA trusted_schema = OFF")
        columns = [(row[1], row[2]) for row in db.execute("PRAGMA table_info(movements)")]
        same(columns, [("id", "INTEGER"), ("item", "TEXT"), ("change", "INTEGER"), ("at", "TEXT")], "columns of movements")
        return db.execute("SELECT item, change, at FROM movements ORDER BY id").fetchmany(100000)
    except sqlite3.Error as error:
        expect(False, f"{path}: {error}")


def when():
    return f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}T{rng.randint(0, 23):02d}:00:00Z"


@check("hidden changes, their list and their history")
def changes():
    file = os.path.join(scratch("one"), "stock.db")
    same((stock(file, "list").out, stock(file, "history", "x").out, os.path.exists(file)), (b"", b"", False), "list and history of an empty stock, and whether they create the database")
    wanted, rows = {}, []
    for _ in range(40):
        item, count, command, at = rng.choice(ITEMS), rng.choice([1, 2, 5, rng.randint(1, 1000)]), rng.choice(["add", "add", "remove"]), when()
        enough = command == "add" or wanted.get(item, 0) >= count
        result = stock(file, command, item, str(count), "--at", at, fail=False)
        same((result.code, result.out, result.err != b""), (0 if enough else 1, b"", not enough), f"exit code, output and message of {command} {item!r} {count}")
        if enough:
            rows.append((item, count if command == "add" else -count, at))
            wanted[item] = wanted.get(item, 0) + rows[-1][1]
    same(movements(file), rows, "rows of movements")
    same(stock(file, "list").out.decode(), "".join(f"{item}\t{wanted[item]}\n" for item in sorted(wanted, key=str.encode) if wanted[item]), "list")
    for item in ITEMS:
        total, text = 0, ""
        for _, change, at in sorted((row for row in rows if row[0] == item), key=lambda row: row[2]):
            total += change
            text += f"{at}\t{change:+d}\t{total}\n"
        same(stock(file, "history", item).out.decode(), text, f"history of {item!r}")


@check("the present time is taken without --at, and wrong arguments are refused")
def arguments():
    file = os.path.join(scratch("two"), "stock.db")
    stock(file, "add", "bolt", "3")
    expect(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", movements(file)[0][2]), f"time of a movement: {movements(file)[0][2]!r}")
    for words in [[], ["add", "bolt"], ["add", "bolt", "1", "--at"], ["add", "bolt", "1", "--at", "2024-03-01"], ["add", "bolt", "1", "--at", "2024-13-01T08:00:00Z"], ["add", "bolt", "1", "--on", "2024-03-01T08:00:00Z"],
                  ["history"], ["history", "a", "b"], ["list", "x"], ["add", "bolt", "0"], ["add", "a\tb", "1"]]:
        result = stock(file, *words, fail=False)
        same((result.code, result.out, result.err != b""), (2, b"", True), f"exit code, output and message for {words}")


@check("ten at once lose nothing")
def together():
    file = os.path.join(scratch("three"), "stock.db")
    own("/app")
    script = 'for i in 1 2 3 4 5 6 7 8 9 10; do (for j in 1 2 3 4; do "$0" add bolt 3 || echo failed; done; "$0" remove nut 7 2>/dev/null; echo "nut $?") & done; wait'
    stock(file, "add", "nut", "30")
    words = run(["/bin/sh", "-c", script, PROGRAM], env={"STOCK_FILE": file}, timeout=60).text
    same(words.count("failed"), 0, "additions that failed")
    same((words.count("nut 0"), words.count("nut 1")), (4, 6), "removals of 7 out of 30 that succeeded, and that were refused")
    same(stock(file, "list").text, "bolt\t120\nnut\t2\n", "list")


@check("the data has moved")
def moved():
    expect(not os.path.lexists("/app/stock.csv"), "/app/stock.csv is still there")
    same(movements("/app/stock.db"), [
        ("bolt M6", 180, "2024-01-01T00:00:00Z"), ('nut "N5"', 40, "2024-01-01T00:00:00Z"), ("washer, large", 499, "2024-01-01T00:00:00Z"),
        ("hinge", 30, "2024-03-01T08:00:00Z"), ("bolt M6", -80, "2024-03-02T09:30:00Z"), ("washer, large", 100, "2024-03-04T07:15:00Z"), ("hinge", -5, "2024-03-04T07:16:00Z"), ("clamp", 4, "2024-02-28T12:00:00Z"),
    ], "movements in /app/stock.db")
