/*
 * Starting a command: a supervisor process per exec, and the command as its child.
 *
 * Both share init's memory until the command's execve, because a fork that copies page tables costs many times more. So both use raw system calls and touch
 * only their own exec and launch. A supervisor stays with its exec as long as anything below it lives, and then waits for another: making one costs more than
 * all of the rest of an exec, and a few are kept. A kill of it from inside loses nothing but its subreaping: its children come to init, which notices
 * (execs_child_gone); one that dies before it has taken up what it was given is replaced.
 *
 * In a machine whose processes may be kept, memory that two processes share could not be restored. There a supervisor is a fork (`--apart`): it is made for one exec, whose
 * launch it has a copy of, and shares with init the descriptors, the exec and its own stack.
 */
#include "init.h"
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 128 << 10, CHILD_STACK = 64 << 10, STACKS_KEPT = 4, SUPERVISORS_KEPT = 2, PATH_MOST = 4096, MOMENT_NS = 2000000 };

static void *kept_stacks[STACKS_KEPT];
static int kept_count;

static void *stack_take(void) {
    if (kept_count > 0) return kept_stacks[--kept_count];
    void *p = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, (W.apart ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Only when neither the supervisor nor a child before its execve can still run on it. */
void stack_release(void *stack) {
    if (!stack) return;
    if (kept_count < STACKS_KEPT) kept_stacks[kept_count++] = stack;
    else munmap(stack, STACK_BYTES);
}

static uint64_t raw_now(void) {
    struct timespec t = {0};
    RAW2(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void notify(void) {
    uint64_t one = 1;
    RAW3(SYS_write, W.notify, &one, 8);
}

static void set_state(exec *e, int state) {
    __atomic_store_n(&e->state, state, __ATOMIC_RELEASE);
}

static long run_script(launch *l, const char *path) {
    /* What execvp does with a file that is no binary and names no interpreter. */
    size_t n = 0;
    while (l->argv[n]) n++;
    char *argv[n + 3];
    argv[0] = (char *)"/bin/sh";
    argv[1] = (char *)path;
    for (size_t i = 1; i <= n; i++) argv[i + 1] = l->argv[i];
    return RAW3(SYS_execve, argv[0], argv, l->envp);
}

static long try_exec(launch *l, const char *path) {
    long error = RAW3(SYS_execve, path, l->argv, l->envp);
    /* The copy of argv on the stack must fit it. */
    size_t n = 0;
    while (error == -ENOEXEC && l->argv[n]) n++;
    return error == -ENOEXEC && n < 1024 ? run_script(l, path) : error;
}

static long search_exec(launch *l) {
    const char *file = l->argv[0];
    if (!*file) return -ENOENT;
    for (const char *p = file; *p; p++) {
        if (*p == '/') return try_exec(l, file);
    }
    const char *path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    for (size_t i = 0; i < l->envc; i++) {
        if (strncmp(l->envp[i], "PATH=", 5) == 0) path = l->envp[i] + 5;
    }
    size_t file_len = strlen(file);
    long result = -ENOENT;
    char full[PATH_MOST];
    for (;;) {
        const char *end = path;
        while (*end && *end != ':') end++;
        size_t dir_len = (size_t)(end - path);
        if (dir_len + file_len + 2 <= sizeof full) {
            memcpy(full, path, dir_len);
            if (dir_len) full[dir_len++] = '/';
            memcpy(full + dir_len, file, file_len + 1);
            long error = try_exec(l, full);
            if (error == -EACCES) result = error;
            else if (error != -ENOENT && error != -ENOTDIR && error != -ESTALE && error != -ENODEV && error != -ETIMEDOUT && error != -ELOOP) return error;
        }
        if (!*end) return result;
        path = end + 1;
    }
}

static int child_fail(exec *e, int stage, long error) {
    e->error = (int)-error;
    __atomic_store_n(&e->stage, stage, __ATOMIC_RELEASE);
    return 127;
}

static int child_main(void *arg) {
    exec *e = arg;
    launch *l = e->launch;
    /* A copy of init's descriptors. */
    for (int i = 0; i < 3; i++) RAW3(SYS_dup3, l->fds[i], i, 0);
    bool helper = W.helper && strcmp(l->argv[0], W.helper) == 0;
    if (helper) RAW3(SYS_dup3, W.helper_fd, 3, O_CLOEXEC);
    RAW3(SYS_close_range, helper ? 4 : 3, ~0u, 0);
    int stage = user_resolve(l);
    if (stage != STAGE_NONE) return child_fail(e, stage, -ENOENT);
    RAW1(SYS_setsid, 0);
    if (l->tty) RAW3(SYS_ioctl, 0, TIOCSCTTY, 0);
    /* As root: the directory must exist, but need not be the user's. */
    long error = RAW1(SYS_chdir, l->cwd);
    if (error < 0) return child_fail(e, STAGE_CWD, error);
    if (l->uid != 0 || l->gid != 0 || l->group_count > 1) {
        /* In a user namespace with one id there are no groups to set; root's are harmless there. */
        error = RAW2(SYS_setgroups, l->group_count, l->groups);
        if (error < 0 && error != -EPERM) return child_fail(e, STAGE_CREDENTIALS, error);
    } else {
        RAW2(SYS_setgroups, 1, l->groups);
    }
    error = RAW3(SYS_setresgid, l->gid, l->gid, l->gid);
    if (error < 0) return child_fail(e, STAGE_CREDENTIALS, error);
    error = l->uid == 0 ? 0 : RAW3(SYS_setresuid, l->uid, l->uid, l->uid);
    if (error < 0) return child_fail(e, STAGE_CREDENTIALS, error);
    uint64_t none = 0;
    RAW4(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
    error = helper ? RAW5(SYS_execveat, 3, "", l->argv, l->envp, AT_EMPTY_PATH) : search_exec(l);
    return child_fail(e, STAGE_EXEC, error);
}

/*
 * The command and what it starts go before init when the machine's memory runs out: it may be held by programs that are smaller. Only once it has a memory of
 * its own: until then it would be init that is looked up.
 */
static void put_before_init(long pid) {
    char path[] = "0000000000/oom_score_adj";
    int first = 10;
    for (; pid > 0; pid /= 10) path[--first] = (char)('0' + pid % 10);
    long fd = RAW4(SYS_openat, W.procfs, path + first, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return;
    RAW3(SYS_write, fd, "900", 3);
    RAW1(SYS_close, fd);
}

/* Returns when a child has ended, at the latest after a moment. The signal is blocked, and only a hint: what ended is asked for afterwards. */
static void ends_soon(void) {
    uint64_t child = 1ull << (SIGCHLD - 1);
    struct timespec moment = {.tv_nsec = MOMENT_NS};
    RAW4(SYS_rt_sigtimedwait, &child, NULL, &moment, 8);
}

/* Starts the command, reports how it started and how it ended, and returns when nothing of what it started lives any more. */
static void serve(supervisor *s, exec *e) {
    uint64_t child = 1ull << (SIGCHLD - 1);
    struct timespec none = {0};
    RAW4(SYS_rt_sigtimedwait, &child, NULL, &none, 8);
    e->start_ns = raw_now();
    long pid = raw_clone(CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, (uint8_t *)s->stack + CHILD_STACK, &e->main_pid, child_main, e);
    int stage = pid < 0 ? STAGE_FORK : __atomic_load_n(&e->stage, __ATOMIC_ACQUIRE);
    if (pid < 0) e->error = (int)-pid;
    if (stage != STAGE_NONE) {
        if (pid > 0) RAW4(SYS_wait4, pid, NULL, 0, NULL);
        e->stage = stage;
        e->end_ns = raw_now();
        set_state(e, STATE_FAILED);
        notify();
        return;
    }
    set_state(e, STATE_RUNNING);
    put_before_init(pid);
    /*
     * Most commands of an agent end at once: then init and its client are woken for the end alone. One that waits for input is told of without delay, unless
     * its client has not waited for that to send some (a hint: init may be changing it).
     */
    bool told = e->in_fd >= 0 && e->in_consumed == 0;
    if (told) notify();
    else ends_soon();
    for (;;) {
        siginfo_t info;
        info.si_pid = 0;
        long error = RAW5(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOWAIT | (told ? 0 : WNOHANG), NULL);
        if (error == -EINTR) continue;
        if (error < 0) return;
        if (info.si_pid == 0) {
            told = true;
            notify();
            continue;
        }
        if (info.si_pid == pid) {
            /* Recorded before it is reaped: a supervisor that is killed in between leaves the zombie, and with it the exit, to init. */
            e->end_ns = raw_now();
            e->status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
            set_state(e, STATE_EXITED);
            notify();
            pid = 0;
            told = true;
        }
        RAW4(SYS_wait4, info.si_pid, NULL, 0, NULL);
    }
}

static int supervise(void *arg) {
    supervisor *s = arg;
    uint64_t all = ~0ull;
    RAW4(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
    RAW5(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    /* For its commands. Without the capability nothing inside can look into init, whose memory is not dumpable. */
    RAW5(SYS_prctl, PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0);
    struct rlimit files = {W.nofile_soft, W.nofile_hard};
    RAW4(SYS_prlimit64, 0, RLIMIT_NOFILE, &files, NULL);
    for (;;) {
        int state = __atomic_load_n(&s->state, __ATOMIC_ACQUIRE);
        if (state != SUPERVISOR_GIVEN) {
            RAW4(SYS_futex, &s->state, FUTEX_WAIT_PRIVATE, state, NULL);
            continue;
        }
        exec *e = s->given;
        __atomic_store_n(&s->state, SUPERVISOR_BUSY, __ATOMIC_RELEASE);
        serve(s, e);
        /* Init may free the exec from here on. */
        __atomic_store_n(&e->supervisor, 0, __ATOMIC_RELEASE);
        if (W.apart) {
            __atomic_store_n(&s->state, SUPERVISOR_LEAVING, __ATOMIC_RELEASE);
            return 0;
        }
        if (__atomic_fetch_add(&W.idle_supervisors, 1, __ATOMIC_ACQ_REL) >= SUPERVISORS_KEPT) {
            __atomic_fetch_sub(&W.idle_supervisors, 1, __ATOMIC_ACQ_REL);
            __atomic_store_n(&s->state, SUPERVISOR_LEAVING, __ATOMIC_RELEASE);
            return 0;
        }
        __atomic_store_n(&s->state, SUPERVISOR_IDLE, __ATOMIC_RELEASE);
    }
}

/* A process that begins in `state`; NULL with *error when there is no memory or no process left. */
static supervisor *supervisor_new(int state, exec *e, int *error) {
    void *stack = stack_take();
    *error = ENOMEM;
    if (!stack) return NULL;
    supervisor *s = (supervisor *)((uint8_t *)stack + STACK_BYTES) - 1;
    *s = (supervisor){.next = W.supervisors, .stack = stack, .state = state, .given = e};
    long pid = raw_clone(CLONE_FILES | SIGCHLD | (W.apart ? 0 : CLONE_VM | CLONE_FS), s, NULL, supervise, s);
    if (pid < 0) {
        *error = (int)-pid;
        stack_release(stack);
        return NULL;
    }
    s->pid = (pid_t)pid;
    return W.supervisors = s;
}

/* One that waits for the first exec, with the pages that it and its command will run on. */
void supervisor_prepare(void) {
    int ignored;
    if (W.apart) return;
    supervisor *s = supervisor_new(SUPERVISOR_IDLE, NULL, &ignored);
    if (!s) return;
    W.idle_supervisors++;
    for (int page = 1; page <= 2; page++) *((volatile uint8_t *)s->stack + CHILD_STACK - page * 4096) = 0;
}

bool supervisor_known(pid_t pid) {
    for (supervisor *s = W.supervisors; s; s = s->next) {
        if (s->pid == pid) return true;
    }
    return false;
}

/* False with e->error when there is no memory or no process left. */
bool exec_spawn(exec *e) {
    for (supervisor *s = W.supervisors; s; s = s->next) {
        if (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE) != SUPERVISOR_IDLE) continue;
        __atomic_fetch_sub(&W.idle_supervisors, 1, __ATOMIC_ACQ_REL);
        s->given = e;
        e->supervisor = s->pid;
        __atomic_store_n(&s->state, SUPERVISOR_GIVEN, __ATOMIC_RELEASE);
        syscall(SYS_futex, &s->state, FUTEX_WAKE_PRIVATE, 1);
        return true;
    }
    /* The new process may have done with the exec before this one goes on. */
    e->supervisor = -1;
    supervisor *s = supervisor_new(SUPERVISOR_GIVEN, e, &e->error);
    pid_t unknown = -1;
    __atomic_compare_exchange_n(&e->supervisor, &unknown, s ? s->pid : 0, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return s != NULL;
}

void exec_close_ends(exec *e) {
    if (!e->ends_open) return;
    e->ends_open = false;
    launch *l = e->launch;
    for (int i = 0; i < 3; i++) {
        bool seen = l->fds[i] == W.devnull;
        for (int k = 0; k < i; k++) seen |= l->fds[k] == l->fds[i];
        if (!seen) close(l->fds[i]);
    }
}

/* Takes a supervisor that has ended from the list; false when it is none. What it had begun is its exec's to finish (execs_child_gone). */
bool supervisor_gone(pid_t pid) {
    supervisor **at = &W.supervisors;
    while (*at && (*at)->pid != pid) at = &(*at)->next;
    supervisor *s = *at;
    if (!s) return false;
    *at = s->next;
    exec *e = exec_of_supervisor(pid);
    void *stack = s->stack;
    int left_at = s->state, state = e ? __atomic_load_n(&e->state, __ATOMIC_ACQUIRE) : STATE_EXITED;
    if (left_at == SUPERVISOR_IDLE) __atomic_fetch_sub(&W.idle_supervisors, 1, __ATOMIC_ACQ_REL);
    if (e) e->supervisor = 0;
    if (left_at == SUPERVISOR_BUSY && state != STATE_EXITED && state != STATE_FAILED) {
        e->stack = stack;
        e->orphaned = true;
        return true;
    }
    stack_release(stack);
    /* Killed before it had begun, so nothing of the exec has: it is for another to start. */
    if (left_at != SUPERVISOR_GIVEN || exec_spawn(e)) return true;
    e->stage = STAGE_FORK;
    e->state = STATE_FAILED;
    exec_progress(e);
    return true;
}
