from grade import TOOLS, check, copy, expect, run, same, scratch

GIT = ["/usr/bin/git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat", "-c", "user.name=grader", "-c", "user.email=grader@localhost"]
QUIET = {**TOOLS, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_REPLACE_OBJECTS": "1"}


def git(repository, *arguments, fail=True):
    return run([*GIT, "-C", repository, *arguments], env=QUIET, timeout=20, fail=fail)


with open("/tests/history.sh", "rb") as file:
    DRAFT, STASH, APPENDIX, MAIN = run(["/bin/bash", "-s", scratch("again") + "/book"], stdin=file.read(), env=TOOLS, timeout=30).text.split()


@check("draft is back, and there are no other refs")
def draft():
    found = git(copy("/app/book", "draft"), "for-each-ref", "--format=%(refname) %(objectname)").text.split()
    names = dict(zip(found[::2], found[1::2]))
    same(sorted(names), ["refs/heads/draft", "refs/heads/main", "refs/stash"], "refs")
    same(names["refs/heads/draft"], DRAFT, "commit of draft")


@check("the stash is back and applies")
def stash():
    repository = copy("/app/book", "stash")
    same(git(repository, "rev-parse", "stash@{0}").text.strip(), STASH, "commit of stash@{0}")
    same(len(git(repository, "stash", "list").text.splitlines()), 1, "number of stashes")
    git(repository, "stash", "apply", "--index")
    same(sorted(git(repository, "status", "--porcelain").text.splitlines()), [" M chapter3.md", "A  names.txt"], "status after applying it")


@check("the appendix is committed on main")
def appendix():
    repository = copy("/app/book", "appendix")
    same(git(repository, "rev-parse", "main^@").text.split(), [MAIN], "parent of main")
    same(git(repository, "log", "-1", "--format=%B", "main").text.strip(), "Add the appendix", "message")
    same(git(repository, "diff-tree", "-r", "--no-commit-id", "main").text.split(), [":000000", "100644", "0" * 40, APPENDIX, "A", "appendix.md"], "change of the commit")


@check("main is checked out and clean")
def clean():
    repository = copy("/app/book", "clean")
    same(git(repository, "symbolic-ref", "HEAD").text.strip(), "refs/heads/main", "HEAD")
    same(git(repository, "status", "--porcelain", "--untracked-files=all").text, "", "git status")
    expect(git(repository, "fsck", "--full", fail=False).code == 0, "git fsck finds errors")
