from grade import TOOLS, check, copy, expect, run, same, scratch

GIT = ["/usr/bin/git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat", "-c", "advice.detachedHead=false"]
QUIET = {**TOOLS, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_REPLACE_OBJECTS": "1"}
SUBJECTS = ["Refuse unknown items", "Sell plums", "Add a check", "Document exit codes", "Check plums"]
FILES = [["total"], ["prices.tsv"], ["check"], ["README"], ["check"]]


def git(repository, *arguments, fail=True):
    return run([*GIT, "-C", repository, *arguments], env=QUIET, timeout=20, fail=fail)


ORIGINAL = scratch("again") + "/shop"
with open("/tests/history.sh", "rb") as file:
    MAIN, TREE = run(["/bin/bash", "-s", ORIGINAL], stdin=file.read(), env=TOOLS, timeout=30).text.split()
REPOSITORY = None


def series():
    global REPOSITORY
    REPOSITORY = REPOSITORY or copy("/app/shop", "shop")
    return git(REPOSITORY, "rev-list", "--reverse", "main..feature").text.split()


@check("a linear series of the right commits on top of main")
def linear():
    commits = series()
    same(git(REPOSITORY, "for-each-ref", "--format=%(refname)").text.split(), ["refs/heads/feature", "refs/heads/main"], "refs")
    same(git(REPOSITORY, "rev-parse", "main").text.strip(), MAIN, "main")
    same([git(REPOSITORY, "log", "-1", "--format=%s", commit).text.strip() for commit in commits], SUBJECTS, "subjects")
    same([git(REPOSITORY, "rev-parse", f"{commit}^@").text.split() for commit in commits], [[parent] for parent in [MAIN, *commits[:-1]]], "parents")


@check("messages, authors and dates")
def messages():
    commits = series()
    bodies = [git(REPOSITORY, "log", "-1", "--format=%b", commit).text.strip() for commit in commits]
    same(bodies, ["", "They are good this year.", "", "", ""], "messages below the subjects")
    listed = git(ORIGINAL, "log", "--no-merges", "--format=%s%x09%an%x09%ae%x09%ad", "--date=raw", "main..feature").text.splitlines()
    originals = {line.split("\t")[0]: line.split("\t")[1:] for line in listed}
    for commit, subject in zip(commits, SUBJECTS):
        same(git(REPOSITORY, "log", "-1", "--format=%an%x09%ae%x09%ad", "--date=raw", commit).text.rstrip("\n").split("\t"), originals[subject], f"author of {subject!r}")


@check("each commit holds what belongs to it")
def contents():
    commits = series()
    same(len(commits), 5, "number of commits")
    for commit, subject, files in zip(commits, SUBJECTS, FILES):
        same(git(REPOSITORY, "diff-tree", "-r", "--no-commit-id", "--name-only", commit).text.split(), files, f"files changed by {subject!r}")
    final = {name: git(ORIGINAL, "show", f"feature:{name}").text for name in ("total", "prices.tsv", "README", "check")}
    lines = final["check"].splitlines(True)
    final["check"] = "".join([line for line in lines if "plum" not in line] + [line for line in lines if "plum" in line])
    for name, text in final.items():
        same(git(REPOSITORY, "show", f"feature:{name}").text, text, f"{name} at the end")
    same(git(REPOSITORY, "show", f"{commits[2]}:check").text, "".join(line for line in lines if "plum" not in line), f"check at {SUBJECTS[2]!r}")
    modes = {line.split("\t")[1]: line.split()[0] for line in git(REPOSITORY, "ls-tree", "-r", "feature").text.splitlines()}
    same(modes, {"README": "100644", "check": "100755", "prices.tsv": "100644", "total": "100755"}, "modes")


@check("the check succeeds from its commit on")
def checks():
    for number, commit in enumerate(series()[2:], 3):
        target = scratch(f"at-{number}")
        git(REPOSITORY, "--work-tree", target, "checkout", "-f", commit, "--", ".")
        run(["./check"], cwd=target)


@check("feature is checked out and clean")
def clean():
    repository = copy("/app/shop", "clean")
    same(git(repository, "symbolic-ref", "HEAD").text.strip(), "refs/heads/feature", "HEAD")
    same(git(repository, "status", "--porcelain", "--untracked-files=all").text, "", "git status")
    expect(not git(repository, "stash", "list", fail=False).text, "a stash is left")
