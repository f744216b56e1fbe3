import os
import signal
import subprocess
import time

from grade import DROP, check, expect, kill_all, own, read, read_json, read_text, rng, run, same, scratch, write

PROBE = r"""#!/usr/bin/python3
# probe.py DIRECTORY CODES...: notes its environment and input, and exits with the next of the codes.
import json, os, sys, time
directory, codes = sys.argv[1], sys.argv[2].split(",")
number = len(os.listdir(directory))
with open(os.path.join(directory, f"{number:03d}"), "wb") as file:
    file.write(json.dumps([os.environ.get("RETRY_ATTEMPT"), sys.argv[3:], sys.stdin.buffer.read().hex(), time.monotonic()]).encode())
print(f"out {number}")
print(f"err {number}", file=sys.stderr)
sys.stdout.flush()
code = int(codes[min(number, len(codes) - 1)])
if code < 0: os.kill(os.getpid(), -code)
sys.exit(code)
"""


def retry(options, codes, arguments=(), stdin=b"", fail=False, shell=None):
    own("/app")
    directory = scratch(f"runs-{rng.getrandbits(48)}")
    probe = write("probe.py", PROBE, 0o755)
    temporary = scratch(f"tmp-{rng.getrandbits(48)}")
    command = ([shell] if shell else []) + ["/app/retry", *options, "/usr/bin/python3", "-I", probe, directory, codes, *arguments]
    result = run(command, stdin=stdin, env={"TMPDIR": temporary}, timeout=20, fail=fail)
    runs = [read_json(os.path.join(directory, name)) for name in sorted(os.listdir(directory))]
    same(os.listdir(temporary), [], "files left in the temporary directory")
    return result, runs


def messages(attempts, codes):
    return "".join(f"err {n}\nretry: attempt {n + 1} of {attempts} failed (exit {code})\n" for n, code in enumerate(codes))


@check("it is a POSIX shell script")
def script():
    expect(read("/app/retry").startswith(b"#!/bin/sh\n"), "the first line is not #!/bin/sh")


@check("attempts, exit codes and messages")
def attempts():
    for options, codes, ran in [([], "1,2,3", [1, 2, 3]), (["-n5"], "1,2,0", [1, 2]), (["-n", "1"], "9", [9]), (["-n", "4"], "0", []), (["-n3"], "-9,0", [137]), (["-e", "5,75", "-n9"], "75,5,5,6", [75, 5, 5, 6]),
                                (["-e", "7"], "70", [70]), ([], "127", [127]), ([], "2,126", [2, 126]), (["-e", "127", "-n2"], "127,127", [127, 127])]:
        number = int("".join(options).split("-n")[1][0]) if "-n" in "".join(options) else 3
        result, runs = retry([*options, "-d", "0.01"], codes)
        done = "0" in codes.split(",") and len(ran) < number and not (options[:1] == ["-e"])
        same(result.code, 0 if done else ran[-1], f"exit code with {options} and runs that exit with {codes}")
        same(len(runs), len(ran) + done, f"number of runs with {options} and {codes}")
        same([run[0] for run in runs], [str(n + 1) for n in range(len(runs))], "RETRY_ATTEMPT")
        # A shell may add a word of its own about a command that was killed.
        if "-" not in codes:
            same(result.err.decode(), messages(number, ran) + (f"err {len(ran)}\n" if done else ""), "standard error")
        same(result.text, "".join(f"out {n}\n" for n in range(len(runs))), "standard output")
    result, _ = retry(["-qn2", "-d0"], "4,4")
    same((result.code, result.err), (4, b"err 0\nerr 1\n"), "exit code and standard error with -q")
    result = run(["/app/retry", "-d", "0", "/no/such/command"], fail=False)
    same(result.code, 127, "exit code for a command that is not there")


@check("arguments and input arrive as they are, each time")
def arguments():
    odd = ["", " ", "a b", "*", "$HOME", "`id`", '"', "'", "\\", "-n", "--", "line\nbreak", "ü", "%s\\n"]
    data = os.urandom(200000) + b"\0\n\n"
    result, runs = retry(["-n3", "-d0", "--"], "1,1,0", odd, data)
    same((result.code, len(runs)), (0, 3), "exit code and number of runs")
    for number, (_, words, stdin, _) in enumerate(runs, 1):
        same(words, odd, f"arguments of run {number}")
        same(stdin == data.hex(), True, f"run {number} gets the whole input")


@check("delays grow")
def delays():
    _, runs = retry(["-n", "4", "-d", "0.3", "-b", "2", "-q"], "1")
    gaps = [b[3] - a[3] for a, b in zip(runs, runs[1:])]
    expect(len(gaps) == 3 and gaps[0] >= 0.3 and gaps[1] >= 0.6 and gaps[2] >= 1.2 and gaps[0] < 1.5, f"seconds between the runs: {gaps}")
    _, runs = retry(["-n2", "-q"], "1")
    expect(len(runs) == 2 and 1 <= runs[1][3] - runs[0][3] < 3, "the default delay is not a second")


@check("wrong calls run nothing")
def wrong():
    for options in [["-n"], ["-n", "0"], ["-n", "x"], ["-n", "-1"], ["-d", "x"], ["-d", "-1"], ["-d", ""], ["-d", "."], ["-b", "0"], ["-b", "1.5"], ["-e", "a"], ["-e", ""], ["-e", "1,,2"], ["-z"], ["--nope"]]:
        result, runs = retry(options, "0")
        same((result.code, result.out, result.err != b"", len(runs)), (64, b"", True, 0), f"exit code, output, message and runs for {options}")
    for options in [[], ["-n", "2"], ["--"]]:
        same(run(["/app/retry", *options], fail=False).code, 64, f"exit code without a command and with {options}")


@check("SIGTERM ends it cleanly")
def terminated():
    own("/app")
    temporary, marks = scratch("term"), scratch("marks")
    identity = {"user": 65534, "group": 65534, "extra_groups": []} if DROP else {}
    process = subprocess.Popen(["/app/retry", "-d", "30", "-n", "5", "/bin/sh", "-c", 'echo x >> "$0/runs"; exit 1', marks], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               cwd="/", env={"PATH": "/usr/bin:/bin", "TMPDIR": temporary}, start_new_session=True, **identity)
    for _ in range(100):
        if os.path.exists(marks + "/runs"):
            break
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(5)
    except subprocess.TimeoutExpired:
        code = None
    kill_all(65534)
    process.kill()
    process.wait()
    same((code, os.listdir(temporary), read_text(marks + "/runs")), (143, [], "x\n"), "exit code, files left and runs")
