/*
 * The reader of sealed workspaces: a host-side program started by the spawner on the upper directory of a machine that has ended (docs/internals/native.md, "Tree").
 *
 * What lies in the upper was written by the agent. No link in it or in the layers is ever followed: every path is walked component by component from a descriptor.
 */
#ifndef MW_TREE_H
#define MW_TREE_H

#include "files.h"

enum { TREE_CHANGES = 1, TREE_DISCARD, TREE_READ, TREE_USAGE, TREE_EXPORT, TREE_SQUASH };
enum { CHANGE_ADDED, CHANGE_CHANGED, CHANGE_REMOVED };
enum { TREE_DEPTH_MOST = 1000, LOWERS_MOST = 512 };
/* Tag of a change's kind, beside the type in F_KIND. */
enum { F_CHANGE = F_ENTRIES };

typedef struct {
    int upper;
    int lowers[LOWERS_MOST];
    int lower_count;
    int base_count; /* of the first lowers: workspaces */
} trees;
extern trees T;

/* tree-layers.c */
bool is_whiteout(int dir, const char *name, const struct stat *st);
bool is_opaque(int dir);
int walk_to(int root, const char *path, char *name);
bool in_lowers(const char *path, struct stat *st, int *layer);
const char *relative(const char *path);

/* tree-copy.c: 0 or an errno. */
int copy_tree(int from, const char *name, int to, const char *to_name);
int copy_into(int from, int to, bool below);
uint64_t tree_usage(int dir);

void tree_changes(void);
int tree_discard(const char *path);

#endif
