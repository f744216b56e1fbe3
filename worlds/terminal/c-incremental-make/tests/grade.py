"""
The grader that every task of this family carries as /tests/grade.py, beside a checks.py of its own.

Problem: the program under test belongs to the agent, and what it prints or writes must not be able to become the score.
Approach: checks.py holds the expected answers in this process and compares; the agent's programs run as `nobody`, who can neither read /tests nor write
/logs/verifier; their output goes to files, so that a background child cannot hold the grader up; every wait and every read is bounded; whatever `nobody`
leaves running is killed. Nothing the program says about its own success is believed.

checks.py says `from grade import ...` and registers functions with `@check("what holds")`. A check fails by any exception.
"""
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types

REWARDS = "/logs/verifier"
NOBODY = 65534
#: Seconds for all of the agent's programs together; a verifier that times out says less than one that fails a check.
BUDGET_SECONDS = 90
OUTPUT_BYTES = 16 << 20

_checks = []
_settings = {"partial": False}
_started = time.monotonic()

#: Environment for the grader's own tools (git, make...): only what the image has, nothing that the agent may have put before it.
TOOLS = {"PATH": "/usr/bin:/bin"}
#: Hidden inputs are drawn from this; the seed is printed, so that a verdict can be looked into.
SEED = int.from_bytes(os.urandom(6), "big")
rng = random.Random(SEED)


class Failure(Exception):
    """A check that does not hold. The message is for people."""


class Result(types.SimpleNamespace):
    """What a program did: code (negative: signal; None: timed out), out and err as bytes."""

    @property
    def text(self):
        return self.out.decode("utf-8", "replace")


def check(name, part=None, weight=1, gate=False):
    """Registers a check. `part` groups checks under a key of reward.json; a failed `gate` takes every reward."""
    def register(function):
        _checks.append(types.SimpleNamespace(name=name, part=part, weight=weight, gate=gate, function=function))
        return function
    return register


def partial():
    """The reward becomes the weighted share of the checks that hold (gates aside), instead of all or nothing."""
    _settings["partial"] = True


def expect(condition, message):
    if not condition:
        raise Failure(message)


def same(actual, expected, what):
    if actual != expected:
        raise Failure(f"{what}: expected {_short(expected)}, found {_short(actual)}")


def _short(value):
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "..."


def _limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    os.umask(0o022)


def _can_drop():
    """False where the machine has no second user: there the agent's programs run as the grader's own user, and the machine's record says so."""
    if os.getuid() != 0:
        return False
    try:
        subprocess.run(["/bin/true"], user=NOBODY, group=NOBODY, extra_groups=[], check=True, timeout=10)
        return True
    except (OSError, subprocess.SubprocessError):
        return False


DROP = _can_drop()


def run(argv, stdin=b"", timeout=10, cwd="/", env=None, fail=True, uid=NOBODY, gid=NOBODY, groups=()):
    """Runs a program of the agent's as `nobody` (or as another user that is not root). With `fail`, anything but exit code 0 fails the check."""
    left = BUDGET_SECONDS - (time.monotonic() - _started)
    expect(left > 0, "the programs under test used up the grader's time")
    as_user = {"user": uid, "group": gid, "extra_groups": list(groups)} if DROP else {}
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": scratch(), "TMPDIR": scratch(), **(env or {})}
    with tempfile.TemporaryFile(dir=PRIVATE) as source, tempfile.TemporaryFile(dir=PRIVATE) as out, tempfile.TemporaryFile(dir=PRIVATE) as err:
        source.write(stdin if isinstance(stdin, bytes) else stdin.encode())
        source.seek(0)
        try:
            process = subprocess.Popen(argv, stdin=source, stdout=out, stderr=err, cwd=cwd, env=environment, preexec_fn=_limits, start_new_session=True, **as_user)
        except OSError as error:
            raise Failure(f"{argv[0]} does not start: {error.strerror}") from None
        try:
            code = process.wait(min(timeout, left))
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        process.wait()
        kill_all(uid)
        out.seek(0)
        err.seek(0)
        result = Result(code=code, out=out.read(OUTPUT_BYTES), err=err.read(OUTPUT_BYTES))
    if fail:
        expect(code is not None, f"{' '.join(map(str, argv))} did not end within {timeout} s")
        expect(code == 0, f"{' '.join(map(str, argv))} exited with {code}: {_short(result.err.decode('utf-8', 'replace')[-300:])}")
    return result


def kill_all(uid):
    """Ends every process of a user: as that user, "all that I may signal" is exactly what its programs left behind."""
    if not DROP or uid == 0:
        return
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(uid)
            os.kill(-1, signal.SIGKILL)
        except OSError:
            pass
        os._exit(0)
    os.waitpid(child, 0)


def read(path, limit=8 << 20):
    """Bytes of a regular file; a link, a pipe or a huge file in its place fails the check instead of fooling or stopping the grader."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        expect(stat.S_ISREG(os.fstat(descriptor).st_mode), f"{path} is not a regular file")
        data = file.read(limit + 1)
        expect(len(data) <= limit, f"{path} is larger than {limit} bytes")
        return data


def read_text(path, limit=8 << 20):
    try:
        return read(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None


def read_json(path):
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise Failure(f"{path} is not JSON: {error}") from None


def write(path, data, mode=0o644):
    """Writes an input that the agent's programs may read and replace. `path` is relative to the scratch directory or absolute below it."""
    path = os.path.join(SCRATCH, path)
    _directories(os.path.dirname(path))
    if os.path.lexists(path):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
        os.fchmod(descriptor, mode)
        if DROP:
            os.fchown(descriptor, NOBODY, NOBODY)
    return path


def _directories(path):
    """
    Makes directories below the scratch directory, owned by `nobody`. A program under test owns them too and may put links in their place, which would lead the grader's
    own writes elsewhere: so each is looked at. Between two runs nobody is left who could change them.
    """
    expect(path == SCRATCH or path.startswith(SCRATCH + "/"), f"{path} is not below the scratch directory")
    at = SCRATCH
    for name in path[len(SCRATCH):].strip("/").split("/"):
        at = os.path.join(at, name) if name else at
        if not os.path.lexists(at):
            os.mkdir(at, 0o755)
            if DROP:
                os.chown(at, NOBODY, NOBODY)
        expect(stat.S_ISDIR(os.lstat(at).st_mode), f"a program put something else in the place of the directory {at}")


def own(path):
    """Hands a tree to `nobody`, so that programs which its author left readable for root alone still run."""
    expect(os.path.lexists(path), f"{path} does not exist")
    expect(not os.path.islink(path), f"{path} is a link")
    for directory, directories, files in os.walk(path):
        for name in [".", *directories, *files]:
            entry = os.path.join(directory, name)
            mode = os.lstat(entry).st_mode
            if stat.S_ISLNK(mode):
                continue
            if DROP:
                os.chown(entry, NOBODY, NOBODY, follow_symlinks=False)
            os.chmod(entry, stat.S_IMODE(mode) | (0o755 if stat.S_ISDIR(mode) else 0o644 | (0o111 if mode & 0o100 else 0)))


def copy(source, name):
    """A copy of a tree below the scratch directory, links kept as links, owned by `nobody`."""
    target = os.path.join(SCRATCH, name)
    expect(os.path.isdir(source), f"{source} is not a directory")
    _directories(os.path.dirname(target))
    shutil.copytree(source, target, symlinks=True, ignore=_special)
    own(target)
    return target


def _special(directory, names):
    """Pipes and devices are left out of a copy: opening one could wait for ever."""
    return [name for name in names if stat.S_IFMT(os.lstat(os.path.join(directory, name)).st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)]


def scratch(name=""):
    """A directory below the scratch directory that `nobody` may write."""
    path = os.path.join(SCRATCH, name or "home")
    _directories(path)
    return path


def private(name):
    """A path that only the grader can reach."""
    return os.path.join(PRIVATE, name)


def _main():
    for name in ("reward.txt", "reward.json"):
        try:
            os.unlink(os.path.join(REWARDS, name))
        except FileNotFoundError:
            pass
    os.chmod(os.path.dirname(os.path.abspath(__file__)), 0o700)
    os.chmod(REWARDS, 0o700)
    sys.modules["grade"] = sys.modules["__main__"]
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checks.py")
    with open(source, "rb") as file:
        exec(compile(file.read(), source, "exec"), {"__name__": "checks", "__file__": source})
    print(f"seed {SEED}, programs run as {'nobody' if DROP else 'the grader (no second user here)'}")
    held = [_holds(item) for item in _checks]
    shutil.rmtree(SCRATCH, ignore_errors=True)
    shutil.rmtree(PRIVATE, ignore_errors=True)
    _write_rewards(held)


def _holds(item):
    try:
        item.function()
        print(f"ok      {item.name}")
        return True
    except Exception as error:
        reason = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
        print(f"failed  {item.name}: {reason[:1000]}")
        return False


def _write_rewards(held):
    gates = all(ok for item, ok in zip(_checks, held) if item.gate)
    scored = [(item, gates and ok) for item, ok in zip(_checks, held) if not item.gate]
    share = lambda items: round(sum(item.weight for item, ok in items if ok) / sum(item.weight for item, _ in items), 4)
    reward = share(scored) if _settings["partial"] else int(gates and all(held))
    parts = {}
    for part in dict.fromkeys(item.part for item, _ in scored if item.part is not None):
        parts[part] = share([(item, ok) for item, ok in scored if item.part == part])
    if parts or _settings["partial"]:
        _publish("reward.json", json.dumps({"reward": reward, **parts}))
    else:
        _publish("reward.txt", str(reward))
    print(f"reward {reward}")


def _publish(name, text):
    """Whole or not at all: written beside its place and moved there. There is no other reward file beside it."""
    for other in {"reward.txt", "reward.json"} - {name}:
        if os.path.lexists(os.path.join(REWARDS, other)):
            os.unlink(os.path.join(REWARDS, other))
    temporary = os.path.join(REWARDS, f".{name}")
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text + "\n")
    os.replace(temporary, os.path.join(REWARDS, name))


def _workspace(mode):
    path = tempfile.mkdtemp(prefix="grade-", dir="/" if os.access("/", os.W_OK) else None)
    os.chmod(path, mode)
    return path


if __name__ == "__main__":
    #: The directories in SCRATCH belong to the programs under test; PRIVATE is the grader's.
    SCRATCH = _workspace(0o755)
    PRIVATE = _workspace(0o700)
    _main()
