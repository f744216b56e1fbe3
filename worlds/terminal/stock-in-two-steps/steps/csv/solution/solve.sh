#!/bin/bash
set -euo pipefail
cat > /app/stock <<'PY'
#!/usr/bin/python3
import csv
import os
import re
import sys

PATH = os.environ.get("STOCK_FILE") or "/app/stock.csv"


def load():
    try:
        with open(PATH, newline="", encoding="utf-8") as file:
            return {row["item"]: int(row["count"]) for row in csv.DictReader(file)}
    except FileNotFoundError:
        return {}


def ordered(stock):
    return sorted(((item, count) for item, count in stock.items() if count), key=lambda pair: pair[0].encode())


def save(stock):
    with open(PATH + ".new", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("item", "count"), *ordered(stock)])
    os.replace(PATH + ".new", PATH)


def fail(code, message):
    print(f"stock: {message}", file=sys.stderr)
    sys.exit(code)


def main(arguments):
    sys.stdout.reconfigure(encoding="utf-8")
    if arguments == ["list"]:
        for item, count in ordered(load()):
            print(f"{item}\t{count}")
        return
    if len(arguments) != 3 or arguments[0] not in ("add", "remove"):
        fail(2, "usage: stock add|remove ITEM COUNT, stock list")
    command, item, text = arguments
    if not item or re.search(r"[\t\r\n]", item) or not re.fullmatch(r"[0-9]{1,7}", text) or not 1 <= int(text) <= 1000000:
        fail(2, "no such item or count")
    stock = load()
    count = stock.get(item, 0) + (int(text) if command == "add" else -int(text))
    if count < 0:
        fail(1, f"there are only {stock.get(item, 0)} of {item}")
    save({**stock, item: count})


main(sys.argv[1:])
PY
chmod 755 /app/stock
/usr/bin/python3 - <<'PY'
import csv
import subprocess

with open("/app/deliveries-1.csv", newline="") as file:
    for row in csv.DictReader(file):
        change = int(row["change"])
        subprocess.run(["/app/stock", "add" if change > 0 else "remove", row["item"], str(abs(change))], check=True)
PY
