/* Frames on stdin and stdout. */
#include "files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUT_BYTES = 256 << 10 };

static uint8_t in[WIRE_FRAME_MAX + 4 + 65536];
static size_t in_at, in_len;
static uint8_t out[OUT_BYTES];
static wire_writer writer = {.buf = out, .cap = OUT_BYTES};

void out_flush(void) {
    for (size_t at = 0; at < writer.len;) {
        ssize_t n = write(1, out + at, writer.len - at);
        if (n < 0 && errno == EINTR) continue;
        /* Nobody reads any more: nothing is left to do. */
        if (n <= 0) _exit(1);
        at += (size_t)n;
    }
    writer.len = 0;
}

wire_writer *frame(void) {
    return &writer;
}

void frame_begin(uint8_t type) {
    if (writer.len > OUT_BYTES - 4 * PATH_BYTES) out_flush();
    wire_begin(&writer, type, 0);
}

void frame_send(void) {
    wire_end(&writer);
}

void fail(int error, const char *what, const char *path) {
    char text[PATH_BYTES + 256];
    size_t n = 0;
    const char *parts[] = {what, path ? " " : "", path ? path : "", ": ", errno_text(error)};
    for (size_t i = 0; i < 5; i++) {
        size_t len = strlen(parts[i]);
        if (len > sizeof text - 1 - n) len = sizeof text - 1 - n;
        memcpy(text + n, parts[i], len);
        n += len;
    }
    text[n] = 0;
    if (writer.len > OUT_BYTES - 4 * PATH_BYTES) out_flush();
    wire_error(&writer, 0, errno_name(error), text);
    out_flush();
    _exit(0);
}

void refuse(const char *path, const char *reason) {
    frame_begin(FILES_REFUSED);
    wire_text(&writer, F_PATH, path);
    wire_text(&writer, F_REASON, reason);
    frame_send();
}

/* Room for DATA_BYTES of a data frame in the output buffer itself. */
uint8_t *data_room(uint8_t type) {
    if (writer.len + WIRE_HEAD_BYTES + WIRE_FIELD_BYTES + DATA_BYTES > OUT_BYTES) out_flush();
    wire_begin(&writer, type, 0);
    return out + writer.len + WIRE_FIELD_BYTES;
}

void data_send(size_t len) {
    wire_field_head(&writer, F_DATA, (uint32_t)len);
    writer.len += len;
    wire_end(&writer);
}

static bool take(const wire_field *f, message *m) {
    if (f->tag > F_ATTRIBUTE) return false;
    bool again = has(m, f->tag);
    m->seen |= 1u << f->tag;
    switch (f->tag) {
    case F_EXCLUDE: {
        char *copy;
        if (m->exclude_count >= EXCLUDES_MOST || f->len >= PATH_BYTES || !(copy = malloc(f->len + 1))) return false;
        m->excludes[m->exclude_count++] = copy;
        return wire_str(f, copy, f->len + 1);
    }
    case F_ATTRIBUTE:
        if (m->attribute_count >= ATTRIBUTES_MOST || f->len > ATTRIBUTES_BYTES - m->attribute_bytes || (!m->attributes && !(m->attributes = malloc(ATTRIBUTES_BYTES)))) return false;
        memcpy(m->attributes + m->attribute_bytes, f->data, f->len);
        m->attribute_lengths[m->attribute_count++] = f->len;
        m->attribute_bytes += f->len;
        return true;
    case F_PATH: return !again && wire_str(f, m->path, PATH_BYTES);
    case F_TO: return !again && wire_str(f, m->to, PATH_BYTES);
    case F_TARGET: return !again && wire_str(f, m->target, PATH_BYTES);
    case F_DATA:
        m->data = f->data;
        m->data_len = f->len;
        return !again;
    case F_MAX: return wire_u64(f, &m->max);
    case F_MODE: return wire_u64(f, &m->mode) && m->mode <= 07777;
    case F_UID: return wire_u64(f, &m->uid) && m->uid < UINT32_MAX;
    case F_GID: return wire_u64(f, &m->gid) && m->gid < UINT32_MAX;
    case F_KIND: return wire_u64(f, &m->kind);
    case F_SIZE: return wire_u64(f, &m->size);
    case F_RECURSIVE: return wire_u64(f, &m->recursive);
    case F_MTIME: return wire_i64(f, &m->mtime_ns);
    default: return false;
    }
}

/* The next message; false at the end of the stream. Its data stay valid until the next call. */
bool message_read(message *m) {
    wire_frame f;
    size_t need;
    int got;
    while ((got = wire_parse(in + in_at, in_len - in_at, &f, &need)) == 0) {
        if (in_at + need > sizeof in || in_at == in_len) {
            memmove(in, in + in_at, in_len - in_at);
            in_len -= in_at;
            in_at = 0;
        }
        ssize_t n = read(0, in + in_len, sizeof in - in_len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        in_len += (size_t)n;
    }
    if (got < 0) fail(EBADMSG, "the stream", NULL);
    in_at += f.total;
    m->type = f.type;
    m->seen = 0;
    m->exclude_count = m->attribute_count = m->attribute_bytes = 0;
    m->mode = m->kind = m->size = m->max = m->uid = m->gid = m->recursive = 0;
    m->mtime_ns = 0;
    m->path[0] = m->to[0] = m->target[0] = 0;
    m->data = NULL;
    m->data_len = 0;
    wire_cursor c = wire_fields(&f);
    for (wire_field field; wire_next(&c, &field);) {
        if (!take(&field, m)) fail(EBADMSG, "the stream", NULL);
    }
    return true;
}
