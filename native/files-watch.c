/* Watching a directory through inotify until stdin ends. What inotify could not tell, for want of room or watches, is one overflow event: look again. */
#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

enum { WATCHES_MOST = 8192, PENDING_MOST = 8192 };

static const uint32_t MASK = IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_ONLYDIR | IN_DONT_FOLLOW;

static struct {
    int fd;
    bool recursive;
    /* Path by watch descriptor. */
    char *paths[WATCHES_MOST];
    int wds[WATCHES_MOST];
    uint32_t count;
    /* Of the rename of a file that is being written under a temporary name. */
    uint32_t written;
} w;

static void event(int kind, const char *path) {
    frame_begin(FILES_EVENT);
    wire_put_u64(frame(), F_KIND, (uint64_t)kind);
    wire_text(frame(), F_PATH, path);
    frame_send();
}

static const char *path_of(int wd) {
    for (uint32_t i = 0; i < w.count; i++) {
        if (w.wds[i] == wd) return w.paths[i];
    }
    return NULL;
}

static void forget(int wd) {
    for (uint32_t i = 0; i < w.count; i++) {
        if (w.wds[i] != wd) continue;
        free(w.paths[i]);
        w.paths[i] = w.paths[--w.count];
        w.wds[i] = w.wds[w.count];
        return;
    }
}

static bool add_one(const char *path) {
    int wd = inotify_add_watch(w.fd, path, MASK);
    if (wd < 0) {
        if (errno == ENOSPC || errno == ENOMEM) event(EVENT_OVERFLOW, path);
        return false;
    }
    if (path_of(wd)) return false;
    char *copy = w.count < WATCHES_MOST ? strdup(path) : NULL;
    if (!copy) {
        inotify_rm_watch(w.fd, wd);
        event(EVENT_OVERFLOW, path);
        return false;
    }
    w.wds[w.count] = wd;
    w.paths[w.count++] = copy;
    return true;
}

/* Watches `path` and, when asked for, all directories below; breadth first through the table itself. `tell`: what is already in them is reported as created. */
static void add(const char *path, bool tell) {
    uint32_t at = w.count;
    if (!add_one(path) || !w.recursive) return;
    for (; at < w.count; at++) {
        char parent[PATH_BYTES], full[PATH_BYTES + 260];
        strcpy(parent, w.paths[at]);
        int fd = open(parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir) continue;
        size_t len = strlen(parent);
        memcpy(full, parent, len);
        if (len > 1) full[len++] = '/';
        for (struct dirent *next; (next = readdir(dir));) {
            struct stat st;
            size_t n = strlen(next->d_name);
            if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0 || len + n >= PATH_BYTES) continue;
            memcpy(full + len, next->d_name, n + 1);
            if (tell) event(EVENT_CREATED, full);
            if (fstatat(dirfd(dir), next->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) add_one(full);
        }
        closedir(dir);
    }
}

static void handle(const struct inotify_event *e) {
    char full[PATH_BYTES + NAME_MAX + 2];
    if (e->mask & IN_Q_OVERFLOW) {
        event(EVENT_OVERFLOW, "");
        return;
    }
    const char *parent = path_of(e->wd);
    if (!parent) return;
    if (e->mask & IN_IGNORED) {
        forget(e->wd);
        return;
    }
    size_t len = strlen(parent), n = e->len ? strnlen(e->name, e->len) : 0;
    if (n == 0) {
        if (e->mask & IN_DELETE_SELF) event(EVENT_REMOVED, parent);
        return;
    }
    /* What files-write makes beside its target is nobody's business until it is there, whole, with its mode. */
    if (is_temporary_name(e->name)) {
        if (e->mask & IN_MOVED_FROM) w.written = e->cookie;
        return;
    }
    memcpy(full, parent, len);
    if (len > 1) full[len++] = '/';
    memcpy(full + len, e->name, n);
    full[len + n] = 0;
    if (len + n >= PATH_BYTES) return;
    if (e->mask & (IN_CREATE | IN_MOVED_TO)) {
        event(EVENT_CREATED, full);
        if (e->mask & IN_MOVED_TO && w.written != 0 && e->cookie == w.written) {
            event(EVENT_MODIFIED, full);
            event(EVENT_ATTRIBUTES, full);
            w.written = 0;
        }
        /* Things may have appeared in it before it was watched. */
        if (w.recursive && e->mask & IN_ISDIR) add(full, true);
    } else if (e->mask & IN_DELETE) event(EVENT_REMOVED, full);
    else if (e->mask & IN_MOVED_FROM) event(EVENT_MOVED, full);
    else if (e->mask & IN_MODIFY) event(EVENT_MODIFIED, full);
    else if (e->mask & IN_ATTRIB) event(EVENT_ATTRIBUTES, full);
}

void files_watch(message *m) {
    static char buf[64 << 10] __attribute__((aligned(8)));
    w.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    w.recursive = m->recursive != 0;
    char path[PATH_BYTES];
    if (w.fd < 0) fail(errno, "watching", m->path);
    if (m->path[0] != '/' || !realpath(m->path, path)) fail(m->path[0] == '/' ? errno : EINVAL, "watching", m->path);
    add(path, false);
    if (w.count == 0) fail(ENOTDIR, "watching", m->path);
    /* Tells that from now on nothing is missed. */
    frame_begin(FILES_END);
    frame_send();
    for (;;) {
        out_flush();
        struct pollfd fds[2] = {{w.fd, POLLIN, 0}, {0, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0) continue;
        if (fds[1].revents) return;
        ssize_t n = read(w.fd, buf, sizeof buf);
        for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= n;) {
            const struct inotify_event *e = (const struct inotify_event *)(buf + at);
            handle(e);
            at += (ssize_t)(sizeof *e + e->len);
        }
    }
}
