# The refs are right, the old objects are still there.
reference_without_gc() { sed 's/^git gc.*//; s/^git reflog.*//' /tmp/ref/solve.sh > /tmp/ref/nogc.sh; bash /tmp/ref/nogc.sh; }
reference_without_gc
