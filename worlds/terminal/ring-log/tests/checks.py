from grade import check, copy, expect, rng, run, same, write

DRIVER = r"""
#include "ring.h"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    struct ring a, b;
    uint8_t *out = malloc(65535), big[70000];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (uint8_t)(i * 7);
    if (ring_open(&a, 140) || ring_open(&b, 70000)) return 3;
    printf("%ld\n", ring_shift(&a, out));
    for (int round = 0; round < 50; round++) {
        size_t length = (size_t)(round * 37 % 139);
        printf("%ld ", ring_append(&a, big + round, length));
        printf("%zu %zu\n", a.lines, a.used);
        if (round % 3 == 0) { long n = ring_shift(&a, out); printf("%ld %u\n", n, n > 0 ? out[n - 1] : 999u); }
    }
    printf("%ld\n", ring_append(&b, big, 65535));
    printf("%ld\n", ring_append(&b, big, 65536));
    printf("%ld\n", ring_append(&b, big, 60000));
    long n = ring_shift(&b, out);
    printf("%ld %u %u\n", n, out[0], out[n - 1]);
    printf("%ld\n", ring_shift(&b, out));
    ring_close(&a); ring_close(&b); free(out);
    return 0;
}
"""


class Ring:
    """What ring.h promises, in Python."""

    def __init__(self, size):
        self.size, self.lines = size, []

    @property
    def used(self):
        return sum(len(line) + 2 for line in self.lines)

    def append(self, line):
        if len(line) > 65535 or len(line) + 2 > self.size:
            return -1
        dropped = 0
        while self.used + len(line) + 2 > self.size:
            self.lines.pop(0)
            dropped += 1
        self.lines.append(line)
        return dropped


def reference(size, data):
    ring, dropped, refused = Ring(size), 0, 0
    lines = data.split(b"\n")
    for line in lines[:-1] if lines[-1] == b"" else lines:
        result = ring.append(line)
        dropped, refused = dropped + max(result, 0), refused + (result < 0)
    return b"".join(line + b"\n" for line in ring.lines), f"kept {len(ring.lines)} dropped {dropped} refused {refused}".encode()


def build(flags):
    """A fresh build of a copy, by make and by the Makefile's own rules."""
    tree = copy("/app", "build-" + str(rng.getrandbits(40)))
    run(["make", "clean"], cwd=tree, fail=False)
    run(["make", "ringlog", f"CFLAGS={flags}"], cwd=tree, timeout=60)
    return tree


def compare(program, size, data):
    result = run([program, str(size)], stdin=data)
    out, summary = reference(size, data)
    same(result.out, out, f"lines kept in {size} bytes of {len(data)} bytes of input")
    same(result.err.strip().split(b"\n")[-1], summary, "summary")


@check("hidden inputs leave the right lines")
def fuzz():
    program = build("-O2 -std=c11") + "/ringlog"
    for _ in range(60):
        size = rng.choice([1, 2, 3, rng.randint(4, 40), rng.randint(40, 400), rng.randint(400, 9000)])
        longest = rng.choice([3, 20, 300, 5000])
        lines = [bytes(rng.choice([0, 65, 255, rng.randrange(256)]) for _ in range(rng.randint(0, longest))).replace(b"\n", b" ") for _ in range(rng.randint(0, 30))]
        compare(program, size, b"\n".join(lines) + rng.choice([b"", b"\n"]))
    compare(program, 200000, b"x" * 65535 + b"\n" + b"y" * 65536 + b"\n\nlast")
    compare(program, 66000, b"x" * 65000 + b"\n" + b"y" * 65535 + b"\n")


@check("no memory error shows under the sanitizers")
def sanitized():
    tree = build("-O1 -g -std=c11 -fsanitize=address,undefined -fno-sanitize-recover=all")
    for size, data in [(10, b"abc\n\nde\nfgh\n\n"), (300, b"\n".join(b"z" * n for n in range(0, 299, 13))), (9000, b"q" * 8000 + b"\n" + b"r" * 8500), (2, b"\n\n"), (5, b"")]:
        result = run([tree + "/ringlog", str(size)], stdin=data, env={"ASAN_OPTIONS": "detect_leaks=0:exitcode=99"}, timeout=20)
        same(result.out, reference(size, data)[0], f"lines kept in {size} bytes")


@check("the library's functions keep their meaning")
def library():
    tree = build("-O2 -std=c11")
    driver = write("driver/driver.c", DRIVER)
    run(["gcc", "-std=c11", "-O1", "-I", tree, "-o", "driver", driver, tree + "/ring.c"], cwd=driver.rsplit("/", 1)[0], timeout=60)
    big = bytes(i * 7 % 256 for i in range(70000))
    ring, lines = Ring(140), ["-1"]
    for turn in range(50):
        result = ring.append(big[turn : turn + turn * 37 % 139])
        lines.append(f"{result} {len(ring.lines)} {ring.used}")
        if turn % 3 == 0:
            line = ring.lines.pop(0) if ring.lines else None
            lines.append("-1 999" if line is None else f"{len(line)} {line[-1] if line else 999}")
    lines += ["0", "-1", "1", f"60000 {big[0]} {big[59999]}", "-1"]
    same(run([driver[:-2]]).text.split("\n")[:-1], lines, "what a linked program sees")


@check("bad sizes are refused")
def usage():
    program = build("-O2 -std=c11") + "/ringlog"
    for arguments in [[], ["0"], ["-5"], ["12x"], ["x"], [""], ["1", "2"]]:
        result = run([program, *arguments], stdin=b"a\n", fail=False)
        same((result.code, result.out), (2, b""), f"exit code and output for {arguments}")
        expect(b"usage: ringlog SIZE" in result.err, f"no usage message for {arguments}")


@check("the build in /app is there")
def built():
    tree = copy("/app", "as-left")
    run(["make"], cwd=tree, timeout=60)
    compare(tree + "/ringlog", 20, b"one\ntwo\nthree\nfour\n")
