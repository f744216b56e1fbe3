import gzip
import os
import stat
import zlib

from grade import check, expect, own, read, read_json, rng, run, same, scratch, write

PROGRAM, DAY = "/app/archive-logs", 86400


def listing(top):
    """Everything below a directory: what it is, its bits, time and content (unpacked for gzip files)."""
    found = {}
    for directory, directories, names in os.walk(top):
        for name in directories + names:
            path = os.path.join(directory, name)
            info = os.lstat(path)
            relative = os.path.relpath(path, top)
            if stat.S_ISREG(info.st_mode):
                data = read(path)
                if name.endswith(".gz") and data[:2] == b"\x1f\x8b":
                    try:
                        data = gzip.decompress(data)
                    except (OSError, EOFError, zlib.error) as error:
                        expect(False, f"{relative} is not a gzip file: {error}")
                found[relative] = ("file", stat.S_IMODE(info.st_mode), int(info.st_mtime), data)
            else:
                found[relative] = ("link", os.readlink(path)) if stat.S_ISLNK(info.st_mode) else ("directory",)
    return found


def size(top):
    return sum(os.lstat(os.path.join(d, n)).st_size for d, _, names in os.walk(top) for n in names if stat.S_ISREG(os.lstat(os.path.join(d, n)).st_mode))


def expected(before, now):
    after, report = dict(before), {"compressed": [], "deleted": [], "conflicts": []}
    for path, entry in before.items():
        if entry[0] != "file" or not path.endswith((".log", ".log.gz")):
            continue
        age = now - entry[2]
        if age >= 30 * DAY:
            del after[path]
            report["deleted"].append(path)
        elif path.endswith(".log") and age >= 7 * DAY:
            if path + ".gz" in before:
                report["conflicts"].append(path)
            else:
                after[path + ".gz"] = after.pop(path)
                report["compressed"].append(path)
    return after, {kind: sorted(paths) for kind, paths in report.items()}


def tree(now):
    top = scratch(f"logs-{rng.getrandbits(40)}")
    names = ["a.log", "b c.log", "-rf.log", 'q"uo\'te.log', "line\nbreak.log", "é.log", ".log", "x.log.gz", "y.log.gz", "notes.txt", "z.log.1", "LOG", "w.LOG", "c.log", "d.log", "e.log", "$(touch f).log"]
    for directory in ["", "web", "web/deep er", "-d", "old.log"]:
        for name in rng.sample(names, 12):
            path = write(os.path.join(top, directory, name), rng.randbytes(rng.randrange(3000)) if rng.random() < 0.5 else b"line\n" * rng.randrange(2000), rng.choice([0o644, 0o600, 0o640]))
            age = rng.choice([-DAY, 0, 7 * DAY - 1, 7 * DAY, 7 * DAY + 1, 30 * DAY - 1, 30 * DAY, rng.randrange(0, 60 * DAY)])
            os.utime(path, (now - age, now - age))
    pair = write(os.path.join(top, "web/pair.log"), b"new\n")
    write(os.path.join(top, "web/pair.log.gz"), gzip.compress(b"old\n"))
    os.utime(pair, (now - 8 * DAY, now - 8 * DAY))
    os.utime(pair + ".gz", (now - 9 * DAY, now - 9 * DAY))
    outside = write(f"outside-{rng.getrandbits(40)}/old.log", b"outside\n")
    os.utime(outside, (now - 90 * DAY, now - 90 * DAY))
    os.symlink(outside, os.path.join(top, "link.log"))
    os.symlink(os.path.dirname(outside), os.path.join(top, "linked"))
    return top, outside


def archive(top, now, report):
    own("/app")
    run([PROGRAM, top, str(now), report], timeout=20)


def compare(found, wanted):
    same(sorted(found), sorted(wanted), "entries")
    for path, entry in wanted.items():
        same(found[path], entry, f"kind, bits, time and content of {path!r}")


@check("hidden trees are archived by the policy, once")
def hidden():
    for _ in range(4):
        now = 1_700_000_000 + rng.randrange(10**7)
        top, outside = tree(now)
        before, bytes_before = listing(top), size(top)
        wanted, lists = expected(before, now)
        report = os.path.join(scratch("reports"), f"{rng.getrandbits(40)}/report.json")
        archive(top, now, report)
        compare(listing(top), wanted)
        same(read_json(report), {**lists, "bytes_before": bytes_before, "bytes_after": size(top)}, "report")
        expect(os.path.exists(outside), "a file outside of the directory is gone")
        archive(top, now, report)
        compare(listing(top), wanted)
        again = read_json(report)
        same([again["compressed"], again["deleted"], again["conflicts"]], [[], [], lists["conflicts"]], "lists of a second run")


@check("/app/logs is archived")
def shipped():
    names = {}
    for service in ("web", "db", "mail queue"):
        for age in (0, 1, 3, 6, 7, 8, 20, 29, 30, 31, 90):
            names.setdefault("keep" if age < 7 else "compress" if age < 30 else "delete", []).append(f"{service}/{service}-{age}.log")
    found = [path for path, entry in listing("/app/logs").items() if entry[0] == "file"]
    same(sorted(found), sorted(names["keep"] + [f"{path}.gz" for path in names["compress"]]), "files")
    report = read_json("/app/out/report.json")
    same((report["compressed"], report["deleted"], report["conflicts"], report["bytes_after"]), (sorted(names["compress"]), sorted(names["delete"]), [], size("/app/logs")), "report")
