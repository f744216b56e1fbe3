# Drops the commits of which nothing is left.
sed 's/-f --tag-name-filter/-f --prune-empty --tag-name-filter/' /tmp/ref/solve.sh > /tmp/ref/empty.sh; bash /tmp/ref/empty.sh
