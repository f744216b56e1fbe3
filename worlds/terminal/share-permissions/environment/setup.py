"""Makes the neglected share. The table is repeated by the verifier."""
import os

TREE = [
    # path, kind, mode, uid, gid, content or target
    ("bin", "d", 0o777, 0, 0, None),
    ("bin/backup", "f", 0o4755, 0, 0, "#!/bin/sh\n"),
    ("bin/mount helper", "f", 0o6711, 2201, 0, "#!/bin/sh\n"),
    ("bin/readme", "f", 0o666, 0, 2200, "read me\n"),
    ("projects", "d", 0o755, 2201, 2200, None),
    ("projects/alpha", "d", 0o1777, 2201, 2201, None),
    ("projects/alpha/-n", "f", 0o600, 2201, 2201, "dash\n"),
    ("projects/alpha/line\nbreak.txt", "f", 0o000, 2202, 2200, "break\n"),
    ("projects/alpha/ run me ", "f", 0o641, 2202, 2200, "run\n"),
    ("projects/alpha/*", "f", 0o2644, 2202, 2202, "star\n"),
    ("projects/current", "l", 0o777, 0, 0, "alpha"),
    ("projects/gone", "l", 0o777, 2201, 2201, "beta"),
    ("projects/alpha/loop", "l", 0o777, 2201, 2201, "loop"),
    ("projects/alpha/passwd", "l", 0o777, 2201, 2201, "/etc/passwd"),
    ("projects/alpha/out", "l", 0o777, 2201, 2201, "/srv/outside/file"),
    ("private", "d", 0o777, 0, 2200, None),
    ("private/kim", "d", 0o755, 2201, 2200, None),
    ("private/kim/diary", "f", 0o644, 0, 2200, "dear\n"),
    ("private/kim/sub", "d", 0o2777, 2202, 2202, None),
    ("private/kim/sub/tool", "f", 0o4777, 0, 0, "tool\n"),
    ("private/lou", "d", 0o700, 2202, 2202, None),
    ("private/lou/ssh key", "f", 0o400, 2202, 2202, "key\n"),
    ("private/lou/dead", "l", 0o777, 2202, 2202, "nowhere"),
    ("private/ex", "d", 0o777, 2299, 2299, None),
    ("private/ex/left.txt", "f", 0o640, 2299, 2299, "left\n"),
    ("readme.txt", "f", 0o646, 0, 0, "top\n"),
]


def make(top):
    os.makedirs(top)
    for path, kind, mode, uid, gid, content in TREE:
        path = os.path.join(top, path)
        if kind == "d":
            os.mkdir(path)
        elif kind == "l":
            os.symlink(content, path)
        else:
            with open(path, "w") as file:
                file.write(content)
        os.chown(path, uid, gid, follow_symlinks=False)
        if kind != "l":
            os.chmod(path, mode)


if __name__ == "__main__":
    make("/srv/share")
    os.makedirs("/srv/outside")
    with open("/srv/outside/file", "w") as file:
        file.write("outside\n")
    os.chmod("/srv/outside/file", 0o600)
    with open("/etc/share-setuid.allow", "w") as file:
        file.write("# programs that may be setuid, relative to /srv/share\nbin/backup\n\n  private/kim/sub/tool-old\n")
