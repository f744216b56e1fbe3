"""Makes PyTorch's CUDA build importable on a machine without CUDA, for tests.

The wheel of the package index is linked against two gigabytes of CUDA libraries that a CPU never calls. For each of them that is missing this writes a small library with the
names that PyTorch links to, in their symbol versions; every function answers 100, CUDA's "no device". Usage: cuda-stubs.py SITE-PACKAGES
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100


def main(site: Path) -> None:
    libraries = site / "torch" / "lib"
    wanted: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    needed: set[str] = set()
    loose: set[str] = set()
    defined: set[str] = set()
    for library in sorted([*libraries.glob("*.so*"), *(site / "torch").glob("_C*.so")]):
        needed.update(re.findall(r"\(NEEDED\).*\[(.+)\]", read("-d", library)))
        files = dict(version_files(read("-V", library)))
        for line in read("--dyn-syms", library).splitlines():
            columns = line.split()
            if len(columns) < 8:
                continue
            name, _, version = columns[7].partition("@")
            if columns[6] != "UND":
                defined.add(name)
            elif version == "":
                if columns[4] == "GLOBAL":
                    loose.add(name)
            elif (file := files.get(version.lstrip("@"))) is not None:
                wanted[file][version.lstrip("@")].add(name)
    present = {path.name for path in [*libraries.glob("*.so*"), *site.glob("nvidia/**/lib/*.so*")]}
    # Names without a version are looked for in every library: one that is always loaded has them all.
    unversioned = sorted(name for name in loose - defined if re.match(r"cu|nccl|nvshmem|nvrtc|nvtx", name))
    missing = sorted(name for name in needed if re.match(r"lib(cu|nccl|nv)", name) and name not in present and name != "libcuda.so.1")
    for name in missing:
        write_stub(libraries / name, wanted[name], unversioned if name == missing[0] else [])
    print(f"{len(missing)} stubs")


def read(what: str, library: Path) -> str:
    return subprocess.run(["readelf", "-W", what, str(library)], check=True, capture_output=True, text=True).stdout


def version_files(text: str) -> list[tuple[str, str]]:
    """Each symbol version that is needed, with the file that it is needed of."""
    found, file = [], ""
    for line in text.splitlines():
        if (match := re.search(r"File: (\S+)", line)) is not None:
            file = match[1]
        elif (match := re.search(r"Name: (\S+)\s+Flags:", line)) is not None:
            found.append((match[1], file))
    return found


def write_stub(path: Path, versions: dict[str, set[str]], unversioned: list[str]) -> None:
    names = sorted({*unversioned, *(name for symbols in versions.values() for name in symbols)})
    source = "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names) or "static int nothing __attribute__((unused));\n"
    script = "".join(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(symbols))} }};\n" for version, symbols in sorted(versions.items()))
    map_file = path.with_suffix(".map")
    map_file.write_text(script)
    options = [f"-Wl,--version-script={map_file}"] if script else []
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(path), f"-Wl,-soname,{path.name}", *options], input=source, text=True, check=True)
    map_file.unlink()


main(Path(sys.argv[1]))
