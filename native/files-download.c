/* Sending a tree: a walk without recursion and without following links; what cannot be sent is named with the reason. */
#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH_MOST = 512, LINKS = 1 << 16 };

typedef struct {
    dev_t dev;
    ino_t ino;
    char *path;
} seen_file;

typedef struct {
    DIR *dirs[DEPTH_MOST];
    uint16_t lengths[DEPTH_MOST];
    int64_t mtimes[DEPTH_MOST];
    char path[PATH_BYTES + 256];
    const message *m;
    uint64_t entries, bytes, max;
    uint8_t key[DIGEST_BYTES];
    bool scan; /* digests instead of contents, and entries of every kind */
    seen_file *links;
    uint32_t link_count;
} download;

static int64_t ns_of(struct timespec t) {
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The path under which this file was sent before, or NULL (and remembered, as long as there is room). */
static const char *seen_before(download *d, const struct stat *st) {
    if (!d->links && !(d->links = calloc(LINKS, sizeof *d->links))) return NULL;
    uint32_t at = (uint32_t)(st->st_ino * 2654435761u ^ st->st_dev) % LINKS;
    while (d->links[at].path) {
        if (d->links[at].ino == st->st_ino && d->links[at].dev == st->st_dev) return d->links[at].path;
        at = (at + 1) % LINKS;
    }
    if (d->link_count >= LINKS / 2) return NULL;
    d->links[at] = (seen_file){st->st_dev, st->st_ino, strdup(d->path)};
    d->link_count += d->links[at].path != NULL;
    return NULL;
}

/* Of what a scan tells of: the bytes of a file and everybody's attributes. A file that cannot be read fails the scan, which may leave nothing out. */
static void digest_of(const download *d, int fd, uint8_t out[DIGEST_BYTES]) {
    static uint8_t bytes[DATA_BYTES];
    static char path[PATH_BYTES * 2 + 512];
    digest sum;
    digest_begin(&sum, d->key);
    for (ssize_t n = 1; fd >= 0 && n > 0;) {
        n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) n = 1;
        else if (n < 0) fail(errno, "reading", d->path);
        else digest_add(&sum, bytes, (size_t)n);
    }
    snprintf(path, sizeof path, "%s/%s", d->m->path, d->path);
    digest_attributes(&sum, path);
    digest_end(&sum, out);
}

static void entry(download *d, int kind, const struct stat *st, const char *target, int fd) {
    if (kind != KIND_DIRECTORY_END && ++d->entries > ENTRIES_MOST) fail(EFBIG, "the number of entries of the tree", NULL);
    uint8_t sum[DIGEST_BYTES];
    bool told = d->scan && kind != KIND_DIRECTORY_END;
    if (told) digest_of(d, fd, sum);
    frame_begin(FILES_ENTRY);
    wire_text(frame(), F_PATH, d->path);
    wire_put_u64(frame(), F_KIND, (uint64_t)kind);
    wire_put_u64(frame(), F_MODE, st->st_mode & 07777);
    wire_put_u64(frame(), F_SIZE, (uint64_t)st->st_size);
    wire_put_u64(frame(), F_UID, st->st_uid);
    wire_put_u64(frame(), F_GID, st->st_gid);
    wire_put_i64(frame(), F_MTIME, ns_of(st->st_mtim));
    if (target) wire_text(frame(), F_TARGET, target);
    if (told) wire_bytes(frame(), F_DATA, sum, sizeof sum);
    frame_send();
}

/* As many bytes as the file had when it was opened: one that grows while it is read does not keep us for ever. */
static void content(download *d, int fd, uint64_t size) {
    while (size > 0) {
        uint8_t *room = data_room(FILES_DATA);
        ssize_t n = read(fd, room, size < DATA_BYTES ? size : DATA_BYTES);
        if (n < 0 && errno != EINTR) fail(errno, "reading", d->path);
        data_send(n > 0 ? (size_t)n : 0);
        if (n == 0) return;
        if (n < 0) continue;
        size -= (uint64_t)n;
        d->bytes += (uint64_t)n;
        if (d->bytes > d->max) fail(EFBIG, "the tree", NULL);
    }
}

static void file(download *d, int dir, const char *name) {
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        refuse(d->path, errno_text(errno));
        return;
    }
    /* It may have become something else since it was looked at. */
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) refuse(d->path, "not a regular file any more");
    else {
        const char *before = !d->scan && st.st_nlink > 1 ? seen_before(d, &st) : NULL;
        entry(d, before ? KIND_HARDLINK : KIND_FILE, &st, before, fd);
        if (!before && !d->scan) content(d, fd, (uint64_t)st.st_size);
    }
    close(fd);
}

static void symlink_entry(download *d, int dir, const char *name, const struct stat *st) {
    char target[PATH_BYTES];
    ssize_t n = readlinkat(dir, name, target, sizeof target - 1);
    if (n < 0) {
        refuse(d->path, errno_text(errno));
        return;
    }
    target[n] = 0;
    entry(d, KIND_SYMLINK, st, target, -1);
}

static bool excluded(const download *d) {
    for (uint32_t i = 0; i < d->m->exclude_count; i++) {
        if (glob_match(d->m->excludes[i], d->path)) return true;
    }
    return false;
}

static bool enter(download *d, int *depth, int dir, const char *name, size_t len) {
    if (*depth + 1 >= DEPTH_MOST) {
        refuse(d->path, "nested too deeply");
        return false;
    }
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *opened = fd < 0 ? NULL : fdopendir(fd);
    if (!opened) {
        refuse(d->path, errno_text(errno));
        return false;
    }
    (*depth)++;
    d->dirs[*depth] = opened;
    d->lengths[*depth] = (uint16_t)len;
    return true;
}

static void child(download *d, int *depth, const char *name) {
    struct stat st;
    size_t base = d->lengths[*depth], n = strlen(name), len = base + (base > 0) + n;
    int dir = dirfd(d->dirs[*depth]);
    if (len >= PATH_BYTES) {
        d->path[base] = 0;
        refuse(d->path, "holds a path that is too long");
        return;
    }
    if (base) d->path[base] = '/';
    memcpy(d->path + base + (base > 0), name, n + 1);
    if (excluded(d)) return;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT) refuse(d->path, errno_text(errno));
        return;
    }
    switch (kind_of(st.st_mode)) {
    case KIND_FILE: file(d, dir, name); return;
    case KIND_SYMLINK: symlink_entry(d, dir, name, &st); return;
    case KIND_DIRECTORY:
        /* Told before it is entered: one that cannot be entered is an empty directory and a refusal. */
        entry(d, KIND_DIRECTORY, &st, NULL, -1);
        if (enter(d, depth, dir, name, len)) d->mtimes[*depth] = ns_of(st.st_mtim);
        return;
    default: break;
    }
    if (d->scan) {
        entry(d, kind_of(st.st_mode), &st, NULL, -1);
        return;
    }
    switch (kind_of(st.st_mode)) {
    case KIND_FIFO: refuse(d->path, "a FIFO"); return;
    case KIND_SOCKET: refuse(d->path, "a socket"); return;
    default: refuse(d->path, "a device"); return;
    }
}

static void walk(download *d) {
    for (int depth = 0; depth >= 0;) {
        struct dirent *next = readdir(d->dirs[depth]);
        if (next) {
            if (strcmp(next->d_name, ".") != 0 && strcmp(next->d_name, "..") != 0) child(d, &depth, next->d_name);
            continue;
        }
        closedir(d->dirs[depth]);
        d->path[d->lengths[depth]] = 0;
        if (depth > 0) {
            struct stat st = {.st_mtim = {d->mtimes[depth] / 1000000000, d->mtimes[depth] % 1000000000}};
            if (!d->scan) entry(d, KIND_DIRECTORY_END, &st, NULL, -1);
        }
        depth--;
    }
}

void files_download(message *m) {
    static download d;
    struct stat st;
    d.m = m;
    d.scan = m->type == FILES_SCAN;
    if (d.scan && m->data_len != DIGEST_BYTES) fail(EBADMSG, "the key", NULL);
    if (d.scan) memcpy(d.key, m->data, DIGEST_BYTES);
    d.max = has(m, F_MAX) ? m->max : UINT64_MAX;
    if (m->path[0] != '/') fail(EINVAL, "the path", m->path);
    if (stat(m->path, &st) < 0) fail(errno, "reading", m->path);
    if (S_ISREG(st.st_mode)) {
        int fd = open(m->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0) fail(errno, "reading", m->path);
        if (!S_ISREG(st.st_mode)) fail(EINVAL, "reading", m->path);
        entry(&d, KIND_FILE, &st, NULL, fd);
        content(&d, fd, (uint64_t)st.st_size);
    } else {
        int fd = S_ISDIR(st.st_mode) ? open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        if (!S_ISDIR(st.st_mode)) fail(EINVAL, "neither a file nor a directory:", m->path);
        if (fd < 0 || !(d.dirs[0] = fdopendir(fd))) fail(errno, "reading", m->path);
        walk(&d);
    }
    frame_begin(FILES_END);
    wire_put_u64(frame(), F_ENTRIES, d.entries);
    wire_put_u64(frame(), F_BYTES, d.bytes);
    frame_send();
    out_flush();
}
