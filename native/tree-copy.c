/* Exact copies of trees: owners, modes, times, extended attributes, hard links, holes, special files. Without recursion and without following links. */
#include "tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { LINKS = 1 << 18, XATTR_BYTES = 64 << 10 };

typedef struct {
    dev_t dev;
    ino_t ino;
    char *path;
} copied;

typedef struct {
    DIR *from;
    int to;
    char name[256];
    struct stat st;
    size_t length;
    bool joined; /* the target's directory was there before; `st` is its own then */
} level;

static bool merging; /* the target holds the layers above */
static copied *links;
static uint32_t link_count;
static int link_root;
static char path[PATH_BYTES + 256];

static void xattr_path(char *out, int dir, const char *name) {
    snprintf(out, 64 + 256, "/proc/self/fd/%d/%s", dir, name);
}

static int copy_xattrs(int from, const char *name, int to, const char *to_name) {
    static char names[XATTR_BYTES], value[XATTR_BYTES];
    char source[64 + 256], target[64 + 256];
    xattr_path(source, from, name);
    xattr_path(target, to, to_name);
    ssize_t n = llistxattr(source, names, sizeof names);
    if (n < 0) return errno == EOPNOTSUPP ? 0 : errno;
    for (char *at = names; at < names + n; at += strlen(at) + 1) {
        ssize_t len = lgetxattr(source, at, value, sizeof value);
        if (len < 0) return errno;
        if (lsetxattr(target, at, value, (size_t)len, 0) < 0) return errno;
    }
    return 0;
}

/* Owner before mode and attributes: a change of owner takes set-id bits and capabilities away. Times last. */
static int copy_metadata(int from, const char *name, int to, const char *to_name, const struct stat *st) {
    struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (fchownat(to, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0) return errno;
    if (!S_ISLNK(st->st_mode) && fchmodat(to, to_name, st->st_mode & 07777, 0) < 0) return errno;
    int error = copy_xattrs(from, name, to, to_name);
    if (error) return error;
    return utimensat(to, to_name, times, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
}

static int copy_range(int in, int out, off_t at, off_t end) {
    static char buf[256 << 10];
    while (at < end) {
        size_t want = end - at < (off_t)sizeof buf ? (size_t)(end - at) : sizeof buf;
        ssize_t n = pread(in, buf, want, at);
        if (n < 0) return errno;
        if (n == 0) return 0;
        for (ssize_t done = 0; done < n;) {
            ssize_t w = pwrite(out, buf + done, (size_t)(n - done), at + done);
            if (w < 0) return errno;
            done += w;
        }
        at += n;
    }
    return 0;
}

static int copy_content(int in, int out, off_t size) {
    off_t at = 0;
    if (ftruncate(out, size) < 0) return errno;
    while (at < size) {
        off_t data = lseek(in, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) return 0;
        off_t hole = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);
        /* A file system that knows no holes has data everywhere. */
        if (data < 0 || hole < 0) data = at, hole = size;
        int error = copy_range(in, out, data, hole);
        if (error) return error;
        at = hole;
    }
    return 0;
}

static int copy_file(int from, const char *name, int to, const char *to_name) {
    struct stat st;
    int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (in < 0) return errno;
    int out = openat(to, to_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = out < 0 ? errno : fstat(in, &st) < 0 ? errno : copy_content(in, out, st.st_size);
    close(in);
    if (out >= 0 && close(out) < 0 && !error) error = errno;
    return error;
}

/* 1: made as a link to what was copied before. 0: not. Negative errno. */
static int link_before(const struct stat *st, int to, const char *to_name) {
    if (st->st_nlink < 2 || S_ISDIR(st->st_mode)) return 0;
    if (!links && !(links = calloc(LINKS, sizeof *links))) return -ENOMEM;
    uint32_t at = (uint32_t)(st->st_ino * 2654435761u ^ st->st_dev) % LINKS;
    for (; links[at].path; at = (at + 1) % LINKS) {
        if (links[at].ino != st->st_ino || links[at].dev != st->st_dev) continue;
        return linkat(link_root, links[at].path, to, to_name, 0) < 0 ? -errno : 1;
    }
    /* Whiteouts share one inode by the thousand; every other link set must stay whole. */
    if (link_count >= LINKS / 2) return -EMLINK;
    links[at] = (copied){st->st_dev, st->st_ino, strdup(path)};
    link_count++;
    return links[at].path ? 0 : -ENOMEM;
}

static void forget_links(void) {
    for (uint32_t i = 0; links && i < LINKS; i++) free(links[i].path);
    free(links);
    links = NULL;
    link_count = 0;
}

static int copy_one(int from, const char *name, int to, const char *to_name, const struct stat *st) {
    char target[PATH_BYTES];
    int error = 0, linked = link_before(st, to, to_name);
    if (linked) return linked < 0 ? -linked : 0;
    if (S_ISREG(st->st_mode)) error = copy_file(from, name, to, to_name);
    else if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(from, name, target, sizeof target - 1);
        if (n < 0) return errno;
        target[n] = 0;
        error = symlinkat(target, to, to_name) < 0 ? errno : 0;
    } else if (S_ISDIR(st->st_mode)) error = mkdirat(to, to_name, 0700) < 0 ? errno : 0;
    else error = mknodat(to, to_name, st->st_mode, st->st_rdev) < 0 ? errno : 0;
    if (error || S_ISDIR(st->st_mode)) return error;
    return copy_metadata(from, name, to, to_name, st);
}

/*
 * What the target has at a name, it has from a layer above: that hides this one's, unless both are directories that become one. 1: this one's is hidden. 2: both become one.
 * 0: nothing is there. Negative errno.
 */
static int above(const char *name, const struct stat *st, int to, struct stat *old) {
    if (!merging) return 0;
    if (fstatat(to, name, old, AT_SYMLINK_NOFOLLOW) < 0) return errno == ENOENT ? 0 : -errno;
    if (!S_ISDIR(st->st_mode) || !S_ISDIR(old->st_mode)) return 1;
    int fd = openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -errno;
    bool opaque = is_opaque(fd);
    close(fd);
    return opaque ? 1 : 2;
}

static int enter(level *l, int from, const char *name, int to, const char *to_name, const struct stat *st) {
    int fd = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    l->to = openat(to, to_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    l->from = fd < 0 ? NULL : fdopendir(fd);
    l->st = *st;
    l->joined = false;
    strcpy(l->name, to_name);
    l->length = strlen(path);
    return l->from && l->to >= 0 ? 0 : errno;
}

/* A directory of two layers is as the upper one has it, and hides what is below both where the lower one does. */
static int finish_joined(const level *l) {
    static const char *const MARKS[] = {"trusted.overlay.opaque", "user.overlay.opaque"};
    struct timespec times[2] = {l->st.st_atim, l->st.st_mtim};
    for (int i = 0; i < 2; i++) {
        char value[2];
        if (fgetxattr(dirfd(l->from), MARKS[i], value, 2) == 1 && value[0] == 'y' && fsetxattr(l->to, MARKS[i], "y", 1, 0) < 0) return errno;
    }
    return futimens(l->to, times) < 0 ? errno : 0;
}

/* The content of an entered directory, to its end. `first` is closed but its metadata are the caller's. */
static int copy_content_of(level *stack) {
    int depth = 0, error = 0;
    while (depth >= 0 && !error) {
        level *l = &stack[depth];
        struct stat st;
        struct dirent *next = readdir(l->from);
        path[l->length] = 0;
        if (!next) {
            /* "." names the directory itself on both sides: its metadata come when its content is complete. */
            error = l->joined ? finish_joined(l) : copy_metadata(dirfd(l->from), ".", l->to, ".", &l->st);
            closedir(l->from);
            close(l->to);
            depth--;
            continue;
        }
        if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0) continue;
        size_t n = strlen(next->d_name);
        if (l->length + n + 2 > PATH_BYTES || depth + 1 >= TREE_DEPTH_MOST) return ENAMETOOLONG;
        size_t at = l->length;
        if (at) path[at++] = '/';
        memcpy(path + at, next->d_name, n + 1);
        int from = dirfd(l->from);
        if (fstatat(from, next->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) return errno;
        struct stat old;
        int met = above(next->d_name, &st, l->to, &old);
        if (met < 0) return -met;
        if (met == 1) continue;
        if (met == 0) error = copy_one(from, next->d_name, l->to, next->d_name, &st);
        if (error || !S_ISDIR(st.st_mode)) continue;
        error = enter(&stack[++depth], from, next->d_name, l->to, next->d_name, met == 2 ? &old : &st);
        stack[depth].joined = met == 2;
    }
    return error;
}

/*
 * Copies what `from` holds into the directory `to`, which becomes like it. `below`: `to` holds the layers above, and becomes what all are together over what is below
 * them: whiteouts and opaque marks stay, for they may hide something there. What is hidden is not copied.
 */
int copy_into(int from, int to, bool below) {
    static level stack[TREE_DEPTH_MOST];
    struct stat st;
    if (fstat(below ? to : from, &st) < 0) return errno;
    path[0] = 0;
    merging = below;
    int error = enter(&stack[0], from, ".", to, ".", &st);
    stack[0].joined = below;
    link_root = stack[0].to;
    if (!error) error = copy_content_of(stack);
    merging = false;
    forget_links();
    return error;
}

/* Copies `from`/`name` to `to`/`to_name`, which must not exist. */
int copy_tree(int from, const char *name, int to, const char *to_name) {
    static level stack[TREE_DEPTH_MOST];
    struct stat st;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return errno;
    path[0] = 0;
    link_root = to;
    int error;
    if (!S_ISDIR(st.st_mode)) error = copy_one(from, name, to, to_name, &st);
    else {
        error = mkdirat(to, to_name, 0700) < 0 ? errno : enter(&stack[0], from, name, to, to_name, &st);
        link_root = stack[0].to;
        /* The root's descriptor is closed at its end, the links are made before that. */
        if (!error) error = copy_content_of(stack);
    }
    forget_links();
    return error;
}

/* Bytes that a tree occupies; files with several names once. */
uint64_t tree_usage(int dir) {
    static DIR *dirs[TREE_DEPTH_MOST];
    uint64_t bytes = 0;
    int depth = 0;
    dirs[0] = fdopendir(openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!dirs[0]) fail(errno, "reading the workspace", NULL);
    while (depth >= 0) {
        struct stat st;
        struct dirent *next = readdir(dirs[depth]);
        if (!next) {
            closedir(dirs[depth--]);
            continue;
        }
        int at = dirfd(dirs[depth]);
        if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0 || fstatat(at, next->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) continue;
        bytes += (uint64_t)st.st_blocks * 512 / (S_ISDIR(st.st_mode) || st.st_nlink < 1 ? 1 : st.st_nlink);
        if (!S_ISDIR(st.st_mode) || depth + 1 >= TREE_DEPTH_MOST) continue;
        int fd = openat(at, next->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *below = fd < 0 ? NULL : fdopendir(fd);
        if (below) dirs[++depth] = below;
    }
    return bytes;
}
