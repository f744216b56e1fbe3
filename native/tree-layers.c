/* Overlay layers as the kernel reads them: whiteouts, opaque directories, and what the layers below the upper have at a path. */
#include "tree.h"

#include <fcntl.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

trees T;

/* Without leading slashes; "" is the root. */
const char *relative(const char *path) {
    while (*path == '/') path++;
    return path;
}

static bool has_xattr(int dir, const char *name, const char *attribute) {
    char path[64 + 256];
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir, name);
    return lgetxattr(path, attribute, NULL, 0) >= 0;
}

/* A device 0/0, or an empty file that is marked. */
bool is_whiteout(int dir, const char *name, const struct stat *st) {
    if (S_ISCHR(st->st_mode)) return major(st->st_rdev) == 0 && minor(st->st_rdev) == 0;
    if (!S_ISREG(st->st_mode) || st->st_size != 0) return false;
    return has_xattr(dir, name, "trusted.overlay.whiteout") || has_xattr(dir, name, "user.overlay.whiteout");
}

bool is_opaque(int dir) {
    char value[2];
    return (fgetxattr(dir, "trusted.overlay.opaque", value, 2) == 1 && value[0] == 'y') || (fgetxattr(dir, "user.overlay.opaque", value, 2) == 1 && value[0] == 'y');
}

/* The directory that holds `path` below `root`, opened, and the last name. Negative errno: ENOENT, ENOTDIR (also for a link), EINVAL for "..". */
int walk_to(int root, const char *path, char *name) {
    int fd = fcntl(root, F_DUPFD_CLOEXEC, 10);
    path = relative(path);
    for (;;) {
        const char *end = path;
        while (*end && *end != '/') end++;
        size_t n = (size_t)(end - path);
        bool bad = n == 0 || n > 255 || (n == 1 && path[0] == '.') || (n == 2 && path[0] == '.' && path[1] == '.');
        if (bad || fd < 0) {
            if (fd >= 0) close(fd);
            return -EINVAL;
        }
        memcpy(name, path, n);
        name[n] = 0;
        path = relative(end);
        if (!*path) return fd;
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int error = errno;
        close(fd);
        if (next < 0) return error == ELOOP ? -ENOTDIR : -error;
        fd = next;
    }
}

/* One layer: 1 has it, 0 has not and hides nothing, -1 hides what lower layers have. */
static int in_layer(int root, const char *path, struct stat *st) {
    int fd = fcntl(root, F_DUPFD_CLOEXEC, 10), result = 0;
    bool opaque = false;
    for (path = relative(path); fd >= 0;) {
        char name[256];
        const char *end = path;
        while (*end && *end != '/') end++;
        size_t n = (size_t)(end - path);
        if (n == 0 || n > 255) break;
        memcpy(name, path, n);
        name[n] = 0;
        path = relative(end);
        if (fstatat(fd, name, st, AT_SYMLINK_NOFOLLOW) < 0) {
            result = opaque ? -1 : 0;
            break;
        }
        if (is_whiteout(fd, name, st)) {
            result = -1;
            break;
        }
        if (!*path) {
            result = 1;
            break;
        }
        if (!S_ISDIR(st->st_mode)) {
            result = -1;
            break;
        }
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(fd);
        fd = next;
        opaque = opaque || (fd >= 0 && is_opaque(fd));
    }
    if (fd >= 0) close(fd);
    return result;
}

/* What the image has at a path. */
bool in_lowers(const char *path, struct stat *st, int *layer) {
    for (int i = 0; i < T.lower_count; i++) {
        int found = in_layer(T.lowers[i], path, st);
        if (found < 0) return false;
        if (found > 0) {
            if (layer) *layer = i;
            return true;
        }
    }
    return false;
}
