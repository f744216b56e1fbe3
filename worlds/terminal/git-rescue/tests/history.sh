# history.sh DIRECTORY: a repository in which somebody threw away too much. Prints what a rescue has to find.
set -e
mkdir -p "$1" && cd "$1"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=/nonexistent
git init -q -b main .
git config user.name Robin && git config user.email robin@example.com
git config gc.auto 0
clock=1700000000
tick() { clock=$((clock + 3600)); export GIT_AUTHOR_DATE="$clock +0100" GIT_COMMITTER_DATE="$clock +0100"; }
commit() { tick; git add -A; git commit -q -m "$1"; }
for n in 1 2 3; do echo "Chapter $n" > chapter$n.md; commit "Chapter $n"; done
git checkout -q -b draft
echo 'Chapter 4, first pass' > chapter4.md; commit 'Draft: first pass'
echo 'Chapter 4, second pass' > chapter4.md; commit 'Draft: second pass'
tick; echo 'Chapter 4, third pass, with a tpyo' > chapter4.md; git add -A; git commit -q -m 'Draft: third pass'
tick; echo 'Chapter 4, third pass' > chapter4.md; echo 'See chapter 4' >> chapter1.md; git add -A; git commit -q --amend -m 'Draft: third pass' --date "$clock +0100"
draft=$(git rev-parse HEAD)
# A later experiment on top of an older pass, given up on purpose.
git checkout -q -b experiment HEAD~1
echo 'Chapter 4, as a poem' > chapter4.md; commit 'Experiment: a poem'
git checkout -q main
git branch -q -D draft experiment
echo 'Chapter 2, shorter' > chapter2.md; commit 'Shorten chapter 2'
# Two stashes: an old one of which everything is in main, and the one that was dropped by mistake.
tick; echo 'Chapter 2, shorter' > chapter3.md; git stash -q; git stash drop -q
tick; echo 'Chapter 3, with the missing ending' > chapter3.md; echo 'Names: Ines, Olaf' > names.txt; git add names.txt; git stash -q -m 'ending of chapter 3'
stash=$(git rev-parse stash@{0}); git stash drop -q
# Staged, never committed, then wiped.
printf 'Appendix\n\nSources and thanks.\n' > appendix.md; git add appendix.md; appendix=$(git rev-parse :appendix.md); git rm -q --cached appendix.md; rm appendix.md
printf 'scratch\n' > scratch.md; git add scratch.md; git rm -q --cached scratch.md; rm scratch.md
rm -rf .git/logs .git/ORIG_HEAD .git/COMMIT_EDITMSG
echo "$draft $stash $appendix $(git rev-parse main)"
