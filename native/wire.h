/*
 * Frames of the spawner, init, files and tree protocols: reading and writing, without allocation and without trust.
 *
 *   u32 length   bytes that follow, WIRE_HEAD_BYTES - 4 .. WIRE_FRAME_MAX
 *   u8  type
 *   u32 ref      request number chosen by the client, or an exec's handle
 *   fields       u16 tag, u32 length, bytes ... until the frame ends
 *
 * Everything is little-endian. A reader sees a frame only after every field of it has been checked to lie within it. Machines that this runs on are
 * little-endian, which the assertion below holds.
 */
#ifndef MW_WIRE_H
#define MW_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

/* Most bytes after the length word: LIMITS.frameBytes in src/core/limits.ts. */
#define WIRE_FRAME_MAX (1024u * 1024u)
/* Length word, type, ref. */
#define WIRE_HEAD_BYTES 9u
#define WIRE_FIELD_BYTES 6u
/* Type of an error answer in all protocols, and its fields. */
#define WIRE_ERROR 255
#define WIRE_ERROR_CODE 1
#define WIRE_ERROR_MESSAGE 2

typedef struct {
    uint8_t type;
    uint32_t ref;
    const uint8_t *fields;
    uint32_t fields_len;
    /* Bytes of the whole frame, length word included. */
    uint32_t total;
} wire_frame;

typedef struct {
    uint16_t tag;
    uint32_t len;
    const uint8_t *data;
} wire_field;

/* Walks the fields of a checked frame. */
typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} wire_cursor;

static inline uint32_t wire_get_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint16_t wire_get_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

/* 1: `out` is a whole frame, its fields checked. 0: more bytes are needed (*need tells how many in all, when not NULL). -1: broken, close the connection. */
static inline int wire_parse(const uint8_t *buf, size_t len, wire_frame *out, size_t *need) {
    if (need) *need = WIRE_HEAD_BYTES;
    if (len < 4) return 0;
    uint32_t body = wire_get_u32(buf);
    if (body < WIRE_HEAD_BYTES - 4 || body > WIRE_FRAME_MAX) return -1;
    if (need) *need = (size_t)body + 4;
    if (len < (size_t)body + 4) return 0;
    out->type = buf[4];
    out->ref = wire_get_u32(buf + 5);
    out->fields = buf + WIRE_HEAD_BYTES;
    out->fields_len = body + 4 - WIRE_HEAD_BYTES;
    out->total = body + 4;
    for (const uint8_t *p = out->fields, *end = p + out->fields_len; p < end;) {
        if ((size_t)(end - p) < WIRE_FIELD_BYTES) return -1;
        uint32_t n = wire_get_u32(p + 2);
        p += WIRE_FIELD_BYTES;
        if (n > (size_t)(end - p)) return -1;
        p += n;
    }
    return 1;
}

static inline wire_cursor wire_fields(const wire_frame *f) {
    return (wire_cursor){f->fields, f->fields + f->fields_len};
}

/* False at the end. The frame must have come from wire_parse. */
static inline bool wire_next(wire_cursor *c, wire_field *out) {
    if (c->at >= c->end) return false;
    out->tag = wire_get_u16(c->at);
    out->len = wire_get_u32(c->at + 2);
    out->data = c->at + WIRE_FIELD_BYTES;
    c->at = out->data + out->len;
    return true;
}

/* False unless the field is exactly 8 bytes. */
static inline bool wire_u64(const wire_field *f, uint64_t *out) {
    if (f->len != 8) return false;
    memcpy(out, f->data, 8);
    return true;
}

static inline bool wire_i64(const wire_field *f, int64_t *out) {
    if (f->len != 8) return false;
    memcpy(out, f->data, 8);
    return true;
}

/* Copies the field as a C string; false when it does not fit or holds a NUL (a name with one is never what it seems). */
static inline bool wire_str(const wire_field *f, char *out, size_t size) {
    if (f->len >= size || memchr(f->data, 0, f->len)) return false;
    memcpy(out, f->data, f->len);
    out[f->len] = 0;
    return true;
}

/* Writes frames one after the other into a caller's buffer. After an overflow every call is a no-op and wire_end returns false. */
typedef struct {
    uint8_t *buf;
    size_t cap;
    size_t len;
    size_t start;
    bool overflow;
} wire_writer;

static inline wire_writer wire_writer_on(void *buf, size_t cap) {
    return (wire_writer){.buf = buf, .cap = cap};
}

static inline void wire_raw(wire_writer *w, const void *data, size_t len) {
    if (w->overflow || len > w->cap - w->len) {
        w->overflow = true;
        return;
    }
    if (len) memcpy(w->buf + w->len, data, len);
    w->len += len;
}

static inline void wire_begin(wire_writer *w, uint8_t type, uint32_t ref) {
    uint8_t head[WIRE_HEAD_BYTES] = {0};
    head[4] = type;
    memcpy(head + 5, &ref, 4);
    w->start = w->len;
    wire_raw(w, head, sizeof head);
}

/* The head of a field whose bytes the caller sends by itself (writev): no copy of bulk data. Count them into wire_end's `follows`. */
static inline void wire_field_head(wire_writer *w, uint16_t tag, uint32_t len) {
    uint8_t head[WIRE_FIELD_BYTES];
    memcpy(head, &tag, 2);
    memcpy(head + 2, &len, 4);
    wire_raw(w, head, sizeof head);
}

static inline void wire_bytes(wire_writer *w, uint16_t tag, const void *data, size_t len) {
    if (len > WIRE_FRAME_MAX) {
        w->overflow = true;
        return;
    }
    wire_field_head(w, tag, (uint32_t)len);
    wire_raw(w, data, len);
}

static inline void wire_text(wire_writer *w, uint16_t tag, const char *text) {
    wire_bytes(w, tag, text, strlen(text));
}

static inline void wire_put_u64(wire_writer *w, uint16_t tag, uint64_t value) {
    wire_bytes(w, tag, &value, 8);
}

static inline void wire_put_i64(wire_writer *w, uint16_t tag, int64_t value) {
    wire_bytes(w, tag, &value, 8);
}

/* Closes the frame; `follows` bytes of its last field are sent by the caller. False when it did not fit (the buffer then ends where the frame began). */
static inline bool wire_end_with(wire_writer *w, size_t follows) {
    size_t body = w->overflow ? 0 : w->len - w->start - 4 + follows;
    if (w->overflow || body > WIRE_FRAME_MAX) {
        w->overflow = false;
        w->len = w->start;
        return false;
    }
    uint32_t length = (uint32_t)body;
    memcpy(w->buf + w->start, &length, 4);
    return true;
}

static inline bool wire_end(wire_writer *w) {
    return wire_end_with(w, 0);
}

/* `code`: an errno name or a word of the protocol. */
static inline bool wire_error(wire_writer *w, uint32_t ref, const char *code, const char *message) {
    wire_begin(w, WIRE_ERROR, ref);
    wire_text(w, WIRE_ERROR_CODE, code);
    wire_text(w, WIRE_ERROR_MESSAGE, message);
    return wire_end(w);
}

#endif
