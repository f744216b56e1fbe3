/* One request on stdin, its answer on stdout: see files.h. */
#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void done(void) {
    frame_begin(FILES_END);
    frame_send();
    out_flush();
}

static void send_stat(const char *path, const struct stat *st, const char *target) {
    frame_begin(FILES_ENTRY);
    wire_text(frame(), F_PATH, path);
    wire_put_u64(frame(), F_KIND, (uint64_t)kind_of(st->st_mode));
    wire_put_u64(frame(), F_MODE, st->st_mode & 07777);
    wire_put_u64(frame(), F_UID, st->st_uid);
    wire_put_u64(frame(), F_GID, st->st_gid);
    wire_put_u64(frame(), F_SIZE, (uint64_t)st->st_size);
    wire_put_i64(frame(), F_MTIME, (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec);
    if (target) wire_text(frame(), F_TARGET, target);
    /* No others have attributes of users. */
    if (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode)) put_attributes(path);
    frame_send();
}

/* lstat of an absolute path, or of a name in the working directory; false with errno. */
static bool stat_one(const char *path) {
    struct stat st;
    char target[PATH_BYTES];
    if (lstat(path, &st) < 0) return false;
    ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target - 1) : -1;
    if (n >= 0) target[n] = 0;
    send_stat(path, &st, n >= 0 ? target : NULL);
    return true;
}

static void stat_path(message *m) {
    size_t len = strlen(m->path);
    while (len > 1 && m->path[len - 1] == '/') m->path[--len] = 0;
    if (m->path[0] != '/') fail(EINVAL, "the path", m->path);
    if (!stat_one(m->path)) fail(errno, "looking at", m->path);
    done();
}

static void list(message *m) {
    uint64_t count = 0;
    int fd = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir || fchdir(fd) < 0) fail(errno, "listing", m->path);
    for (struct dirent *next; (next = readdir(dir));) {
        if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0) continue;
        if (++count > ENTRIES_MOST) fail(EFBIG, "the number of entries of", m->path);
        stat_one(next->d_name);
    }
    done();
}

static void read_file(message *m) {
    struct stat st;
    uint64_t total = 0;
    /* Looked at first: opening a device can have effects. Then again, because it may have changed. */
    if (stat(m->path, &st) < 0) fail(errno, "reading", m->path);
    if (S_ISDIR(st.st_mode)) fail(EISDIR, "reading", m->path);
    if (!S_ISREG(st.st_mode)) fail(EINVAL, "not a regular file:", m->path);
    int fd = open(m->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) fail(errno, "reading", m->path);
    if (!S_ISREG(st.st_mode)) fail(EINVAL, "not a regular file:", m->path);
    for (;;) {
        uint8_t *room = data_room(FILES_DATA);
        ssize_t n = read(fd, room, DATA_BYTES);
        if (n < 0 && errno != EINTR) fail(errno, "reading", m->path);
        data_send(n > 0 ? (size_t)n : 0);
        if (n == 0) break;
        total += n > 0 ? (uint64_t)n : 0;
        if (has(m, F_MAX) && total > m->max) fail(EFBIG, "reading", m->path);
    }
    done();
}

static void receive(int fd, int dir, const char *temp, const char *path) {
    static message m;
    while (message_read(&m) && m.type == FILES_DATA) {
        for (uint32_t at = 0; at < m.data_len;) {
            ssize_t n = write(fd, m.data + at, m.data_len - at);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
                int error = errno;
                unlinkat(dir, temp, 0);
                fail(error, "writing", path);
            }
            at += (uint32_t)n;
        }
    }
    if (m.type == FILES_END) return;
    unlinkat(dir, temp, 0);
    fail(EPIPE, "writing", path);
}

/* In a temporary file beside the target, then in its place: a reader sees the old file or the whole new one, and a link is replaced. */
static void write_file(message *m) {
    char name[256], temp[24], path[PATH_BYTES];
    struct stat old;
    strcpy(path, m->path);
    int dir = open_parent(path, name, true);
    if (dir < 0) fail(-dir, "writing", path);
    bool existed = fstatat(dir, name, &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (existed && S_ISDIR(old.st_mode)) fail(EISDIR, "writing", path);
    bool keeps = existed && S_ISREG(old.st_mode);
    mode_t mode = has(m, F_MODE) ? (mode_t)m->mode : keeps ? old.st_mode & 07777 : 0644;
    uid_t uid = has(m, F_UID) ? (uid_t)m->uid : keeps ? old.st_uid : geteuid();
    gid_t gid = has(m, F_GID) ? (gid_t)m->gid : keeps ? old.st_gid : getegid();
    temporary_name(temp);
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) fail(errno, "writing", path);
    int error = set_attributes(fd, m);
    if (error == 0) receive(fd, dir, temp, path);
    if (error != 0 || fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0 || close(fd) < 0 || renameat(dir, temp, dir, name) < 0) {
        if (error == 0) error = errno;
        unlinkat(dir, temp, 0);
        fail(error, "writing", path);
    }
    done();
}

static void make_directory(message *m) {
    bool made;
    if (m->path[0] != '/') fail(EINVAL, "the path", m->path);
    bool owned = has(m, F_UID);
    int error = make_directories(AT_FDCWD, m->path, has(m, F_MODE) ? (mode_t)m->mode : 0755, owned ? (uid_t)m->uid : (uid_t)-1, owned ? (gid_t)m->gid : (gid_t)-1, &made);
    if (error) fail(error, "making the directory", m->path);
    done();
}

static void move(message *m) {
    char name[256], to_name[256];
    int from = open_parent(m->path, name, false), to = open_parent(m->to, to_name, true);
    if (from < 0 || to < 0) fail(from < 0 ? -from : -to, "moving", m->path);
    if (renameat(from, name, to, to_name) < 0) fail(errno, "moving", m->path);
    done();
}

static void remove_path(message *m) {
    char name[256];
    int dir = open_parent(m->path, name, false);
    if (dir == -ENOENT || dir == -ENOTDIR) {
        done();
        return;
    }
    int error = dir < 0 ? -dir : remove_tree(dir, name);
    if (error) fail(error, "removing", m->path);
    done();
}

/* Who this process is: how a user's name becomes numbers. */
static void ids(void) {
    frame_begin(FILES_ENTRY);
    wire_put_u64(frame(), F_UID, geteuid());
    wire_put_u64(frame(), F_GID, getegid());
    frame_send();
    done();
}

/* With an argument, the request is in that file. */
int main(int argc, char **argv) {
    static message m;
    struct rlimit files;
    umask(0);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (argc > 1) {
        int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
        if (fd < 0 || dup2(fd, 0) < 0) fail(errno, "reading", argv[1]);
    }
    if (!message_read(&m)) return 1;
    switch (m.type) {
    case FILES_READ: read_file(&m); return 0;
    case FILES_WRITE: write_file(&m); return 0;
    case FILES_LIST: list(&m); return 0;
    case FILES_STAT: stat_path(&m); return 0;
    case FILES_MKDIR: make_directory(&m); return 0;
    case FILES_MOVE: move(&m); return 0;
    case FILES_REMOVE: remove_path(&m); return 0;
    case FILES_UPLOAD: files_upload(&m); return 0;
    case FILES_DOWNLOAD: case FILES_SCAN: files_download(&m); return 0;
    case FILES_WATCH: files_watch(&m); return 0;
    case FILES_IDS: ids(); return 0;
    case FILES_CONNECT: files_connect(&m); return 0;
    default: fail(EBADMSG, "unknown request", NULL);
    }
}
