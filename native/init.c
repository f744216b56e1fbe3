/* The loop of PID 1: see init.h for what it must withstand, docs/internals/native.md for its protocol. */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LISTENER_FD = 3, LIFELINE_FD = 4, PROCFS_FD = 5, DEVPTS_FD = 6, EVENTS = 64, KILL_ALL_MOST_MS = 10000, KILL_ALL_STEP_MS = 2 };

world W;
_Alignas(4096) uint8_t scratch[SCRATCH_BYTES];

static source listener_src = {SOURCE_LISTENER, NULL};
static source lifeline_src = {SOURCE_LIFELINE, NULL};
static source signals_src = {SOURCE_SIGNALS, NULL};
static source notify_src = {SOURCE_NOTIFY, NULL};

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool watch(int fd, source *src, uint32_t events) {
    struct epoll_event ev = {.events = events, .data.ptr = src};
    return epoll_ctl(W.epoll, EPOLL_CTL_ADD, fd, &ev) == 0;
}

void unwatch(int fd) {
    epoll_ctl(W.epoll, EPOLL_CTL_DEL, fd, NULL);
}

/* Says why on stderr, which the spawner has pointed at its log or nowhere. */
static void die(const char *why) {
    ssize_t ignored = write(2, why, strlen(why));
    (void)ignored;
    _exit(70);
}

static bool is_device(int fd, unsigned major, unsigned minor) {
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == (dev_t)((major << 8) | minor);
}

/* Descriptors 0 to 2 are open, so that no other ever gets those numbers. */
static void fill_standard(void) {
    W.devnull = W.waiting ? fcntl(0, F_DUPFD_CLOEXEC, 5) : open("/dev/null", O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (!is_device(W.devnull, 1, 3)) die("init: /dev/null is not the null device\n");
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0) dup2(W.devnull, fd);
    }
    int high = fcntl(W.devnull, F_DUPFD_CLOEXEC, 5);
    if (W.devnull > 2) close(W.devnull);
    W.devnull = high;
    W.spare = fcntl(W.devnull, F_DUPFD_CLOEXEC, 5);
}

/* While init waits for its root, the directories may move at any moment: they came with it. */
static int open_directory(const char *path, int given, long magic) {
    struct statfs fs;
    int fd = W.waiting ? given : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (W.waiting) fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (fd >= 0 && (fstatfs(fd, &fs) < 0 || (long)fs.f_type != magic)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/*
 * A process with our uids and gids may change our resource limits and read our memory. A saved gid that no command has takes that away where a second id is
 * mapped; where none is, the dumpable flag and the bounding set of the commands still guard the memory. So they do where processes may be kept: who keeps them has to read
 * init's limits, too.
 */
static void guard(void) {
    /* Of a guest everything that can be blocked. */
    uint64_t child = W.guest ? ~0ull : 1ull << (SIGCHLD - 1);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!W.apart && setresgid((gid_t)-1, (gid_t)-1, 65534) < 0) setresgid((gid_t)-1, (gid_t)-1, 1);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    /* Everything else keeps its default, which for a PID 1 means that it is never delivered. */
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &child, NULL, 8);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    W.nofile_soft = files.rlim_cur;
    W.nofile_hard = files.rlim_max;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static void setup(void) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    W.epoll = epoll_create1(EPOLL_CLOEXEC);
    W.signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    W.notify = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    W.listener = LISTENER_FD;
    W.lifeline = LIFELINE_FD;
    W.procfs = open_directory("/proc", PROCFS_FD, PROC_SUPER_MAGIC);
    W.devpts = open_directory("/dev/pts", DEVPTS_FD, DEVPTS_SUPER_MAGIC);
    if (W.procfs < 0) die("init: /proc is not mounted\n");
    fcntl(W.listener, F_SETFD, FD_CLOEXEC);
    fcntl(W.lifeline, F_SETFD, FD_CLOEXEC);
    fcntl(W.listener, F_SETFL, O_NONBLOCK);
    fcntl(W.lifeline, F_SETFL, O_NONBLOCK);
    bool ok = watch(W.listener, &listener_src, EPOLLIN) && watch(W.signals, &signals_src, EPOLLIN) && watch(W.notify, &notify_src, EPOLLIN);
    if (!ok || !watch(W.lifeline, &lifeline_src, EPOLLIN)) die("init: descriptors 3 (socket) and 4 (lifeline) are needed\n");
}

static void reap(void) {
    struct signalfd_siginfo info[8];
    while (read(W.signals, info, sizeof info) == (ssize_t)sizeof info) continue;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL)) > 0;) {
        /* A stopped supervisor would keep its exec's exit to itself. */
        if (!WIFSTOPPED(status)) {
            execs_child_gone(pid, status);
            continue;
        }
        if (supervisor_known(pid)) kill(pid, SIGCONT);
    }
}

/*
 * The spawner has laid the machine's root over the one that init was started in. `..` of a root leads to what lies topmost there, and nothing leads back:
 * below the new root is nothing that any path names.
 */
static void enter_root(void) {
    if (chdir("/..") < 0 || chroot(".") < 0 || chdir("/") < 0) die("init: the machine's root cannot be entered\n");
    W.waiting = false;
    connections_begin();
}

static void lifeline_readable(void) {
    ssize_t n = read(W.lifeline, scratch, 64);
    if (n > 0 && W.waiting) enter_root();
    if (n > 0 || (n < 0 && errno == EAGAIN)) return;
    /* There was to be a machine. */
    if (W.waiting) _exit(0);
    unwatch(W.lifeline);
    close(W.lifeline);
    W.lifeline = -1;
    W.lifeline_end_ns = now_ns() + W.grace_ns;
}

static void kill_all_step(uint64_t now, uint64_t *next) {
    if (!W.kill_all_ns) return;
    bool none = W.guest ? kill_all_pass() == 0 : kill(-1, SIGKILL) < 0 && errno == ESRCH;
    reap();
    bool over_time = now > W.kill_all_ns + KILL_ALL_MOST_MS * 1000000ull;
    if (none || over_time) {
        W.kill_all_ns = 0;
        connections_killed_all(none);
        return;
    }
    if (now + KILL_ALL_STEP_MS * 1000000ull < *next) *next = now + KILL_ALL_STEP_MS * 1000000ull;
}

/* Does everything that is due and returns epoll's timeout in milliseconds. */
static int timers(void) {
    uint64_t now = now_ns(), next = UINT64_MAX;
    if (W.lifeline_end_ns) {
        if (now >= W.lifeline_end_ns) _exit(0);
        next = W.lifeline_end_ns;
    }
    kill_all_step(now, &next);
    exec_timers(now, &next);
    if (next == UINT64_MAX) return -1;
    now = now_ns();
    if (next <= now) return 0;
    uint64_t ms = (next - now + 999999) / 1000000;
    return ms > 60000 ? 60000 : (int)ms;
}

static void dispatch(source *src, uint32_t events) {
    uint64_t count;
    switch (src->kind) {
    case SOURCE_LISTENER: connection_accept(); return;
    case SOURCE_LIFELINE: lifeline_readable(); return;
    case SOURCE_SIGNALS: reap(); return;
    case SOURCE_NOTIFY:
        if (read(W.notify, &count, sizeof count) > 0) execs_notified();
        return;
    case SOURCE_CONNECTION:
        if (W.waiting) connection_break(src->owner);
        if (events & EPOLLOUT) connection_pump(src->owner);
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) connection_readable(src->owner);
        return;
    case SOURCE_STDOUT: case SOURCE_STDERR:
        stream_readable(src->owner, src->kind == SOURCE_STDERR);
        exec_progress(src->owner);
        return;
    case SOURCE_STDIN:
        stdin_writable(src->owner);
        exec_progress(src->owner);
        return;
    }
}

static uint64_t number(const char *text) {
    uint64_t v = 0;
    while (*text >= '0' && *text <= '9' && v < 1u << 30) v = v * 10 + (uint64_t)(*text++ - '0');
    if (*text) die("init: a flag's value is not a number\n");
    return v;
}

/* For everything that runs here, init included: where whoever started init has loaded none. An array of `struct sock_filter`. */
static void load_filter(const char *path) {
    static struct sock_filter code[BPF_MAXINSNS];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, code, sizeof code);
    if (n <= 0 || n % (ssize_t)sizeof *code != 0) die("init: the system call filter cannot be read\n");
    close(fd);
    struct sock_fprog program = {.len = (unsigned short)((size_t)n / sizeof *code), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, 2 /* SECCOMP_MODE_FILTER */, &program, 0, 0) < 0) die("init: the system call filter cannot be loaded\n");
}

int main(int argc, char **argv) {
    const char *filter = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--grace-ms") == 0 && i + 1 < argc) W.grace_ns = number(argv[++i]) * 1000000u;
        else if (strcmp(argv[i], "--wait") == 0) W.waiting = true;
        else if (strcmp(argv[i], "--apart") == 0) W.apart = true;
        else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc) filter = argv[++i];
        else if (strcmp(argv[i], "--link") == 0 && i + 1 < argc) {
            guest_link(argv[++i]);
            W.guest = true;
            if (i + 1 < argc) guest_keep(argv[++i]);
        }
        else die("init: unknown flag\n");
    }
    W.self = getpid();
    if (W.self != 1 && !W.guest) die("init: only as PID 1 of a machine\n");
    fill_standard();
    guard();
    setup();
    if (filter) load_filter(filter);
    supervisor_prepare();
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(W.epoll, events, EVENTS, timers());
        /* Execs are freed in timers() and connections in the sweep: nothing that an event of this batch points to. */
        for (int i = 0; i < n; i++) dispatch(events[i].data.ptr, events[i].events);
        connections_sweep();
    }
}
