#!/bin/bash
set -euo pipefail
cat > /app/test_intervals.py <<'PY'
import random
import unittest

from intervals import IntervalSet

LOW, HIGH = -12, 13


def runs(numbers):
    """A set of numbers as ascending pairs."""
    pairs = []
    for number in sorted(numbers):
        if pairs and pairs[-1][1] == number:
            pairs[-1] = (pairs[-1][0], number + 1)
        else:
            pairs.append((number, number + 1))
    return pairs


class AgainstSets(unittest.TestCase):
    """Random changes, with Python's own sets beside them."""

    def agree(self, intervals, numbers):
        self.assertEqual(list(intervals), runs(numbers))
        self.assertEqual(len(intervals), len(numbers))
        for number in range(LOW - 2, HIGH + 2):
            self.assertIs(number in intervals, number in numbers)

    def test_changes(self):
        draw = random.Random(1)
        for _ in range(150):
            intervals, numbers = IntervalSet(), set()
            for _ in range(12):
                start = draw.randint(LOW, HIGH)
                stop = draw.randint(start, HIGH)
                some = set(range(start, stop))
                if draw.random() < 0.6:
                    self.assertEqual(intervals.add(start, stop), len(some - numbers))
                    numbers |= some
                else:
                    self.assertEqual(intervals.remove(start, stop), len(some & numbers))
                    numbers -= some
                self.agree(intervals, numbers)
                self.assertEqual(intervals.gaps(start, stop), runs(some - numbers))

    def test_pairs_of_sets(self):
        draw = random.Random(2)
        for _ in range(300):
            pairs = [[tuple(sorted((draw.randint(LOW, HIGH), draw.randint(LOW, HIGH)))) for _ in range(draw.randint(0, 4))] for _ in range(2)]
            a, b = map(IntervalSet, pairs)
            x, y = ({n for start, stop in some for n in range(start, stop)} for some in pairs)
            self.agree(a | b, x | y)
            self.agree(a & b, x & y)
            self.agree(a, x)
            self.agree(b, y)
            self.assertIs(a == b, x == y)
            self.assertTrue(a == IntervalSet(runs(x)))
            self.assertFalse(a != IntervalSet(runs(x)))


class Rest(unittest.TestCase):
    def test_wrong_order(self):
        s = IntervalSet([(0, 5)])
        for method in (s.add, s.remove):
            with self.assertRaises(ValueError):
                method(4, 1)
            with self.assertRaises(ValueError):
                method(4, 3)
        self.assertEqual(list(s), [(0, 5)])
        with self.assertRaises(ValueError):
            IntervalSet([(2, 1)])

    def test_empty(self):
        s = IntervalSet([(0, 5), (7, 9)])
        for at in (-1, 0, 3, 5, 6, 7, 20):
            self.assertEqual((s.add(at, at), s.remove(at, at)), (0, 0))
        self.assertEqual(list(s), [(0, 5), (7, 9)])
        self.assertEqual((list(IntervalSet()), len(IntervalSet()), s.gaps(2, 2), s.gaps(6, 6)), ([], 0, [], []))

    def test_large(self):
        s = IntervalSet([(-10**15, 10**15)])
        self.assertEqual((len(s), s.remove(0, 1), 0 in s, -1 in s, 1 in s), (2 * 10**15, 1, False, True, True))

    def test_copies(self):
        s = IntervalSet([(0, 5)])
        t = s.copy()
        t.add(5, 6)
        t.remove(0, 1)
        self.assertEqual((list(s), list(t)), ([(0, 5)], [(1, 6)]))
        empty = IntervalSet()
        for u in (s | empty, empty | s, s & s, s | s):
            u.add(100, 101)
            self.assertEqual(list(s), [(0, 5)])
        self.assertEqual(list(empty), [])

    def test_equality(self):
        s = IntervalSet([(0, 2)])
        for other in ([(0, 2)], {0, 1}, None, 0, "s"):
            self.assertIs(s == other, False)
        self.assertTrue(s == IntervalSet([(0, 1), (1, 2)]))
        self.assertFalse(s == IntervalSet([(0, 3)]))

    def test_changes_while_iterating(self):
        s = IntervalSet([(0, 2), (4, 6), (8, 9)])
        self.assertEqual(len(list(s)), 3)
        self.assertEqual([tuple(pair) for pair in s], [(0, 2), (4, 6), (8, 9)])
        self.assertEqual(s.gaps(-2, 12), [(-2, 0), (2, 4), (6, 8), (9, 12)])


if __name__ == "__main__":
    unittest.main()
PY
cd /app && /usr/bin/python3 -B -m unittest -q test_intervals
