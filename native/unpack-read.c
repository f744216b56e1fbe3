/* `unpack read`, `stat`, `readable`, `scan`: a tree becomes a stream of entries, sorted by name within each directory, within one file system. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "unpack.h"

#define CHUNK (256u * 1024u)

typedef struct {
    ino_t inode;
    char *path;
} seen;

static struct {
    bool data, skip;
    dev_t device;
    uint32_t ref;
    char path[TREE_PATH_MAX];
    /* Open-addressed table of files with several names. */
    seen *table;
    size_t count, room;
} state;

static uint8_t frame[WIRE_FRAME_MAX];

static void unreadable(const char *what) {
    char message[TREE_PATH_MAX];
    snprintf(message, sizeof message, "%.*s (%s)", TREE_PATH_MAX - 64, state.path, what);
    if (!state.skip) fatal(message, errno);
}

/* The earlier name of the inode, or NULL after remembering this one. */
static const char *known_link(ino_t inode) {
    if (state.count * 2 >= state.room) {
        size_t room = state.room ? state.room * 2 : 1024;
        seen *grown = calloc(room, sizeof *grown);
        if (!grown) fatal("memory", ENOMEM);
        for (size_t i = 0; i < state.room; i++) {
            if (!state.table[i].path) continue;
            size_t slot = (size_t)state.table[i].inode % room;
            while (grown[slot].path) slot = (slot + 1) % room;
            grown[slot] = state.table[i];
        }
        free(state.table);
        state.table = grown;
        state.room = room;
    }
    size_t slot = (size_t)inode % state.room;
    for (; state.table[slot].path; slot = (slot + 1) % state.room)
        if (state.table[slot].inode == inode) return state.table[slot].path;
    state.table[slot] = (seen){.inode = inode, .path = strdup(state.path)};
    if (!state.table[slot].path) fatal("memory", ENOMEM);
    state.count++;
    return NULL;
}

/* Adds the extended attributes of what `handle` (a /proc path that does not follow the last link) names. Returns false for what cannot be carried. */
static bool add_xattrs(wire_writer *w, const char *handle, bool *opaque) {
    static char names[65536], value[65536 + 512];
    ssize_t size = llistxattr(handle, names, sizeof names);
    if (size < 0) return errno == ENOTSUP || errno == ENODATA;
    for (char *name = names; name < names + size; name += strlen(name) + 1) {
        bool overlay = strncmp(name, "trusted.overlay.", 16) == 0 || strncmp(name, "user.overlay.", 13) == 0;
        const char *last = strrchr(name, '.') + 1;
        if (overlay && (strcmp(last, "redirect") == 0 || strcmp(last, "metacopy") == 0)) {
            // These point at lower layers by name; a layer that has them means nothing alone.
            errno = ENOTSUP;
            return false;
        }
        if (!overlay && strcmp(name, "security.capability") != 0 && strncmp(name, "user.", 5) != 0 && strncmp(name, "system.posix_acl_", 17) != 0) continue;
        size_t length = strlen(name);
        if (length > 256) continue;
        memcpy(value, name, length + 1);
        ssize_t bytes = lgetxattr(handle, name, value + length + 1, sizeof value - length - 1);
        if (bytes < 0) continue;
        if (overlay) {
            // `x` marks a directory that holds whiteouts in another form, which is never made here.
            if (strcmp(last, "opaque") == 0 && bytes > 0 && value[length + 1] == 'y') *opaque = true;
            continue;
        }
        wire_bytes(w, FIELD_XATTR, value, length + 1 + (size_t)bytes);
    }
    return true;
}

static uint64_t kind_of(const struct stat *st) {
    switch (st->st_mode & S_IFMT) {
    case S_IFREG: return KIND_FILE;
    case S_IFDIR: return KIND_DIRECTORY;
    case S_IFLNK: return KIND_SYMLINK;
    case S_IFIFO: return KIND_FIFO;
    case S_IFBLK: return KIND_BLOCK;
    case S_IFCHR: return st->st_rdev == 0 ? KIND_WHITEOUT : KIND_CHAR;
    default: return KIND_SOCKET;
    }
}

static void put_entry(int dir, const char *name, const struct stat *st) {
    wire_writer w = wire_writer_on(frame, sizeof frame);
    wire_begin(&w, FRAME_ENTRY, ++state.ref);
    wire_text(&w, FIELD_PATH, state.path);
    uint64_t kind = kind_of(st);
    const char *link = st->st_nlink > 1 && !S_ISDIR(st->st_mode) && kind != KIND_WHITEOUT ? known_link(st->st_ino) : NULL;
    if (link) kind = KIND_HARDLINK;
    wire_put_u64(&w, FIELD_KIND, kind);
    wire_put_u64(&w, FIELD_MODE, st->st_mode & 07777);
    wire_put_u64(&w, FIELD_UID, st->st_uid);
    wire_put_u64(&w, FIELD_GID, st->st_gid);
    wire_put_i64(&w, FIELD_SECONDS, st->st_mtim.tv_sec);
    wire_put_u64(&w, FIELD_NANOSECONDS, (uint64_t)st->st_mtim.tv_nsec);
    if (kind == KIND_FILE) wire_put_u64(&w, FIELD_SIZE, (uint64_t)st->st_size);
    if (kind == KIND_CHAR || kind == KIND_BLOCK) {
        wire_put_u64(&w, FIELD_MAJOR, major(st->st_rdev));
        wire_put_u64(&w, FIELD_MINOR, minor(st->st_rdev));
    }
    if (link) wire_text(&w, FIELD_TARGET, link);
    if (kind == KIND_SYMLINK) {
        char target[TREE_PATH_MAX];
        ssize_t size = readlinkat(dir, name, target, sizeof target - 1);
        if (size < 0) return unreadable("symbolic link");
        wire_bytes(&w, FIELD_TARGET, target, (size_t)size);
    }
    if (state.data && !link && kind != KIND_WHITEOUT) {
        char handle[64 + NAME_MAX];
        bool opaque = false;
        snprintf(handle, sizeof handle, "/proc/self/fd/%d/%s", dir, name);
        if (!add_xattrs(&w, handle, &opaque)) return unreadable("extended attributes");
        if (opaque) wire_put_u64(&w, FIELD_OPAQUE, 1);
    }
    if (!state.data) {
        wire_put_u64(&w, FIELD_INODE, st->st_ino);
        wire_put_i64(&w, FIELD_CHANGED, (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec);
    }
    if (!wire_end(&w)) {
        errno = E2BIG;
        return unreadable("entry");
    }
    if (kind != KIND_FILE || !state.data) {
        put(frame, w.len);
        return;
    }
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return unreadable("open");
    put(frame, w.len);
    for (off_t at = 0; at < st->st_size;) {
        off_t begin = lseek(fd, at, SEEK_DATA);
        if (begin < 0 && errno == ENXIO) break;
        if (begin < 0) begin = at;
        off_t end = lseek(fd, begin, SEEK_HOLE);
        if (end < 0 || end > st->st_size) end = st->st_size;
        for (at = begin; at < end;) {
            uint8_t *body = frame + 64;
            size_t want = end - at < (off_t)CHUNK ? (size_t)(end - at) : CHUNK;
            ssize_t n = pread(fd, body, want, at);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                // It shrank or broke while it was read: a torn copy is worse than none.
                if (n == 0) errno = EIO;
                fatal(state.path, errno);
            }
            uint8_t head[64];
            wire_writer d = wire_writer_on(head, sizeof head);
            wire_begin(&d, FRAME_DATA, state.ref);
            wire_put_u64(&d, FIELD_OFFSET, (uint64_t)at);
            wire_field_head(&d, FIELD_BYTES, (uint32_t)n);
            if (!wire_end_with(&d, (size_t)n)) fatal("data frame", E2BIG);
            memcpy(body - d.len, head, d.len);
            put(body - d.len, d.len + (size_t)n);
            at += n;
        }
    }
    close(fd);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names in the directory, sorted; frees nothing of them: the caller does. Takes the descriptor. */
static char **list(int fd, size_t *count) {
    DIR *stream = fdopendir(fd);
    if (!stream) return NULL;
    char **names = NULL;
    size_t room = 0;
    *count = 0;
    for (struct dirent *item; (item = readdir(stream));) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        if (*count == room) {
            room = room ? room * 2 : 64;
            names = realloc(names, room * sizeof *names);
            if (!names) fatal("memory", ENOMEM);
        }
        names[*count] = strdup(item->d_name);
        if (!names[(*count)++]) fatal("memory", ENOMEM);
    }
    closedir(stream);
    if (*count > 0) qsort(names, *count, sizeof *names, by_name);
    return names ? names : calloc(1, sizeof *names);
}

/* What `walk` does with each entry; returning false leaves out what is below a directory. */
typedef bool (*visitor)(int dir, const char *name, const struct stat *st);

static void walk(int dir, visitor visit) {
    size_t length = strlen(state.path), count = 0;
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (copy < 0) return unreadable("directory");
    char **names = list(copy, &count);
    if (!names) return unreadable("directory");
    for (size_t i = 0; i < count; i++) {
        const char *name = names[i];
        struct stat st;
        if (length + strlen(name) + 2 > TREE_PATH_MAX) {
            errno = ENAMETOOLONG;
            unreadable("path");
        } else {
            snprintf(state.path + length, sizeof state.path - length, "%s%s", length ? "/" : "", name);
            // What vanished meanwhile is not in the tree.
            if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && visit(dir, name, &st) && S_ISDIR(st.st_mode) && st.st_dev == state.device) {
                int child = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (child < 0) unreadable("directory");
                else walk(child, visit);
                if (child >= 0) close(child);
            }
            state.path[length] = 0;
        }
        free(names[i]);
    }
    free(names);
}

static bool visit_all(int dir, const char *name, const struct stat *st) {
    put_entry(dir, name, st);
    return true;
}

static int open_root(const char *root, struct stat *st) {
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, st) != 0) fatal(root, errno);
    state.device = st->st_dev;
    return fd;
}

static int finish(void) {
    uint8_t answer[64];
    wire_writer w = wire_writer_on(answer, sizeof answer);
    wire_begin(&w, FRAME_DONE, 0);
    wire_put_u64(&w, FIELD_ENTRIES, state.ref);
    wire_end(&w);
    put(answer, w.len);
    flush();
    return 0;
}

int command_read(const char *root, bool with_data, bool skip_unreadable) {
    struct stat st;
    int fd = open_root(root, &st);
    state.data = with_data;
    state.skip = skip_unreadable;
    put_entry(fd, ".", &st);
    walk(fd, visit_all);
    return finish();
}

/* Names under which people and tools keep secrets, whatever the permissions say. */
static bool secret_name(const char *name) {
    static const char *const NAMES[] = {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".pgpass", ".git-credentials", ".npmrc", ".pypirc", ".env", "id_rsa", "id_ecdsa", "id_ed25519", "id_dsa"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strcmp(name, NAMES[i]) == 0) return true;
    return false;
}

static bool visit_hidden(int dir, const char *name, const struct stat *st) {
    bool directory = S_ISDIR(st->st_mode);
    bool closed = directory ? (st->st_mode & 05) != 05 : !S_ISLNK(st->st_mode) && (st->st_mode & 05) == 0;
    bool special = !directory && !S_ISREG(st->st_mode) && !S_ISLNK(st->st_mode);
    if (!closed && !special && !secret_name(name)) return true;
    put_entry(dir, name, st);
    return false;
}

int command_scan(const char *root) {
    struct stat st;
    int fd = open_root(root, &st);
    state.skip = true;
    walk(fd, visit_hidden);
    return finish();
}
