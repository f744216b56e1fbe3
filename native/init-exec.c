/*
 * The table of execs and their life: starting -> running -> main process exited -> output drained = finished -> forgotten -> gone.
 *
 * An exec is finished when its main process has exited and what that process had written is in the rings. A background process that still holds the pipe does
 * not delay it: the number of bytes in the pipe at the exit is what is left to read. After that the pipe is drained into nothing, so that the background
 * process neither blocks nor dies of a closed pipe.
 */
#include "init.h"

#include <sys/mman.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const uint64_t MS = 1000000;
enum { QUIET_MS = 10, QUIET_MOST = 20, KILL_REPORT_MS = 10000 };

exec *exec_find(const uint8_t *id, uint32_t len) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        exec *e = W.execs[i];
        if (!e->gone && e->id_len == len && memcmp(e->id, id, len) == 0) return e;
    }
    return NULL;
}

exec *exec_of_supervisor(pid_t pid) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        if (__atomic_load_n(&W.execs[i]->supervisor, __ATOMIC_ACQUIRE) == pid) return W.execs[i];
    }
    return NULL;
}

/* Of processes that have memory of their own: where execs lie, so that a supervisor and init see the same. Taken before the first supervisor is made. */
static struct {
    exec *all;
    bool used[MAX_EXECS];
} shared;

static exec *shared_take(void) {
    if (!shared.all) {
        void *p = mmap(NULL, sizeof(exec) * MAX_EXECS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return NULL;
        shared.all = p;
    }
    for (int i = 0; i < MAX_EXECS; i++) {
        if (shared.used[i]) continue;
        shared.used[i] = true;
        memset(&shared.all[i], 0, sizeof(exec));
        return &shared.all[i];
    }
    return NULL;
}

static void give_back(exec *e) {
    if (W.apart) shared.used[e - shared.all] = false;
    else free(e);
}

/* NULL when the table is full or there is no memory. */
exec *exec_new(void) {
    if (W.exec_count >= MAX_EXECS) return NULL;
    exec *e = W.apart ? shared_take() : calloc(1, sizeof *e);
    if (!e) return NULL;
    e->out[0].fd = e->out[1].fd = e->in_fd = -1;
    e->out[0].eof = e->out[1].eof = true;
    e->in_src = (source){SOURCE_STDIN, e};
    e->serial = ++W.serial;
    W.execs[W.exec_count++] = e;
    return e;
}

void exec_free(exec *e) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        if (W.execs[i] == e) W.execs[i] = W.execs[--W.exec_count];
    }
    for (int i = 0; i < 2; i++) {
        stream_close(&e->out[i]);
        e->out[i].base = e->out[i].tail;
        stream_trim(&e->out[i]);
    }
    stdin_close(e);
    exec_close_ends(e);
    stack_release(e->stack);
    free(e->launch);
    give_back(e);
}

uint32_t execs_running(void) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < W.exec_count; i++) n += !W.execs[i]->finished;
    return n;
}

/* Takes an exec's result away. What remains of it is freed once no background process needs it. */
void exec_forget(exec *e) {
    e->gone = true;
    e->conn = NULL;
    for (int i = 0; i < 2; i++) {
        e->out[i].base = e->out[i].sent = e->out[i].tail;
        stream_trim(&e->out[i]);
    }
    stdin_close(e);
}

void exec_detach(exec *e) {
    e->conn = NULL;
}

/* Drops the oldest finished exec when too many wait for their acknowledgement. */
void exec_make_room(void) {
    uint32_t retained = 0;
    exec *oldest = NULL;
    for (uint32_t i = 0; i < W.exec_count; i++) {
        exec *e = W.execs[i];
        if (!e->finished || e->gone || e->conn) continue;
        retained++;
        if (!oldest || e->serial < oldest->serial) oldest = e;
    }
    if (oldest && retained >= MAX_RETAINED) exec_forget(oldest);
}

/* How much of what the main process wrote is still in the pipes. */
static void measure_rest(exec *e) {
    bool drained = true;
    for (int i = 0; i < 2; i++) {
        stream *s = &e->out[i];
        int rest = 0;
        if (s->eof) continue;
        /* A terminal hands its bytes on a little later, so its rest is known only by silence. */
        if (e->tty) s->left = INT64_MAX;
        else s->left = ioctl(s->fd, FIONREAD, &rest) == 0 ? rest : 0;
        drained &= s->left == 0;
    }
    /* Finished then, in a moment, and both are watched for as long as others hold them. */
    if (drained) return;
    for (int i = 0; i < 2; i++) stream_arm(e, i);
    if (!e->tty) return;
    e->quiet_reads = 0;
    e->quiet_total = e->out[0].total;
    e->quiet_at_ns = now_ns() + QUIET_MS * MS;
}

static void fail_text(exec *e, const char *text) {
    stream_text(e, e->tty ? 0 : 1, text);
}

/* A command that could not be executed is a result, as a shell would give it; anything else is an error of the request. */
static void start_failed(exec *e) {
    launch *l = e->launch;
    int error = e->error;
    bool full = e->stage == STAGE_FORK && (error == EAGAIN || error == ENOMEM);
    if (e->stage == STAGE_EXEC || full) {
        bool missing = error == ENOENT || error == ENOTDIR;
        fail_text(e, "cannot run ");
        fail_text(e, l->argv[0]);
        fail_text(e, ": ");
        fail_text(e, errno_text(error));
        fail_text(e, missing ? " (the file or its interpreter)\n" : "\n");
        e->status = (missing ? 127 : 126) << 8;
        __atomic_store_n(&e->state, STATE_EXITED, __ATOMIC_RELEASE);
        return;
    }
    if (e->conn) {
        const char *code = errno_name(error), *message = errno_text(error);
        if (e->stage == STAGE_USER) code = "no_user", message = "the user is not in the machine's /etc/passwd";
        if (e->stage == STAGE_GROUP) code = "no_group", message = "the group is not in the machine's /etc/group";
        if (e->stage == STAGE_CWD) code = "no_cwd";
        answer_error(e->conn, e->ref, code, message);
    }
    exec_forget(e);
    e->main_done = e->finished = true;
}

static void finish_if_drained(exec *e) {
    for (int i = 0; i < 2; i++) {
        if (!e->out[i].eof && e->out[i].left != 0) return;
    }
    e->finished = true;
    e->in_dirty = false;
    stdin_close(e);
    e->in_dirty = false;
    for (int i = 0; i < 2; i++) {
        stream_trim(&e->out[i]);
        stream_arm(e, i);
    }
}

/* Brings an exec up to date with what its supervisor and its pipes say. May be called at any time. */
void exec_progress(exec *e) {
    int state = __atomic_load_n(&e->state, __ATOMIC_ACQUIRE);
    if (state == STATE_FAILED && !e->main_done) {
        start_failed(e);
        state = __atomic_load_n(&e->state, __ATOMIC_ACQUIRE);
    }
    if (state == STATE_EXITED && !e->main_done) {
        e->main_done = true;
        measure_rest(e);
    }
    if (e->main_done && !e->finished && !e->killing) finish_if_drained(e);
    if (e->conn) connection_pump(e->conn);
    if (state == STATE_STARTING || !e->launch) return;
    exec_close_ends(e);
    /* The command of a supervisor that was killed may not have read it yet. */
    if (e->orphaned) return;
    free(e->launch);
    e->launch = NULL;
}

void execs_notified(void) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        exec *e = W.execs[i];
        if (!e->main_done && __atomic_load_n(&e->state, __ATOMIC_ACQUIRE) != STATE_STARTING) exec_progress(e);
    }
}

/* A child of init is gone: a supervisor, a command whose supervisor was killed, or an orphan. */
void execs_child_gone(pid_t pid, int status) {
    exec *e = exec_of_supervisor(pid);
    if (supervisor_gone(pid)) {
        if (!e || !e->orphaned) return;
        if (e->main_pid) {
            __atomic_store_n(&e->state, STATE_RUNNING, __ATOMIC_RELEASE);
            return;
        }
        status = SIGKILL;
    } else {
        e = NULL;
        for (uint32_t i = 0; i < W.exec_count && !e; i++) {
            int state = __atomic_load_n(&W.execs[i]->state, __ATOMIC_ACQUIRE);
            if (W.execs[i]->main_pid == pid && state != STATE_EXITED && state != STATE_FAILED) e = W.execs[i];
        }
        if (!e) return;
    }
    e->status = status;
    e->end_ns = now_ns();
    __atomic_store_n(&e->state, e->stage == STAGE_NONE ? STATE_EXITED : STATE_FAILED, __ATOMIC_RELEASE);
    exec_progress(e);
}

static void kill_step(exec *e, uint64_t now) {
    uint32_t living = kill_tree_pass(e);
    bool starting = __atomic_load_n(&e->state, __ATOMIC_ACQUIRE) == STATE_STARTING;
    if (living == 0 && starting && e->kill_passes > 20 && e->supervisor > 0) kill(e->supervisor, SIGKILL);
    bool over_time = e->main_done && now > e->deadline_ns + KILL_REPORT_MS * MS && e->kill_passes > 200;
    if ((living == 0 && e->main_done) || over_time) {
        e->killing = false;
        if (!e->finished) measure_rest(e);
        exec_progress(e);
        return;
    }
    e->kill_at_ns = now + (e->kill_passes < 20 ? 1 : e->kill_passes < 100 ? 5 : 50) * MS;
}

static void quiet_step(exec *e, uint64_t now) {
    stream *s = &e->out[0];
    bool moved = s->total != e->quiet_total || (!s->armed && !s->eof);
    if (moved && e->quiet_reads < QUIET_MOST) {
        if (s->armed) e->quiet_reads++;
        e->quiet_total = s->total;
        e->quiet_at_ns = now + QUIET_MS * MS;
        return;
    }
    e->quiet_at_ns = 0;
    s->left = 0;
    exec_progress(e);
}

static void earliest(uint64_t *next, uint64_t at) {
    if (at && at < *next) *next = at;
}

/* Does what is due and lowers *next to what comes next. */
void exec_timers(uint64_t now, uint64_t *next) {
    for (uint32_t i = 0; i < W.exec_count; i++) {
        exec *e = W.execs[i];
        if (e->deadline_ns && !e->main_done && !e->killing && now >= e->deadline_ns) {
            e->ended = ENDED_TIMED_OUT;
            e->killing = true;
            e->kill_passes = 0;
            e->kill_at_ns = now;
        }
        if (e->killing && now >= e->kill_at_ns) kill_step(e, now);
        if (e->quiet_at_ns && now >= e->quiet_at_ns && !e->finished) quiet_step(e, now);
        if (e->killing) earliest(next, e->kill_at_ns);
        else if (!e->main_done) earliest(next, e->deadline_ns);
        if (!e->finished) earliest(next, e->quiet_at_ns);
        if (e->gone && e->finished && !e->killing && e->supervisor == 0 && e->out[0].fd < 0 && e->out[1].fd < 0) {
            bool moved = e->out[0].total + e->out[1].total > SCRATCH_BYTES / 4;
            exec_free(e);
            /* A talkative command needed it; nothing is in it between events. */
            if (moved) madvise(scratch, SCRATCH_BYTES, MADV_DONTNEED);
            i--;
        }
    }
}
