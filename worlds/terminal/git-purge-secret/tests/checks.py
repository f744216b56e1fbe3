import re

from grade import TOOLS, check, copy, expect, run, same, scratch

GIT = ["/usr/bin/git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat"]
QUIET = {**TOOLS, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0"}
LEAK = re.compile(rb"tk_live_[A-Za-z0-9]{16}|hunter2-")


def git(repository, *arguments, fail=True):
    return run([*GIT, "-C", repository, *arguments], env=QUIET, timeout=20, fail=fail)


def refs(repository):
    return git(repository, "for-each-ref", "--format=%(refname) %(objecttype) %(objectname) %(*objectname)").text.splitlines()


def clean_history():
    """The same history without the leak: every name of every object is known by that."""
    with open("/tests/history.sh", "rb") as file:
        script = file.read()
    target = scratch("clean") + "/site"
    run(["/bin/bash", "-s", target, "clean"], stdin=script, env=TOOLS, timeout=30)
    return target


@check("every branch and tag points at the clean history")
def history():
    same(refs(copy("/app/site", "refs")), refs(clean_history()), "refs, with their objects")


@check("no object holds a credential")
def objects():
    repository = copy("/app/site", "objects")
    everything = git(repository, "cat-file", "--batch-all-objects", "--batch", "--unordered")
    expect(len(everything.out) > 1000, "the repository holds no objects")
    found = LEAK.search(everything.out)
    expect(found is None, f"an object still holds {found and found.group()[:12]!r}")
    expect(b"credentials.env\x00" not in everything.out, "a tree still names config/credentials.env")
    same(git(repository, "fsck", "--full", "--strict", fail=False).code, 0, "exit code of git fsck")


@check("main is checked out and clean")
def clean():
    repository = copy("/app/site", "worktree")
    same(git(repository, "symbolic-ref", "HEAD").text.strip(), "refs/heads/main", "HEAD")
    same(git(repository, "status", "--porcelain", "--ignored", "--untracked-files=all").text, "", "git status")
    old = git(repository, "reflog", "show", "--all", "--format=%H", fail=False).text.split()
    for commit in sorted(set(old)):
        same(git(repository, "cat-file", "-t", commit, fail=False).text.strip(), "commit", f"type of {commit} in a reflog")
