import functools
import json
import re

from grade import check, expect, own, read, rng, run, same, write

DRIVER = r"""
const { compare, satisfies, best } = require("/app/ranges.js");
const jobs = JSON.parse(require("fs").readFileSync(0, "utf8"));
const call = { compare, satisfies, best };
process.stdout.write(JSON.stringify(jobs.map(([name, ...values]) => {
  try { return call[name](...values); } catch (error) { return [error instanceof TypeError ? "TypeError" : String(error), typeof error.message === "string" && values.flat().some((v) => error.message.includes(String(v)))]; }
})));
"""
WRONG_VERSIONS = ["", "1", "1.2", "v1.2.3", "1.2.3+b", "01.2.3", "1.2.3-", "1.2.3-a..b", "1.2.3-01", "1.2.3 ", "1.2.3\n", "1.2.x", "9007199254740992.0.0", "1.2.3-ä", "-1.0.0"]
WRONG_RANGES = ["", " ", "||", "1 ||", "|| 1", "> 1", ">", "^", "~", "1.2-pre", "1-alpha", "v1", "1.x", "1.2.3 - 2", ">=<1", "=>1", "~>1", "1,2", "**", "1.*", "01", "1|2", "^*", "1\t2", "\n1", "99999999999999999999"]


def parse(text):
    numbers, _, pre = text.partition("-")
    return [int(number) for number in numbers.split(".")], pre.split(".") if pre else None


def key(text):
    numbers, pre = parse(text)
    return numbers, [(2,)] if pre is None else [(0, int(word)) if word.isdigit() else (1, word) for word in pre]


def compare(a, b):
    (n, p), (m, q) = key(a), key(b)
    if n != m:
        return -1 if n < m else 1
    return 0 if p == q else -1 if p < q else 1


def up(numbers, place):
    result = numbers[:place] + [numbers[place] + 1]
    return ".".join(map(str, (result + [0, 0])[:3]))


def holds(version, term):
    if term == "*":
        return True
    operator, text = re.fullmatch(r"([<>=~^]*)(.*)", term).groups()
    numbers, _ = parse(text)
    low = text if len(numbers) == 3 else ".".join(map(str, (numbers + [0, 0])[:3]))
    after, exact = up(numbers, len(numbers) - 1), len(numbers) == 3
    at_least, below = compare(version, low) >= 0, lambda end: compare(version, end) < 0
    if operator == ">=":
        return at_least
    if operator == "<":
        return not at_least
    if operator == ">":
        return compare(version, low) > 0 if exact else not below(after)
    if operator == "<=":
        return compare(version, low) <= 0 if exact else below(after)
    if operator == "~":
        return at_least and below(up(numbers, min(1, len(numbers) - 1)))
    if operator == "^":
        return at_least and below(up(numbers, next((i for i, n in enumerate(numbers) if n), len(numbers) - 1)))
    return compare(version, low) == 0 if exact else at_least and below(after)


def satisfies(version, text):
    numbers, pre = parse(version)
    for alternative in text.split("||"):
        terms = alternative.split()
        written = any(parse(t.lstrip("<>=~^"))[1] and parse(t.lstrip("<>=~^"))[0] == numbers for t in terms if t != "*")
        if all(holds(version, t) for t in terms) and (pre is None or written):
            return True
    return False


def a_version(pre=0.4):
    numbers = ".".join(str(rng.choice([0, 0, 1, 1, 2, 3, 10])) for _ in range(3))
    words = ["alpha", "beta", "0", "1", "2", "10", "a-b", "-", "A", "rc1", "99999999999999999999", "100000000000000000000"]
    return numbers + ("-" + ".".join(rng.choice(words) for _ in range(rng.randint(1, 3))) if rng.random() < pre else "")


def a_range():
    def term():
        if rng.random() < 0.05:
            return "*"
        version = a_version()
        cut = rng.random()
        text = version if cut < 0.5 else ".".join(version.split("-")[0].split(".")[: 2 if cut < 0.8 else 1])
        return rng.choice([">=", "<=", ">", "<", "=", "", "~", "^"]) + text
    alternatives = [rng.choice([" ", "  "]).join(term() for _ in range(rng.choice([1, 1, 2, 3]))) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    return rng.choice(["||", " || ", "  ||"]).join(alternatives).join(rng.choice([("", ""), (" ", " ")]))


def drive(jobs):
    own("/app")
    return json.loads(run(["/usr/bin/node", write("driver.js", DRIVER)], stdin=json.dumps(jobs), timeout=20).text)


@check("hidden versions compare by the rules")
def comparing():
    pairs = [(a_version(), a_version()) for _ in range(700)]
    pairs += [(a, a.split("-")[0] + "-" + b.split("-")[1]) for a, b in [(a_version(1), a_version(1)) for _ in range(700)] if "-" in b and len(b.split("-")) == 2]
    same(drive([["compare", a, b] for a, b in pairs]), [compare(a, b) for a, b in pairs], "results of compare")


@check("hidden versions satisfy hidden ranges by the rules")
def satisfying():
    cases = []
    for _ in range(2500):
        text = a_range()
        written = [t.lstrip("<>=~^") for t in text.replace("||", " ").split() if t.count(".") >= 2]
        version = rng.choice(written) if written and rng.random() < 0.4 else a_version()
        cases.append((version, text))
    answers = drive([["satisfies", *case] for case in cases])
    for case, answer in zip(cases, answers):
        same(answer, satisfies(*case), f"satisfies{case}")


@check("the best of several")
def best():
    jobs, wanted = [["best", [], "*"]], [None]
    for _ in range(300):
        versions, text = [a_version(0.2) for _ in range(rng.randint(1, 12))], a_range()
        fits = [v for v in versions if satisfies(v, text)]
        jobs.append(["best", versions, text])
        wanted.append(max(fits, key=functools.cmp_to_key(compare)) if fits else None)
    for job, answer, right in zip(jobs, drive(jobs), wanted):
        expect(answer == right or (answer is not None and right is not None and answer in job[1] and compare(answer, right) == 0), f"best{tuple(job[1:])}: expected {right}, found {answer}")


@check("what is wrong is refused")
def wrong():
    jobs = [["compare", v, "1.0.0"] for v in WRONG_VERSIONS] + [["satisfies", v, "*"] for v in WRONG_VERSIONS] + [["best", ["1.0.0", v], "3"] for v in WRONG_VERSIONS]
    jobs += [["satisfies", "1.0.0", r] for r in WRONG_RANGES] + [["best", [], r] for r in WRONG_RANGES] + [["satisfies", 1, "1"], ["satisfies", "1.0.0", None], ["compare", "1.0.0", None]]
    for job, answer in zip(jobs, drive(jobs)):
        same(answer, ["TypeError", True], f"{job}: kind of error, and whether its message contains the text")


@check("the command line")
def command():
    own("/app")
    for _ in range(3):
        text, versions = a_range(), [a_version() for _ in range(60)]
        fits = sorted((v for v in versions if satisfies(v, text)), key=functools.cmp_to_key(compare))
        same(run(["/usr/bin/node", "/app/cli.js", text], stdin="\n\n".join(versions) + "\n", cwd="/").text.split(), fits, f"versions in {text!r}")
    for arguments, lines in [([">=1"], "1.0.0\nnope\n"), (["> 1"], "1.0.0\n"), ([], "1.0.0\n"), (["> 1"], "")]:
        result = run(["/usr/bin/node", "/app/cli.js", *arguments], stdin=lines, fail=False)
        same((result.code, result.out, result.err != b""), (2, b"", True), f"exit code, output and message for {arguments} and {lines!r}")


@check("tests of its own that pass, and fail on a broken module")
def tests():
    own("/app")
    result = run(["/usr/bin/node", "--test", "/app/ranges.test.js"], cwd="/app", timeout=30)
    expect(result.code == 0, "its tests do not pass")
    broken = write("broken/ranges.js", "module.exports = { compare: () => 0, satisfies: () => true, best: () => null };\n")
    write("broken/ranges.test.js", read("/app/ranges.test.js"))
    result = run(["/usr/bin/node", "--test", broken.replace("ranges.js", "ranges.test.js")], cwd=broken.rsplit("/", 1)[0], timeout=30, fail=False)
    expect(result.code not in (0, None), "its tests pass with a module that answers at random")
