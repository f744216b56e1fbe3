import os
import stat

from grade import check, read_json, read_text, same

#: path: (mode, uid, gid, content or target) as the policy wants it. The modes before are those of set-up.
WANTED = {
    "": (0o42775, 0, 2200, None),
    "bin": (0o42775, 0, 2200, None),
    "bin/backup": (0o104775, 0, 2200, "#!/bin/sh\n"),
    "bin/mount helper": (0o100775, 0, 2200, "#!/bin/sh\n"),
    "bin/readme": (0o100664, 0, 2200, "read me\n"),
    "projects": (0o42775, 0, 2200, None),
    "projects/alpha": (0o42775, 0, 2200, None),
    "projects/alpha/-n": (0o100664, 0, 2200, "dash\n"),
    "projects/alpha/line\nbreak.txt": (0o100664, 0, 2200, "break\n"),
    "projects/alpha/ run me ": (0o100775, 0, 2200, "run\n"),
    "projects/alpha/*": (0o100664, 0, 2200, "star\n"),
    "projects/current": (0o120777, 0, 2200, "alpha"),
    "private": (0o42775, 0, 2200, None),
    "private/kim": (0o40700, 2201, 2201, None),
    "private/kim/diary": (0o100600, 2201, 2201, "dear\n"),
    "private/kim/sub": (0o40700, 2201, 2201, None),
    "private/kim/sub/tool": (0o100700, 2201, 2201, "tool\n"),
    "private/lou": (0o40700, 2202, 2202, None),
    "private/lou/ssh key": (0o100600, 2202, 2202, "key\n"),
    "private/ex": (0o40700, 0, 0, None),
    "private/ex/left.txt": (0o100600, 0, 0, "left\n"),
    "readme.txt": (0o100664, 0, 2200, "top\n"),
}
REMOVED = ["private/lou/dead", "projects/alpha/loop", "projects/alpha/out", "projects/alpha/passwd", "projects/gone"]


@check("every entry follows the policy")
def policy():
    found = [os.path.relpath(os.path.join(directory, name), "/srv/share") for directory, directories, names in os.walk("/srv/share") for name in directories + names]
    same(sorted(found), sorted(path for path in WANTED if path), "entries of the share")
    for path, (mode, uid, gid, content) in WANTED.items():
        full = os.path.join("/srv/share", path)
        info = os.lstat(full)
        same((oct(info.st_mode), info.st_uid, info.st_gid), (oct(mode), uid, gid), f"mode and owner of {path!r}")
        if content is not None:
            same(os.readlink(full) if stat.S_ISLNK(info.st_mode) else read_text(full), content, f"content of {path!r}")


@check("the removed links are listed")
def removed():
    same(read_json("/app/removed.json"), REMOVED, "removed.json")


@check("nothing outside is touched")
def outside():
    info = os.lstat("/srv/outside/file")
    same((oct(info.st_mode), info.st_uid, info.st_gid, read_text("/srv/outside/file")), ("0o100600", 0, 0, "outside\n"), "the file outside")
    passwd = os.lstat("/etc/passwd")
    same((oct(passwd.st_mode), passwd.st_uid, passwd.st_gid), ("0o100644", 0, 0), "/etc/passwd")
