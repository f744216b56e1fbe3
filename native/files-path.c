/* Paths, names and patterns. */
#include "files.h"

#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Splits an absolute path into its parent and its last name; false for "/", "..", and names that are too long. Both buffers hold PATH_BYTES. */
bool parent_and_name(const char *path, char *parent, char *name) {
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    size_t start = len;
    while (start > 0 && path[start - 1] != '/') start--;
    if (len - start == 0 || len - start > 255) return false;
    memcpy(name, path + start, len - start);
    name[len - start] = 0;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
    if (start == 0) memcpy(parent, ".", 2);
    else {
        memcpy(parent, path, start);
        parent[start] = 0;
    }
    return true;
}

/* Makes a directory with its parents below `base`, following links as the system does; what is made belongs to `uid` and `gid`, unless they are -1. 0 or an errno. */
int make_directories(int base, const char *path, mode_t mode, uid_t uid, gid_t gid, bool *made) {
    char buf[PATH_BYTES];
    size_t len = strlen(path);
    memcpy(buf, path, len + 1);
    *made = false;
    for (size_t i = 1; i <= len; i++) {
        if (buf[i] != '/' && buf[i] != 0) continue;
        bool last = buf[i] == 0;
        buf[i] = 0;
        if (mkdirat(base, buf, 0755) == 0) {
            *made = last;
            if (uid != (uid_t)-1 && fchownat(base, buf, uid, gid, AT_SYMLINK_NOFOLLOW) < 0) return errno;
        } else if (errno != EEXIST) return errno;
        if (!last) buf[i] = '/';
    }
    struct stat st;
    if (fstatat(base, buf, &st, 0) < 0) return errno;
    if (!S_ISDIR(st.st_mode)) return ENOTDIR;
    if (*made && mode != 0755 && fchmodat(base, buf, mode, 0) < 0) return errno;
    return 0;
}

/* Opens the directory that holds `path`, made with its parents when asked for. Negative errno on failure. */
int open_parent(const char *path, char *name, bool make) {
    char parent[PATH_BYTES];
    bool made;
    if (path[0] != '/' || !parent_and_name(path, parent, name)) return -EINVAL;
    int error = make ? make_directories(AT_FDCWD, parent, 0755, -1, -1, &made) : 0;
    if (error) return -error;
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

int kind_of(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG: return KIND_FILE;
    case S_IFDIR: return KIND_DIRECTORY;
    case S_IFLNK: return KIND_SYMLINK;
    case S_IFIFO: return KIND_FIFO;
    case S_IFSOCK: return KIND_SOCKET;
    default: return KIND_DEVICE;
    }
}

/* A name that nothing else uses, 24 bytes at most. */
void temporary_name(char *out) {
    static const char DIGITS[] = "0123456789abcdef";
    uint8_t noise[8] = {0};
    if (getrandom(noise, sizeof noise, 0) != sizeof noise) memcpy(noise, &out, sizeof out);
    memcpy(out, ".mw-", 4);
    for (int i = 0; i < 8; i++) {
        out[4 + 2 * i] = DIGITS[noise[i] >> 4];
        out[5 + 2 * i] = DIGITS[noise[i] & 15];
    }
    out[20] = 0;
}

bool is_temporary_name(const char *name) {
    return strlen(name) == 20 && strncmp(name, ".mw-", 4) == 0 && strspn(name + 4, "0123456789abcdef") == 16;
}

/* Work that a pattern may cost; one that would take more matches nothing. */
static int budget;

static bool match(const char *p, const char *s) {
    for (; *p; p++, s++) {
        if (--budget < 0) return false;
        if (*p == '*') {
            bool across = p[1] == '*';
            while (*p == '*') p++;
            /* "**" and the slash after it also stand for nothing. */
            if (across && *p == '/' && match(p + 1, s)) return true;
            for (;; s++) {
                if (match(p, s)) return true;
                if (!*s || (*s == '/' && !across)) return false;
            }
        }
        if (!*s || (*p == '?' ? *s == '/' : *p != *s)) return false;
    }
    return *s == 0;
}

/* A pattern without a slash is matched against the last name, one with against the whole path below the root of the transfer. */
bool glob_match(const char *pattern, const char *path) {
    budget = 20000;
    while (*pattern == '/') {
        pattern++;
        if (!strchr(pattern, '/')) return match(pattern, path);
    }
    const char *name = strrchr(path, '/');
    return match(pattern, strchr(pattern, '/') || !name ? path : name + 1);
}
