/*
 * Removing trees of any depth, without following links and without recursion. Directories are worked on through a stack of descriptors; what lies deeper than the
 * stack is moved up to its first directory, where it is met again.
 */
#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { DEPTH_MOST = 200 };

typedef struct {
    DIR *dir;
    char name[256];
    /* Something was removed or moved since the directory was last read from its start. */
    bool progress;
} level;

/* Immutable and append-only files can be neither removed nor renamed, nor can anything in such a directory. */
static void clear_flags(int fd) {
    int flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0) return;
    int cleared = flags & ~(FS_IMMUTABLE_FL | FS_APPEND_FL);
    if (cleared != flags) ioctl(fd, FS_IOC_SETFLAGS, &cleared);
}

static void clear_flags_at(int dir, const char *name) {
    clear_flags(dir);
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) return;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return;
    clear_flags(fd);
    close(fd);
}

static int unlink_hard(int dir, const char *name, int flags) {
    if (unlinkat(dir, name, flags) == 0 || errno == ENOENT) return 0;
    if (errno != EPERM && errno != EACCES) return errno;
    clear_flags_at(dir, name);
    return unlinkat(dir, name, flags) == 0 || errno == ENOENT ? 0 : errno;
}

static int descend(level *into, int dir, const char *name) {
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES && fchmodat(dir, name, 0700, 0) == 0) fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    into->dir = fdopendir(fd);
    if (!into->dir) return ENOMEM;
    strcpy(into->name, name);
    into->progress = false;
    return 0;
}

static int move_up(int dir, const char *name, int top) {
    char fresh[24];
    temporary_name(fresh);
    if (renameat(dir, name, top, fresh) == 0) return 0;
    if (errno != EPERM && errno != EACCES) return errno;
    clear_flags_at(dir, name);
    return renameat(dir, name, top, fresh) == 0 ? 0 : errno;
}

/* One entry of the deepest directory: removed, entered, or moved up. */
static int handle(level *stack, int *depth, struct dirent *entry) {
    int dir = dirfd(stack[*depth].dir);
    int error = unlink_hard(dir, entry->d_name, 0);
    if (error != EISDIR && error != EPERM) return error;
    if (unlink_hard(dir, entry->d_name, AT_REMOVEDIR) == 0) return 0;
    struct stat st;
    if (fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) return errno == ENOENT ? 0 : errno;
    if (!S_ISDIR(st.st_mode)) return error;
    if (*depth + 1 >= DEPTH_MOST) return move_up(dir, entry->d_name, dirfd(stack[0].dir));
    error = descend(&stack[*depth + 1], dir, entry->d_name);
    if (error == 0) (*depth)++;
    return error;
}

/* The deepest directory has been read to its end: remove it, or read it again when something came into it meanwhile. */
static int leave(level *stack, int *depth, int base, int error) {
    level *l = &stack[*depth];
    int parent = *depth > 0 ? dirfd(stack[*depth - 1].dir) : base;
    int result = unlink_hard(parent, l->name, AT_REMOVEDIR);
    if ((result == ENOTEMPTY || result == EEXIST) && error == 0 && l->progress) {
        l->progress = false;
        rewinddir(l->dir);
        return 0;
    }
    closedir(l->dir);
    (*depth)--;
    return error ? error : result;
}

int remove_tree(int base, const char *name) {
    static level stack[DEPTH_MOST];
    int depth = 0;
    int error = unlink_hard(base, name, 0);
    if (error != EISDIR && error != EPERM) return error;
    struct stat st;
    if (fstatat(base, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return errno == ENOENT ? 0 : errno;
    if (!S_ISDIR(st.st_mode)) return error;
    if (unlink_hard(base, name, AT_REMOVEDIR) == 0) return 0;
    error = descend(&stack[0], base, name);
    if (error) return error;
    while (depth >= 0) {
        struct dirent *entry = readdir(stack[depth].dir);
        if (!entry) {
            error = leave(stack, &depth, base, error);
            continue;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        stack[depth].progress = true;
        int failed = handle(stack, &depth, entry);
        /* The first failure is the one reported; the rest is still removed. */
        if (failed && !error) error = failed;
    }
    return error;
}
