/*
 * Starting a command: a supervisor process per exec, and the command as its child.
 *
 * Both share init's memory until the command's execve, because a fork that copies page tables costs many times more. So both use raw system calls and touch
 * only their own exec and launch. The supervisor lives as long as anything below it does; a kill of it from inside loses nothing but its subreaping: its
 * children come to init, which notices (execs_child_gone).
 */
#include "init.h"
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
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

enum { STACK_BYTES = 128 << 10, CHILD_STACK = 64 << 10, STACKS_KEPT = 4, NOTIFY_FD = 3, PATH_MOST = 4096, MOMENT_NS = 2000000 };

static void *kept_stacks[STACKS_KEPT];
static int kept_count;

static void *stack_take(void) {
    if (kept_count > 0) return kept_stacks[--kept_count];
    void *p = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Only when neither the supervisor nor a child before its execve can still run on it. */
void stack_release(exec *e) {
    if (!e->stack) return;
    if (kept_count < STACKS_KEPT) kept_stacks[kept_count++] = e->stack;
    else munmap(e->stack, STACK_BYTES);
    e->stack = NULL;
}

static uint64_t raw_now(void) {
    struct timespec t = {0};
    RAW2(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void notify(void) {
    uint64_t one = 1;
    RAW3(SYS_write, NOTIFY_FD, &one, 8);
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
    __atomic_store_n(&e->main_pid, (pid_t)RAW1(SYS_getpid, 0), __ATOMIC_RELEASE);
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
    /* Without it nothing inside can look into init, whose memory is not dumpable. */
    RAW5(SYS_prctl, PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0);
    error = RAW3(SYS_setresuid, l->uid, l->uid, l->uid);
    if (error < 0) return child_fail(e, STAGE_CREDENTIALS, error);
    struct rlimit files = {W.nofile_soft, W.nofile_hard};
    RAW4(SYS_prlimit64, 0, RLIMIT_NOFILE, &files, NULL);
    uint64_t none = 0;
    RAW4(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
    error = search_exec(l);
    return child_fail(e, STAGE_EXEC, error);
}

/* Whether a child ended within a moment. The signal is blocked, and only a hint: what ended is asked for afterwards. */
static bool ends_soon(void) {
    uint64_t child = 1ull << (SIGCHLD - 1);
    struct timespec moment = {.tv_nsec = MOMENT_NS};
    return RAW4(SYS_rt_sigtimedwait, &child, NULL, &moment, 8) == SIGCHLD;
}

static int supervise(void *arg) {
    exec *e = arg;
    launch *l = e->launch;
    uint64_t all = ~0ull;
    RAW4(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
    /* A copy of init's descriptors: keep the command's three and the way to tell init, so that no other exec's pipe is held open here. */
    for (int i = 0; i < 3; i++) RAW3(SYS_dup3, l->fds[i], i, 0);
    if (W.notify != NOTIFY_FD) RAW3(SYS_dup3, W.notify, NOTIFY_FD, O_CLOEXEC);
    if (RAW3(SYS_close_range, NOTIFY_FD + 1, ~0u, 0) < 0) {
        for (int fd = NOTIFY_FD + 1; fd < 8192; fd++) RAW1(SYS_close, fd);
    }
    RAW5(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    int stage = user_resolve(l);
    e->start_ns = raw_now();
    long pid = -ENOENT;
    if (stage == STAGE_NONE) {
        pid = raw_clone(CLONE_VM | CLONE_VFORK | SIGCHLD, (uint8_t *)e->stack + CHILD_STACK, child_main, e);
        if (pid < 0) stage = STAGE_FORK;
        else stage = __atomic_load_n(&e->stage, __ATOMIC_ACQUIRE);
        if (pid < 0) e->error = (int)-pid;
    }
    for (int i = 0; i < 3; i++) RAW1(SYS_close, i);
    if (stage != STAGE_NONE) {
        if (pid > 0) RAW4(SYS_wait4, pid, NULL, 0, NULL);
        e->stage = stage;
        e->end_ns = raw_now();
        set_state(e, STATE_FAILED);
        notify();
        return 0;
    }
    set_state(e, STATE_RUNNING);
    /*
     * Most commands of an agent end at once: then init and its client are woken for the end alone. One that waits for input is told of without delay, unless
     * its client has not waited for that to send some (a hint: init may be changing it).
     */
    if ((e->in_fd >= 0 && e->in_consumed == 0) || !ends_soon()) notify();
    for (;;) {
        siginfo_t info;
        info.si_pid = 0;
        long error = RAW5(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOWAIT, NULL);
        if (error == -EINTR) continue;
        if (error < 0) return 0;
        if (info.si_pid == pid) {
            /* Recorded before it is reaped: a supervisor that is killed in between leaves the zombie, and with it the exit, to init. */
            e->end_ns = raw_now();
            e->status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
            set_state(e, STATE_EXITED);
            notify();
            pid = 0;
        }
        RAW4(SYS_wait4, info.si_pid, NULL, 0, NULL);
    }
}

/* False (with e->error) when there is no memory or no process left. */
bool exec_spawn(exec *e) {
    e->stack = stack_take();
    if (!e->stack) {
        e->error = ENOMEM;
        return false;
    }
    long pid = raw_clone(CLONE_VM | SIGCHLD, (uint8_t *)e->stack + STACK_BYTES, supervise, e);
    if (pid < 0) {
        e->error = (int)-pid;
        stack_release(e);
        return false;
    }
    e->supervisor = (pid_t)pid;
    return true;
}
