# history.sh DIRECTORY [clean]: a repository with a leak in its history, or what it would be had the leak never happened.
set -e
clean=$2
mkdir -p "$1" && cd "$1"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=/nonexistent
git init -q -b main .
git config user.name root && git config user.email root@localhost
clock=1690000000
as() { # as NAME: the next commit's author, committer and times
  clock=$((clock + 86461))
  export GIT_AUTHOR_NAME="$1" GIT_AUTHOR_EMAIL="${1%% *}@example.com" GIT_AUTHOR_DATE="$clock +0200"
  export GIT_COMMITTER_NAME="${2:-$1}" GIT_COMMITTER_EMAIL="ci@example.com" GIT_COMMITTER_DATE="$((clock + 3600)) +0000"
}
commit() { git add -A && git commit -q --allow-empty -F - "$@"; }
token=${clean:+REDACTED}; token=${token:-tk_live_9f3KqLmZ77aPwXe2}
other=${clean:+REDACTED}; other=${other:-tk_live_QQb81LsV0e54jdNc}
secret_file() { [ -n "$clean" ] || { mkdir -p config; printf 'DB_PASSWORD=hunter2-%s\nAPI_TOKEN=%s\n' "$1" "$token" > config/credentials.env; }; }

as "Ada Byron"; echo '# site' > README.md; echo 'Start' | commit
as "Bob Möller"; mkdir -p config; echo 'port = 80' > config/site.conf; secret_file a; printf 'Add configuration\n\nWith everything one needs.\n' | commit
as "Ada Byron" "Release Bot"; printf '#!/bin/sh\ncurl -H "Authorization: %s" https://api.example/deploy\n' "$token" > deploy.sh; chmod 755 deploy.sh; echo 'Deploy by script' | commit
GIT_COMMITTER_DATE="$clock +0000" git tag -a v1.0 -m 'First release

Signed off by Ada.'
git checkout -q -b feature/search
as "Cy Ñandú"; echo 'search' > search.txt; printf 'curl -H "X-Key: %s" https://search.example\n' "$other" > config/probe.sh; echo 'Search' | commit
as "Cy Ñandú"; secret_file b; echo 'Rotate the password' | commit
git checkout -q main
as "Ada Byron"; echo 'port = 443' > config/site.conf; echo 'TLS' | commit
as "Ada Byron"; GIT_MERGE_AUTOEDIT=no git merge -q --no-ff -m "Merge branch 'feature/search'" feature/search
as "Bob Möller"; rm -f config/credentials.env; printf 'config/credentials.env\n' > .gitignore; echo 'Credentials do not belong here' | commit
git tag v1.1
git checkout -q -b release v1.0
as "Eve"; secret_file c; echo 'Only a new password' | commit
as "Eve"; sed -i 's/deploy"/deploy?v=2"/; s#/deploy$#/deploy?v=2#' deploy.sh; echo 'Second endpoint' | commit
git checkout -q main
as "Ada Byron"; printf '#!/bin/sh\ncurl -H "Authorization: $API_TOKEN" https://api.example/deploy\n' > deploy.sh; echo 'Take the token from the environment' | commit
[ -n "$clean" ] || { echo "draft $token" > draft.txt; git add -A; git stash -q; echo "lost $other" > x; git add x; git commit -q -m 'thrown away'; git reset -q --hard HEAD~1; }
