import csv
import json
import os
import sqlite3

from grade import check, expect, own, private, read, rng, run, same, scratch, write

PROGRAM = "/app/load"
COLUMNS = {"customers": ["id", "name", "email"], "orders": ["number", "shop", "customer_id", "placed_on"],
           "order_lines": ["order_number", "position", "item", "quantity", "price_cents"], "revenue": ["month", "shop", "cents"]}


def tables(path):
    """The rows of a copy of a database that somebody else made."""
    copy = private("copy.db")
    with open(copy, "wb") as file:
        file.write(read(path))
    db = sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)
    db.execute("PRAGMA trusted_schema = OFF")
    found = {}
    for table, columns in COLUMNS.items():
        try:
            cursor = db.execute(f"SELECT * FROM {table}")
            same([column[0] for column in cursor.description], columns, f"columns of {table}")
            found[table] = cursor.fetchmany(100000)
        except sqlite3.Error as error:
            expect(False, f"{path}: {table}: {error}")
    same(db.execute("PRAGMA foreign_key_check").fetchall(), [], "violated foreign keys")
    kinds = {name: kind for kind, name in db.execute("SELECT type, name FROM sqlite_master")}
    same({name: kinds.get(name) for name in COLUMNS}, {"customers": "table", "orders": "table", "order_lines": "table", "revenue": "view"}, "tables and views")
    keys = {row[3]: row[2] for row in db.execute("PRAGMA foreign_key_list(orders)")} | {row[3]: row[2] for row in db.execute("PRAGMA foreign_key_list(order_lines)")}
    same(keys, {"customer_id": "customers", "order_number": "orders"}, "foreign keys")
    db.close()
    return found


def expected(directory):
    def rows(name, encoding):
        with open(os.path.join(directory, name), newline="", encoding=encoding) as file:
            return list(csv.reader(file, delimiter=";"))[1:]
    customers = {}
    for number, name, email in rows("customers.csv", "utf-8-sig"):
        customers[int(number)] = (name, email.strip().lower())
    orders = {}
    for number, customer, date, item, quantity, price in rows("north.csv", "latin-1"):
        order = orders.setdefault(number, ["north", customer, "-".join(reversed(date.split("."))), []])
        euros, _, fraction = price.replace(".", "").partition(",")
        order[3].append((item, int(quantity), int(euros) * 100 + int((fraction + "00")[:2])))
    last = {}
    with open(os.path.join(directory, "south.jsonl"), encoding="utf-8") as file:
        for line in filter(str.strip, file):
            order = json.loads(line)
            last[order["order"]] = order
    for number, order in last.items():
        if not order["cancelled"]:
            orders[number] = ["south", order["customer"], order["placed"][:10], [(line["item"], line["qty"], line["price_cents"]) for line in order["lines"]]]
    result, revenue = {"customers": [(number, *rest) for number, rest in customers.items()], "orders": [], "order_lines": []}, {}
    for number, (shop, customer, placed, lines) in orders.items():
        known = int(customer) if customer is not None and int(customer) in customers else None
        result["orders"].append((number, shop, known, placed))
        result["order_lines"] += [(number, at, *line) for at, line in enumerate(lines, 1)]
        key = (placed[:7], shop)
        revenue[key] = revenue.get(key, 0) + sum(quantity * price for _, quantity, price in lines)
    result["revenue"] = [(*key, revenue[key]) for key in sorted(revenue)]
    return result


def compare(found, wanted):
    for table in ("customers", "orders", "order_lines"):
        same(sorted(found[table], key=repr), sorted(wanted[table], key=repr), f"rows of {table}")
    same(found["revenue"], wanted["revenue"], "rows of revenue")


def quoted(text):
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ';"\r\n') or rng.random() < 0.2 else text


def exports():
    """A hidden month."""
    names = ["Åsa", "Müller; Söhne", 'the "old" one', "Zoë\r\nAbt. 2", "Łukasz", "李"]
    lines = ["id;name;email"] + [f"{rng.randint(1, 9)};{quoted(rng.choice(names))};{rng.choice(['', ' '])}{rng.choice(['A.B@Example.ORG', 'c@d.de'])} " for _ in range(12)]
    name = f"month-{rng.getrandbits(40)}"
    path = os.path.dirname(write(f"{name}/customers.csv", "\r\n".join(lines).encode("utf-8-sig") + b"\r\n"))
    lines = ["Auftrag;Kunde;Datum;Artikel;Menge;Preis"]
    for _ in range(80):
        price = rng.choice(["1.299,00", "4,5", "0,99", "12", "1.000.000,01", "0,07", f"{rng.randint(0, 999)},{rng.randint(0, 99):02d}"])
        lines.append(f"N{rng.randint(1, 40)};{rng.randint(1, 12)};{rng.randint(1, 28):02d}.{rng.randint(1, 12):02d}.{rng.choice([2022, 2023])};{quoted(rng.choice(['Tür', 'Stuhl; grün', 'Öl ½ l']))};{rng.randint(1, 99)};{price}")
    write(f"{name}/north.csv", "\r\n".join(lines).encode("latin-1") + b"\r\n")
    text = ""
    for _ in range(60):
        text += json.dumps({"order": f"S{rng.randint(1, 30)}", "customer": rng.choice([1, 2, "3", "7", None, 55]), "placed": f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}T23:59:59Z",
                            "lines": [{"item": rng.choice(["Lamp", "Café"]), "qty": rng.randint(0, 5), "price_cents": rng.randint(0, 9999)} for _ in range(rng.randint(0, 3))],
                            "cancelled": rng.random() < 0.2}, ensure_ascii=rng.random() < 0.5) + "\n"
    write(f"{name}/south.jsonl", text)
    return path


@check("shop.db holds the shipped exports")
def shipped():
    compare(tables("/app/shop.db"), expected("/tests/exports"))


@check("the program loads hidden months, again and again into the same file")
def hidden():
    own("/app")
    database = os.path.join(scratch("out"), "month.db")
    for _ in range(4):
        directory = exports()
        run([PROGRAM, directory, database], cwd="/", timeout=20)
        compare(tables(database), expected(directory))
