/* A TCP connection to a port of the machine's own loopback, for somebody outside: data frames each way. The end of one direction leaves the other open. */
#include "files.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <signal.h>
#include <unistd.h>

static int connect_to(uint16_t port) {
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    if (connect(fd, (struct sockaddr *)&four, sizeof four) == 0) return fd;
    int error = errno;
    close(fd);
    fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -error;
    if (connect(fd, (struct sockaddr *)&six, sizeof six) == 0) return fd;
    close(fd);
    return -error;
}

/* What comes from outside, until its end. */
static void forward_in(int fd, message *m) {
    while (message_read(m) && m->type == FILES_DATA) {
        for (uint32_t at = 0; at < m->data_len;) {
            ssize_t n = send(fd, m->data + at, m->data_len - at, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return;
            at += (uint32_t)n;
        }
    }
    shutdown(fd, SHUT_WR);
}

void files_connect(message *m) {
    if (m->max == 0 || m->max > UINT16_MAX) fail(EINVAL, "the port", NULL);
    int fd = connect_to((uint16_t)m->max);
    if (fd < 0) fail(-fd, "connecting to the port", NULL);
    frame_begin(FILES_EVENT);
    frame_send();
    out_flush();
    /* A process for each direction: neither waits for the other. */
    pid_t child = fork();
    if (child < 0) fail(errno, "forking", NULL);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        forward_in(fd, m);
        _exit(0);
    }
    for (;;) {
        uint8_t *room = data_room(FILES_DATA);
        ssize_t n = read(fd, room, DATA_BYTES);
        if (n > 0) {
            data_send((size_t)n);
            out_flush();
            continue;
        }
        /* The frame that was begun is taken back. */
        frame()->len = frame()->start;
        if (n < 0 && errno == EINTR) continue;
        break;
    }
    frame_begin(FILES_END);
    frame_send();
    out_flush();
}
