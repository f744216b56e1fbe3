#!/bin/sh
# Looks at what is in /app. Four things count: anything was made (0.1), all of it is of the right kind (0.2), what was named is there (0.15 each), and it is exactly that (0.4).
kind=file first=fjord second=amber
cd /app || exit 1
made=0 kinds=0 named=0 right=0
for entry in * .[!.]* ..?*; do
  if [ -L "$entry" ]; then is=link
  elif [ -d "$entry" ]; then is=directory
  elif [ -p "$entry" ]; then is=pipe
  elif [ -s "$entry" ]; then is=other
  elif [ -f "$entry" ]; then is=file
  elif [ -e "$entry" ]; then is=other
  else continue
  fi
  made=$((made + 1))
  [ $is = $kind ] && kinds=$((kinds + 1))
  case $entry in
    "$first" | "$second")
      named=$((named + 1))
      [ $is = $kind ] && right=$((right + 1))
      ;;
  esac
done
some=0 same=0 exact=0
[ $made -gt 0 ] && some=100 && [ $kinds -eq $made ] && same=200
names=$((150 * named))
[ $made -eq 2 ] && [ $right -eq 2 ] && exact=400
sum=$((some + same + names + exact))
echo "$made made, $kinds of them of the kind $kind, $named of them named $first or $second"
[ $sum -eq 1000 ] && reward=1 || reward=$(printf '0.%03d' $sum)
printf '{"reward": %s, "kind": 0.%03d, "names": 0.%03d, "exact": 0.%03d}\n' $reward $same $names $exact > /logs/verifier/reward.json
