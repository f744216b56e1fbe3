/*
 * Connections of the controller. Each is bounded by itself: one that sends garbage is closed, one that does not read its answers is no longer read from, one
 * that does not take output stops only the commands that it is attached to.
 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Marks for the sweep; the memory stays until the current batch of events is over. */
void connection_break(connection *c) {
    if (c->dead) return;
    c->dead = true;
    unwatch(c->fd);
    close(c->fd);
    if (c->passed_fd >= 0) close(c->passed_fd);
    for (uint32_t i = 0; i < W.exec_count; i++) {
        if (W.execs[i]->conn == c) exec_detach(W.execs[i]);
    }
}

static void drop_one(void) {
    /* Out of descriptors: without the spare one the listener would stay readable for ever. */
    close(W.spare);
    int fd = accept4(W.listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    W.spare = fcntl(W.devnull, F_DUPFD_CLOEXEC, 3);
}

void connection_accept(void) {
    int fd = accept4(W.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE) drop_one();
        return;
    }
    bool allowed = !W.guest || guest_peer_allowed(fd);
    connection *c = allowed && W.connection_count < MAX_CONNECTIONS ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        close(fd);
        return;
    }
    int size = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    c->src = (source){SOURCE_CONNECTION, c};
    c->fd = fd;
    c->passed_fd = -1;
    c->events = W.waiting ? 0 : EPOLLIN;
    if (!watch(fd, &c->src, c->events)) {
        close(fd);
        free(c);
        return;
    }
    c->next = W.connections;
    W.connections = c;
    W.connection_count++;
}

static void want_events(connection *c, uint32_t events) {
    if (c->dead || c->events == events) return;
    struct epoll_event ev = {.events = events, .data.ptr = &c->src};
    epoll_ctl(W.epoll, EPOLL_CTL_MOD, c->fd, &ev);
    c->events = events;
}

/* What came in while init waited for its root is read now. */
void connections_begin(void) {
    for (connection *c = W.connections; c; c = c->next) want_events(c, EPOLLIN);
}

static void queue(connection *c, const struct iovec *parts, int count, size_t skip) {
    for (int i = 0; i < count; i++) {
        size_t n = parts[i].iov_len;
        const uint8_t *data = parts[i].iov_base;
        if (skip >= n) {
            skip -= n;
            continue;
        }
        data += skip;
        n -= skip;
        skip = 0;
        if (c->out_len + n > c->out_cap) {
            size_t cap = c->out_len + n + 1024;
            uint8_t *grown = realloc(c->out, cap);
            if (!grown) {
                connection_break(c);
                return;
            }
            c->out = grown;
            c->out_cap = cap;
        }
        memcpy(c->out + c->out_len, data, n);
        c->out_len += n;
    }
}

/* Sends what fits and keeps the rest. Callers check out_len first where they send bulk. */
static void send_parts(connection *c, struct iovec *parts, int count) {
    if (c->dead) return;
    ssize_t sent = 0;
    if (c->out_len == 0) {
        struct msghdr msg = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        sent = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS) {
            connection_break(c);
            return;
        }
        if (sent < 0) sent = 0;
    }
    queue(c, parts, count, (size_t)sent);
}

void connection_notify(connection *c, wire_writer *w) {
    struct iovec part = {w->buf, w->len};
    send_parts(c, &part, 1);
}

/*
 * Small frames of one pump go out together: what a short command said, that it started and that it ended are one message, and wake the client once. `gathered`
 * is empty between pumps.
 */
static uint8_t gathered[4096];
static size_t gathered_len;

static void send_gathered(connection *c) {
    struct iovec part = {gathered, gathered_len};
    gathered_len = 0;
    if (part.iov_len > 0) send_parts(c, &part, 1);
}

/* Like send_parts, or kept for send_gathered. */
static void gather(connection *c, struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    if (size > sizeof gathered - gathered_len) send_gathered(c);
    if (size > sizeof gathered) {
        send_parts(c, parts, count);
        return;
    }
    for (int i = 0; i < count; i++) {
        memcpy(gathered + gathered_len, parts[i].iov_base, parts[i].iov_len);
        gathered_len += parts[i].iov_len;
    }
}

static void gather_frame(connection *c, wire_writer *w) {
    struct iovec part = {w->buf, w->len};
    gather(c, &part, 1);
}

static void flush(connection *c) {
    while (c->out_len > 0) {
        ssize_t n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;
        if (n <= 0) {
            connection_break(c);
            return;
        }
        c->out_len -= (size_t)n;
        memmove(c->out, c->out + n, c->out_len);
    }
    free(c->out);
    c->out = NULL;
    c->out_cap = 0;
}

void answer_error(connection *c, uint32_t ref, const char *code, const char *message) {
    uint8_t buf[512];
    wire_writer w = wire_writer_on(buf, sizeof buf);
    wire_error(&w, ref, code, message);
    connection_notify(c, &w);
}

static void send_started(connection *c, exec *e) {
    uint8_t buf[256];
    wire_writer w = wire_writer_on(buf, sizeof buf);
    wire_begin(&w, ANS_STARTED, e->ref);
    wire_put_u64(&w, TAG_PID, (uint64_t)e->main_pid);
    wire_put_u64(&w, TAG_STDOUT, e->out[0].sent);
    wire_put_u64(&w, TAG_STDERR, e->out[1].sent);
    wire_put_u64(&w, TAG_ACCEPTED, e->in_consumed + e->in_len);
    wire_put_u64(&w, TAG_ATTACHED, e->attached);
    wire_end(&w);
    e->started_sent = true;
    gather_frame(c, &w);
}

static bool send_chunk(connection *c, exec *e, int index) {
    stream *s = &e->out[index];
    if (s->sent >= s->tail || !s->ring) return false;
    uint64_t at = (s->sent - s->origin) % RING_BYTES, n = s->tail - s->sent;
    if (n > CHUNK_BYTES) n = CHUNK_BYTES;
    uint64_t first = n < RING_BYTES - at ? n : RING_BYTES - at;
    uint8_t head[64];
    wire_writer w = wire_writer_on(head, sizeof head);
    wire_begin(&w, ANS_OUTPUT, e->ref);
    wire_put_u64(&w, TAG_STREAM, (uint64_t)index);
    wire_put_u64(&w, TAG_OFFSET, s->sent);
    wire_field_head(&w, TAG_DATA, (uint32_t)n);
    wire_end_with(&w, n);
    struct iovec parts[3] = {{head, w.len}, {s->ring + at, first}, {s->ring, n - first}};
    s->sent += n;
    gather(c, parts, n > first ? 3 : 2);
    return true;
}

static void send_stdin_credit(connection *c, exec *e) {
    uint8_t buf[64];
    wire_writer w = wire_writer_on(buf, sizeof buf);
    wire_begin(&w, ANS_STDIN, e->ref);
    wire_put_u64(&w, TAG_ACCEPTED, e->in_consumed);
    wire_put_u64(&w, TAG_CLOSED, e->in_fd < 0);
    wire_end(&w);
    e->in_dirty = false;
    gather_frame(c, &w);
}

static void send_exit(connection *c, exec *e) {
    uint8_t buf[256];
    wire_writer w = wire_writer_on(buf, sizeof buf);
    int signal = e->status & 0x7f;
    wire_begin(&w, ANS_EXIT, e->ref);
    wire_put_u64(&w, TAG_CODE, signal ? 128u + (uint64_t)signal : (uint64_t)(e->status >> 8 & 0xff));
    wire_put_u64(&w, TAG_SIGNAL, (uint64_t)signal);
    wire_put_u64(&w, TAG_ENDED, (uint64_t)e->ended);
    wire_put_u64(&w, TAG_DURATION_US, e->end_ns > e->start_ns ? (e->end_ns - e->start_ns) / 1000 : 0);
    wire_put_u64(&w, TAG_STDOUT_BYTES, e->out[0].total);
    wire_put_u64(&w, TAG_STDERR_BYTES, e->out[1].total);
    wire_put_u64(&w, TAG_TRUNCATED, e->truncated);
    wire_end(&w);
    e->exit_sent = true;
    gather_frame(c, &w);
}

/* Sends what an exec has; false when nothing was left to send. */
static bool pump_exec(connection *c, exec *e) {
    int state = __atomic_load_n(&e->state, __ATOMIC_ACQUIRE);
    if (state == STATE_STARTING || state == STATE_FAILED) return false;
    if (!e->started_sent) send_started(c, e);
    bool moved = send_chunk(c, e, 0);
    if (c->out_len == 0 && !c->dead) moved |= send_chunk(c, e, 1);
    if (e->in_dirty && !c->dead) send_stdin_credit(c, e);
    if (moved || c->dead) return moved;
    if (e->finished && !e->exit_sent) send_exit(c, e);
    return false;
}

/* Sends whatever is ready as long as the peer takes it. */
void connection_pump(connection *c) {
    if (c->dead) return;
    flush(c);
    for (bool moved = true; moved && !c->dead && c->out_len == 0;) {
        moved = false;
        for (uint32_t i = 0; i < W.exec_count && !c->dead && c->out_len == 0; i++) {
            if (W.execs[i]->conn == c) moved |= pump_exec(c, W.execs[i]);
        }
        send_gathered(c);
    }
    bool congested = c->out_len > ANSWER_BYTES || (c->in_len > 0 && c->kill_all);
    want_events(c, (congested ? 0u : (uint32_t)EPOLLIN) | (c->out_len ? (uint32_t)EPOLLOUT : 0u));
}

void connections_killed_all(bool ok) {
    for (connection *c = W.connections; c; c = c->next) {
        if (!c->kill_all || c->dead) continue;
        c->kill_all = false;
        uint8_t buf[64];
        wire_writer w = wire_writer_on(buf, sizeof buf);
        wire_begin(&w, ANS_OK, c->kill_all_ref);
        wire_end(&w);
        if (ok) connection_notify(c, &w);
        else answer_error(c, c->kill_all_ref, "timeout", "some processes did not die");
        connection_pump(c);
    }
}

static ssize_t receive(connection *c, void *into, size_t size) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {into, size};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return n;
    struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof(int))) {
        if (c->passed_fd >= 0) close(c->passed_fd);
        memcpy(&c->passed_fd, CMSG_DATA(h), sizeof(int));
    }
    return n;
}

/* Keeps the unprocessed tail of what was received, with room for the frame that it begins. */
static bool keep_rest(connection *c, const uint8_t *data, size_t len, size_t need) {
    size_t cap = need > len ? need : len;
    if (len == 0) {
        free(c->in);
        c->in = NULL;
        c->in_len = c->in_cap = 0;
        return true;
    }
    if (data == c->in && cap <= c->in_cap) return true;
    uint8_t *fresh = malloc(cap);
    if (!fresh) return false;
    memcpy(fresh, data, len);
    free(c->in);
    c->in = fresh;
    c->in_len = len;
    c->in_cap = cap;
    return true;
}

static void process(connection *c, const uint8_t *data, size_t len) {
    size_t at = 0, need = 0;
    while (!c->dead && c->out_len <= ANSWER_BYTES && !c->kill_all) {
        wire_frame f;
        int got = wire_parse(data + at, len - at, &f, &need);
        if (got < 0) {
            connection_break(c);
            return;
        }
        if (got == 0) break;
        at += f.total;
        request(c, &f);
    }
    if (!c->dead && !keep_rest(c, data + at, len - at, need)) connection_break(c);
}

/* Requests that waited for the peer to take its answers, or for an answer that takes its time. */
static void resume(connection *c) {
    wire_frame f;
    if (c->kill_all || c->out_len > ANSWER_BYTES || wire_parse(c->in, c->in_len, &f, NULL) == 0) return;
    process(c, c->in, c->in_len);
    connection_pump(c);
}

void connections_sweep(void) {
    for (connection **at = &W.connections; *at;) {
        connection *c = *at;
        if (!c->dead && c->in_len) resume(c);
        if (!c->dead) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        W.connection_count--;
        free(c->in);
        free(c->out);
        free(c);
    }
}

void connection_readable(connection *c) {
    if (c->dead) return;
    ssize_t n;
    /* A full buffer holds whole requests that wait: the sweep takes them up. */
    if (c->in_len && c->in_len == c->in_cap) return;
    if (c->in_len) n = receive(c, c->in + c->in_len, c->in_cap - c->in_len);
    else n = receive(c, scratch, SCRATCH_BYTES);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        connection_break(c);
        return;
    }
    if (c->in_len) {
        c->in_len += (size_t)n;
        process(c, c->in, c->in_len);
    } else {
        process(c, scratch, (size_t)n);
    }
    connection_pump(c);
}
