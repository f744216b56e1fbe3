/*
 * Init in a machine that somebody else made: an ordinary process there, the subreaper of all that it starts, asked through links.
 *
 * A link is one process: its stdin and stdout are the connection, which whoever made the machine carries to the controller. The first link starts init, which
 * goes on when links end. Both meet at an abstract socket, so that nothing of it is a file; only root may connect. Root inside can still end init: then the next
 * link starts another, and what ran is lost.
 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIES = 100, TRY_US = 20000, HIGH_FD = 20, BACKLOG = 64, PUMP_BYTES = 64 << 10 };

static socklen_t address(struct sockaddr_un *at, const char *name) {
    size_t n = strlen(name);
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    if (n > sizeof at->sun_path - 2) n = sizeof at->sun_path - 2;
    memcpy(at->sun_path + 1, name, n);
    return (socklen_t)(sizeof at->sun_family + 1 + n);
}

static bool pump(int from, int to) {
    static uint8_t bytes[PUMP_BYTES];
    ssize_t n = read(from, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) return true;
    for (ssize_t at = 0; at < n;) {
        ssize_t sent = write(to, bytes + at, (size_t)(n - at));
        if (sent < 0 && errno != EINTR) return false;
        if (sent > 0) at += sent;
    }
    return n > 0;
}

/* Ends when init does, or has taken the end of stdin for the end of the connection. Each direction blocks for itself, so each has a process. */
__attribute__((noreturn)) static void carry(int connection) {
    signal(SIGPIPE, SIG_IGN);
    pid_t sender = fork();
    if (sender < 0) _exit(71);
    if (sender == 0) {
        while (pump(0, connection)) continue;
        shutdown(connection, SHUT_WR);
        _exit(0);
    }
    while (pump(connection, 1)) continue;
    kill(sender, SIGKILL);
    _exit(0);
}

/* In the child that becomes init: what main() finds at descriptors 3 and 4 elsewhere. The lifeline never ends: who made the machine ends it. */
static void become_init(int listener) {
    int lifeline[2];
    setsid();
    for (int i = 0; i < 3; i++) close(i);
    if (open("/dev/null", O_RDWR) != 0 || dup2(0, 1) < 0 || dup2(0, 2) < 0 || pipe(lifeline) < 0) _exit(71);
    int held = fcntl(lifeline[1], F_DUPFD_CLOEXEC, HIGH_FD), end = fcntl(lifeline[0], F_DUPFD_CLOEXEC, HIGH_FD);
    if (held < 0 || end < 0 || dup2(listener, 3) < 0 || dup2(end, 4) < 0) _exit(71);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0) _exit(71);
    /* What PID 1 is spared by the kernel. */
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
}

/* Who is at the other end; 0 where that is not root. */
static pid_t root_peer(int fd) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == 0 ? peer.pid : 0;
}

/* A copy of a program that nobody inside can change or take away. */
void guest_keep(const char *path) {
    int from = open(path, O_RDONLY | O_CLOEXEC), to = memfd_create("helper", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (from < 0 || to < 0) _exit(74);
    while (pump(from, to)) continue;
    close(from);
    if (fcntl(to, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0) _exit(74);
    W.helper_fd = fcntl(to, F_DUPFD_CLOEXEC, HIGH_FD);
    close(to);
    W.helper = path;
}

bool guest_peer_allowed(int fd) {
    return root_peer(fd) != 0;
}

/* Carries a connection to the init called `name`; returns in the process that becomes it, where there is none. */
void guest_link(const char *name) {
    struct sockaddr_un at;
    socklen_t length = address(&at, name);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    for (int i = 0; i < TRIES; i++) {
        int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection < 0) _exit(71);
        /* A name in nobody's keeping may be anybody's. */
        if (connect(connection, (struct sockaddr *)&at, length) == 0) {
            pid_t peer = root_peer(connection);
            if (!peer) _exit(73);
            /* Root inside may have stopped it. */
            kill(peer, SIGCONT);
            carry(connection);
        }
        close(connection);
        int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (listener < 0) _exit(71);
        int high = fcntl(listener, F_DUPFD_CLOEXEC, HIGH_FD);
        close(listener);
        if (bind(high, (struct sockaddr *)&at, length) == 0 && listen(high, BACKLOG) == 0 && fork() == 0) {
            become_init(high);
            return;
        }
        /* Somebody else is about to listen, or we are. */
        close(high);
        usleep(TRY_US);
    }
    _exit(72);
}

