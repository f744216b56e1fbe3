/* `unpack write`: a stream of entries becomes a tree. The last entry for a path wins; two directories merge. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "unpack.h"

typedef struct {
    uint32_t ref;
    char path[TREE_PATH_MAX];
    char target[TREE_PATH_MAX];
    uint64_t kind, mode, uid, gid, nanoseconds, major, minor, size, opaque;
    int64_t seconds;
    /* Own copy of the frame's fields, for the extended attributes. */
    uint8_t *fields;
    uint32_t fields_len;
} entry;

/* Times and modes of directories are set at the end: making children changes them or needs write permission. */
typedef struct {
    char *path;
    size_t order;
    mode_t mode;
    struct timespec modified;
} later;

static struct {
    int root;
    bool keep_owners;
    const char *opaque_name;
    /* The file that takes data frames, or -1. */
    int file;
    bool failed;
    entry current;
    /* The last parent directory that was opened. */
    char parent_path[TREE_PATH_MAX];
    int parent;
    later *directories;
    size_t directory_count, directory_room;
    uint64_t entries, bytes, flattened, lost;
} state;

static void refuse(int error, const char *what) {
    answer_error(state.current.ref, error, what);
    state.failed = true;
}

static void forget_parent(void) {
    if (state.parent >= 0) close(state.parent);
    state.parent = -1;
}

/* The directory above `path`, made where it is missing, and the last component in `*name`. -1 with errno; the descriptor stays ours. */
static int open_parent(const char *path, const char **name, bool make) {
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (state.parent >= 0 && strlen(state.parent_path) == length && memcmp(state.parent_path, path, length) == 0) return state.parent;
    char copy[TREE_PATH_MAX];
    memcpy(copy, path, length);
    copy[length] = 0;
    int at = dup(state.root);
    if (at < 0) return -1;
    for (char *part = copy; length > 0 && part;) {
        char *end = strchr(part, '/');
        if (end) *end = 0;
        int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0 && errno == ENOENT && make) {
            if (mkdirat(at, part, 0755) == 0 || errno == EEXIST) next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        int error = errno;
        close(at);
        if (next < 0) {
            errno = error;
            return -1;
        }
        at = next;
        if (end) *end = '/';
        part = end ? end + 1 : NULL;
    }
    forget_parent();
    memcpy(state.parent_path, path, length);
    state.parent_path[length] = 0;
    state.parent = at;
    return at;
}

static bool is_whiteout(const struct stat *st) {
    return S_ISCHR(st->st_mode) && st->st_rdev == 0;
}

/* Extended attributes that an image may carry. Overlay's own would let it point outside its layer; labels of other systems mean nothing here. */
static bool xattr_allowed(const char *name) {
    if (strncmp(name, "user.overlay.", 13) == 0) return false;
    return strcmp(name, "security.capability") == 0 || strncmp(name, "user.", 5) == 0 || strcmp(name, "system.posix_acl_access") == 0 ||
           strcmp(name, "system.posix_acl_default") == 0;
}

static void set_xattrs(const entry *e, int fd, const char *proc_path) {
    wire_frame frame = {.fields = e->fields, .fields_len = e->fields_len};
    wire_cursor cursor = wire_fields(&frame);
    for (wire_field field; wire_next(&cursor, &field);) {
        if (field.tag != FIELD_XATTR) continue;
        const uint8_t *nul = memchr(field.data, 0, field.len);
        if (!nul) continue;
        const char *name = (const char *)field.data;
        size_t size = field.len - (size_t)(nul + 1 - field.data);
        if (!xattr_allowed(name)) continue;
        int result = fd >= 0 ? fsetxattr(fd, name, nul + 1, size, 0) : lsetxattr(proc_path, name, nul + 1, size, 0);
        if (result != 0 && (errno == ENOTSUP || errno == EPERM || errno == ERANGE || errno == EINVAL)) state.lost++;
        else if (result != 0) refuse(errno, name);
    }
}

static bool set_owner(const entry *e, int dir, const char *name, int fd) {
    if (!state.keep_owners) {
        if (e->uid != 0 || e->gid != 0) state.flattened++;
        return true;
    }
    int result = fd >= 0 ? fchown(fd, (uid_t)e->uid, (gid_t)e->gid) : fchownat(dir, name, (uid_t)e->uid, (gid_t)e->gid, AT_SYMLINK_NOFOLLOW);
    if (result != 0 && errno == EINVAL) {
        // An id that this user namespace does not have.
        state.flattened++;
        return true;
    }
    if (result != 0) refuse(errno, "owner");
    return result == 0;
}

static struct timespec modified(const entry *e) {
    return (struct timespec){.tv_sec = e->seconds, .tv_nsec = (long)e->nanoseconds};
}

static void finish_file(void) {
    if (state.file < 0) return;
    const entry *e = &state.current;
    int fd = state.file;
    state.file = -1;
    struct timespec times[2] = {modified(e), modified(e)};
    if (!state.failed && ftruncate(fd, (off_t)e->size) != 0) refuse(errno, "size");
    if (!state.failed && set_owner(e, -1, NULL, fd)) {
        // Setting the owner takes away capabilities and set-id bits: these come after it.
        if (fchmod(fd, (mode_t)e->mode & 07777) != 0) refuse(errno, "mode");
        set_xattrs(e, fd, NULL);
        if (futimens(fd, times) != 0) refuse(errno, "times");
    }
    if (close(fd) != 0) refuse(errno, "close");
}

/* Times and mode of a directory, kept until everything in it is there. */
static void remember_directory(const char *at, mode_t mode, struct timespec when) {
    if (state.directory_count == state.directory_room) {
        size_t room = state.directory_room ? state.directory_room * 2 : 1024;
        later *grown = realloc(state.directories, room * sizeof *grown);
        if (!grown) fatal("memory", ENOMEM);
        state.directories = grown;
        state.directory_room = room;
    }
    char *path = strdup(at);
    if (!path) fatal("memory", ENOMEM);
    state.directories[state.directory_count] =
        (later){.path = path, .order = state.directory_count, .mode = mode, .modified = when};
    state.directory_count++;
}

static void make_directory(const entry *e, int dir, const char *name, bool existed, bool was_whiteout) {
    // Open to us until the end; the real mode comes then.
    if (!existed && mkdirat(dir, name, 0700) != 0) return refuse(errno, "directory");
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return refuse(errno, "directory");
    if (set_owner(e, -1, NULL, fd)) {
        set_xattrs(e, fd, NULL);
        if ((e->opaque || was_whiteout) && fsetxattr(fd, state.opaque_name, "y", 1, 0) != 0) refuse(errno, "opaque mark");
        remember_directory(e->path, (mode_t)e->mode & 07777, modified(e));
    }
    close(fd);
}

static void make_link(const entry *e, int dir, const char *name) {
    const char *last;
    if (!path_is_sound(e->target) || e->target[0] == 0) return refuse(EINVAL, "hard link target");
    char own[TREE_PATH_MAX];
    snprintf(own, sizeof own, "%s", name);
    int here = dup(dir);
    if (here < 0) return refuse(errno, "hard link");
    int from = open_parent(e->target, &last, false);
    if (from < 0 || linkat(from, last, here, own, 0) != 0) refuse(errno, "hard link target");
    close(here);
}

/* Whiteouts speak of lower layers only: what this layer itself has at the path stays, a directory then hides what is below. */
static void make_whiteout(int dir, const char *name) {
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!S_ISDIR(st.st_mode)) return;
        int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fsetxattr(fd, state.opaque_name, "y", 1, 0) != 0) refuse(errno, "opaque mark");
        if (fd >= 0) close(fd);
        return;
    }
    if (mknodat(dir, name, S_IFCHR, makedev(0, 0)) != 0) refuse(errno, "whiteout");
}

/* The mark alone: a directory's own attributes come with its entry. */
static void mark_opaque(int dir, const char *name) {
    if (mkdirat(dir, name, 0755) != 0 && errno != EEXIST) return refuse(errno, "directory");
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fsetxattr(fd, state.opaque_name, "y", 1, 0) != 0) refuse(errno, "opaque mark");
    if (fd >= 0) close(fd);
}

static void make_entry(void) {
    entry *e = &state.current;
    const char *name;
    state.failed = false;
    state.entries++;
    if (e->path[0] == 0) {
        if (e->kind == KIND_OPAQUE) return mark_opaque(state.root, ".");
        if (e->kind != KIND_DIRECTORY) return refuse(EINVAL, "the root is not a directory");
        return make_directory(e, state.root, ".", true, false);
    }
    int dir = open_parent(e->path, &name, true);
    // Below what this layer has as a file or link (never followed) there is nothing to hide.
    if (dir < 0 && e->kind == KIND_WHITEOUT && errno == ENOTDIR) return;
    if (dir < 0) return refuse(errno, "parent directory");
    if (e->kind == KIND_OPAQUE) return mark_opaque(dir, name);
    if (e->kind == KIND_WHITEOUT) return make_whiteout(dir, name);
    if (e->kind == KIND_HARDLINK && strcmp(e->path, e->target) == 0) return;
    struct stat st;
    bool existed = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    bool was_whiteout = existed && is_whiteout(&st);
    if (existed && !(S_ISDIR(st.st_mode) && e->kind == KIND_DIRECTORY)) {
        if (remove_at(dir, name) != 0) return refuse(errno, "replacing");
        existed = false;
    }
    switch (e->kind) {
    case KIND_DIRECTORY: return make_directory(e, dir, name, existed, was_whiteout);
    case KIND_FILE:
        state.file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (state.file < 0) refuse(errno, "file");
        return;
    case KIND_HARDLINK: return make_link(e, dir, name);
    case KIND_SYMLINK:
        if (e->target[0] == 0 || symlinkat(e->target, dir, name) != 0) return refuse(e->target[0] ? errno : EINVAL, "symbolic link");
        break;
    case KIND_FIFO:
        if (mknodat(dir, name, S_IFIFO | 0600, 0) != 0) return refuse(errno, "fifo");
        break;
    case KIND_CHAR:
    case KIND_BLOCK:
        // A 0/0 character device is a whiteout to the overlay; only a whiteout entry makes one.
        if (e->kind == KIND_CHAR && e->major == 0 && e->minor == 0) return refuse(EINVAL, "device 0/0");
        if (mknodat(dir, name, (e->kind == KIND_CHAR ? S_IFCHR : S_IFBLK) | 0600, makedev((unsigned)e->major, (unsigned)e->minor)) != 0) return refuse(errno, "device");
        break;
    default: return refuse(EINVAL, "kind of entry");
    }
    if (!set_owner(e, dir, name, -1)) return;
    if (e->kind != KIND_SYMLINK && fchmodat(dir, name, (mode_t)e->mode & 07777, 0) != 0) return refuse(errno, "mode");
    char proc_path[TREE_PATH_MAX];
    snprintf(proc_path, sizeof proc_path, "/proc/self/fd/%d/%s", dir, name);
    set_xattrs(e, -1, proc_path);
    struct timespec times[2] = {modified(e), modified(e)};
    if (utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) != 0) refuse(errno, "times");
}

static bool read_entry(const wire_frame *frame) {
    entry *e = &state.current;
    uint8_t *copy = malloc(frame->fields_len + 1);
    if (!copy) fatal("memory", ENOMEM);
    memcpy(copy, frame->fields, frame->fields_len);
    free(e->fields);
    memset(e, 0, offsetof(entry, fields));
    e->fields = copy;
    e->fields_len = frame->fields_len;
    e->ref = frame->ref;
    bool good = true;
    wire_cursor cursor = wire_fields(frame);
    for (wire_field field; wire_next(&cursor, &field);) {
        switch (field.tag) {
        case FIELD_PATH: good &= wire_str(&field, e->path, sizeof e->path); break;
        case FIELD_TARGET: good &= wire_str(&field, e->target, sizeof e->target); break;
        case FIELD_KIND: good &= wire_u64(&field, &e->kind); break;
        case FIELD_MODE: good &= wire_u64(&field, &e->mode); break;
        case FIELD_UID: good &= wire_u64(&field, &e->uid) && e->uid < UINT32_MAX; break;
        case FIELD_GID: good &= wire_u64(&field, &e->gid) && e->gid < UINT32_MAX; break;
        case FIELD_SECONDS: good &= wire_i64(&field, &e->seconds); break;
        case FIELD_NANOSECONDS: good &= wire_u64(&field, &e->nanoseconds) && e->nanoseconds < 1000000000; break;
        case FIELD_MAJOR: good &= wire_u64(&field, &e->major) && e->major <= UINT32_MAX; break;
        case FIELD_MINOR: good &= wire_u64(&field, &e->minor) && e->minor <= UINT32_MAX; break;
        case FIELD_SIZE: good &= wire_u64(&field, &e->size) && e->size <= INT64_MAX; break;
        case FIELD_OPAQUE: good &= wire_u64(&field, &e->opaque); break;
        case FIELD_XATTR: break;
        default: good = false;
        }
    }
    return good && path_is_sound(e->path);
}

static void write_data(const wire_frame *frame) {
    if (frame->ref != state.current.ref || state.file < 0 || state.failed) return;
    uint64_t offset = 0;
    const uint8_t *data = NULL;
    size_t length = 0;
    wire_cursor cursor = wire_fields(frame);
    for (wire_field field; wire_next(&cursor, &field);) {
        if (field.tag == FIELD_OFFSET && !wire_u64(&field, &offset)) fatal("data frame", EPROTO);
        if (field.tag == FIELD_BYTES) {
            data = field.data;
            length = field.len;
        }
    }
    if (offset > state.current.size || length > state.current.size - offset) return refuse(EFBIG, "data beyond the size");
    while (length > 0) {
        ssize_t n = pwrite(state.file, data, length, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT)) fatal("no room", errno);
        if (n <= 0) return refuse(errno, "write");
        data += n;
        offset += (uint64_t)n;
        length -= (size_t)n;
        state.bytes += (uint64_t)n;
    }
}

/* Children before their parents; of equal paths the last first. */
static int deepest_first(const void *a, const void *b) {
    const later *x = a, *y = b;
    int order = strcmp(y->path, x->path);
    return order != 0 ? order : (x->order < y->order) - (x->order > y->order);
}

static void finish_directories(void) {
    forget_parent();
    qsort(state.directories, state.directory_count, sizeof *state.directories, deepest_first);
    for (size_t i = 0; i < state.directory_count; i++) {
        const later *d = &state.directories[i];
        if (i > 0 && strcmp(state.directories[i - 1].path, d->path) == 0) continue;
        const char *name = ".";
        int dir = d->path[0] ? open_parent(d->path, &name, false) : state.root;
        // It may have been replaced since.
        int fd = dir < 0 ? -1 : openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        struct timespec times[2] = {d->modified, d->modified};
        if (fchmod(fd, d->mode) != 0 || futimens(fd, times) != 0) fatal(d->path, errno);
        close(fd);
    }
}

int command_write(const char *root, bool keep_owners, const char *opaque_name) {
    static uint8_t buffer[WIRE_FRAME_MAX * 2];
    state.root = open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (state.root < 0) fatal(root, errno);
    state.keep_owners = keep_owners;
    state.opaque_name = opaque_name;
    state.file = state.parent = -1;
    // Unless the stream says otherwise; the same on every machine.
    remember_directory("", 0755, (struct timespec){0});
    size_t have = 0;
    for (bool finished = false; !finished;) {
        ssize_t n = read(STDIN_FILENO, buffer + have, sizeof buffer - have);
        if (n < 0 && errno == EINTR) continue;
        // The end without a finish frame: the sender died, what is here is not whole.
        if (n <= 0) fatal("the stream ended early", n < 0 ? errno : EPROTO);
        have += (size_t)n;
        size_t at = 0;
        for (wire_frame frame; !finished;) {
            int got = wire_parse(buffer + at, have - at, &frame, NULL);
            if (got < 0) fatal("broken frame", EPROTO);
            if (got == 0) break;
            at += frame.total;
            if (frame.type == FRAME_DATA) {
                write_data(&frame);
                continue;
            }
            finish_file();
            if (frame.type == FRAME_FINISH) finished = true;
            else if (frame.type != FRAME_ENTRY) fatal("unknown frame", EPROTO);
            else if (state.entries >= TREE_ENTRIES_MAX) fatal("too many entries", E2BIG);
            else if (!read_entry(&frame)) answer_error(frame.ref, EINVAL, "entry");
            else make_entry();
        }
        memmove(buffer, buffer + at, have - at);
        have -= at;
    }
    finish_directories();
    uint8_t answer[256];
    wire_writer w = wire_writer_on(answer, sizeof answer);
    wire_begin(&w, FRAME_DONE, 0);
    wire_put_u64(&w, FIELD_ENTRIES, state.entries);
    wire_put_u64(&w, FIELD_TOTAL, state.bytes);
    wire_put_u64(&w, FIELD_FLATTENED, state.flattened);
    wire_put_u64(&w, FIELD_LOST, state.lost);
    wire_end(&w);
    put(answer, w.len);
    flush();
    return 0;
}
