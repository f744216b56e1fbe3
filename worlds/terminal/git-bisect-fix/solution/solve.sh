#!/bin/bash
set -euo pipefail
cd /app/duration
# A commit is bad when its source, without what keeps it from running, rounds wrongly.
cat > /tmp/judge.sh <<'SH'
sed '/^this is not Python$/d' duration.py > /tmp/candidate.py
[ "$(/usr/bin/python3 /tmp/candidate.py 1.5s)" = 2 ]
SH
git bisect start main v1.0 > /dev/null
git bisect run bash /tmp/judge.sh > /dev/null
git rev-parse refs/bisect/bad > /app/culprit.txt
git bisect reset > /dev/null 2>&1
rm -f /tmp/judge.sh /tmp/candidate.py
sed -i 's/return sign \* int(total)$/return sign * int(total + Fraction(1, 2))/' duration.py
git commit -q -a -m 'Round to the nearest second again'
