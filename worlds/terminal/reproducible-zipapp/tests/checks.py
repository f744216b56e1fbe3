import io
import os
import shutil
import zipfile

from grade import TOOLS, check, copy, expect, own, read, rng, run, same, scratch, write

BUILD = "/app/build.sh"


def source():
    """A copy of /app/src in a place of its own."""
    return copy("/app/src", f"s{rng.getrandbits(40)}/src-{rng.randrange(100)}")


def build(directory, output=None, umask=None):
    own("/app")
    output = output or os.path.join(scratch(f"o{rng.getrandbits(40)}"), f"program-{rng.randrange(100)}")
    run(["/bin/sh", "-c", f'umask {umask or "022"}; exec "$0" "$@"', BUILD, directory, output], timeout=20, env={"PYTHONDONTWRITEBYTECODE": "1"})
    return output


def phrases(table):
    return "".join(f"{key}\t{value}\n" for key, value in table.items())


@check("the program runs from one file, anywhere")
def runs():
    program = build(source())
    expect(read(program).startswith(b"#!/usr/bin/python3\n"), "the first line is not #!/usr/bin/python3")
    expect(os.stat(program).st_mode & 0o111 == 0o111, "the program is not executable")
    os.rename(program, program + " renamed")
    for locale, name in [("C", "Ann"), ("C.UTF-8", "Zoë"), ("POSIX", "Bo")]:
        result = run([program + " renamed", name, "--lang", "de"], cwd=scratch("elsewhere"), env={"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})
        same(result.out.decode("utf-8", "replace"), f"Grüß dich, {name}!\n", f"greeting with LC_ALL={locale}")
    same(run([program + " renamed", "A", "--lang", "xx"], fail=False).code, 3, "exit code for an unknown language")
    same(run([program + " renamed"], fail=False).code, 2, "exit code without a name")


@check("other phrases and modules give another program")
def other():
    directory = source()
    table = {"en": f"Hi {rng.getrandbits(40)}, {{name}}", "ja": "やあ、{name}"}
    write(os.path.join(directory, "greet/data/phrases.tsv"), phrases(table))
    program = build(directory)
    shutil.rmtree(directory)
    for language, phrase in table.items():
        same(run([program, "Kim", "--lang", language]).out.decode(), phrase.format(name="Kim") + "\n", "greeting")


@check("only what belongs in it is in it")
def contents():
    directory = source()
    for name in ["greet/__pycache__/cli.cpython-311.pyc", "greet/old.pyc", "greet/cli.py~", "greet/.hidden", "greet/.git/config", "greet/data/.phrases.swp", "greet/data/phrases.tsv~", "greet/sub/__init__.py", "greet/sub/x.txt"]:
        write(os.path.join(directory, name), b"x = 1\n")
    with zipfile.ZipFile(io.BytesIO(read(build(directory)))) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    expect("__main__.py" in names, "there is no __main__.py")
    bad = [name for name in names if "__pycache__" in name or any(part.startswith(".") for part in name.split("/")) or name.endswith(("~", ".pyc"))]
    same(bad, [], "entries that do not belong")
    wanted = {"greet/__init__.py", "greet/cli.py", "greet/catalog.py", "greet/data/phrases.tsv", "greet/sub/__init__.py", "greet/sub/x.txt"}
    same(sorted(wanted - set(names)), [], "missing entries")
    same(sorted(name for name in names if name.startswith("greet/") and name not in wanted and "/sub/" not in name and name.count("/") > 1), [], "unknown entries")


@check("the same contents give the same bytes")
def reproducible():
    first = source()
    second = os.path.join(scratch(f"z{rng.getrandbits(40)}"), "a-much-longer-name")
    paths = [os.path.join(directory, name) for directory, _, names in os.walk(first) for name in names]
    rng.shuffle(paths)
    for path in paths:
        target = write(os.path.join(second, os.path.relpath(path, first)), read(path), rng.choice([0o644, 0o755, 0o600]))
        stamp = rng.randrange(400_000_000, 1_900_000_000)
        os.utime(target, (stamp, stamp))
    one, two = build(first), build(second, umask="077")
    same(read(one) == read(two), True, "two builds are the same bytes")
    expect(os.stat(two).st_mode & 0o100, "the program is not executable under another umask")
    write(os.path.join(second, "greet/data/phrases.tsv"), b"en\tother {name}\n")
    same(read(build(second, output=two)) == read(one), False, "a build of other contents is the same bytes")
    same(run([two, "A"]).text, "other A\n", "a program that was replaced")


@check("a source without the package is refused")
def refused():
    output = os.path.join(scratch(f"r{rng.getrandbits(40)}"), "program")
    result = run([BUILD, scratch("empty"), output], fail=False)
    expect(result.code not in (0, None) and result.err + result.out, f"exit code {result.code}, message {result.err!r}")
    expect(not os.path.exists(output), "there is a program nevertheless")


@check("the tests pass from the source tree, and dist is built")
def tree():
    own("/app")
    run(["/usr/bin/python3", "-B", "-m", "unittest", "discover", "-s", "/app/tests"], env={**TOOLS, "PYTHONPATH": "/app/src"}, timeout=20)
    same(run(["/usr/bin/python3", "-B", "-c", "from greet.cli import main; main(['Ann', '--lang', 'fi'])"], env={**TOOLS, "PYTHONPATH": "/app/src"}).text, "Hei, Ann!\n", "greeting from the source tree")
    same(read("/app/dist/greet") == read(build("/app/src")), True, "/app/dist/greet is what /app/build.sh builds")
