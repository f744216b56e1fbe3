from grade import TOOLS, check, expect, partial, read, rng, run, same, scratch, write

partial()
with open("/tests/intervals.py", encoding="utf-8") as file:
    RIGHT = file.read()

#: The same promises, kept in another way: tests that look at the source or at internals fail with it.
OTHER = '''
class IntervalSet:
    def __init__(self, pairs=()):
        self.parts = []
        for a, b in pairs:
            self.add(a, b)
    def add(self, a, b):
        if a > b: raise ValueError((a, b))
        old = len(self)
        if a < b:
            keep = []
            for x, y in self.parts:
                if y < a or x > b: keep.append((x, y))
                else: a, b = min(a, x), max(b, y)
            self.parts = sorted(keep + [(a, b)])
        return len(self) - old
    def remove(self, a, b):
        if a > b: raise ValueError((a, b))
        old, keep = len(self), []
        for x, y in self.parts:
            keep += [(l, h) for l, h in ((x, min(y, a)), (max(x, b), y)) if l < h] if a < b else [(x, y)]
        self.parts = keep
        return old - len(self)
    def __contains__(self, n): return any(x <= n < y for x, y in self.parts)
    def __len__(self): return sum(y - x for x, y in self.parts)
    def __iter__(self): return iter(tuple(self.parts))
    def __eq__(self, other): return type(other) is type(self) and self.parts == other.parts
    def __or__(self, other): return IntervalSet([*self, *other])
    def __and__(self, other): return IntervalSet([(max(a, c), min(b, d)) for a, b in self for c, d in other if max(a, c) < min(b, d)])
    def gaps(self, a, b):
        rest = IntervalSet([(a, b)])
        for x, y in self.parts: rest.remove(x, y)
        return rest.parts
    def copy(self): return IntervalSet(self.parts)
'''

#: (what is wrong, old text, new text), each applied to the right implementation alone.
MUTANTS = [
    ("touching intervals stay apart", "high = bisect_left(self._edges, stop + 1)\n            self._edges[low:high] = [start] * (low % 2 == 0)", "high = bisect_left(self._edges, stop)\n            self._edges[low:high] = [start] * (low % 2 == 0)"),
    ("removal forgets an interval that starts where it stops", "high = bisect_left(self._edges, stop + 1)\n            self._edges[low:high] = [start] * (low % 2) ", "high = bisect_left(self._edges, stop)\n            self._edges[low:high] = [start] * (low % 2) "),
    ("add returns the length of its interval", "return len(self) - before", "return stop - start"),
    ("remove returns the length of its interval", "return before - len(self)", "return stop - start"),
    ("stop is in the set", "return bisect_left(self._edges, number + 1) % 2 == 1", "return bisect_left(self._edges, number) % 2 == 1 or number in self._edges"),
    ("add of an interval that is the wrong way round does nothing", 'raise ValueError(f"{start} > {stop}")\n        before = len(self)\n        if start < stop:\n            # Edges', 'return 0\n        before = len(self)\n        if start < stop:\n            # Edges'),
    ("remove checks the order after the change", 'if start > stop:\n            raise ValueError(f"{start} > {stop}")\n        before = len(self)\n        if start < stop:\n            low = bisect_left(self._edges, start)\n            high = bisect_left(self._edges, stop + 1)\n            self._edges[low:high] = [start] * (low % 2)',
     'before = len(self)\n        if start > stop:\n            self.remove(stop, start)\n            raise ValueError(f"{start} > {stop}")\n        if start < stop:\n            low = bisect_left(self._edges, start)\n            high = bisect_left(self._edges, stop + 1)\n            self._edges[low:high] = [start] * (low % 2)'),
    ("len counts intervals", "return sum(stop - start for start, stop in self)", "return sum(stop - start for start, stop in self) if len(self._edges) < 6 else len(self._edges) // 2"),
    ("equality holds with lists of pairs", "return isinstance(other, IntervalSet) and self._edges == other._edges", "return list(self) == list(other) if hasattr(other, '__iter__') else False"),
    ("union changes its left side", "result = self.copy()\n        for start, stop in other:", "result = self\n        for start, stop in other:"),
    ("a copy shares its numbers", "result._edges = list(self._edges)", "result._edges = self._edges"),
    ("union with nothing is the same object", "result = self.copy()\n        for start, stop in other:", "if not len(other):\n            return self\n        result = self.copy()\n        for start, stop in other:"),
    ("gaps forget the last one", "return list(rest)", "return list(rest)[:-1] if len(list(rest)) > 2 else list(rest)"),
    ("intersection is wrong when the left set has several intervals", "for gap in other.gaps(start, stop):", "for gap in other.gaps(start, stop)[:2]:"),
]


def verdict(source):
    """Exit code of the tests with an implementation; None when they take too long."""
    directory = f"i{rng.getrandbits(48)}"
    write(f"{directory}/intervals.py", source)
    write(f"{directory}/test_intervals.py", read("/app/test_intervals.py"))
    return run(["/usr/bin/python3", "-B", "-m", "unittest", "-q", "test_intervals"], cwd=scratch(directory), env=TOOLS, timeout=10, fail=False).code


@check("the tests pass with right implementations", gate=True)
def right():
    same(verdict(RIGHT), 0, "exit code with intervals.py")
    same(verdict(OTHER), 0, "exit code with another right implementation")
    same(verdict(f"# {rng.getrandbits(40)}\n" + RIGHT.replace("_edges", "_e").replace("before", "was")), 0, "exit code with other names")


@check("intervals.py is as it was", gate=True)
def untouched():
    same(read("/app/intervals.py").decode("utf-8", "replace"), RIGHT, "intervals.py")


def mutant(what, old, new):
    @check(f"they fail when {what}", part="caught")
    def caught():
        assert RIGHT.count(old) >= 1, what
        expect(verdict(RIGHT.replace(old, new, 1)) != 0, "the tests pass")


for item in MUTANTS:
    mutant(*item)
