/*
 * PID 1 of a machine: starts commands, moves their bytes, keeps their exits.
 *
 * The commands are hostile and run as root in the same pid namespace. Therefore init
 * - is one thread around epoll that never blocks: whatever may block (user lookup, change of directory, execve) happens in a supervisor process per exec;
 * - opens no path of the machine after its start, except through descriptors that it took before the first command ran;
 * - keeps every buffer bounded, maps it when it is needed and gives it back.
 *
 * A supervisor (init-spawn.c) shares init's memory and descriptors, is the parent of its command, and is the subreaper of everything below it: a process tree
 * stays a tree however often it forks, changes session or clears its environment. A supervisor uses raw system calls only (raw.h), because it shares errno,
 * too, and opens nothing, because what it had open when it is killed would stay open in init.
 */
#ifndef MW_INIT_H
#define MW_INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "errors.h"
#include "wire.h"

enum {
    MAX_EXECS = 1024,       /* running, retained and lingering together */
    MAX_RUNNING = 256,      /* LIMITS.execsPerSandbox */
    MAX_RETAINED = 256,     /* LIMITS.execsRetained */
    MAX_CONNECTIONS = 64,
    RING_BYTES = 1 << 20,   /* LIMITS.execWindowBytes */
    STDIN_BYTES = 256 << 10,
    CHUNK_BYTES = (64 << 10) - 43, /* output bytes in one frame: with its heads it is 64 KiB, which is what the client reads at once */
    PIPE_BYTES = 512 << 10,  /* of a pipe whose command writes more than the usual 64 KiB at once */
    ANSWER_BYTES = 64 << 10, /* answers waiting on a connection before init stops reading its requests */
    SCRATCH_BYTES = 256 << 10,
    ID_BYTES = 64,
    MAX_GROUPS = 64,
};

/* Frame types and tags: docs/internals/native.md, "Init". */
enum {
    REQ_START = 1, REQ_ATTACH, REQ_STDIN, REQ_CREDIT, REQ_SIGNAL, REQ_KILL, REQ_RESIZE, REQ_FORGET, REQ_LIST, REQ_KILL_ALL, REQ_PING, REQ_LIFELINE,
    ANS_OK = 64, ANS_STARTED, ANS_OUTPUT, ANS_EXIT, ANS_STDIN, ANS_DETACHED, ANS_ENTRY,
};
enum {
    TAG_ID = 1, TAG_ARG, TAG_ENV, TAG_CWD, TAG_USER, TAG_STDIN, TAG_COLUMNS, TAG_ROWS, TAG_DEADLINE_MS, TAG_CAP,
    TAG_STDOUT, TAG_STDERR, TAG_DATA, TAG_EOF, TAG_SIGNAL, TAG_STREAM, TAG_OFFSET, TAG_PID, TAG_ATTACHED, TAG_CODE, TAG_ENDED, TAG_DURATION_US,
    TAG_STDOUT_BYTES, TAG_STDERR_BYTES, TAG_TRUNCATED, TAG_ACCEPTED, TAG_CLOSED, TAG_STATE, TAG_TREE,
};
enum { ENDED_EXITED = 0, ENDED_TIMED_OUT, ENDED_KILLED };
enum { STDIN_NONE = 0, STDIN_OPEN = 1 };

/* Written by the supervisor (release), read by init (acquire). */
enum { STATE_STARTING, STATE_RUNNING, STATE_EXITED, STATE_FAILED };
/* Where a start failed. */
enum { STAGE_NONE, STAGE_FORK, STAGE_USER, STAGE_GROUP, STAGE_CREDENTIALS, STAGE_CWD, STAGE_EXEC };

/* Everything that a start needs and a running command no longer does. One allocation. */
typedef struct {
    char **argv;
    char **envp; /* with room for HOME, USER and LOGNAME */
    size_t envc;
    const char *cwd;
    const char *user;
    int fds[3];
    bool tty;
    uint32_t uid, gid;
    int group_count;
    uint32_t groups[MAX_GROUPS];
    char home[512], name[128];
    char env_home[520], env_user[136], env_logname[144];
} launch;

enum source_kind { SOURCE_LISTENER, SOURCE_LIFELINE, SOURCE_SIGNALS, SOURCE_NOTIFY, SOURCE_CONNECTION, SOURCE_STDOUT, SOURCE_STDERR, SOURCE_STDIN };
typedef struct {
    enum source_kind kind;
    void *owner;
} source;

/* One output stream: a ring of the bytes between what the client has acknowledged (base) and what the command has written (tail). */
typedef struct {
    source src;
    int fd;
    bool armed;
    bool eof;
    bool widened;
    uint8_t *ring;
    uint64_t origin; /* offset that lies at ring[0] */
    uint64_t base, sent, tail;
    uint64_t total; /* bytes that the command wrote, kept or not */
    uint64_t cap;
    int64_t left; /* after the main process's exit: bytes of it that are still in the pipe; -1 before */
} stream;

typedef struct connection connection;
typedef struct exec exec;

/* Written by init to SUPERVISOR_GIVEN, by the supervisor to the others. */
enum { SUPERVISOR_IDLE, SUPERVISOR_GIVEN, SUPERVISOR_BUSY, SUPERVISOR_LEAVING };

/* A process that starts commands and waits for what they leave behind, one exec at a time. Lies at the top of its stack. */
typedef struct supervisor {
    _Alignas(16) struct supervisor *next;
    void *stack; /* the whole mapping; the command's own lies below */
    pid_t pid;
    int state; /* atomic, and the futex that the supervisor waits on */
    exec *given; /* read by the supervisor alone, when it takes the exec up */
} supervisor;

struct exec {
    char id[ID_BYTES];
    uint8_t id_len;
    bool finished;     /* exit is known and all output is in the rings */
    bool exit_sent;    /* on the current attachment */
    bool started_sent;
    bool main_done;
    bool gone;         /* forgotten by its client; lives on only to drain what background processes hold */
    bool truncated;
    bool killing;
    bool orphaned;     /* its supervisor was killed from inside: descendants may have come to init */
    bool tty;
    bool attached;     /* the current attachment is not the one that started it */
    uint8_t quiet_reads;
    uint64_t quiet_total;
    int state;         /* atomic */
    int stage, error;  /* set before STATE_FAILED */
    int ended;
    int status;        /* wait status of the main process */
    pid_t main_pid;
    pid_t supervisor;  /* atomic; 0: it has done with this exec, or was killed */
    uint64_t start_ns, end_ns, deadline_ns, kill_at_ns, quiet_at_ns;
    uint32_t kill_passes;
    uint64_t serial;
    void *stack;       /* of a supervisor that was killed: its command may still run on it */
    bool ends_open;    /* init holds the command's ends of its pipes */
    launch *launch;
    connection *conn;
    uint32_t ref;
    stream out[2];
    source in_src;
    int in_fd;
    bool in_armed, in_eof, in_dirty;
    uint8_t *in_buf;
    uint32_t in_head, in_len;
    uint64_t in_consumed;
};

struct connection {
    source src;
    int fd;
    uint32_t events;
    bool dead;
    int passed_fd;
    uint8_t *in;
    size_t in_len, in_cap;
    uint8_t *out;
    size_t out_len, out_cap;
    bool kill_all;
    uint32_t kill_all_ref;
    connection *next;
};

typedef struct {
    bool waiting; /* for its root: nothing that a connection says is read */
    bool apart; /* no two processes share memory (init-spawn.c) */
    bool guest;   /* no PID 1: init-guest.c */
    const char *helper; /* of a guest: a program that is started from `helper_fd`, whatever lies at its path now; NULL where there is none */
    int helper_fd;
    pid_t self;
    int epoll, notify, signals, listener, lifeline, devnull, procfs, devpts, spare;
    uint64_t grace_ns, lifeline_end_ns;
    uint64_t kill_all_ns; /* 0: not killing everything */
    uint64_t nofile_soft, nofile_hard;
    exec *execs[MAX_EXECS];
    uint32_t exec_count;
    uint64_t serial;
    connection *connections;
    uint32_t connection_count;
    supervisor *supervisors;
    int idle_supervisors; /* atomic */
} world;

extern world W;
extern uint8_t scratch[SCRATCH_BYTES];

uint64_t now_ns(void);
bool watch(int fd, source *src, uint32_t events);
void unwatch(int fd);

/* init-connection.c */
void connection_accept(void);
void connections_begin(void);
void connection_readable(connection *c);
void connection_pump(connection *c);
void connections_sweep(void);
void connections_killed_all(bool ok);
void connection_break(connection *c);
void connection_notify(connection *c, wire_writer *w);
void answer_error(connection *c, uint32_t ref, const char *code, const char *message);

/* init-request.c */
void request(connection *c, const wire_frame *f);

/* init-exec.c */
exec *exec_find(const uint8_t *id, uint32_t len);
exec *exec_of_supervisor(pid_t pid);
exec *exec_new(void);
void exec_free(exec *e);
void exec_make_room(void);
uint32_t execs_running(void);
void exec_detach(exec *e);
void exec_forget(exec *e);
void exec_progress(exec *e);
void exec_timers(uint64_t now, uint64_t *next);
void execs_notified(void);
void execs_child_gone(pid_t pid, int status);

/* init-stream.c */
void stream_init(exec *e, int index, int fd, uint64_t cap);
void stream_readable(exec *e, int index);
void stream_arm(exec *e, int index);
void stream_close(stream *s);
void stream_credit(exec *e, int index, uint64_t offset);
void stream_text(exec *e, int index, const char *text);
void stream_trim(stream *s);
bool stdin_write(exec *e, const uint8_t *data, uint32_t len);
void stdin_writable(exec *e);
void stdin_end(exec *e);
void stdin_close(exec *e);

/* init-spawn.c */
bool exec_spawn(exec *e);
void exec_close_ends(exec *e);
void supervisor_prepare(void);
bool supervisor_known(pid_t pid);
bool supervisor_gone(pid_t pid);
void stack_release(void *stack);

/* init-user.c: runs in a supervisor. */
int user_resolve(launch *l);

/* init-kill.c */
uint32_t kill_tree_pass(exec *e);
uint32_t kill_all_pass(void);

/* init-guest.c */
void guest_link(const char *name);
void guest_keep(const char *path);
bool guest_peer_allowed(int fd);

#endif
