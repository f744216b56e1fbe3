"""greet NAME [--lang CODE]"""
import argparse

from greet.catalog import phrases


def main(argv=None):
    parser = argparse.ArgumentParser(prog="greet")
    parser.add_argument("name")
    parser.add_argument("--lang", default="en")
    options = parser.parse_args(argv)
    known = phrases()
    if options.lang not in known:
        parser.exit(3, f"greet: no language {options.lang}\n")
    print(known[options.lang].format(name=options.name))
    return 0
