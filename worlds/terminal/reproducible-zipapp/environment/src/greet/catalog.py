"""The phrases, from a file beside this module."""
import os


def phrases():
    path = os.path.join(os.path.dirname(__file__), "data", "phrases.tsv")
    with open(path) as file:
        return dict(line.rstrip("\n").split("\t") for line in file if line.strip())
