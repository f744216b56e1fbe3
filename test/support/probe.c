/* The attacker's toolbox of the tests: one static program in the test image that makes raw system calls and exhausts things. Prints results as text. */
#include <errno.h>
#include <fcntl.h>
#include <linux/net.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static int report(long result)
{
	if (result < 0)
		printf("errno %d\n", errno);
	else
		printf("ok %ld\n", result);
	fflush(stdout);
	return result < 0;
}

/* sys NR ARG...: numbers, s:TEXT for a string, z:N for N zero bytes. */
static int raw_call(int argc, char **argv)
{
	long args[6] = {0};

	for (int i = 1; i < argc && i <= 6; i++) {
		if (strncmp(argv[i], "s:", 2) == 0)
			args[i - 1] = (long)(argv[i] + 2);
		else if (strncmp(argv[i], "z:", 2) == 0)
			args[i - 1] = (long)calloc(1, strtoul(argv[i] + 2, NULL, 0));
		else
			args[i - 1] = (long)strtoul(argv[i], NULL, 0);
	}
	return report(syscall(strtol(argv[0], NULL, 0), args[0], args[1], args[2], args[3], args[4], args[5]));
}

/* What is to be killed for its memory stays until it is: a limit that is looked at by time may come late on a loaded machine. */
static int hold(int holds)
{
	if (holds)
		pause();
	return report(0);
}

/* A pause after each page: whoever looks meanwhile sees every step. */
static int anonymous(size_t mebibytes, int holds, int creeps)
{
	struct timespec pause = {.tv_nsec = 1000};
	char *memory = mmap(NULL, mebibytes << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return report(-1);
	for (size_t at = 0; at < mebibytes << 20; at += 4096) {
		memory[at] = 1;
		if (creeps)
			nanosleep(&pause, NULL);
	}
	return hold(holds);
}

static int memfd(size_t mebibytes, int holds)
{
	static char block[1 << 20];
	int fd = memfd_create("hog", 0);

	memset(block, 1, sizeof(block));
	if (fd < 0)
		return report(-1);
	for (size_t i = 0; i < mebibytes; i++)
		if (write(fd, block, sizeof(block)) < 0)
			return report(-1);
	return hold(holds);
}

/* Forks up to N children that wait; says how many there were. */
static int forks(int wanted)
{
	int made = 0, error = 0;

	for (; made < wanted; made++) {
		pid_t pid = fork();

		if (pid == 0) {
			pause();
			_exit(0);
		}
		if (pid < 0) {
			error = errno;
			break;
		}
	}
	printf("made %d errno %d\n", made, error);
	fflush(stdout);
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM);
	return 0;
}

static int bomb(void)
{
	for (;;)
		if (fork() < 0)
			usleep(1000);
}

struct handle {
	struct file_handle head;
	unsigned char bytes[MAX_HANDLE_SZ];
};

static int by_handle(const char *path)
{
	struct handle handle = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
	int mount;

	if (name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, 0) < 0) {
		/* File systems without handles: make one up, the root inode of most of them. */
		handle.head.handle_bytes = 8;
		handle.head.handle_type = 1;
		handle.bytes[0] = 2;
	}
	int at = open("/", O_RDONLY | O_DIRECTORY);

	return report(open_by_handle_at(at, &handle.head, O_RDONLY));
}

static int connect_unix(const char *name, int abstract)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strncpy(address.sun_path + abstract, name, sizeof(address.sun_path) - 2);
	return report(connect(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name) + !abstract));
}

static int escape_chroot(void)
{
	mkdir("/tmp/jail", 0755);
	int outside = open("/", O_RDONLY | O_DIRECTORY);

	if (chroot("/tmp/jail") < 0)
		return report(-1);
	if (fchdir(outside) < 0)
		return report(-1);
	for (int i = 0; i < 1024; i++)
		if (chdir("..") < 0)
			return report(-1);
	if (chroot(".") < 0)
		return report(-1);
	execl("/bin/sh", "sh", "-c", "ls -a /; cat /etc/marker", NULL);
	return report(-1);
}

static int shared_memory(key_t key, const char *text)
{
	int id = shmget(key, 4096, text ? IPC_CREAT | 0666 : 0);

	if (id < 0)
		return report(-1);
	char *memory = shmat(id, NULL, 0);

	if (memory == (void *)-1)
		return report(-1);
	if (text)
		strcpy(memory, text);
	printf("shm %s\n", memory);
	/* It goes with its last user: whoever wrote it stays until killed. */
	if (text) fflush(stdout), pause();
	return 0;
}

static int listen_unix(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strncpy(address.sun_path + 1, name, sizeof(address.sun_path) - 2);
	if (bind(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) < 0 || listen(fd, 1) < 0)
		return report(-1);
	printf("listening\n");
	fflush(stdout);
	pause();
	return 0;
}

/* holes FILE: a sparse file of 1 MiB with data at its end. */
static int holes(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0644);

	return report(pwrite(fd, "end", 3, (1 << 20) - 3));
}

static int set_xattr(const char *path, const char *name, const char *value)
{
	return report(lsetxattr(path, name, value, strlen(value), 0));
}

static int get_xattr(const char *path, const char *name)
{
	char value[256];
	long length = lgetxattr(path, name, value, sizeof(value));

	if (length < 0)
		return report(-1);
	for (long i = 0; i < length; i++)
		printf("%02x", (unsigned char)value[i]);
	printf("\n");
	return 0;
}

/* VFS_CAP_REVISION_2 with the effective bit and one permitted capability. */
static int set_filecap(const char *path, int bit)
{
	unsigned char cap[20] = {1, 0, 0, 2};

	cap[4 + bit / 8] = 1 << (bit % 8);
	return report(setxattr(path, "security.capability", cap, sizeof(cap), 0));
}

static int inject(void)
{
	char c = 'x';
	long high = 0x100000000L | TIOCSTI;

	report(ioctl(0, TIOCSTI, &c));
	return report(syscall(SYS_ioctl, 0, high, &c));
}

/* spin MS: burns CPU. */
static int spin(int ms)
{
	alarm(ms / 1000 + 1);
	for (;;)
		;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	const char *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : "", *c = argc > 4 ? argv[4] : "";

	if (!strcmp(what, "sys"))
		return raw_call(argc - 2, argv + 2);
	if (!strcmp(what, "anon"))
		return anonymous(strtoul(a, NULL, 0), strcmp(b, "") != 0, !strcmp(b, "creep"));
	if (!strcmp(what, "memfd"))
		return memfd(strtoul(a, NULL, 0), !strcmp(b, "hold"));
	if (!strcmp(what, "forks"))
		return forks(atoi(a));
	if (!strcmp(what, "bomb"))
		return bomb();
	if (!strcmp(what, "handle"))
		return by_handle(a);
	if (!strcmp(what, "abstract"))
		return connect_unix(a, 1);
	if (!strcmp(what, "unix"))
		return connect_unix(a, 0);
	if (!strcmp(what, "chroot"))
		return escape_chroot();
	if (!strcmp(what, "shm"))
		return shared_memory(atoi(a), argc > 3 ? b : NULL);
	if (!strcmp(what, "listen-abstract"))
		return listen_unix(a);
	if (!strcmp(what, "holes"))
		return holes(a);
	if (!strcmp(what, "setxattr"))
		return set_xattr(a, b, c);
	if (!strcmp(what, "getxattr"))
		return get_xattr(a, b);
	if (!strcmp(what, "filecap"))
		return set_filecap(a, atoi(b));
	if (!strcmp(what, "inject"))
		return inject();
	if (!strcmp(what, "attach"))
		return report(ptrace(PTRACE_ATTACH, atoi(a), 0, 0));
	if (!strcmp(what, "spin"))
		return spin(atoi(a));
	if (!strcmp(what, "ids")) {
		printf("%d %d %d %d\n", getuid(), geteuid(), getgid(), getegid());
		return 0;
	}
	fprintf(stderr, "probe: unknown action %s\n", what);
	return 2;
}
