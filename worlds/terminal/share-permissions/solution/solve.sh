#!/bin/bash
set -euo pipefail
/usr/bin/python3 - <<'PY'
import json
import os
import pwd
import stat

TOP = "/srv/share"
with open("/etc/share-setuid.allow") as file:
    allowed = {line.strip() for line in file if line.strip() and not line.startswith("#")}
entries = [TOP] + [os.path.join(directory, name) for directory, directories, names in os.walk(TOP) for name in directories + names]
removed, links = [], []
for path in entries:
    if os.path.islink(path):
        real = os.path.realpath(path)
        if not os.path.exists(path) or os.path.commonpath([real, TOP]) != TOP:
            removed.append(os.path.relpath(path, TOP))


def ids(relative):
    parts = relative.split("/")
    if parts[0] != "private" or len(parts) < 2 or not os.path.isdir(os.path.join(TOP, "private", parts[1])):
        return False, 0, 2200
    try:
        user = pwd.getpwnam(parts[1])
        return True, user.pw_uid, user.pw_gid
    except KeyError:
        return True, 0, 0


for path in entries:
    relative = os.path.relpath(path, TOP)
    if relative in removed:
        os.unlink(path)
        continue
    private, uid, gid = ids(relative)
    old = os.lstat(path).st_mode
    os.chown(path, uid, gid, follow_symlinks=False)
    if stat.S_ISLNK(old):
        continue
    if stat.S_ISDIR(old):
        mode = 0o700 if private else 0o2775
    else:
        mode = (0o700 if private else 0o775) if old & 0o111 else (0o600 if private else 0o664)
        if relative in allowed and old & stat.S_ISUID:
            mode |= stat.S_ISUID
    os.chmod(path, mode)
with open("/app/removed.json", "w") as file:
    json.dump(sorted(removed), file)
PY
