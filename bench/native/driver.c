// The C driver that the TypeScript interface is compared with: the same spawner, the same init, the same cycle (create, connect, one command, exit, kill), some
// machines at a time, and nothing in between.
//
//   driver COUNT WIDTH ROOT DATA RUN PROGRAMS [SECCOMP]   prints cycles per second
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../../native/spawn-protocol.h"
#include "../../native/wire.h"

enum { WIDTH_MAX = 16 };

/* Of init's protocol (docs/internals/native.md): its header is for init's own parts. */
enum { INIT_START = 1, INIT_EXIT = 67, EXEC_ID = 1, EXEC_ARG = 2, EXEC_ENV = 3 };

struct conn {
  int fd;
  size_t len;
  uint8_t buf[WIRE_FRAME_MAX + 4];
};

struct cycle {
  char id[32];
  bool active;
  bool exited;
  struct conn init;
};

static struct conn spawner;
static struct cycle cycles[WIDTH_MAX];
static const char *root, *run_dir;
static int started, finished, total;

static void die(const char *what) {
  fprintf(stderr, "driver: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void send_all(int fd, const uint8_t *data, size_t len) {
  while (len > 0) {
    ssize_t n = write(fd, data, len);
    if (n < 0) die("write");
    data += n;
    len -= (size_t)n;
  }
}

static void begin(struct cycle *c, uint32_t ref) {
  uint8_t buf[4096];
  wire_writer w = wire_writer_on(buf, sizeof buf);
  snprintf(c->id, sizeof c->id, "bench%d", started++);
  c->active = true;
  c->exited = false;
  wire_begin(&w, REQUEST_CREATE, ref);
  wire_text(&w, CREATE_ID, c->id);
  wire_text(&w, CREATE_LAYER, root);
  wire_end(&w);
  send_all(spawner.fd, buf, w.len);
}

static void run_command(struct cycle *c) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s/%s/init.sock", run_dir, c->id);
  c->init.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  c->init.len = 0;
  if (connect(c->init.fd, (struct sockaddr *)&address, sizeof address) != 0) die(address.sun_path);
  uint8_t buf[4096];
  wire_writer w = wire_writer_on(buf, sizeof buf);
  wire_begin(&w, INIT_START, 1);
  wire_text(&w, EXEC_ID, "e");
  wire_text(&w, EXEC_ARG, "/bin/true");
  wire_text(&w, EXEC_ENV, "PATH=/bin");
  wire_end(&w);
  send_all(c->init.fd, buf, w.len);
}

static void kill_machine(struct cycle *c, uint32_t ref) {
  uint8_t buf[256];
  wire_writer w = wire_writer_on(buf, sizeof buf);
  close(c->init.fd);
  c->init.fd = -1;
  c->exited = true;
  wire_begin(&w, REQUEST_KILL, ref);
  wire_text(&w, TAG_ID, c->id);
  wire_end(&w);
  send_all(spawner.fd, buf, w.len);
}

// Reads what is there and hands each whole frame on.
static void receive(struct conn *conn, void (*on_frame)(const wire_frame *, void *), void *data) {
  ssize_t n = read(conn->fd, conn->buf + conn->len, sizeof conn->buf - conn->len);
  if (n <= 0) die("connection closed");
  conn->len += (size_t)n;
  size_t at = 0;
  wire_frame frame;
  int fd = conn->fd;
  while (wire_parse(conn->buf + at, conn->len - at, &frame, NULL) == 1) {
    on_frame(&frame, data);
    at += frame.total;
    if (conn->fd != fd) return;
  }
  memmove(conn->buf, conn->buf + at, conn->len - at);
  conn->len -= at;
}

static void on_init_frame(const wire_frame *frame, void *data) {
  struct cycle *c = data;
  if (frame->type == WIRE_ERROR) die("init refused");
  if (frame->type == INIT_EXIT) kill_machine(c, (uint32_t)(c - cycles));
}

static void on_spawner_frame(const wire_frame *frame, void *data) {
  (void)data;
  if (frame->type == WIRE_ERROR) {
    fwrite(frame->fields, 1, frame->fields_len, stderr);
    die("spawner refused");
  }
  if (frame->type != ANSWER_OK || frame->ref >= WIDTH_MAX) return;
  struct cycle *c = &cycles[frame->ref];
  if (!c->exited) {
    run_command(c);
    return;
  }
  finished++;
  c->active = false;
  if (started < total) begin(c, frame->ref);
}

static void on_hello(const wire_frame *frame, void *data) {
  if (frame->type == EVENT_HELLO) *(bool *)data = true;
  if (frame->type == EVENT_BUSY) die("busy");
}

int main(int argc, char **argv) {
  if (argc < 7) {
    fprintf(stderr, "usage: driver COUNT WIDTH ROOT DATA RUN PROGRAMS [SECCOMP]\n");
    return 2;
  }
  total = atoi(argv[1]);
  int width = atoi(argv[2]);
  root = argv[3];
  run_dir = argv[5];
  if (width < 1 || width > WIDTH_MAX) return 2;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) die("socketpair");
  char program[4096], init[4096];
  snprintf(program, sizeof program, "%s/spawn", argv[6]);
  snprintf(init, sizeof init, "%s/init", argv[6]);
  pid_t pid = fork();
  if (pid == 0) {
    if (dup2(pair[1], 3) != 3) _exit(127);
    char *args[] = {"spawn", "--data", argv[4], "--run", argv[5], "--init", init, argc > 7 ? "--seccomp" : NULL, argc > 7 ? argv[7] : NULL, NULL};
    execv(program, args);
    _exit(127);
  }
  close(pair[1]);
  spawner.fd = pair[0];
  for (bool hello = false; !hello;) receive(&spawner, on_hello, &hello);
  for (int i = 0; i < WIDTH_MAX; i++) cycles[i].init.fd = -1;

  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < width && started < total; i++) begin(&cycles[i], (uint32_t)i);
  while (finished < total) {
    struct pollfd fds[WIDTH_MAX + 1];
    struct cycle *owners[WIDTH_MAX + 1];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = spawner.fd, .events = POLLIN};
    for (int i = 0; i < width; i++) {
      if (cycles[i].init.fd < 0) continue;
      owners[n] = &cycles[i];
      fds[n++] = (struct pollfd){.fd = cycles[i].init.fd, .events = POLLIN};
    }
    if (poll(fds, n, 60000) <= 0) die("nothing happens");
    for (nfds_t i = 1; i < n; i++) {
      if (fds[i].revents) receive(&owners[i]->init, on_init_frame, owners[i]);
    }
    if (fds[0].revents) receive(&spawner, on_spawner_frame, NULL);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("%.2f\n", total / ((double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9));
  close(spawner.fd);
  int status;
  waitpid(pid, &status, 0);
  return 0;
}
