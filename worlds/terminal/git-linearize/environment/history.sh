# history.sh DIRECTORY: main, and a feature branch with fixups, a squash, a commit in the wrong place and a merge of main.
set -e
mkdir -p "$1" && cd "$1"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=/nonexistent GIT_MERGE_AUTOEDIT=no
git init -q -b main .
git config user.name 'Max Merge' && git config user.email max@example.com
clock=1710000000
as() { clock=$((clock + 1800)); export GIT_AUTHOR_NAME="$1" GIT_AUTHOR_EMAIL="$(echo "$1" | tr 'A-Z ' 'a-z.')@example.com" GIT_AUTHOR_DATE="$clock +0000" GIT_COMMITTER_DATE="$clock +0000"; }
commit() { git add -A && git commit -q -m "$1"; }
lines() { for n in "$@"; do printf '%s\n' "$n"; done; }

as 'Ann Base'; lines '# shop' '' 'prices.tsv: item, cents' > README; lines 'apple	30' 'pear	45' > prices.tsv; lines '#!/bin/sh' '# total ITEM...: sum of prices' 'sum=0' 'for item; do' '  cents=$(awk -F "\t" -v item="$item" '"'"'$1 == item { print $2 }'"'"' prices.tsv)' '  sum=$((sum + cents))' 'done' 'echo "$sum"' > total; chmod 755 total; commit 'Sum prices'
git checkout -q -b feature
as 'Fay Feature'; sed -i 's/^  sum=/  [ -n "$cents" ] || { echo "total: no item $item" >\&2; exit 1; }\n  sum=/' total; commit 'Refuse unknown items'
as 'Gil Helper'; lines 'plum	20' >> prices.tsv; commit 'Sell plums'
as 'Fay Feature'; sed -i 's/exit 1/exit 2/' total; commit 'fixup! Refuse unknown items'
as 'Fay Feature'; lines '#!/bin/sh' 'set -e' '[ "$(./total apple pear)" = 75 ]' '[ "$(./total)" = 0 ]' > check; chmod 755 check; commit 'Add a check'
git checkout -q main
as 'Ann Base'; sed -i 's/^pear.*/pear	50/' prices.tsv; commit 'Pears cost more'
as 'Ann Base'; sed -i 's/^sum=0/cd "$(dirname "$0")" || exit 3\nsum=0/' total; commit 'Run from anywhere'
git checkout -q feature
as 'Fay Feature'; git merge -q --no-commit main > /dev/null 2>&1 || true; lines 'apple	30' 'pear	50' 'plum	20' > prices.tsv; sed -i '/^<<<<<<<\|^=======\|^>>>>>>>/d' total; git add -A; git commit -q -m "Merge branch 'main' into feature"
as 'Fay Feature'; sed -i 's/= 75/= 80/' check; commit 'fixup! Add a check'
as 'Gil Helper'; sed -i 's/^plum.*/plum	25/' prices.tsv; printf 'squash! Sell plums\n\nThey are good this year.\n' | { git add -A; git commit -q -F -; }
as 'Fay Feature'; lines '' 'Unknown items end the sum with exit code 2.' >> README; commit 'Document exit codes'
as 'Gil Helper'; echo '[ "$(./total plum plum)" = 50 ]' >> check; commit 'Check plums'
as 'Fay Feature'; lines '[ "$(./total kiwi 2> /dev/null || echo $?)" = 2 ]' >> check; commit 'fixup! Add a check'
git checkout -q feature
echo "$(git rev-parse main) $(git rev-parse feature^{tree})"
