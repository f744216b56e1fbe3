/*
 * Starts native/init as PID 1 of a small machine for tests: own pid, mount and ipc namespaces over the host's files, a fresh /proc and /dev/pts.
 *
 *   launch-init SOCKET INIT [FLAG...]
 *
 * MW_TEST_ETC names a directory to lie over /etc. The lifeline is this program's stdin. Prints "ready" once the socket listens; exits with init's exit code.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) errx(2, "usage: launch-init SOCKET INIT [FLAG...]");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(argv[1]) >= sizeof address.sun_path) errx(2, "the socket path is too long");
    strcpy(address.sun_path, argv[1]);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) err(1, "listen on %s", argv[1]);
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | SIGCHLD, 0, 0, 0, 0);
    if (pid < 0) err(1, "clone");
    if (pid == 0) {
        /* SIGKILL of the launcher takes the machine with it. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) err(1, "private mounts");
        if (mount("proc", "/proc", "proc", 0, NULL)) err(1, "mount /proc");
        if (mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620")) err(1, "mount /dev/pts");
        prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);
        prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN);
        prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT);
        const char *etc = getenv("MW_TEST_ETC");
        if (etc && mount(etc, "/etc", NULL, MS_BIND, NULL)) err(1, "mount %s over /etc", etc);
        int lifeline = dup(0);
        int copy = fcntl(listener, F_DUPFD, 10), line = fcntl(lifeline, F_DUPFD, 10);
        dup2(copy, 3);
        dup2(line, 4);
        dup2(open("/dev/null", O_RDWR), 0);
        syscall(SYS_close_range, 5, ~0u, 0);
        char *env[] = {NULL};
        execve(argv[2], argv + 2, env);
        err(1, "exec %s", argv[2]);
    }
    close(listener);
    puts("ready");
    fflush(stdout);
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
