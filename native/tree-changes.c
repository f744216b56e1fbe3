/* What a workspace adds to, changes in and removes from the image below it. */
#include "tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { XATTR_BYTES = 64 << 10 };

static char path[PATH_BYTES + 256];
static uint64_t count;

static void change(int kind, int dir, const char *name, const struct stat *st) {
    char target[PATH_BYTES];
    ssize_t n = S_ISLNK(st->st_mode) && dir >= 0 ? readlinkat(dir, name, target, sizeof target - 1) : -1;
    if (++count > ENTRIES_MOST) fail(EFBIG, "the number of changes", NULL);
    frame_begin(FILES_ENTRY);
    wire_text(frame(), F_PATH, path);
    wire_put_u64(frame(), F_CHANGE, (uint64_t)kind);
    wire_put_u64(frame(), F_KIND, (uint64_t)kind_of(st->st_mode));
    wire_put_u64(frame(), F_MODE, st->st_mode & 07777);
    wire_put_u64(frame(), F_SIZE, (uint64_t)st->st_size);
    if (n >= 0) wire_bytes(frame(), F_TARGET, target, (size_t)n);
    frame_send();
}

/* An opaque directory hides all that the image had in it: what it does not have itself is removed. */
static void removed_below(int dir) {
    size_t len = strlen(path);
    for (int i = 0; i < T.lower_count; i++) {
        char name[256];
        struct stat st, upper;
        int parent = walk_to(T.lowers[i], path, name);
        int fd = parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *entries = fd < 0 ? NULL : fdopendir(fd);
        if (parent >= 0) close(parent);
        if (!entries) continue;
        for (struct dirent *next; (next = readdir(entries));) {
            int layer;
            if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0 || len + strlen(next->d_name) + 2 > PATH_BYTES) continue;
            path[len] = '/';
            strcpy(path + len + 1, next->d_name);
            /* Told once, for the topmost layer that has it. */
            if (in_lowers(path, &st, &layer) && layer == i && fstatat(dir, next->d_name, &upper, AT_SYMLINK_NOFOLLOW) < 0) change(CHANGE_REMOVED, -1, NULL, &st);
            path[len] = 0;
        }
        closedir(entries);
    }
}

static void directory(int parent, const char *name, int fd, const struct stat *st) {
    struct stat lower;
    bool had = in_lowers(path, &lower, NULL), opaque = is_opaque(fd);
    if (!had) change(CHANGE_ADDED, parent, name, st);
    else if (!S_ISDIR(lower.st_mode) || opaque || lower.st_mode != st->st_mode || lower.st_uid != st->st_uid || lower.st_gid != st->st_gid) change(CHANGE_CHANGED, parent, name, st);
    if (had && opaque && S_ISDIR(lower.st_mode)) removed_below(fd);
}

static bool same_attributes(int parent, const char *name, int lower_parent, const char *lower_name) {
    static char names[XATTR_BYTES], lower_names[XATTR_BYTES], value[XATTR_BYTES], lower_value[XATTR_BYTES];
    char at[64 + 256], lower_at[64 + 256];
    snprintf(at, sizeof at, "/proc/self/fd/%d/%s", parent, name);
    snprintf(lower_at, sizeof lower_at, "/proc/self/fd/%d/%s", lower_parent, lower_name);
    ssize_t n = llistxattr(at, names, sizeof names), lower_n = llistxattr(lower_at, lower_names, sizeof lower_names);
    if (n < 0 || lower_n < 0) return n < 0 && lower_n < 0;
    if (n != lower_n) return false;
    /* File systems list them in orders of their own. */
    for (const char *next = names; next < names + n; next += strlen(next) + 1) {
        ssize_t length = lgetxattr(at, next, value, sizeof value);
        if (length < 0 || length != lgetxattr(lower_at, next, lower_value, sizeof lower_value) || memcmp(value, lower_value, (size_t)length) != 0) return false;
    }
    return true;
}

static bool same_bytes(int parent, const char *name, int lower_parent, const char *lower_name) {
    static uint8_t bytes[64 << 10], lower_bytes[64 << 10];
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), lower_fd = openat(lower_parent, lower_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool same = fd >= 0 && lower_fd >= 0;
    for (off_t at = 0; same;) {
        ssize_t n = pread(fd, bytes, sizeof bytes, at), lower_n = pread(lower_fd, lower_bytes, sizeof lower_bytes, at);
        same = n >= 0 && n == lower_n && memcmp(bytes, lower_bytes, (size_t)n) == 0;
        if (n <= 0) break;
        at += n;
    }
    if (fd >= 0) close(fd);
    if (lower_fd >= 0) close(lower_fd);
    return same;
}

static bool same_target(int parent, const char *name, int lower_parent, const char *lower_name) {
    char target[PATH_BYTES], lower_target[PATH_BYTES];
    ssize_t n = readlinkat(parent, name, target, sizeof target);
    return n >= 0 && n == readlinkat(lower_parent, lower_name, lower_target, sizeof lower_target) && memcmp(target, lower_target, (size_t)n) == 0;
}

/*
 * The image's own file, in every respect: what a discard copied back into a directory that hides the image's. A change if anything differs, and for everything
 * that the kernel copied up, which marks it.
 */
static bool is_the_images(int parent, const char *name, const struct stat *st, const struct stat *lower, int layer) {
    if (st->st_mode != lower->st_mode || st->st_uid != lower->st_uid || st->st_gid != lower->st_gid || st->st_size != lower->st_size) return false;
    if (st->st_mtim.tv_sec != lower->st_mtim.tv_sec || st->st_mtim.tv_nsec != lower->st_mtim.tv_nsec) return false;
    if (!S_ISREG(st->st_mode) && !S_ISLNK(st->st_mode)) return false;
    char lower_name[256];
    int from = walk_to(T.lowers[layer], path, lower_name);
    if (from < 0) return false;
    bool same = same_attributes(parent, name, from, lower_name) &&
                (S_ISREG(st->st_mode) ? same_bytes(parent, name, from, lower_name) : same_target(parent, name, from, lower_name));
    close(from);
    return same;
}

/* Everything but a directory. */
static void other(int parent, const char *name, const struct stat *st) {
    struct stat lower;
    int layer = -1;
    bool had = in_lowers(path, &lower, &layer);
    if (is_whiteout(parent, name, st)) {
        if (had) change(CHANGE_REMOVED, -1, NULL, &lower);
    } else if (!had || !is_the_images(parent, name, st, &lower, layer)) change(had ? CHANGE_CHANGED : CHANGE_ADDED, parent, name, st);
}

void tree_changes(void) {
    static DIR *dirs[TREE_DEPTH_MOST];
    static size_t lengths[TREE_DEPTH_MOST];
    int depth = 0;
    count = 0;
    path[0] = 0;
    lengths[0] = 0;
    dirs[0] = fdopendir(openat(T.upper, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!dirs[0]) fail(errno, "reading the workspace", NULL);
    while (depth >= 0) {
        struct stat st;
        struct dirent *next = readdir(dirs[depth]);
        size_t len = lengths[depth];
        path[len] = 0;
        if (!next) {
            closedir(dirs[depth--]);
            continue;
        }
        size_t n = strlen(next->d_name);
        int dir = dirfd(dirs[depth]);
        if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0) continue;
        /* Nothing may hide from this list: what is too long or too deep for it makes the list fail. */
        if (len + n + 2 > PATH_BYTES || depth + 1 >= TREE_DEPTH_MOST) fail(ENAMETOOLONG, "listing the changes below", path);
        path[len] = '/';
        memcpy(path + len + 1, next->d_name, n + 1);
        if (fstatat(dir, next->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) fail(errno, "reading", path);
        if (!S_ISDIR(st.st_mode)) {
            other(dir, next->d_name, &st);
            continue;
        }
        int fd = openat(dir, next->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) fail(errno, "reading", path);
        directory(dir, next->d_name, fd, &st);
        path[len + 1 + n] = 0;
        dirs[++depth] = fdopendir(fd);
        if (!dirs[depth]) fail(ENOMEM, "reading", path);
        lengths[depth] = len + 1 + n;
    }
}

/* An empty directory that hides what lies below it, in the place of a whiteout. */
static int reopen_directory(int parent, const char *name) {
    if (unlinkat(parent, name, 0) < 0 || mkdirat(parent, name, 0755) < 0) return -errno;
    char link[64 + 256];
    snprintf(link, sizeof link, "/proc/self/fd/%d/%s", parent, name);
    if (lsetxattr(link, "trusted.overlay.opaque", "y", 1, 0) < 0 && lsetxattr(link, "user.overlay.opaque", "y", 1, 0) < 0) return -errno;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/*
 * Takes a path out of the upper. Where a directory above it is opaque, or was removed, the image would stay hidden: then the image's entry is copied into its
 * place. Missing paths are no error.
 */
int tree_discard(const char *wanted) {
    const char *rest = relative(wanted);
    int fd = fcntl(T.upper, F_DUPFD_CLOEXEC, 10), layer = -1, error = 0;
    bool hidden = false;
    struct stat lower, st;
    bool had = in_lowers(wanted, &lower, &layer);
    char name[256];
    for (;;) {
        const char *end = rest;
        while (*end && *end != '/') end++;
        size_t n = (size_t)(end - rest);
        if (fd < 0 || n == 0 || n > 255) {
            error = EINVAL;
            break;
        }
        memcpy(name, rest, n);
        name[n] = 0;
        rest = relative(end);
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
            error = EINVAL;
            break;
        }
        if (!*rest) {
            error = remove_tree(fd, name);
            if (!error && hidden && had) {
                char lower_name[256];
                int from = walk_to(T.lowers[layer], wanted, lower_name);
                error = from < 0 ? -from : copy_tree(from, lower_name, fd, name);
                if (from >= 0) close(from);
            }
            break;
        }
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno != ENOENT || !hidden || !had) {
                error = errno == ENOENT ? 0 : errno;
                break;
            }
            if (mkdirat(fd, name, 0755) < 0) {
                error = errno;
                break;
            }
        } else if (!S_ISDIR(st.st_mode)) {
            /* A whiteout or something else stands where the image has a directory. */
            if (!had) break;
            int fresh = reopen_directory(fd, name);
            close(fd);
            fd = fresh;
            hidden = true;
            if (fd < 0) {
                error = -fresh;
                break;
            }
            continue;
        }
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(fd);
        fd = next;
        hidden = hidden || (fd >= 0 && is_opaque(fd));
    }
    if (fd >= 0) close(fd);
    return error;
}
