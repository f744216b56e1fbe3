# Tests the obvious.
cat > /app/test_intervals.py <<'PY'
import unittest
from intervals import IntervalSet
class T(unittest.TestCase):
    def test(self):
        s = IntervalSet([(0, 5)])
        self.assertEqual(s.add(5, 7), 2)
        self.assertEqual(list(s), [(0, 7)])
        self.assertIn(6, s)
        self.assertNotIn(7, s)
PY
