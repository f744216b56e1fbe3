/* The flags that the controller starts us with. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void load_filter(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat info;
	if (fd < 0 || fstat(fd, &info) < 0) die(2, "opening the system call filter %s: %s", path, strerror(errno));
	size_t size = (size_t)info.st_size, count = size / sizeof(struct sock_filter);
	if (size == 0 || size % sizeof(struct sock_filter) || count > BPF_MAXINSNS) die(2, "%s is not an array of filter instructions", path);
	S.config.filter = malloc(size);
	if (!S.config.filter || read(fd, S.config.filter, size) != (ssize_t)size) die(2, "reading %s: %s", path, strerror(errno));
	S.config.filter_length = count;
	close(fd);
}

/* What an ordinary container keeps: nothing that reaches past the machine's own files, processes and network. */
#define DEFAULT_CAPABILITIES 0xa80425fbull

void config_read(int argc, char **argv)
{
	S.config.capabilities = DEFAULT_CAPABILITIES;
	S.config.slot_base = 1000000000u;
	const struct {
		const char *flag;
		const char **value;
	} TEXTS[] = {{"--data", &S.config.data}, {"--run", &S.config.run}, {"--init", &S.config.init}, {"--files", &S.config.files},
		     {"--tree", &S.config.tree}, {"--slirp", &S.config.slirp}, {"--criu", &S.config.criu}, {"--version", &S.config.version}};
	for (int i = 1; i < argc; i += 2) {
		const char *flag = argv[i], *value = argv[i + 1];
		if (i + 1 >= argc) die(2, "the flag %s has no value", flag);
		bool known = false;
		for (size_t k = 0; k < sizeof TEXTS / sizeof *TEXTS; k++)
			if (strcmp(flag, TEXTS[k].flag) == 0) *TEXTS[k].value = value, known = true;
		if (strcmp(flag, "--seccomp") == 0) load_filter(value), known = true;
		if (strcmp(flag, "--caps") == 0) S.config.capabilities = strtoull(value, NULL, 16), known = true;
		if (strcmp(flag, "--grace-ms") == 0) S.config.grace_ms = strtoull(value, NULL, 10), known = true;
		if (strcmp(flag, "--slot-base") == 0) S.config.slot_base = (uint32_t)strtoul(value, NULL, 10), known = true;
		if (!known) die(2, "unknown flag %s", flag);
	}
	if (!(S.config.capabilities >> CAP_SYS_CHROOT & 1)) die(2, "--caps must hold CAP_SYS_CHROOT, with which init enters the machine's root");
	if (!S.config.data || !S.config.run || !S.config.init) die(2, "--data, --run and --init are needed");
	if (S.config.run[0] != '/' || strlen(S.config.run) > 200) die(2, "--run must be an absolute path of at most 200 bytes");
	const char *name = strrchr(S.config.run, '/') + 1;
	if (!id_valid(name) || (size_t)snprintf(S.hash, sizeof S.hash, "%s", name) >= sizeof S.hash) die(2, "the last part of --run must be a short name");
}
