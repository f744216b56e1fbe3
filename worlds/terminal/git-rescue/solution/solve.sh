#!/bin/bash
set -euo pipefail
cd /app/book
git config --get user.email > /dev/null
draft= stash= appendix=
while read -r _ kind name; do
  case $kind in
    commit)
      subject=$(git log -1 --format=%s "$name")
      if [ "$subject" = 'Draft: third pass' ] && ! git show "$name:chapter4.md" | grep -q tpyo; then draft=$name; fi
      case $subject in *'ending of chapter 3'*) if git rev-parse -q --verify "$name^2" > /dev/null; then stash=$name; fi ;; esac ;;
    blob)
      if [ "$(git cat-file blob "$name" | head -1)" = Appendix ]; then appendix=$name; fi ;;
  esac
done < <(git fsck --no-reflogs --unreachable | grep -E '^unreachable (commit|blob)')
git branch draft "$draft"
git stash store -m "$(git log -1 --format=%s "$stash")" "$stash"
git cat-file blob "$appendix" > appendix.md
git add appendix.md
git commit -q -m 'Add the appendix'
