import unittest

from greet.catalog import phrases


class Phrases(unittest.TestCase):
    def test_english(self):
        self.assertEqual(phrases()["en"], "Hello, {name}!")


if __name__ == "__main__":
    unittest.main()
