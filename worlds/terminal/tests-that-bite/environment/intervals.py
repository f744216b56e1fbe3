"""Sets of whole numbers, kept as intervals."""
from bisect import bisect_left


class IntervalSet:
    """
    A set of integers. Intervals are half-open: [start, stop) holds start, start + 1, ..., stop - 1.

    IntervalSet(pairs)     the union of the given (start, stop) pairs
    add(start, stop)       adds the numbers of [start, stop); returns how many of them are new
    remove(start, stop)    takes the numbers of [start, stop) out; returns how many of them were there
                           For both: an empty interval (start == stop) changes nothing; start > stop raises ValueError and changes nothing.
    n in s                 whether the integer n is in the set
    len(s)                 how many numbers are in the set
    list(s), iter(s)       the intervals as (start, stop) pairs, ascending, none empty, with at least one missing number between two
    s | t, s & t           union and intersection, as new sets; s and t stay as they are
    s == t                 the same numbers; comparing with anything but an IntervalSet is False
    s.gaps(start, stop)    the intervals of [start, stop) that are not in the set, as a list of pairs, ascending
    s.copy()               an independent copy
    """

    def __init__(self, pairs=()):
        self._edges = []
        for start, stop in pairs:
            self.add(start, stop)

    def add(self, start, stop):
        if start > stop:
            raise ValueError(f"{start} > {stop}")
        before = len(self)
        if start < stop:
            # Edges alternate between starts and stops; an odd position lies inside an interval.
            low = bisect_left(self._edges, start)
            high = bisect_left(self._edges, stop + 1)
            self._edges[low:high] = [start] * (low % 2 == 0) + [stop] * (high % 2 == 0)
        return len(self) - before

    def remove(self, start, stop):
        if start > stop:
            raise ValueError(f"{start} > {stop}")
        before = len(self)
        if start < stop:
            low = bisect_left(self._edges, start)
            high = bisect_left(self._edges, stop + 1)
            self._edges[low:high] = [start] * (low % 2) + [stop] * (high % 2)
        return before - len(self)

    def __contains__(self, number):
        return bisect_left(self._edges, number + 1) % 2 == 1

    def __len__(self):
        return sum(stop - start for start, stop in self)

    def __iter__(self):
        return iter(list(zip(self._edges[::2], self._edges[1::2])))

    def __eq__(self, other):
        return isinstance(other, IntervalSet) and self._edges == other._edges

    def __or__(self, other):
        result = self.copy()
        for start, stop in other:
            result.add(start, stop)
        return result

    def __and__(self, other):
        result = self.copy()
        for start, stop in self:
            for gap in other.gaps(start, stop):
                result.remove(*gap)
        return result

    def gaps(self, start, stop):
        rest = IntervalSet([(start, stop)])
        for pair in self:
            rest.remove(*pair)
        return list(rest)

    def copy(self):
        result = IntervalSet()
        result._edges = list(self._edges)
        return result
