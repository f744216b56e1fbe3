/*
 * Who a command runs as: `name`, `uid`, `name:group`, `uid:gid`, looked up in the machine's own /etc/passwd and /etc/group.
 *
 * Those files are the agent's to write. They are read only when they are regular files, up to a bound, line by line in a buffer on the stack; a line that is
 * too long or makes no sense is skipped. Runs in a supervisor, so a file that blocks holds up one exec.
 */
#include "init.h"
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

enum { READ_MOST = 4 << 20, LINE_MOST = 4096 };

typedef struct {
    int fd;
    uint32_t len, at, taken;
    bool skipping;
    char buf[LINE_MOST];
} lines;

static bool lines_open(lines *l, const char *path) {
    l->len = l->at = l->taken = 0;
    l->skipping = false;
    l->fd = (int)RAW4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0);
    if (l->fd < 0) return false;
    struct stat st;
    if (RAW2(SYS_fstat, l->fd, &st) == 0 && S_ISREG(st.st_mode)) return true;
    RAW1(SYS_close, l->fd);
    return false;
}

/* The next line, NUL-terminated in the buffer; NULL at the end. */
static char *lines_next(lines *l) {
    for (;;) {
        char *nl = memchr(l->buf + l->at, '\n', l->len - l->at);
        if (nl) {
            char *line = l->buf + l->at;
            *nl = 0;
            l->at = (uint32_t)(nl + 1 - l->buf);
            if (!l->skipping) return line;
            l->skipping = false;
            continue;
        }
        if (l->at > 0) {
            memmove(l->buf, l->buf + l->at, l->len - l->at);
            l->len -= l->at;
            l->at = 0;
        } else if (l->len >= LINE_MOST - 1) {
            l->skipping = true;
            l->len = 0;
        }
        long n = l->taken >= READ_MOST ? 0 : RAW3(SYS_read, l->fd, l->buf + l->len, LINE_MOST - 1 - l->len);
        if (n <= 0) {
            if (l->len == 0 || l->skipping) return NULL;
            l->buf[l->len] = 0;
            l->len = 0;
            return l->buf;
        }
        l->len += (uint32_t)n;
        l->taken += (uint32_t)n;
    }
}

static void lines_close(lines *l) {
    RAW1(SYS_close, l->fd);
}

/* Cuts `line` at colons; false unless there are at least `count` fields. */
static bool split(char *line, char **fields, int count) {
    for (int i = 0; i < count; i++) {
        fields[i] = line;
        char *colon = line;
        while (*colon && *colon != ':') colon++;
        if (*colon == 0) return i == count - 1;
        *colon = 0;
        line = colon + 1;
    }
    return true;
}

static bool same(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

/* A whole decimal below 2^32 - 1 (which means "no change" to the kernel). */
static bool number(const char *text, uint32_t *out) {
    uint64_t v = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        v = v * 10 + (uint64_t)(*text - '0');
        if (v >= 0xffffffffu) return false;
    }
    *out = (uint32_t)v;
    return true;
}

static void copy(char *out, size_t size, const char *text) {
    size_t n = strlen(text);
    if (n >= size) n = 0;
    memcpy(out, text, n);
    out[n] = 0;
}

/* Finds a passwd line by name, or by number when `uid` is given. */
static bool find_user(const char *name, const uint32_t *uid, launch *l) {
    lines in;
    if (!lines_open(&in, "/etc/passwd")) return false;
    bool found = false;
    for (char *line; !found && (line = lines_next(&in));) {
        char *f[6];
        uint32_t u, g;
        if (!split(line, f, 6) || !number(f[2], &u) || !number(f[3], &g)) continue;
        if (uid ? u != *uid : !same(f[0], name)) continue;
        found = true;
        l->uid = u;
        l->gid = g;
        copy(l->name, sizeof l->name, f[0]);
        copy(l->home, sizeof l->home, f[5]);
    }
    lines_close(&in);
    return found;
}

static bool find_group(const char *name, uint32_t *gid) {
    lines in;
    if (number(name, gid)) return true;
    if (!lines_open(&in, "/etc/group")) return false;
    bool found = false;
    for (char *line; !found && (line = lines_next(&in));) {
        char *f[3];
        if (split(line, f, 3) && same(f[0], name) && number(f[2], gid)) found = true;
    }
    lines_close(&in);
    return found;
}

static bool lists(const char *members, const char *name) {
    size_t n = strlen(name);
    for (const char *p = members; *p;) {
        const char *end = p;
        while (*end && *end != ',') end++;
        if ((size_t)(end - p) == n && memcmp(p, name, n) == 0) return true;
        p = *end ? end + 1 : end;
    }
    return false;
}

static void supplementary(launch *l) {
    lines in;
    if (!l->name[0] || !lines_open(&in, "/etc/group")) return;
    for (char *line; l->group_count < MAX_GROUPS && (line = lines_next(&in));) {
        char *f[4];
        uint32_t gid;
        if (split(line, f, 4) && number(f[2], &gid) && lists(f[3], l->name)) l->groups[l->group_count++] = gid;
    }
    lines_close(&in);
}

static void default_env(launch *l, const char *key, const char *value, char *room) {
    size_t k = strlen(key);
    for (size_t i = 0; i < l->envc; i++) {
        if (strncmp(l->envp[i], key, k) == 0 && l->envp[i][k] == '=') return;
    }
    memcpy(room, key, k);
    room[k] = '=';
    memcpy(room + k + 1, value, strlen(value) + 1);
    l->envp[l->envc++] = room;
    l->envp[l->envc] = NULL;
}

/* Fills in ids, groups and the environment's defaults. Returns 0 or the stage that failed. */
int user_resolve(launch *l) {
    char user[256], *group = NULL;
    copy(user, sizeof user, l->user);
    for (char *p = user; *p; p++) {
        if (*p != ':') continue;
        *p = 0;
        group = p + 1;
        break;
    }
    uint32_t uid = 0;
    bool numeric = !user[0] || number(user, &uid);
    l->uid = uid;
    l->gid = 0;
    /* A number need not have an entry; a name must. */
    if (!find_user(user, numeric ? &uid : NULL, l) && !numeric) return STAGE_USER;
    l->groups[0] = l->gid;
    l->group_count = 1;
    if (group && *group) {
        /* An explicit group stands alone, as with `docker run --user`. */
        if (!find_group(group, &l->gid)) return STAGE_GROUP;
        l->groups[0] = l->gid;
    } else {
        supplementary(l);
    }
    if (numeric && l->uid == 0 && !l->home[0]) copy(l->home, sizeof l->home, "/root");
    default_env(l, "HOME", l->home[0] ? l->home : "/", l->env_home);
    if (l->name[0]) {
        default_env(l, "USER", l->name, l->env_user);
        default_env(l, "LOGNAME", l->name, l->env_logname);
    }
    return STAGE_NONE;
}
