/* One client on the socket, its requests one after the other; ends when the client does. See tree.h. */
#include "tree.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTENER_FD = 3, UPPER_FD = 5, TARGET_FD = 6 };

static void done(void) {
    frame_begin(FILES_END);
    frame_send();
    out_flush();
}

static void done_bytes(uint64_t bytes) {
    frame_begin(FILES_END);
    wire_put_u64(frame(), F_BYTES, bytes);
    frame_send();
    out_flush();
}

/* An error answer after which the next request is read. */
static void answer_error(int error, const char *what) {
    wire_error(frame(), 0, errno_name(error), what);
    out_flush();
}

static void read_one(const message *m) {
    char name[256];
    struct stat st;
    int dir = walk_to(T.upper, m->path, name);
    int fd = -1, error = dir < 0 ? -dir : 0;
    if (!error && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) error = errno;
    if (!error && is_whiteout(dir, name, &st)) error = ENOENT;
    if (!error && !S_ISREG(st.st_mode)) error = EINVAL;
    if (!error && has(m, F_MAX) && (uint64_t)st.st_size > m->max) error = EFBIG;
    if (!error && (fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) < 0) error = errno;
    if (dir >= 0) close(dir);
    if (error) {
        answer_error(error, errno_text(error));
        return;
    }
    for (;;) {
        uint8_t *room = data_room(FILES_DATA);
        ssize_t n = read(fd, room, DATA_BYTES);
        if (n < 0) fail(errno, "reading", m->path);
        data_send((size_t)n);
        if (n == 0) break;
    }
    close(fd);
    done();
}

static void export_tree(const message *m) {
    char name[256];
    int dir = open_parent(m->path, name, false);
    int error = dir < 0 ? -dir : copy_tree(T.upper, ".", dir, name);
    /* What was begun is not the workspace. */
    if (error && error != EEXIST && dir >= 0) remove_tree(dir, name);
    if (dir >= 0) close(dir);
    if (error) answer_error(error, errno_text(error));
    else done();
}

/* What the upper and the first `count` layers are together, in an empty directory. */
static int merge_into(int to, int count) {
    int error = copy_into(T.upper, to, false);
    for (int i = 0; i < count && !error; i++) error = copy_into(T.lowers[i], to, true);
    return error;
}

/* The workspace with all that it is based on, and `max` layers of the image below, as one layer. */
static int squash_into(int dir, const char *name, uint64_t layers, uint64_t *bytes) {
    if (layers > (uint64_t)(T.lower_count - T.base_count)) return EINVAL;
    if (mkdirat(dir, name, 0700) < 0) return errno;
    int to = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0) return errno;
    int error = merge_into(to, T.base_count + (int)layers);
    if (!error) *bytes = tree_usage(to);
    close(to);
    return error;
}

static void squash(const message *m) {
    char name[256];
    int dir = open_parent(m->path, name, false);
    uint64_t bytes = 0;
    int error = dir < 0 ? -dir : squash_into(dir, name, has(m, F_MAX) ? m->max : 0, &bytes);
    if (error && error != EEXIST && dir >= 0) remove_tree(dir, name);
    if (dir >= 0) close(dir);
    if (error) answer_error(error, errno_text(error));
    else done_bytes(bytes);
}

static void serve(message *m) {
    int error;
    switch (m->type) {
    case TREE_CHANGES:
        tree_changes();
        done();
        return;
    case TREE_DISCARD:
        error = tree_discard(m->path);
        if (error) answer_error(error, errno_text(error));
        else done();
        return;
    case TREE_READ: read_one(m); return;
    case TREE_USAGE: done_bytes(tree_usage(T.upper)); return;
    case TREE_EXPORT: export_tree(m); return;
    case TREE_SQUASH: squash(m); return;
    default: fail(EBADMSG, "unknown request", NULL);
    }
}

int main(int argc, char **argv) {
    static message m;
    struct rlimit files;
    umask(0);
    signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    /* All that it was given goes with it. */
    if (argc > 1 && strcmp(argv[1], "--leave") == 0) return 0;
    T.upper = UPPER_FD;
    fcntl(T.upper, F_SETFD, FD_CLOEXEC);
    if (argc > 3 && strcmp(argv[1], "--copy-then") == 0) {
        int error = copy_into(UPPER_FD, TARGET_FD, false);
        if (error) return error;
        close(TARGET_FD);
        execv(argv[2], argv + 3);
        return errno;
    }
    bool copy = argc > 1 && strcmp(argv[1], "--copy") == 0;
    int options = copy ? 1 : 0;
    if (argc > 1 && strncmp(argv[1], "--bases=", 8) == 0) T.base_count = atoi(argv[1] + 8), options = 1;
    for (int i = 1 + options; i < argc; i++) {
        if (T.lower_count >= LOWERS_MOST) return 70;
        int fd = open(argv[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) return 71;
        T.lowers[T.lower_count++] = fd;
    }
    if (copy) return merge_into(TARGET_FD, T.lower_count);
    int client = accept4(LISTENER_FD, NULL, NULL, 0);
    if (client < 0) return 72;
    close(LISTENER_FD);
    dup2(client, 0);
    dup2(client, 1);
    close(client);
    while (message_read(&m)) serve(&m);
    return 0;
}
