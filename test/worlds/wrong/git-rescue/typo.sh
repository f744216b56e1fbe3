# Takes the commit before its amendment.
sed 's/&& ! git show/\&\& git show/' /tmp/ref/solve.sh > /tmp/ref/typo.sh; bash /tmp/ref/typo.sh
