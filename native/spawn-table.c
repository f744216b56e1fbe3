/* Machines by id. */
#include "spawn.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096 };
static struct machine *buckets[BUCKETS];

static struct machine **bucket_of(const char *id)
{
	uint32_t hash = 2166136261u;
	for (const char *at = id; *at; at++) hash = (hash ^ (uint8_t)*at) * 16777619u;
	return &buckets[hash % BUCKETS];
}

struct machine *machine_find(const char *id)
{
	for (struct machine *machine = *bucket_of(id); machine; machine = machine->next_in_bucket)
		if (strcmp(machine->id, id) == 0) return machine;
	return NULL;
}

void machine_add(struct machine *machine)
{
	struct machine **bucket = bucket_of(machine->id);
	machine->next_in_bucket = *bucket;
	*bucket = machine;
}

void machine_remove(struct machine *machine)
{
	for (struct machine **at = bucket_of(machine->id); *at; at = &(*at)->next_in_bucket) {
		if (*at != machine) continue;
		*at = machine->next_in_bucket;
		return;
	}
}

/* `visit` may remove the machine that it is given, no other. */
void machines_each(void (*visit)(struct machine *machine, void *context), void *context)
{
	for (int i = 0; i < BUCKETS; i++) {
		struct machine *next;
		for (struct machine *machine = buckets[i]; machine; machine = next) {
			next = machine->next_in_bucket;
			visit(machine, context);
		}
	}
}

struct machine *machine_new(void)
{
	struct machine *machine = calloc(1, sizeof *machine);
	if (!machine) return NULL;
	machine->slot = -1;
	int *const none[] = {&machine->source.fd, &machine->pressure.fd, &machine->victim, &machine->userns_fd, &machine->lifeline, &machine->netns, &machine->mntns, &machine->utsns,
			     &machine->scratch, &machine->slirp_exit, &machine->slirp_up.fd, &machine->slirp.source.fd, &machine->tree.source.fd, &machine->criu.source.fd, &machine->criu_limit.fd, &machine->processes, &machine->left};
	for (size_t i = 0; i < sizeof none / sizeof *none; i++) *none[i] = -1;
	return machine;
}

/* One DNS label: safe as a file name, a control group's name and a host name. */
bool id_valid(const char *id)
{
	size_t length = strlen(id);
	if (length == 0 || length > 63 || id[0] == '-') return false;
	for (const char *at = id; *at; at++)
		if (!((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9') || *at == '-')) return false;
	return true;
}
