#!/bin/bash
set -euo pipefail
groupadd -g 3000 deploy
useradd -u 3000 -g deploy -G adm,www-data -M -d /srv/deploy -s /bin/bash deploy
usermod -L deploy
install -d -o deploy -g deploy -m 0750 /srv/deploy
install -d -o deploy -g deploy -m 0700 /srv/deploy/.ssh
install -o deploy -g deploy -m 0600 /app/deploy.pub /srv/deploy/.ssh/authorized_keys
cat > /etc/profile.d/deploy.sh <<'SH'
if [ "$(id -un)" = deploy ]; then
  umask 0027
  export DEPLOY_ENV=staging
fi
SH
chmod 644 /etc/profile.d/deploy.sh

usermod -L -e 1970-01-02 -s /usr/sbin/nologin -G '' olddeploy

# A change of owner takes the setuid and setgid bits away: they are put back.
/usr/bin/python3 - <<'PY'
import os
import stat

for directory, directories, files in os.walk("/srv/shared"):
    for name in [".", *directories, *files]:
        path = os.path.join(directory, name)
        if name == "." and directory != "/srv/shared":
            continue
        info = os.lstat(path)
        os.chown(path, 3000 if info.st_uid == 2900 else -1, 3000 if info.st_gid == 2900 else -1, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            os.chmod(path, stat.S_IMODE(info.st_mode))
PY
