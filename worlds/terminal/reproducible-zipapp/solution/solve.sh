#!/bin/bash
set -euo pipefail
cat > /app/src/greet/catalog.py <<'PY'
"""The phrases, from a file beside this module."""
import pkgutil


def phrases():
    text = pkgutil.get_data("greet", "data/phrases.tsv").decode("utf-8")
    return dict(line.split("\t") for line in text.splitlines() if line.strip())
PY
cat > /app/build.sh <<'PY'
#!/usr/bin/python3
import io
import os
import sys
import zipfile

MAIN = b'''import sys

sys.stdout.reconfigure(encoding="utf-8")
sys.stderr.reconfigure(encoding="utf-8")
from greet.cli import main

sys.exit(main())
'''


def wanted(name):
    return not name.startswith(".") and not name.endswith(("~", ".pyc")) and name != "__pycache__"


def files(source):
    for directory, directories, names in os.walk(os.path.join(source, "greet")):
        directories[:] = filter(wanted, directories)
        for name in filter(wanted, names):
            path = os.path.join(directory, name)
            yield os.path.relpath(path, source), path


def main(source, output):
    if not os.path.isfile(os.path.join(source, "greet", "cli.py")):
        sys.exit(f"build: {source} has no greet/cli.py")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entries = {"__main__.py": MAIN}
        for name, path in files(source):
            with open(path, "rb") as file:
                entries[name] = file.read()
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.create_system = 3
            archive.writestr(info, entries[name])
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    with open(output + ".partial", "wb") as file:
        file.write(b"#!/usr/bin/python3\n" + buffer.getvalue())
    os.chmod(output + ".partial", 0o755)
    os.replace(output + ".partial", output)


main(*sys.argv[1:])
PY
chmod 755 /app/build.sh
/app/build.sh /app/src /app/dist/greet
