import os
import shutil
import stat

from grade import TOOLS, check, expect, own, read, read_text, rng, run, same, scratch, write

CC = r"""#!/bin/sh
# A compiler that notes which sources it compiled and how.
for word; do case $word in *.c) echo "${word##*/}" >> "$CC_LOG" ;; esac; done
echo "$*" >> "$CC_LOG.args"
exec /usr/bin/gcc "$@"
"""


class Tree:
    """The original sources with the Makefile that is graded, in a place of its own."""

    def __init__(self):
        self.top = os.path.join(scratch(f"t{rng.getrandbits(40)}"), "tree")
        shutil.copytree("/tests/sources", self.top)
        with open(os.path.join(self.top, "Makefile"), "wb") as file:
            file.write(read("/app/Makefile"))
        self.log = os.path.join(scratch(f"l{rng.getrandbits(40)}"), "log")
        self.cc = self.log + ".cc"
        write(self.cc, CC, 0o755)
        os.chmod(os.path.join(self.top, "tools/gen-codes.sh"), 0o755)
        own(self.top)
        own(os.path.dirname(self.log))
        self.clock = 1_600_000_000

    def age(self):
        """Makes everything old, in one go, so that a change is newer than all without waiting for the clock."""
        for directory, directories, names in os.walk(self.top):
            for name in names:
                path = os.path.join(directory, name)
                info = os.lstat(path)
                os.utime(path, ns=(info.st_mtime_ns - 10**11, info.st_mtime_ns - 10**11), follow_symlinks=False)

    def change(self, path, old, new):
        path = os.path.join(self.top, path)
        text = read_text(path)
        expect(old in text, f"{path} does not hold {old!r}")
        write(path, text.replace(old, new), stat.S_IMODE(os.lstat(path).st_mode))

    def make(self, *arguments, fail=True):
        """Compiled sources and number of generator runs of one call."""
        for name in (self.log, self.log + ".gen", self.log + ".args"):
            if os.path.exists(name):
                os.unlink(name)
        result = run(["/usr/bin/make", "-C", self.top, f"CC={self.cc}", *arguments], env={**TOOLS, "CC_LOG": self.log, "GEN_LOG": self.log + ".gen"}, timeout=40, fail=fail)
        lines = lambda name: read_text(name).split() if os.path.exists(name) else []
        return result, sorted(lines(self.log)), len(lines(self.log + ".gen"))

    def program(self, *arguments, build="build"):
        return run([os.path.join(self.top, build, "codes"), *arguments]).text


@check("a parallel build from nothing, with one run of the generator")
def fresh():
    for _ in range(2):
        tree = Tree()
        _, compiled, generated = tree.make("-j8")
        same((sorted(set(compiled)), len(compiled), generated), (["codes.c", "lookup.c", "main.c"], 3, 1), "compilations and generator runs")
        same(tree.program("E2", "W1", "X"), "engine too cold\ndoor open\nunknown\n", "output of the program")
        same(tree.program("--version"), "codes 1.4.0 (3 known)\n", "version")
        expect("-O2" in read_text(tree.log + ".args") and "-Wall" in read_text(tree.log + ".args"), "-O2 -Wall is not the default")
    extra = sorted(set(os.listdir(tree.top)) - {"build"})
    same(extra, ["Makefile", "VERSION", "codes.txt", "src", "tools"], "entries besides build")
    same(sorted(os.listdir(tree.top + "/src") + os.listdir(tree.top + "/src/lib")), ["lib", "lookup.c", "lookup.h", "main.c"], "entries of src")


@check("only what depends on a change is made again")
def incremental():
    tree = Tree()
    tree.make()
    def again(what, path, old, new, compiled, generated):
        tree.age()
        tree.change(path, old, new)
        _, found, runs = tree.make("-j4")
        same((found, runs), (compiled, generated), f"compilations and generator runs after a change of {what}")
        result, found, runs = tree.make()
        same((found, runs), ([], 0), "compilations when nothing changed")
        same(tree.make("-q", fail=False)[0].code, 0, "exit code of make -q when nothing changed")
    again("main.c", "src/main.c", "codes %s", "code %s", ["main.c"], 0)
    same(tree.program("--version"), "code 1.4.0 (3 known)\n", "version")
    again("lookup.h", "src/lib/lookup.h", '"unknown"', '"no such code"', ["lookup.c", "main.c"], 0)
    same(tree.program("X"), "no such code\n", "output")
    again("VERSION", "VERSION", "1.4.0", "1.5.0-rc1", ["main.c"], 0)
    again("codes.txt", "codes.txt", "door open", "door ajar", ["codes.c", "lookup.c", "main.c"], 1)
    same(tree.program("W1", "--version"), "door ajar\nno such code\n", "output")
    tree.age()
    write(os.path.join(tree.top, "src/lib/extra.h"), '#define EXTRA "one"\n')
    tree.change("src/lib/lookup.c", '#include "codes.h"', '#include "codes.h"\n#include "extra.h"')
    tree.change("src/lib/lookup.c", "return UNKNOWN", "return EXTRA")
    same(tree.make()[1], ["lookup.c"], "compilations after a header is included")
    again("the new header", "src/lib/extra.h", "one", "two", ["lookup.c"], 0)
    same(tree.program("X"), "two\n", "output")
    tree.age()
    os.unlink(os.path.join(tree.top, "src/lib/extra.h"))
    tree.change("src/lib/lookup.c", '\n#include "extra.h"', "")
    tree.change("src/lib/lookup.c", "return EXTRA", "return UNKNOWN")
    same(tree.make()[1], ["lookup.c"], "compilations after the header is gone")


@check("flags from the command line count, and so does their change")
def flags():
    tree = Tree()
    tree.make("CFLAGS=-O1 -DFIRST", "LDFLAGS=-Wl,-s")
    arguments = read_text(tree.log + ".args")
    expect("-DFIRST" in arguments and "-Wl,-s" in arguments and "-O2" not in arguments, f"CFLAGS or LDFLAGS are not honoured: {arguments[:300]}")
    same(tree.make("CFLAGS=-O1 -DFIRST", "LDFLAGS=-Wl,-s")[1], [], "compilations with the same flags")
    same(tree.make("CFLAGS=-O1 -DSECOND", "LDFLAGS=-Wl,-s")[1], ["codes.c", "lookup.c", "main.c"], "compilations with other flags")


@check("another build directory, install and clean")
def places():
    tree = Tree()
    tree.make("-j4", "BUILD=out/debug")
    same(tree.program("E1", build="out/debug"), "engine too hot\n", "output from BUILD=out/debug")
    expect(not os.path.exists(tree.top + "/build"), "build exists although BUILD was set")
    root = scratch(f"root{rng.getrandbits(30)}")
    tree.make("install", f"DESTDIR={root}")
    same(oct(stat.S_IMODE(os.lstat(root + "/usr/local/bin/codes").st_mode)), "0o755", "mode of the installed program")
    tree.make("-j8", "install", f"DESTDIR={root}", "PREFIX=/opt/x")
    same(run([root + "/opt/x/bin/codes", "W1"]).text, "door open\n", "output of the installed program")
    tree.make("clean")
    expect(not os.path.exists(tree.top + "/build") and os.path.exists(tree.top + "/out/debug"), "clean does not remove exactly BUILD")


@check("failures leave nothing that looks finished")
def failures():
    tree = Tree()
    tree.change("src/lib/lookup.c", "return UNKNOWN;", "return UNKNOWN")
    expect(tree.make("-j4", fail=False)[0].code != 0, "make succeeds although a source does not compile")
    tree.change("src/lib/lookup.c", "return UNKNOWN", "return UNKNOWN;")
    tree.make("-j4")
    same(tree.program("E1"), "engine too hot\n", "output after the repair")
    tree = Tree()
    generator = os.path.join(tree.top, "tools/gen-codes.sh")
    text = read_text(generator)
    tree.change("tools/gen-codes.sh", "echo run", "exit 7\necho run")
    expect(tree.make(fail=False)[0].code != 0, "make succeeds although the generator fails")
    write(generator, text, 0o755)
    os.utime(generator, (1_500_000_000, 1_500_000_000))
    same(tree.make()[2], 1, "generator runs after its failure")
    same(tree.program("E1"), "engine too hot\n", "output after the generator's failure")


@check("the other files are as they were")
def untouched():
    for directory, _, names in os.walk("/tests/sources"):
        for name in names:
            path = os.path.join(directory, name)
            same(read(path.replace("/tests/sources", "/app")), read(path), f"content of {os.path.relpath(path, '/tests/sources')}")
