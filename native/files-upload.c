/*
 * Receiving a tree: entries in the order of a walk, each checked, none of which can lead outside the target. Below the target no link is ever followed: a
 * component that is a link refuses the entry.
 */
#include "files.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int target;
    int parent; /* directory of the last entry */
    char parent_path[PATH_BYTES];
    uint32_t uid, gid;
    uint64_t entries, bytes, max;
    /* Directories that are there already become as they are sent. */
    bool exact;
    /* The file that is being received. */
    int file;
    bool skipping;
    bool temporary;
    char file_name[256], temp_name[24], path[PATH_BYTES];
    mode_t mode;
    int64_t mtime_ns;
} upload;

/* Relative, no empty, "." or ".." component, none too long. */
static bool path_valid(const char *path) {
    for (const char *p = path;;) {
        const char *end = p;
        while (*end && *end != '/') end++;
        size_t n = (size_t)(end - p);
        if (n == 0 || n > 255 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.')) return false;
        if (!*end) return true;
        p = end + 1;
    }
}

/* Opens the directory `path` below the target, component by component. Negative errno on failure. */
static int open_below(int target, const char *path) {
    int fd = fcntl(target, F_DUPFD_CLOEXEC, 3);
    while (fd >= 0 && *path) {
        char name[256];
        const char *end = path;
        while (*end && *end != '/') end++;
        memcpy(name, path, (size_t)(end - path));
        name[end - path] = 0;
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int error = errno;
        close(fd);
        if (next < 0) return -error;
        fd = next;
        path = *end ? end + 1 : end;
    }
    return fd < 0 ? -errno : fd;
}

/* The parent directory of `path`, the same descriptor as for the entry before when it can be. */
static int parent_of(upload *u, const char *path, const char **name) {
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    *name = slash ? slash + 1 : path;
    if (u->parent >= 0 && strlen(u->parent_path) == len && memcmp(u->parent_path, path, len) == 0) return u->parent;
    if (u->parent >= 0) close(u->parent);
    memcpy(u->parent_path, path, len);
    u->parent_path[len] = 0;
    u->parent = open_below(u->target, u->parent_path);
    return u->parent;
}

static struct timespec time_of(int64_t ns) {
    int64_t seconds = ns / 1000000000, rest = ns % 1000000000;
    if (rest < 0) seconds--, rest += 1000000000;
    return (struct timespec){seconds, rest};
}

static void set_times(int dir, const char *name, int64_t ns) {
    struct timespec times[2] = {time_of(ns), time_of(ns)};
    utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
}

static int own(const upload *u, int dir, const char *name) {
    return fchownat(dir, name, u->uid, u->gid, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
}

/* Puts `temp` in the place of `name`, whatever is there unless it is a directory. */
static int replace(int dir, const char *temp, const char *name) {
    int error = renameat(dir, temp, dir, name) < 0 ? errno : 0;
    /* Two names of one file: the rename did nothing. Otherwise nothing is there any more. */
    unlinkat(dir, temp, 0);
    return error;
}

/* What concerns one entry is refused and told; what concerns the whole, such as a full disk, ends the transfer. */
static void entry_failed(const char *path, int error) {
    if (error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS || error == EMFILE || error == ENFILE || error == ENOMEM) fail(error, "writing", path);
    refuse(path, error == EISDIR || error == ENOTEMPTY ? "a directory is in the way" : error == ENOTDIR ? "something that is no directory is in the way" : errno_text(error));
}

static void finish_file(upload *u) {
    if (u->file < 0) return;
    struct timespec times[2] = {time_of(u->mtime_ns), time_of(u->mtime_ns)};
    int error = 0;
    if (fchown(u->file, u->uid, u->gid) < 0) error = errno;
    if (!error && fchmod(u->file, u->mode) < 0) error = errno;
    if (error) fail(error, "giving its owner to", u->path);
    futimens(u->file, times);
    if (close(u->file) < 0) fail(errno, "writing", u->path);
    u->file = -1;
    if (!u->temporary) return;
    error = replace(u->parent, u->temp_name, u->file_name);
    if (error) entry_failed(u->path, error);
}

static void begin_file(upload *u, const message *m, int dir, const char *name) {
    u->temporary = false;
    u->file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (u->file < 0 && errno == EEXIST) {
        struct stat st;
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
            u->skipping = true;
            entry_failed(m->path, EISDIR);
            return;
        }
        u->temporary = true;
        temporary_name(u->temp_name);
        u->file = openat(dir, u->temp_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    if (u->file < 0) {
        u->skipping = true;
        entry_failed(m->path, errno);
        return;
    }
    strcpy(u->file_name, name);
    strcpy(u->path, m->path);
    u->mode = (mode_t)m->mode;
    u->mtime_ns = m->mtime_ns;
}

static int make_directory(upload *u, const message *m, int dir, const char *name) {
    if (mkdirat(dir, name, 0700) < 0) {
        struct stat st;
        if (errno != EEXIST) return errno;
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return errno;
        if (!S_ISDIR(st.st_mode)) return ENOTDIR;
        /* One that is there already keeps its owner and mode. */
        if (!u->exact) return 0;
    }
    int error = own(u, dir, name);
    if (error) fail(error, "giving its owner to", m->path);
    return fchmodat(dir, name, (mode_t)m->mode, 0) < 0 ? errno : 0;
}

static int make_symlink(upload *u, const message *m, int dir, const char *name) {
    char temp[24];
    temporary_name(temp);
    if (symlinkat(m->target, dir, temp) < 0) return errno;
    int error = own(u, dir, temp);
    set_times(dir, temp, m->mtime_ns);
    if (!error) return replace(dir, temp, name);
    unlinkat(dir, temp, 0);
    return error;
}

static int make_hardlink(upload *u, const message *m, int dir, const char *name) {
    char temp[24];
    const char *slash = strrchr(m->target, '/');
    if (!path_valid(m->target)) return EINVAL;
    char from_path[PATH_BYTES];
    size_t len = slash ? (size_t)(slash - m->target) : 0;
    memcpy(from_path, m->target, len);
    from_path[len] = 0;
    int from = open_below(u->target, from_path);
    if (from < 0) return -from;
    temporary_name(temp);
    int error = linkat(from, slash ? slash + 1 : m->target, dir, temp, 0) < 0 ? errno : 0;
    close(from);
    return error ? error : replace(dir, temp, name);
}

static void entry(upload *u, const message *m) {
    const char *name;
    finish_file(u);
    u->skipping = true;
    if (++u->entries > ENTRIES_MOST) fail(EFBIG, "the number of entries of the tree", NULL);
    if (!path_valid(m->path)) {
        refuse(m->path, "not a path below the target");
        return;
    }
    if (has(m, F_UID) && has(m, F_GID)) {
        u->uid = (uint32_t)m->uid;
        u->gid = (uint32_t)m->gid;
    }
    int dir = parent_of(u, m->path, &name), error = 0;
    if (dir < 0) {
        entry_failed(m->path, -dir);
        return;
    }
    switch (m->kind) {
    case KIND_FILE:
        u->skipping = false;
        begin_file(u, m, dir, name);
        return;
    case KIND_DIRECTORY: error = make_directory(u, m, dir, name); break;
    case KIND_SYMLINK: error = make_symlink(u, m, dir, name); break;
    case KIND_HARDLINK: error = make_hardlink(u, m, dir, name); break;
    case KIND_DIRECTORY_END:
        u->entries--;
        set_times(dir, name, m->mtime_ns);
        break;
    default:
        refuse(m->path, "not a file, directory or link");
        return;
    }
    if (error) entry_failed(m->path, error);
}

static void data(upload *u, const message *m) {
    u->bytes += m->data_len;
    if (u->bytes > u->max) fail(EFBIG, "the tree", NULL);
    if (u->skipping || u->file < 0) return;
    for (uint32_t at = 0; at < m->data_len;) {
        ssize_t n = write(u->file, m->data + at, m->data_len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            int error = errno;
            /* A half-written file is not left behind. */
            unlinkat(u->parent, u->temporary ? u->temp_name : u->file_name, 0);
            fail(error, "writing", u->path);
        }
        at += (uint32_t)n;
    }
}

void files_upload(message *m) {
    static upload u;
    bool made;
    u = (upload){.target = -1, .parent = -1, .file = -1, .uid = (uint32_t)m->uid, .gid = (uint32_t)m->gid, .max = has(m, F_MAX) ? m->max : UINT64_MAX, .exact = m->recursive != 0};
    if (m->path[0] != '/') fail(EINVAL, "the target", m->path);
    int error = make_directories(AT_FDCWD, m->path, 0755, -1, -1, &made);
    if (error) fail(error, "making the directory", m->path);
    if (made && chown(m->path, u.uid, u.gid) < 0) fail(errno, "giving its owner to", m->path);
    u.target = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (u.target < 0) fail(errno, "opening", m->path);
    while (message_read(m)) {
        if (m->type == FILES_ENTRY) entry(&u, m);
        else if (m->type == FILES_DATA) data(&u, m);
        else if (m->type == FILES_END) {
            finish_file(&u);
            frame_begin(FILES_END);
            wire_put_u64(frame(), F_ENTRIES, u.entries);
            wire_put_u64(frame(), F_BYTES, u.bytes);
            frame_send();
            out_flush();
            return;
        } else fail(EBADMSG, "the stream", NULL);
    }
    /* The sender is gone in the middle: what is there is not the tree. */
    if (u.file >= 0) unlinkat(u.parent, u.temporary ? u.temp_name : u.file_name, 0);
    fail(EPIPE, "receiving", m->path[0] ? m->path : NULL);
}
