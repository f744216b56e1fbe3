/*
 * An ordinary user with subordinate ids keeps the owners of an image apart: inside a user namespace where id 0 is the user and 1..65535 are the subordinate
 * range, trees are made, read and removed with the owners that they are to have. Machines use the same mapping.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unpack.h"

static int run_map_program(const char *program, pid_t pid, unsigned own, const char *first) {
    char process[16], mine[16];
    snprintf(process, sizeof process, "%d", (int)pid);
    snprintf(mine, sizeof mine, "%u", own);
    pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        execlp(program, program, process, "0", mine, "1", "1", first, "65535", (char *)NULL);
        _exit(127);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* The programs that write the maps must stay outside: a child waits there until this process is inside. */
void enter_user_namespace(const char *first_uid, const char *first_gid) {
    int go[2];
    if (pipe(go) != 0) fatal("user namespace", errno);
    pid_t self = getpid();
    uid_t uid = getuid();
    gid_t gid = getgid();
    pid_t mapper = fork();
    if (mapper < 0) fatal("user namespace", errno);
    if (mapper == 0) {
        char byte;
        close(go[1]);
        if (read(go[0], &byte, 1) != 1) _exit(1);
        _exit(run_map_program("newuidmap", self, uid, first_uid) != 0 || run_map_program("newgidmap", self, gid, first_gid) != 0);
    }
    close(go[0]);
    if (unshare(CLONE_NEWUSER) != 0) fatal("user namespace", errno);
    int status;
    if (write(go[1], "g", 1) != 1 || waitpid(mapper, &status, 0) != mapper || !WIFEXITED(status) || WEXITSTATUS(status) != 0) fatal("newuidmap and newgidmap", EPERM);
    close(go[1]);
    if (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0) fatal("user namespace", errno);
}
