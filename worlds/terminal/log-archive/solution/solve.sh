#!/bin/bash
set -euo pipefail
cat > /app/archive-logs <<'PY'
#!/usr/bin/python3
import gzip
import json
import os
import shutil
import stat
import sys

DAY = 86400


def files(top):
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            info = os.lstat(path)
            if stat.S_ISREG(info.st_mode):
                yield path, info


def compress(path, info):
    partial = path + ".gz.partial"
    with open(path, "rb") as source, open(partial, "wb") as target, gzip.GzipFile("", "wb", 9, target, int(info.st_mtime)) as packed:
        shutil.copyfileobj(source, packed)
    os.chmod(partial, stat.S_IMODE(info.st_mode))
    os.utime(partial, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.rename(partial, path + ".gz")
    os.unlink(path)


def main(top, now, report):
    done = {"compressed": [], "deleted": [], "conflicts": []}
    failed = False
    found = list(files(top))
    for path, info in found:
        age = int(now) - info.st_mtime_ns // 10**9
        try:
            if path.endswith((".log", ".log.gz")) and age >= 30 * DAY:
                os.unlink(path)
                kind = "deleted"
            elif path.endswith(".log") and age >= 7 * DAY:
                kind = "conflicts" if os.path.lexists(path + ".gz") else "compressed"
                if kind == "compressed":
                    compress(path, info)
            else:
                continue
            done[kind].append(os.path.relpath(path, top))
        except OSError as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed = True
    totals = {"bytes_before": sum(info.st_size for _, info in found), "bytes_after": sum(info.st_size for _, info in files(top))}
    os.makedirs(os.path.dirname(os.path.abspath(report)), exist_ok=True)
    with open(report, "w") as file:
        json.dump({kind: sorted(paths) for kind, paths in done.items()} | totals, file)
    return failed


sys.exit(main(*sys.argv[1:]))
PY
chmod 755 /app/archive-logs
/app/archive-logs /app/logs 1717200000 /app/out/report.json
