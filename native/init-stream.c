/*
 * The bytes of one exec. Output goes from pipe to ring to client; a full ring stops the reading, and so, in the end, the writer. Input goes straight from the
 * client's frame into the pipe, and what does not fit into a bounded buffer.
 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

void stream_init(exec *e, int index, int fd, uint64_t cap) {
    stream *s = &e->out[index];
    s->src = (source){index == 0 ? SOURCE_STDOUT : SOURCE_STDERR, e};
    s->fd = fd;
    s->eof = fd < 0;
    s->cap = cap;
    s->left = -1;
}

static uint64_t room(const stream *s) {
    return RING_BYTES - (s->tail - s->base);
}

static bool ring_map(stream *s) {
    if (s->ring) return true;
    void *p = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    /* No supervisor needs a copy of it. */
    if (p != MAP_FAILED && W.apart) madvise(p, RING_BYTES, MADV_DONTFORK);
    if (p == MAP_FAILED) return false;
    s->ring = p;
    s->origin = s->tail;
    return true;
}

/* Gives the ring back when it holds nothing and nothing more will come. */
void stream_trim(stream *s) {
    if (s->ring && s->base == s->tail) {
        munmap(s->ring, RING_BYTES);
        s->ring = NULL;
    }
}

void stream_close(stream *s) {
    if (s->fd >= 0) {
        if (s->armed) unwatch(s->fd);
        close(s->fd);
    }
    s->fd = -1;
    s->armed = false;
    s->eof = true;
}

/* Watches the pipe exactly while a read of it would have somewhere to go. */
void stream_arm(exec *e, int index) {
    stream *s = &e->out[index];
    if (s->fd < 0) return;
    bool want;
    if (e->finished) want = true;
    else if (e->main_done && s->left == 0) want = false;
    else if (s->tail >= s->cap) want = true;
    else want = s->armed ? room(s) > 0 : room(s) >= CHUNK_BYTES;
    if (want == s->armed) return;
    if (!want) unwatch(s->fd);
    else if (!watch(s->fd, &s->src, EPOLLIN)) return;
    s->armed = want;
}

static void copy_in(stream *s, const uint8_t *data, uint64_t len) {
    while (len > 0 && ring_map(s)) {
        uint64_t at = (s->tail - s->origin) % RING_BYTES;
        uint64_t n = len < RING_BYTES - at ? len : RING_BYTES - at;
        memcpy(s->ring + at, data, n);
        s->tail += n;
        data += n;
        len -= n;
    }
}

/* Init's own word on a stream, where the command could not be started. Short, into an empty ring. */
void stream_text(exec *e, int index, const char *text) {
    stream *s = &e->out[index];
    uint64_t len = strlen(text);
    s->total += len;
    if (len > s->cap - s->tail) {
        len = s->cap - s->tail;
        e->truncated = true;
    }
    copy_in(s, (const uint8_t *)text, len);
}

/* One read; false when there is nothing more to read now. */
static bool read_once(exec *e, stream *s) {
    uint8_t *into = scratch;
    uint64_t want = SCRATCH_BYTES;
    int waiting = 1;
    /* The usual end of a quiet command needs no memory for what it did not say. */
    if (!s->ring && ioctl(s->fd, FIONREAD, &waiting) == 0 && waiting == 0) into = NULL;
    bool keep = into && !e->finished && s->tail < s->cap && ring_map(s);
    if (!into) into = scratch;
    if (keep) {
        if (s->base == s->tail) s->origin = s->tail;
        uint64_t at = (s->tail - s->origin) % RING_BYTES;
        into = s->ring + at;
        want = RING_BYTES - at;
        if (want > room(s)) want = room(s);
        if (want > s->cap - s->tail) want = s->cap - s->tail;
    }
    if (!e->finished && s->left >= 0 && want > (uint64_t)s->left) want = (uint64_t)s->left;
    if (want == 0) return false;
    ssize_t n = read(s->fd, into, want);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        /* End of file, or EIO from a terminal that nobody holds any more. */
        stream_close(s);
        return false;
    }
    if (e->finished) return true;
    if (n >= 65536 && !s->widened && !e->tty) {
        /* Fewer turns between a loud command and init. Where the user's share of pipe memory is used up, it stays as it is. */
        fcntl(s->fd, F_SETPIPE_SZ, PIPE_BYTES);
        s->widened = true;
    }
    s->total += (uint64_t)n;
    if (keep) s->tail += (uint64_t)n;
    else e->truncated = true;
    if (s->left > 0) s->left -= n;
    return true;
}

void stream_readable(exec *e, int index) {
    stream *s = &e->out[index];
    /* Bounded, so that one loud command does not keep init from the others. */
    for (int i = 0; i < 4 && s->fd >= 0 && read_once(e, s); i++) {
        if (e->conn && s->tail - s->sent >= CHUNK_BYTES) break;
    }
    stream_arm(e, index);
}

void stream_credit(exec *e, int index, uint64_t offset) {
    stream *s = &e->out[index];
    if (offset > s->sent) offset = s->sent;
    if (offset > s->base) s->base = offset;
    if (s->eof || e->finished) stream_trim(s);
    stream_arm(e, index);
}

/* Writes what the pipe takes; -1 when the reader is gone. */
static int64_t push(exec *e, const uint8_t *data, uint32_t len) {
    uint32_t done = 0;
    while (done < len) {
        ssize_t n = write(e->in_fd, data + done, len - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) return -1;
        done += (uint32_t)n;
    }
    return done;
}

void stdin_close(exec *e) {
    if (e->in_fd >= 0) {
        if (e->in_armed) unwatch(e->in_fd);
        close(e->in_fd);
        e->in_dirty = true;
    }
    e->in_fd = -1;
    e->in_armed = false;
    if (e->in_buf) munmap(e->in_buf, STDIN_BYTES);
    e->in_buf = NULL;
    e->in_head = e->in_len = 0;
}

static void consumed(exec *e, uint64_t n) {
    if (n == 0) return;
    e->in_consumed += n;
    e->in_dirty = true;
}

/* False when the client sent more than its credit allows. */
bool stdin_write(exec *e, const uint8_t *data, uint32_t len) {
    if (e->in_fd < 0 || e->in_eof) return true;
    if (e->in_len == 0) {
        int64_t n = push(e, data, len);
        if (n < 0) {
            stdin_close(e);
            return true;
        }
        consumed(e, (uint64_t)n);
        data += n;
        len -= (uint32_t)n;
    }
    if (len == 0) return true;
    if (len > STDIN_BYTES - e->in_len) return false;
    if (!e->in_buf) {
        void *p = mmap(NULL, STDIN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return false;
        e->in_buf = p;
    }
    if (len > STDIN_BYTES - e->in_head - e->in_len) {
        memmove(e->in_buf, e->in_buf + e->in_head, e->in_len);
        e->in_head = 0;
    }
    memcpy(e->in_buf + e->in_head + e->in_len, data, len);
    e->in_len += len;
    if (!e->in_armed) e->in_armed = watch(e->in_fd, &e->in_src, EPOLLOUT);
    return true;
}

static void finish_input(exec *e) {
    if (!e->tty) {
        stdin_close(e);
        return;
    }
    /* A terminal has no end of file but this character, at the start of a line. */
    ssize_t ignored = write(e->in_fd, "\004", 1);
    (void)ignored;
}

void stdin_writable(exec *e) {
    if (e->in_fd < 0) return;
    int64_t n = push(e, e->in_buf + e->in_head, e->in_len);
    if (n < 0) {
        stdin_close(e);
        return;
    }
    consumed(e, (uint64_t)n);
    e->in_head += (uint32_t)n;
    e->in_len -= (uint32_t)n;
    if (e->in_len > 0) return;
    e->in_head = 0;
    unwatch(e->in_fd);
    e->in_armed = false;
    if (e->in_eof) finish_input(e);
}

void stdin_end(exec *e) {
    if (e->in_eof) return;
    e->in_eof = true;
    if (e->in_fd >= 0 && e->in_len == 0) finish_input(e);
}
