/* What tells a machine from its neighbours and from those that it was copied of: host name and machine id, as files. */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

int name_host(int scratch, const struct create_request *request)
{
	char text[256];
	snprintf(text, sizeof text, "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 %s\n", request->hostname);
	if (put_file(scratch, "skel/etc/hosts", text) < 0) return -1;
	snprintf(text, sizeof text, "%s\n", request->hostname);
	return put_file(scratch, "skel/etc/hostname", text);
}

/* Whether the layer decides what is at etc/NAME: it has something there, or hides what is below. `etc` is its directory, to be closed, or -1. */
static bool decides(int layer, const char *prefix, const char *name, int *etc, struct stat *info)
{
	char path[64];
	snprintf(path, sizeof path, "%setc", prefix);
	*etc = open_below(layer, path);
	if (*etc < 0) return false;
	if (fstatat(*etc, name, info, AT_SYMLINK_NOFOLLOW) == 0) return true;
	close_fd(etc);
	return false;
}

/* The topmost layer that has the file; its directory, or -1 where none has one that is a file. */
static int directory_of(const struct machine *machine, const struct create_request *request, const char *name)
{
	struct stat info;
	int etc = -1;
	bool found = false;
	for (struct machine *base = machine->base; base && !found; base = base->base) found = decides(base->scratch, "upper/", name, &etc, &info);
	for (int i = 0; i < request->layer_count && !found; i++) {
		int layer = open(request->layers[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (layer < 0) continue;
		found = decides(layer, "", name, &etc, &info);
		close(layer);
	}
	if (found && !S_ISREG(info.st_mode)) close_fd(&etc);
	return etc;
}

static int put_in_upper(const struct machine *machine, int etc, const char *name, const char *text)
{
	struct stat info;
	char path[64];
	snprintf(path, sizeof path, "upper/etc/%s", name);
	if (fstat(etc, &info) < 0) return -1;
	if (mkdirat(machine->scratch, "upper/etc", 0755) < 0 && errno != EEXIST) return -1;
	if (fchownat(machine->scratch, "upper/etc", info.st_uid, info.st_gid, 0) < 0 && S.privileged) return -1;
	if (fchmodat(machine->scratch, "upper/etc", info.st_mode & 07777, 0) < 0) return -1;
	return put_file(machine->scratch, path, text);
}

static int replace(const struct machine *machine, const struct create_request *request, const char *name, const char *text)
{
	int etc = directory_of(machine, request, name);
	if (etc < 0) return 0;
	int result = put_in_upper(machine, etc, name, text), error = errno;
	close(etc);
	return errno = error, result;
}

/*
 * The id lies in the lowest layer, where it never counts as a change. A copy of a machine whose layers have the file gets its own over them: two machines of one id would be
 * taken for one. So with the host name, which is set in any case; the file says it again.
 */
int fit_identity(struct machine *machine, const struct create_request *request)
{
	char text[80];
	snprintf(text, sizeof text, "%s\n", request->machine_id);
	if (put_file(machine->scratch, "skel/etc/machine-id", text) < 0) return -1;
	if (!request->own_identity) return 0;
	if (replace(machine, request, "machine-id", text) < 0) return -1;
	snprintf(text, sizeof text, "%s\n", request->hostname);
	return replace(machine, request, "hostname", text);
}
