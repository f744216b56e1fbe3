import os
import stat

from grade import DROP, check, expect, read, read_text, run, same

#: What set-up made below /srv: mode, user and group (2900 becomes 3000 below /srv/shared), content or target.
TREE = {
    "/srv/shared": (0o40755, 2900, 2900, None),
    "/srv/shared/releases": (0o40755, 2900, 2900, None),
    "/srv/shared/releases/v1": (0o40755, 2900, 2900, None),
    "/srv/shared/releases/v1/app.txt": (0o100644, 2900, 0, "one\n"),
    "/srv/shared/releases/latest": (0o120777, 2900, 2900, "/etc/shadow"),
    "/srv/shared/releases/run": (0o120777, 2900, 2900, "../run.sh"),
    "/srv/shared/spool": (0o42775, 2900, 2900, None),
    "/srv/shared/odd names": (0o40755, 2900, 2900, None),
    "/srv/shared/odd names/-rf file": (0o100644, 2900, 2900, "two\n"),
    "/srv/shared/run.sh": (0o104750, 2900, 2900, "run\n"),
    "/srv/shared/root-owned.conf": (0o100644, 0, 0, "root\n"),
    "/srv/other/olddeploy.txt": (0o100644, 2900, 2900, "else\n"),
}


def accounts(path):
    table = {}
    for line in read_text(path).splitlines():
        fields = line.split(":")
        expect(fields[0] not in table, f"{path} has two lines for {fields[0]}")
        table[fields[0]] = fields
    return table


def memberships(user):
    return sorted(name for name, fields in accounts("/etc/group").items() if user in fields[3].split(","))


def locked(user):
    fields = accounts("/etc/shadow")[user]
    return fields[1].startswith(("!", "*"))


@check("the account deploy")
def deploy():
    users, groups = accounts("/etc/passwd"), accounts("/etc/group")
    expect("deploy" in users and "deploy" in groups, "there is no user or no group deploy")
    same(users["deploy"][2:4] + users["deploy"][5:], ["3000", "3000", "/srv/deploy", "/bin/bash"], "uid, gid, home and shell")
    same(groups["deploy"][2], "3000", "gid of the group")
    same(sorted(set(memberships("deploy")) - {"deploy"}), ["adm", "www-data"], "supplementary groups")
    expect(locked("deploy"), "the password is not locked")
    same(accounts("/etc/shadow")["deploy"][7], "", "date of expiry")


@check("its home and key")
def home():
    for path, mode in [("/srv/deploy", 0o40750), ("/srv/deploy/.ssh", 0o40700), ("/srv/deploy/.ssh/authorized_keys", 0o100600)]:
        info = os.lstat(path)
        same((oct(info.st_mode), info.st_uid, info.st_gid), (oct(mode), 3000, 3000), f"mode and owner of {path}")
    same(read("/srv/deploy/.ssh/authorized_keys").strip(), b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0q2Vbq3m1c0mYp4S1l0m9dQyqk9sVnqG3R1oXc7Hfw ci@build.example", "authorized key")


@check("login shells")
def login():
    expect(read("/etc/profile.d/deploy.sh") != b"", "/etc/profile.d/deploy.sh is empty")
    script = 'umask; echo "${DEPLOY_ENV-unset}"; env | grep -c ^DEPLOY_ENV=staging$'
    expect(DROP, "this machine has no other users")
    mine = run(["/bin/bash", "-l", "-c", script], uid=3000, gid=3000, groups=[4, 33], env={"HOME": "/srv/deploy", "USER": "deploy", "LOGNAME": "deploy"}, fail=False)
    same(mine.text.split(), ["0027", "staging", "1"], "umask, DEPLOY_ENV and its export in a login shell of deploy")
    for uid, name in [(65534, "nobody"), (33, "www-data")]:
        other = run(["/bin/bash", "-l", "-c", script], uid=uid, gid=uid, env={"HOME": "/nonexistent", "USER": name, "LOGNAME": name}, fail=False)
        same(other.text.split(), ["0022", "unset", "0"], f"the same of {name}")


@check("the account olddeploy is retired")
def old():
    user = accounts("/etc/passwd")["olddeploy"]
    same((user[2], user[3], user[6]), ("2900", "2900", "/usr/sbin/nologin"), "uid, gid and shell")
    expect(locked("olddeploy"), "the password is not locked")
    same(accounts("/etc/shadow")["olddeploy"][7], "1", "day of expiry")
    same(memberships("olddeploy"), [], "supplementary groups")


@check("the files are handed over")
def files():
    found = [os.path.join(directory, name) for directory, directories, names in os.walk("/srv/shared") for name in directories + names]
    same(sorted(found), sorted(path for path in TREE if path.startswith("/srv/shared/")), "entries below /srv/shared")
    for path, (mode, user, group, content) in TREE.items():
        moved = path.startswith("/srv/shared")
        info = os.lstat(path)
        same((oct(info.st_mode), info.st_uid, info.st_gid), (oct(mode), *(3000 if moved and id == 2900 else id for id in (user, group))), f"mode and owner of {path}")
        if content is not None:
            same(os.readlink(path) if stat.S_ISLNK(info.st_mode) else read_text(path), content, f"content of {path}")


@check("nothing else changed in /etc")
def etc():
    for path, mode, group in [("/etc/passwd", 0o644, 0), ("/etc/group", 0o644, 0), ("/etc/shadow", 0o640, 42)]:
        info = os.lstat(path)
        same((oct(stat.S_IMODE(info.st_mode)), info.st_uid, info.st_gid), (oct(mode), 0, group), f"mode and owner of {path}")
    users = accounts("/etc/passwd")
    same(users["root"][2:4], ["0", "0"], "root")
    same([name for name, fields in users.items() if fields[2] == "0"], ["root"], "users with uid 0")
    expect({"daemon", "www-data", "nobody"} <= set(users), "a system account is missing")
