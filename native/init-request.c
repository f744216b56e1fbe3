/* The requests: each is checked whole before anything is done; an unknown type or tag is refused, never ignored. */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_ANSWER = 0, COUNT_MOST = 65536, DEADLINE_MOST_MS = 1u << 31 };

/* What any request may carry; which of them are present is in `seen`, a bit a tag. */
typedef struct {
    uint64_t seen;
    const uint8_t *id;
    uint32_t id_len;
    uint64_t values[32];
    const uint8_t *data;
    uint32_t data_len;
    uint32_t args, envs;
    size_t text_bytes;
} fields;

static bool has(const fields *q, int tag) {
    return q->seen >> tag & 1;
}

/* False when a field is unknown here, repeated where it must not be, or malformed. */
static bool collect(const wire_frame *f, uint64_t allowed, fields *q) {
    memset(q, 0, sizeof *q);
    wire_cursor c = wire_fields(f);
    for (wire_field field; wire_next(&c, &field);) {
        if (field.tag >= 32 || !(allowed >> field.tag & 1)) return false;
        bool repeats = field.tag == TAG_ARG || field.tag == TAG_ENV;
        if (!repeats && has(q, field.tag)) return false;
        q->seen |= 1ull << field.tag;
        switch (field.tag) {
        case TAG_ID:
            if (field.len == 0 || field.len > ID_BYTES) return false;
            q->id = field.data;
            q->id_len = field.len;
            break;
        case TAG_ARG: case TAG_ENV: case TAG_CWD: case TAG_USER:
            if (memchr(field.data, 0, field.len)) return false;
            q->text_bytes += field.len + 1;
            if (field.tag == TAG_ARG) q->args++;
            if (field.tag == TAG_ENV) q->envs++;
            break;
        case TAG_DATA:
            q->data = field.data;
            q->data_len = field.len;
            break;
        default:
            if (!wire_u64(&field, &q->values[field.tag])) return false;
        }
    }
    return q->args <= COUNT_MOST && q->envs <= COUNT_MOST;
}

#define BIT(tag) (1ull << (tag))

static void answer_ok(connection *c, uint32_t ref);

static bool size_valid(const fields *q) {
    return q->values[TAG_COLUMNS] <= 65535 && q->values[TAG_ROWS] <= 65535;
}

/* Texts of the frame as C strings in one block together with the arrays that point to them. */
static launch *launch_build(const wire_frame *f, const fields *q) {
    size_t pointers = (size_t)q->args + 1 + q->envs + 4;
    launch *l = malloc(sizeof *l + pointers * sizeof(char *) + q->text_bytes);
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    l->argv = (char **)(l + 1);
    l->envp = l->argv + q->args + 1;
    char *text = (char *)(l->argv + pointers);
    size_t argc = 0;
    l->cwd = "/";
    l->user = "";
    wire_cursor c = wire_fields(f);
    for (wire_field field; wire_next(&c, &field);) {
        if (field.tag == TAG_ARG) l->argv[argc++] = text;
        else if (field.tag == TAG_ENV) l->envp[l->envc++] = text;
        else if (field.tag == TAG_CWD) l->cwd = text;
        else if (field.tag == TAG_USER) l->user = text;
        else continue;
        memcpy(text, field.data, field.len);
        text[field.len] = 0;
        text += field.len + 1;
    }
    l->argv[argc] = NULL;
    l->envp[l->envc] = NULL;
    return l;
}

static void close_pair(int pair[2]) {
    if (pair[0] >= 0) close(pair[0]);
    if (pair[1] >= 0) close(pair[1]);
}

/* The only flag of ours that can be set. */
static void nonblocking(int fd) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

/* The terminal comes from the devpts of the machine's start, whatever /dev holds by now. */
static const char *open_terminal(exec *e, const fields *q) {
    struct stat st;
    int lock = 0;
    int master = W.devpts < 0 ? -1 : openat(W.devpts, "ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (master < 0 || fstat(master, &st) < 0 || !S_ISCHR(st.st_mode) || ioctl(master, TIOCSPTLCK, &lock) < 0) {
        if (master >= 0) close(master);
        return "no_pty";
    }
    struct winsize size = {.ws_col = (unsigned short)q->values[TAG_COLUMNS], .ws_row = (unsigned short)q->values[TAG_ROWS]};
    ioctl(master, TIOCSWINSZ, &size);
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    int input = fcntl(master, F_DUPFD_CLOEXEC, 5);
    if (slave < 0 || input < 0) {
        close(master);
        if (slave >= 0) close(slave);
        if (input >= 0) close(input);
        return "no_pty";
    }
    e->tty = e->launch->tty = true;
    e->in_fd = input;
    for (int i = 0; i < 3; i++) e->launch->fds[i] = slave;
    stream_init(e, 0, master, q->values[TAG_CAP]);
    return NULL;
}

static const char *open_pipes(exec *e, const fields *q) {
    int out[2] = {-1, -1}, err[2] = {-1, -1}, in[2] = {-1, -1};
    bool open = q->values[TAG_STDIN] == STDIN_OPEN;
    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 || (open && pipe2(in, O_CLOEXEC) < 0)) {
        const char *code = errno_name(errno);
        close_pair(out);
        close_pair(err);
        return code;
    }
    nonblocking(out[0]);
    nonblocking(err[0]);
    if (open) nonblocking(in[1]);
    e->launch->fds[0] = open ? in[0] : W.devnull;
    e->launch->fds[1] = out[1];
    e->launch->fds[2] = err[1];
    e->in_fd = in[1];
    stream_init(e, 0, out[0], q->values[TAG_CAP]);
    stream_init(e, 1, err[0], q->values[TAG_CAP]);
    return NULL;
}

static void attach(connection *c, uint32_t ref, exec *e, uint64_t out, uint64_t err) {
    if (e->conn) {
        uint8_t buf[32];
        wire_writer w = wire_writer_on(buf, sizeof buf);
        wire_begin(&w, ANS_DETACHED, e->ref);
        wire_end(&w);
        connection_notify(e->conn, &w);
    }
    uint64_t from[2] = {out, err};
    for (int i = 0; i < 2; i++) {
        stream *s = &e->out[i];
        if (from[i] > s->tail) from[i] = s->tail;
        /* What was acknowledged is gone; what lies before the asked offset is acknowledged by the asking. */
        s->sent = from[i] > s->base ? from[i] : s->base;
        stream_credit(e, i, from[i]);
    }
    e->conn = c;
    e->ref = ref;
    e->attached = true;
    e->exit_sent = e->started_sent = false;
    e->in_dirty = e->in_fd >= 0;
}

static void start(connection *c, const wire_frame *f) {
    fields q;
    uint64_t allowed = BIT(TAG_ID) | BIT(TAG_ARG) | BIT(TAG_ENV) | BIT(TAG_CWD) | BIT(TAG_USER) | BIT(TAG_STDIN) | BIT(TAG_COLUMNS) | BIT(TAG_ROWS) | BIT(TAG_DEADLINE_MS) | BIT(TAG_CAP);
    if (!collect(f, allowed, &q) || !q.id || q.args == 0 || !size_valid(&q) || q.values[TAG_DEADLINE_MS] > DEADLINE_MOST_MS || q.values[TAG_STDIN] > STDIN_OPEN) {
        answer_error(c, f->ref, "EINVAL", "a malformed start request");
        return;
    }
    if (!has(&q, TAG_CAP)) q.values[TAG_CAP] = UINT64_MAX;
    exec *e = exec_find(q.id, q.id_len);
    if (e) {
        attach(c, f->ref, e, 0, 0);
        return;
    }
    exec_make_room();
    if (W.kill_all_ns || execs_running() >= MAX_RUNNING) {
        answer_error(c, f->ref, W.kill_all_ns ? "EBUSY" : "limit", W.kill_all_ns ? "all processes are being killed" : "too many execs at once");
        return;
    }
    e = exec_new();
    if (!e || !(e->launch = launch_build(f, &q))) {
        if (e) exec_free(e);
        answer_error(c, f->ref, e ? "ENOMEM" : "limit", "no room for another exec");
        return;
    }
    memcpy(e->id, q.id, q.id_len);
    e->id_len = (uint8_t)q.id_len;
    const char *failure = has(&q, TAG_COLUMNS) ? open_terminal(e, &q) : open_pipes(e, &q);
    if (failure) {
        exec_free(e);
        answer_error(c, f->ref, failure, "the exec's pipes or terminal could not be made");
        return;
    }
    e->ends_open = true;
    bool ok = exec_spawn(e);
    if (!ok && e->error != EAGAIN && e->error != ENOMEM) {
        int error = e->error;
        exec_free(e);
        answer_error(c, f->ref, errno_name(error), "no process could be made for the exec");
        return;
    }
    if (has(&q, TAG_DEADLINE_MS)) e->deadline_ns = now_ns() + q.values[TAG_DEADLINE_MS] * 1000000u;
    e->conn = c;
    e->ref = f->ref;
    stream_arm(e, 0);
    stream_arm(e, 1);
    if (ok) return;
    /* The machine's own processes left no room for another: a command that could not run, no fault of the request. */
    e->stage = STAGE_FORK;
    e->state = STATE_FAILED;
    exec_progress(e);
    connection_pump(c);
}

static void attach_request(connection *c, const wire_frame *f) {
    fields q;
    if (!collect(f, BIT(TAG_ID) | BIT(TAG_STDOUT) | BIT(TAG_STDERR), &q) || !q.id) {
        answer_error(c, f->ref, "EINVAL", "a malformed attach request");
        return;
    }
    exec *e = exec_find(q.id, q.id_len);
    if (!e) answer_error(c, f->ref, "ENOENT", "no exec with this id");
    else attach(c, f->ref, e, q.values[TAG_STDOUT], q.values[TAG_STDERR]);
}

static exec *by_ref(connection *c, uint32_t ref) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        if (W.execs[i]->conn == c && W.execs[i]->ref == ref) return W.execs[i];
    }
    return NULL;
}

/* Unanswered; for an exec that has just failed or was taken over it means nothing any more. */
static void stdin_request(connection *c, const wire_frame *f) {
    fields q;
    if (!collect(f, BIT(TAG_DATA) | BIT(TAG_EOF), &q)) {
        answer_error(c, f->ref, "EINVAL", "a malformed stdin request");
        return;
    }
    exec *e = by_ref(c, f->ref);
    if (!e || e->finished) return;
    if (q.data_len && !stdin_write(e, q.data, q.data_len)) {
        connection_break(c);
        return;
    }
    if (q.values[TAG_EOF]) stdin_end(e);
}

static void credit_request(connection *c, const wire_frame *f) {
    fields q;
    if (!collect(f, BIT(TAG_STDOUT) | BIT(TAG_STDERR), &q)) {
        answer_error(c, f->ref, "EINVAL", "a malformed credit request");
        return;
    }
    exec *e = by_ref(c, f->ref);
    if (!e) return;
    stream_credit(e, 0, q.values[TAG_STDOUT]);
    stream_credit(e, 1, q.values[TAG_STDERR]);
}

static int signal_exec(exec *e, int signal) {
    pid_t pid = __atomic_load_n(&e->main_pid, __ATOMIC_ACQUIRE);
    if (e->main_done || !pid) return ESRCH;
    /* The group exists once the command has called setsid, which is before its execve. */
    return kill(-pid, signal) == 0 || kill(pid, signal) == 0 ? 0 : errno;
}

static void start_kill(exec *e) {
    if (!e->main_done) e->ended = e->killing ? e->ended : ENDED_KILLED;
    if (e->killing) return;
    e->killing = true;
    e->kill_passes = 0;
    e->kill_at_ns = e->deadline_ns = now_ns();
}

static int resize(exec *e, const fields *q) {
    if (!e->tty || e->out[0].fd < 0) return ENOTTY;
    struct winsize size = {.ws_col = (unsigned short)q->values[TAG_COLUMNS], .ws_row = (unsigned short)q->values[TAG_ROWS]};
    return ioctl(e->out[0].fd, TIOCSWINSZ, &size) == 0 ? 0 : errno;
}

/* Requests about one exec by id that are answered with ok or an error. */
static void act(connection *c, const wire_frame *f, uint64_t allowed) {
    fields q;
    if (!collect(f, allowed | BIT(TAG_ID), &q) || !q.id || !size_valid(&q) || q.values[TAG_SIGNAL] > 64) {
        answer_error(c, f->ref, "EINVAL", "a malformed request");
        return;
    }
    exec *e = exec_find(q.id, q.id_len);
    int error = e ? 0 : ENOENT;
    if (e && f->type == REQ_SIGNAL) error = signal_exec(e, (int)q.values[TAG_SIGNAL]);
    if (e && f->type == REQ_KILL) start_kill(e);
    if (e && f->type == REQ_RESIZE) error = resize(e, &q);
    if (e && f->type == REQ_FORGET) {
        if (e->finished) exec_forget(e);
        else error = EBUSY;
    }
    if (f->ref == NO_ANSWER) return;
    if (error) answer_error(c, f->ref, errno_name(error), errno_text(error));
    else answer_ok(c, f->ref);
}

static void answer_ok(connection *c, uint32_t ref) {
    uint8_t buf[32];
    wire_writer w = wire_writer_on(buf, sizeof buf);
    wire_begin(&w, ANS_OK, ref);
    wire_end(&w);
    connection_notify(c, &w);
}

static void list(connection *c, uint32_t ref) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        exec *e = W.execs[i];
        uint8_t buf[256];
        if (e->gone) continue;
        wire_writer w = wire_writer_on(buf, sizeof buf);
        wire_begin(&w, ANS_ENTRY, ref);
        wire_bytes(&w, TAG_ID, e->id, e->id_len);
        wire_put_u64(&w, TAG_STATE, e->finished ? 2 : e->main_done ? 1 : 0);
        wire_put_u64(&w, TAG_PID, (uint64_t)e->main_pid);
        wire_end(&w);
        connection_notify(c, &w);
    }
    answer_ok(c, ref);
}

static void kill_all(connection *c, uint32_t ref) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        if (!W.execs[i]->main_done) W.execs[i]->ended = ENDED_KILLED;
    }
    c->kill_all = true;
    c->kill_all_ref = ref;
    if (!W.kill_all_ns) W.kill_all_ns = now_ns();
}

/* A spawner that takes over a machine hands init the lifeline that it now holds the other end of. */
static void take_lifeline(connection *c, uint32_t ref) {
    if (c->passed_fd < 0) {
        answer_error(c, ref, "EINVAL", "no descriptor came with the request");
        return;
    }
    static source src = {SOURCE_LIFELINE, NULL};
    if (W.lifeline >= 0) {
        unwatch(W.lifeline);
        close(W.lifeline);
    }
    W.lifeline = c->passed_fd;
    c->passed_fd = -1;
    W.lifeline_end_ns = 0;
    nonblocking(W.lifeline);
    watch(W.lifeline, &src, EPOLLIN);
    answer_ok(c, ref);
}

void request(connection *c, const wire_frame *f) {
    switch (f->type) {
    case REQ_START: start(c, f); return;
    case REQ_ATTACH: attach_request(c, f); return;
    case REQ_STDIN: stdin_request(c, f); return;
    case REQ_CREDIT: credit_request(c, f); return;
    case REQ_SIGNAL: act(c, f, BIT(TAG_SIGNAL)); return;
    case REQ_KILL: act(c, f, 0); return;
    case REQ_RESIZE: act(c, f, BIT(TAG_COLUMNS) | BIT(TAG_ROWS)); return;
    case REQ_FORGET: act(c, f, 0); return;
    default: break;
    }
    if (f->fields_len) {
        answer_error(c, f->ref, "EINVAL", "unknown request or unexpected fields");
        return;
    }
    switch (f->type) {
    case REQ_LIST: list(c, f->ref); return;
    case REQ_KILL_ALL: kill_all(c, f->ref); return;
    case REQ_PING: answer_ok(c, f->ref); return;
    case REQ_LIFELINE: take_lifeline(c, f->ref); return;
    default: answer_error(c, f->ref, "EINVAL", "unknown request"); return;
    }
}
