/*
 * A machine is made of a blank: what the request decides is fitted, and init is told to go on. Everything that needs memory, paths or names of the host is
 * prepared here; the mounts are made in the machine's own mount namespace (spawn-root.c).
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t machine_id_base(const struct machine *machine)
{
	return machine->slot >= 0 && S.privileged ? S.config.slot_base + (uint32_t)machine->slot * SLOT_IDS : 0;
}

/* Attaches `path` as the next layer and appends its attachment point to overlay options. */
static int add_layer(struct root_plan *plan, char *options, size_t size, int dir, const char *path, int userns, struct failure *failure)
{
	if (plan->layer_count >= PLAN_LAYERS) return fail_code(failure, "limit", "more than %d layers", PLAN_LAYERS);
	int fd = clone_mount(dir, path, userns, failure);
	if (fd < 0) return -1;
	size_t length = strlen(options);
	int added = snprintf(options + length, size - length, "%s/l/%03d", length > 9 ? ":" : "", plan->layer_count);
	plan->layers[plan->layer_count++] = fd;
	return added < 0 || (size_t)added >= size - length ? fail_code(failure, "limit", "too many layers") : 0;
}

static int finish_options(char *options, size_t size, const char *upper, const char *work, struct failure *failure)
{
	size_t length = strlen(options);
	/* Spelled out, because their defaults are a choice of each kernel's builder. */
	int added = snprintf(options + length, size - length, "%s,upperdir=/s/upper%s,workdir=/s/%s,redirect_dir=nofollow,index=off,metacopy=off%s",
			     upper[0] ? "" : ":/s/skel", upper, work, S.privileged ? "" : ",userxattr");
	return added < 0 || (size_t)added >= size - length ? fail_code(failure, "limit", "too many layers") : 0;
}

static int plan_layers(struct machine *machine, struct root_plan *plan, const struct create_request *request, struct failure *failure)
{
	int userns = machine->userns_fd;
	snprintf(plan->overlay_options, sizeof plan->overlay_options, "lowerdir=");
	/* The workspace that it starts from, and those that one started from. */
	for (struct machine *base = machine->base; base; base = base->base)
		if (add_layer(plan, plan->overlay_options, sizeof plan->overlay_options, base->scratch, "upper", userns, failure) < 0) return -1;
	for (int i = 0; i < request->layer_count; i++)
		if (add_layer(plan, plan->overlay_options, sizeof plan->overlay_options, AT_FDCWD, request->layers[i], userns, failure) < 0) return -1;
	if (finish_options(plan->overlay_options, sizeof plan->overlay_options, "", "work", failure) < 0) return -1;
	for (int i = 0; i < request->part_count; i++) {
		struct root_part *part = &plan->parts[plan->part_count++];
		const char *target = request->parts[i].target;
		if ((size_t)snprintf(part->target, sizeof part->target, "/m%s", target) >= sizeof part->target)
			return fail_code(failure, "ENAMETOOLONG", "the part %s", target);
		snprintf(part->options, sizeof part->options, "lowerdir=");
		char work[16], below[PATH_BYTES];
		snprintf(work, sizeof work, "work-%d", i);
		snprintf(below, sizeof below, "upper%s", target);
		for (struct machine *base = machine->base; base; base = base->base) {
			/* Without it the workspace has nothing at the part's place. */
			int dir = open_below(base->scratch, below);
			int result = dir < 0 ? 0 : add_layer(plan, part->options, sizeof part->options, dir, "", userns, failure);
			if (dir >= 0) close(dir);
			if (result < 0) return -1;
		}
		for (int k = 0; k < request->parts[i].layer_count; k++)
			if (add_layer(plan, part->options, sizeof part->options, AT_FDCWD, request->parts[i].layers[k], userns, failure) < 0) return -1;
		if (finish_options(part->options, sizeof part->options, target, work, failure) < 0) return -1;
	}
	return 0;
}

static int give_root(struct machine *machine, const struct create_request *request, struct failure *failure)
{
	static struct root_plan plan;
	memset(&plan, 0, sizeof plan);
	plan.resolv = -1;
	plan.userns = machine->userns;
	plan.root_id = machine_id_base(machine);
	int result = plan_layers(machine, &plan, request, failure);
	if (result == 0 && machine->public_network) result = (plan.resolv = slirp_resolv(failure)) < 0 ? -1 : 0;
	if (result == 0) result = root_make(machine->mntns, &plan, failure);
	for (int i = 0; i < plan.layer_count; i++) close(plan.layers[i]);
	close_fd(&plan.resolv);
	return result;
}

static int start_services(struct machine *machine, const struct create_request *request, struct failure *failure)
{
	int listeners[PLAN_SERVICES];
	if (root_services(machine->netns, machine->utsns, request, listeners, failure) < 0) return -1;
	if (request->service_count > 0 && forward_start(machine, request, listeners) < 0) return fail_errno(failure, errno, "forwarding services");
	return 0;
}

/* Layers that the tree helper needs to tell what a workspace changed; kept for as long as the machine or its workspace. */
static int remember_lowers(struct machine *machine, const struct create_request *request, struct failure *failure)
{
	machine->lowers = calloc((size_t)request->layer_count + 1, sizeof *machine->lowers);
	for (int i = 0; machine->lowers && i < request->layer_count; i++) {
		if (!(machine->lowers[i] = strdup(request->layers[i]))) break;
		machine->lower_count++;
	}
	return machine->lower_count == request->layer_count ? 0 : fail_errno(failure, ENOMEM, "making %s", machine->id);
}

int machine_up(struct machine *machine, struct failure *failure)
{
	if (machine->public_network && slirp_start(machine, failure) < 0) return -1;
	if (machine->memory_bytes) memory_watch_start(machine);
	return 0;
}

static int bring_up(struct machine *machine, const struct create_request *request, struct failure *failure)
{
	machine->memory_bytes = request->memory_bytes;
	machine->pids = request->pids;
	machine->public_network = request->network == 1;
	machine->ttl_ms = request->ttl_ms;
	machine->expires_ms = request->ttl_ms ? now_ms() + request->ttl_ms : 0;
	if (remember_lowers(machine, request, failure) < 0) return -1;
	if (scratch_fit(machine, request, failure) < 0) return -1;
	if (cgroup_limit(machine, request, failure) < 0) return -1;
	if (give_root(machine, request, failure) < 0) return -1;
	if (start_services(machine, request, failure) < 0) return -1;
	if (request->processes[0] && processes_restore(machine, request, failure) < 0) return -1;
	close_fd(&machine->mntns);
	close_fd(&machine->utsns);
	close_fd(&machine->netns);
	if (machine->create_pending) return 0;
	if (machine_up(machine, failure) < 0) return -1;
	return write(machine->lifeline, "", 1) == 1 ? 0 : fail_errno(failure, errno, "starting %s", machine->id);
}

struct machine *make_machine(const struct create_request *request, struct failure *failure)
{
	if (machine_find(request->id)) return fail_code(failure, "EEXIST", "a machine named %s exists", request->id), NULL;
	if (S.machine_count >= MACHINES_MAX) return fail_code(failure, "EAGAIN", "%d machines exist, the most that one spawner makes", MACHINES_MAX), NULL;
	struct machine *base = NULL;
	if (request->workspace[0]) {
		base = machine_find(request->workspace);
		if (!base || base->state != MACHINE_SEALED) return fail_code(failure, "ENOENT", "no sealed workspace %s", request->workspace), NULL;
	}
	struct machine *machine = blank_take(request, failure);
	if (!machine) return NULL;
	machine->base = base;
	if (base) base->users++;
	if (bring_up(machine, request, failure) == 0) return machine;
	/* The caller answers. */
	machine->create_pending = false;
	machine_dispose(machine);
	return NULL;
}
