/*
 * File trees as streams of frames (wire.h): `unpack write` makes a tree from a stream, `unpack read` makes a stream from a tree. Node cannot set extended
 * attributes, device nodes or nanosecond times, and cannot open a path without following links; this program can, and does nothing else.
 *
 * The stream is hostile: names are checked component by component, no link is ever followed, and nothing outside the given directory is touched.
 */
#ifndef MW_UNPACK_H
#define MW_UNPACK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "wire.h"

/* Frame types. An answer WIRE_ERROR names the entry that was refused by its ref, or REF_FATAL. */
enum { FRAME_ENTRY = 1, FRAME_DATA = 2, FRAME_FINISH = 3, FRAME_DONE = 4 };
#define REF_FATAL UINT32_MAX

/* Fields of an entry; numbers are u64 unless said. */
enum {
    FIELD_PATH = 1, /* bytes, relative, without `.`, `..` and empty components; empty: the root directory itself */
    FIELD_KIND = 2,
    FIELD_MODE = 3,
    FIELD_UID = 4,
    FIELD_GID = 5,
    FIELD_SECONDS = 6, /* i64 */
    FIELD_NANOSECONDS = 7,
    FIELD_TARGET = 8, /* bytes: of a symlink; of a hard link, an earlier entry's path */
    FIELD_MAJOR = 9,
    FIELD_MINOR = 10,
    FIELD_SIZE = 11,
    FIELD_XATTR = 12, /* bytes: name, NUL, value; repeated */
    FIELD_OFFSET = 13,
    FIELD_BYTES = 14,
    FIELD_OPAQUE = 15, /* of a directory: hides what lower layers have there */
    FIELD_INODE = 16,
    FIELD_CHANGED = 17, /* i64, ctime in nanoseconds */
    /* Of the final answer. */
    FIELD_ENTRIES = 20,
    FIELD_TOTAL = 21,
    FIELD_FLATTENED = 22, /* entries whose owner could not be kept */
    FIELD_LOST = 23,      /* extended attributes that could not be kept */
};

enum { KIND_FILE = 1, KIND_DIRECTORY, KIND_SYMLINK, KIND_HARDLINK, KIND_CHAR, KIND_BLOCK, KIND_FIFO, KIND_WHITEOUT, KIND_SOCKET, KIND_OPAQUE };

#define TREE_PATH_MAX 4096
#define TREE_ENTRIES_MAX 1000000u

/* Sends an error answer with REF_FATAL and exits with 1. */
_Noreturn void fatal(const char *what, int error);
/* Queues bytes for stdout; `flush` sends what is queued. */
void put(const void *data, size_t len);
void flush(void);
const char *errno_name(int error);
void answer_error(uint32_t ref, int error, const char *what);

/* True when `path` can be an entry's path. */
bool path_is_sound(const char *path);
/* Removes whatever is at `name` in the directory, never following links. 0 or -1 with errno. */
int remove_at(int dir, const char *name);

/* From here on ids are those of the namespace; exits on failure. */
void enter_user_namespace(const char *first_uid, const char *first_gid);

int command_write(const char *root, bool keep_owners, const char *opaque_name);
int command_read(const char *root, bool with_data, bool skip_unreadable);
int command_scan(const char *root);

#endif
