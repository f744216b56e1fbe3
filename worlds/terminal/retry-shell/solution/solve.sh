#!/bin/bash
set -euo pipefail
cat > /app/retry <<'SH'
#!/bin/sh
# retry [-n ATTEMPTS] [-d SECONDS] [-b FACTOR] [-e CODES] [-q] [--] COMMAND [ARGUMENT]...

usage() {
  echo "retry: $1" >&2
  exit 64
}

# whole NAME VALUE LEAST
whole() {
  case $2 in '' | *[!0-9]* | ?????????*) usage "$1 is not a number: $2" ;; esac
  [ "$2" -ge "$3" ] || usage "$1 must be at least $3"
}

attempts=3 delay=1 factor=1 codes= quiet=
while getopts :n:d:b:e:q option; do
  case $option in
    n) attempts=$OPTARG ;;
    d) delay=$OPTARG ;;
    b) factor=$OPTARG ;;
    e) codes=$OPTARG; [ -n "$codes" ] || usage "-e is empty" ;;
    q) quiet=yes ;;
    :) usage "-$OPTARG needs a value" ;;
    *) usage "no option -$OPTARG" ;;
  esac
done
shift $((OPTIND - 1))
whole -n "$attempts" 1
whole -b "$factor" 1
case $delay in '' | . | *[!0-9.]* | *.*.*) usage "-d is not a number of seconds: $delay" ;; esac
case $codes in *[!0-9,]* | ,* | *, | *,,*) usage "-e is not a list of exit codes: $codes" ;; esac
[ $# -gt 0 ] || usage "no command"

input=$(mktemp) || exit 70
child=
trap 'rm -f "$input"' EXIT
trap '[ -z "$child" ] || kill -TERM "$child" 2> /dev/null; rm -f "$input"; exit 143' TERM
cat > "$input" &
child=$!
wait "$child"

attempt=1
while :; do
  RETRY_ATTEMPT=$attempt "$@" < "$input" &
  child=$!
  wait "$child"
  code=$?
  child=
  [ "$code" -ne 0 ] || exit 0
  [ -n "$quiet" ] || echo "retry: attempt $attempt of $attempts failed (exit $code)" >&2
  if [ -n "$codes" ]; then
    case ,$codes, in *,"$code",*) ;; *) exit "$code" ;; esac
  else
    case $code in 126 | 127) exit "$code" ;; esac
  fi
  [ "$attempt" -lt "$attempts" ] || exit "$code"
  sleep "$delay" &
  child=$!
  wait "$child"
  child=
  delay=$(awk -v delay="$delay" -v factor="$factor" 'BEGIN { printf "%.6f", delay * factor }')
  attempt=$((attempt + 1))
done
SH
# An asynchronous command reads /dev/null unless it is told otherwise.
sed -i 's/^cat > "\$input" &$/exec 3<\&0\ncat <\&3 > "$input" \&/; s/^wait "\$child"$/wait "$child"\nexec 3<\&-/' /app/retry
chmod 755 /app/retry
