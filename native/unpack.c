/*
 * unpack write DIR               makes a tree below DIR from the stream on stdin
 * unpack read DIR                writes DIR as a stream to stdout, sorted by name, one file system
 * unpack stat DIR                the same without contents, with inode numbers and change times
 * unpack readable DIR            like read, leaving out what cannot be read
 * unpack scan DIR                entries below DIR that not everybody may read, or whose names are known to hold secrets
 * unpack remove PATH             removes a tree
 *
 * Options after the path: `flatten` makes every owner the caller; `mapped UID GID` works with the subordinate ids from these on.
 */
#include "unpack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct rlimit files;
    // A tree may be as deep as its longest path; each level holds a descriptor.
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    umask(0);
    const char *command = argc > 1 ? argv[1] : "";
    bool flatten = argc == 4 && strcmp(argv[3], "flatten") == 0;
    bool mapped = argc == 6 && strcmp(argv[3], "mapped") == 0;
    if (argc == 3 || flatten || mapped) {
        const char *path = argv[2];
        // Who mounts the layer decides: in a user namespace the overlay reads only attributes that a user may set.
        const char *opaque_name = geteuid() == 0 ? "trusted.overlay.opaque" : "user.overlay.opaque";
        if (mapped) enter_user_namespace(argv[4], argv[5]);
        if (strcmp(command, "write") == 0) return command_write(path, !flatten, opaque_name);
        if (strcmp(command, "read") == 0) return command_read(path, true, false);
        if (strcmp(command, "stat") == 0) return command_read(path, false, true);
        if (strcmp(command, "readable") == 0) return command_read(path, true, true);
        if (strcmp(command, "scan") == 0) return command_scan(path);
        if (strcmp(command, "remove") == 0) {
            if (remove_at(AT_FDCWD, path) != 0 && errno != ENOENT) fatal(path, errno);
            return 0;
        }
    }
    fprintf(stderr, "usage: unpack write|read|stat|readable|scan|remove PATH [flatten|mapped UID GID]\n");
    return 2;
}

static char pending[128 * 1024];
static size_t pending_len;

static void put_now(const void *data, size_t len) {
    const char *at = data;
    while (len > 0) {
        ssize_t n = write(STDOUT_FILENO, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(1);
        at += n;
        len -= (size_t)n;
    }
}

void flush(void) {
    put_now(pending, pending_len);
    pending_len = 0;
}

void put(const void *data, size_t len) {
    if (len > sizeof pending - pending_len) flush();
    if (len > sizeof pending) return put_now(data, len);
    memcpy(pending + pending_len, data, len);
    pending_len += len;
}

const char *errno_name(int error) {
    switch (error) {
    case EACCES: return "EACCES";
    case EEXIST: return "EEXIST";
    case EINVAL: return "EINVAL";
    case EIO: return "EIO";
    case EISDIR: return "EISDIR";
    case ELOOP: return "ELOOP";
    case EMFILE: return "EMFILE";
    case EMLINK: return "EMLINK";
    case ENAMETOOLONG: return "ENAMETOOLONG";
    case ENOENT: return "ENOENT";
    case ENOSPC: return "ENOSPC";
    case ENOTDIR: return "ENOTDIR";
    case ENOTSUP: return "ENOTSUP";
    case EDQUOT: return "EDQUOT";
    case EFBIG: return "EFBIG";
    case EPERM: return "EPERM";
    case EROFS: return "EROFS";
    case E2BIG: return "E2BIG";
    case ERANGE: return "ERANGE";
    case EXDEV: return "EXDEV";
    default: return "EOTHER";
    }
}

void answer_error(uint32_t ref, int error, const char *what) {
    uint8_t buffer[TREE_PATH_MAX * 2];
    char message[512];
    snprintf(message, sizeof message, "%s: %s", what, strerror(error));
    wire_writer w = wire_writer_on(buffer, sizeof buffer);
    if (wire_error(&w, ref, errno_name(error), message)) put(buffer, w.len);
}

_Noreturn void fatal(const char *what, int error) {
    answer_error(REF_FATAL, error, what);
    flush();
    exit(1);
}

bool path_is_sound(const char *path) {
    size_t length = strlen(path);
    if (length >= TREE_PATH_MAX) return false;
    if (length == 0) return true;
    for (const char *at = path;;) {
        const char *slash = strchr(at, '/');
        size_t size = slash ? (size_t)(slash - at) : strlen(at);
        if (size == 0 || size > NAME_MAX) return false;
        if (at[0] == '.' && (size == 1 || (size == 2 && at[1] == '.'))) return false;
        if (!slash) return true;
        at = slash + 1;
    }
}

int remove_at(int dir, const char *name) {
    if (unlinkat(dir, name, 0) == 0) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0) return 0;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != EACCES) return -1;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) {
        // Our own directory without read permission; as an ordinary user it must first be opened up. A link here would have been unlinked above.
        if (fchmodat(dir, name, 0700, 0) != 0) return -1;
        fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0) return -1;
    struct stat st;
    if (fstat(fd, &st) == 0 && (st.st_mode & 0700) != 0700) fchmod(fd, 0700);
    DIR *list = fdopendir(fd);
    if (!list) {
        close(fd);
        return -1;
    }
    int result = 0;
    // Names are collected per pass: removing while reading may skip some, so the directory is read again until it is empty.
    for (bool again = true; again && result == 0;) {
        again = false;
        rewinddir(list);
        for (struct dirent *entry; result == 0 && (entry = readdir(list));) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            again = true;
            result = remove_at(dirfd(list), entry->d_name);
        }
    }
    int error = errno;
    closedir(list);
    errno = error;
    return result != 0 ? result : unlinkat(dir, name, AT_REMOVEDIR);
}
