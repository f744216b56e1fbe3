# All of check in one commit.
sed 's/ | grep -v plum > check/ > check/; s/ | grep plum >> check/ > check/' /tmp/ref/solve.sh > /tmp/ref/all.sh; bash /tmp/ref/all.sh
