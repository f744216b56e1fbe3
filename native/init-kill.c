/*
 * Ending everything that an exec started. Its descendants are those of its supervisor, which is their subreaper, plus its session. Found in /proc, through a
 * descriptor taken before anything ran; repeated by the caller until a pass finds nothing.
 */
#include "init.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PROCESSES_MOST = 65536, STOP_FROM_PASS = 6, STOP_PASSES = 10 };

typedef struct {
    pid_t pid, parent, session;
    uint64_t start_ticks;
    char state;
    bool ours;
} process;

static bool parse_number(const char **p, uint64_t *out) {
    while (**p == ' ') (*p)++;
    if (**p == '-') (*p)++;
    if (**p < '0' || **p > '9') return false;
    *out = 0;
    while (**p >= '0' && **p <= '9') *out = *out * 10 + (uint64_t)(*(*p)++ - '0');
    return true;
}

static bool read_process(const char *name, process *out) {
    char path[32], text[1024];
    size_t n = strlen(name);
    if (n > 20) return false;
    memcpy(path, name, n);
    memcpy(path + n, "/stat", 6);
    int fd = openat(W.procfs, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = 0;
    /* The name in parentheses may hold anything, parentheses too: the fields start after the last one. */
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ') return false;
    out->state = p[2];
    p += 3;
    uint64_t field[20] = {0};
    for (int i = 0; i < 19; i++) {
        if (!parse_number(&p, &field[i])) return false;
    }
    const char *digits = name;
    uint64_t pid;
    if (!parse_number(&digits, &pid)) return false;
    out->pid = (pid_t)pid;
    out->parent = (pid_t)field[0];
    out->session = (pid_t)field[2];
    out->start_ticks = field[18];
    out->ours = false;
    return true;
}

static uint32_t read_processes(process *all) {
    char entries[4096];
    uint32_t count = 0;
    if (lseek(W.procfs, 0, SEEK_SET) < 0) return 0;
    for (;;) {
        long n = syscall(SYS_getdents64, W.procfs, entries, sizeof entries);
        if (n <= 0) return count;
        for (long at = 0; at < n;) {
            unsigned short record;
            memcpy(&record, entries + at + 16, 2);
            const char *name = entries + at + 19;
            if (name[0] >= '1' && name[0] <= '9' && count < PROCESSES_MOST && read_process(name, &all[count])) count++;
            at += record;
        }
    }
}

/* A direct child of init that is no supervisor and no known command: what is left of an exec whose supervisor was killed from inside. */
static bool stray(const process *p) {
    if (p->parent != W.self || supervisor_known(p->pid)) return false;
    for (uint32_t i = 0; i < W.exec_count; i++) {
        if (W.execs[i]->main_pid == p->pid && !W.execs[i]->main_done) return false;
    }
    return true;
}

static bool root_of(const exec *e, const process *p) {
    pid_t main_pid = __atomic_load_n(&e->main_pid, __ATOMIC_ACQUIRE);
    pid_t supervisor = __atomic_load_n(&e->supervisor, __ATOMIC_ACQUIRE);
    if (supervisor && p->parent == supervisor) return true;
    if (main_pid && p->pid == main_pid && !e->main_done) return true;
    /* A session number stays reserved while the session lives; its leader's may be somebody else's once the leader is reaped. */
    if (main_pid && p->session == main_pid && !(e->main_done && p->pid == main_pid)) return true;
    static long ticks;
    if (!ticks) ticks = sysconf(_SC_CLK_TCK);
    return e->orphaned && p->start_ticks + 1 >= e->start_ns / (1000000000u / (uint64_t)ticks) && stray(p);
}

/* Whose parent is ours is ours. */
static void spread(process *all, uint32_t count) {
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < count; i++) {
            if (all[i].ours || all[i].pid == W.self || all[i].pid == 1 || all[i].parent <= 1 || supervisor_known(all[i].pid)) continue;
            /* Parents mostly have lower numbers and come first in /proc: look near before looking everywhere. */
            for (uint32_t k = i; k-- > 0;) {
                if (all[k].pid != all[i].parent) continue;
                all[i].ours = all[k].ours;
                break;
            }
            for (uint32_t k = i + 1; !all[i].ours && k < count && all[k].parent != 0 && all[i].parent > all[i].pid; k++) {
                if (all[k].pid == all[i].parent) all[i].ours = all[k].ours;
            }
            changed |= all[i].ours;
        }
    }
}

static void mark(const exec *e, process *all, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) all[i].ours = all[i].pid != W.self && all[i].pid != e->supervisor && root_of(e, &all[i]);
    spread(all, count);
}

static uint32_t signal_ours(const process *all, uint32_t count, int signal) {
    uint32_t living = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!all[i].ours || all[i].state == 'Z' || all[i].state == 'X') continue;
        living++;
        kill(all[i].pid, signal);
    }
    return living;
}

/* Kills every living descendant once and returns how many there were. */
uint32_t kill_tree_pass(exec *e) {
    size_t bytes = sizeof(process) * PROCESSES_MOST;
    process *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 1;
    uint32_t count = read_processes(all);
    mark(e, all, count);
    /* Killed processes make room for new ones of a fork bomb; stopped ones fill the limit, until nothing forks any more and all can be killed. */
    uint32_t cycle = e->kill_passes % (STOP_FROM_PASS + STOP_PASSES);
    int signal = cycle >= STOP_FROM_PASS ? SIGSTOP : SIGKILL;
    uint32_t living = signal_ours(all, count, signal);
    munmap(all, bytes);
    e->kill_passes++;
    return living;
}

/* The same for everything below a guest init but its supervisors; what whoever made the machine runs beside it is not its to kill. */
uint32_t kill_all_pass(void) {
    static uint32_t passes;
    size_t bytes = sizeof(process) * PROCESSES_MOST;
    process *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 1;
    uint32_t count = read_processes(all);
    for (uint32_t i = 0; i < count; i++) all[i].ours = !supervisor_known(all[i].pid) && (all[i].parent == W.self || supervisor_known(all[i].parent));
    spread(all, count);
    uint32_t living = signal_ours(all, count, passes % (STOP_FROM_PASS + STOP_PASSES) >= STOP_FROM_PASS ? SIGSTOP : SIGKILL);
    munmap(all, bytes);
    passes = living == 0 ? 0 : passes + 1;
    return living;
}
