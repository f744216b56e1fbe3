import csv
import io
import os

from grade import check, expect, own, read_text, rng, run, same, scratch

PROGRAM = "/app/stock"
ITEMS = ["bolt", "Bolt M6", "washer, large", 'nut "N5"', "größe", "-x", "10", "9", "a b ", "item", "🔩"]


def stock(file, *arguments, fail=True):
    own("/app")
    return run([PROGRAM, *arguments], env={"STOCK_FILE": file}, fail=fail)


def rows(path):
    return list(csv.reader(io.StringIO(read_text(path), newline="")))


def table(wanted):
    return sorted(((item, count) for item, count in wanted.items() if count), key=lambda pair: pair[0].encode())


@check("hidden changes add up")
def changes():
    file = os.path.join(scratch("one"), "stock.csv")
    same(stock(file, "list").out, b"", "list of an empty stock")
    expect(not os.path.exists(file), "list creates the file")
    wanted = {}
    for _ in range(40):
        item, count, command = rng.choice(ITEMS), rng.choice([1, 2, 5, rng.randint(1, 1000000)]), rng.choice(["add", "add", "remove"])
        enough = command == "add" or wanted.get(item, 0) >= count
        result = stock(file, command, item, str(count), fail=False)
        same((result.code, result.out, result.err != b""), (0 if enough else 1, b"", not enough), f"exit code, output and message of {command} {item!r} {count} with {wanted.get(item, 0)} there")
        if enough:
            wanted[item] = wanted.get(item, 0) + (count if command == "add" else -count)
    same(stock(file, "list").out.decode(), "".join(f"{item}\t{count}\n" for item, count in table(wanted)), "list")
    same(rows(file), [["item", "count"], *([item, str(count)] for item, count in table(wanted))], "rows of the file")


@check("wrong arguments are refused")
def wrong():
    file = os.path.join(scratch("two"), "stock.csv")
    stock(file, "add", "bolt", "3")
    for arguments in [[], ["ad", "bolt", "1"], ["add", "bolt"], ["add", "bolt", "1", "2"], ["list", "x"], ["add", "", "1"], ["add", "a\tb", "1"], ["add", "a\nb", "1"],
                      *(["add", "bolt", count] for count in ["0", "-1", "1.5", "x", "", "1000001", "1e3", "٣"])]:
        result = stock(file, *arguments, fail=False)
        same((result.code, result.out, result.err != b""), (2, b"", True), f"exit code, output and message for {arguments}")
    same(stock(file, "list").out, b"bolt\t3\n", "list after all")


@check("the deliveries are booked")
def booked():
    same(rows("/app/stock.csv"), [["item", "count"], ["bolt M6", "180"], ['nut "N5"', "40"], ["washer, large", "499"]], "rows of /app/stock.csv")
