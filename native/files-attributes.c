/* Extended attributes of files that are users' own: "user.", without the overlay's. What is more than is told is left out whole. */
#include "files.h"

#include <string.h>
#include <sys/xattr.h>

static const char PREFIX[] = "user.", OVERLAY[] = "user.overlay.";

static bool is_users(const char *name) {
    return strncmp(name, PREFIX, sizeof PREFIX - 1) == 0 && strncmp(name, OVERLAY, sizeof OVERLAY - 1) != 0;
}

/* Of what is at a name in the working directory, or at an absolute path; into the frame that is being made. */
void put_attributes(const char *name) {
    static char names[64 << 10], value[ATTRIBUTES_BYTES];
    ssize_t length = llistxattr(name, names, sizeof names);
    size_t bytes = 0;
    uint32_t count = 0;
    for (char *at = names; length > 0 && at < names + length && count < ATTRIBUTES_MOST; at += strlen(at) + 1) {
        size_t n = strlen(at) + 1;
        if (!is_users(at) || n >= sizeof value) continue;
        memcpy(value, at, n);
        ssize_t got = lgetxattr(name, at, value + n, sizeof value - n);
        if (got < 0 || bytes + n + (size_t)got > ATTRIBUTES_BYTES) continue;
        bytes += n + (size_t)got;
        count++;
        wire_bytes(frame(), F_ATTRIBUTE, value, n + (size_t)got);
    }
}

/* 0 or an errno. */
int set_attributes(int fd, const message *m) {
    const uint8_t *at = m->attributes;
    for (uint32_t i = 0; i < m->attribute_count; at += m->attribute_lengths[i++]) {
        const uint8_t *nul = memchr(at, 0, m->attribute_lengths[i]);
        if (!nul || !is_users((const char *)at)) return EINVAL;
        if (fsetxattr(fd, (const char *)at, nul + 1, m->attribute_lengths[i] - (size_t)(nul + 1 - at), 0) < 0) return errno;
    }
    return 0;
}
