# Names the first commit that ran and was wrong.
reference
cd /app/duration && git log --format=%H --grep='Make it run again' > /app/culprit.txt
