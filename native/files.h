/*
 * The file helper: an ordinary exec in a machine, whose stdin and stdout speak the file protocol (docs/internals/native.md, "Files"). One request a process.
 *
 * It runs where the agent ran, so everything that it meets may be hostile: FIFOs in place of files, links in place of directories, trees without end. It
 * resolves paths inside the machine only, because that is where it is; nothing that it does reaches the host.
 */
#ifndef MW_FILES_H
#define MW_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include "errors.h"
#include "wire.h"

enum {
    FILES_READ = 1, FILES_WRITE, FILES_LIST, FILES_STAT, FILES_MKDIR, FILES_MOVE, FILES_REMOVE, FILES_UPLOAD, FILES_DOWNLOAD, FILES_WATCH, FILES_IDS, FILES_CONNECT, FILES_SCAN,
    FILES_DATA = 20, FILES_END, FILES_ENTRY, FILES_REFUSED, FILES_EVENT,
};
enum {
    F_PATH = 1, F_MAX, F_MODE, F_UID, F_GID, F_TO, F_EXCLUDE, F_KIND, F_SIZE, F_MTIME, F_TARGET, F_DATA, F_REASON, F_ENTRIES, F_RECURSIVE, F_DEVICE, F_BYTES, F_ATTRIBUTE,
};
/* Of an entry or event. KIND_DIRECTORY_END closes a directory, so that its times can be set when nothing changes them any more. */
enum { KIND_FILE, KIND_DIRECTORY, KIND_SYMLINK, KIND_HARDLINK, KIND_DIRECTORY_END, KIND_FIFO, KIND_SOCKET, KIND_DEVICE };
enum { EVENT_CREATED, EVENT_MODIFIED, EVENT_REMOVED, EVENT_OVERFLOW, EVENT_ATTRIBUTES, EVENT_MOVED };

enum {
    PATH_BYTES = 4096,       /* LIMITS.treePathBytes, with its NUL */
    DATA_BYTES = 64 << 10,
    EXCLUDES_MOST = 256,
    ATTRIBUTES_MOST = 64,            /* LIMITS.fileAttributes */
    ATTRIBUTES_BYTES = 4 << 10,      /* LIMITS.fileAttributeBytes: names and values */
    ENTRIES_MOST = 1000000,  /* LIMITS.treeEntries */
};

/* What a request or entry says, checked. */
typedef struct {
    uint8_t type;
    uint32_t seen;
    char path[PATH_BYTES];
    char to[PATH_BYTES];
    char target[PATH_BYTES];
    const char *excludes[EXCLUDES_MOST];
    uint32_t exclude_count;
    /* Each a name, a NUL, a value; in one buffer that is made when it is needed. */
    uint8_t *attributes;
    uint32_t attribute_lengths[ATTRIBUTES_MOST], attribute_count, attribute_bytes;
    uint64_t max, mode, uid, gid, kind, size, recursive;
    int64_t mtime_ns;
    const uint8_t *data;
    uint32_t data_len;
} message;

/* files-io.c: blocking; a broken stream or a gone reader ends the process. */
bool message_read(message *m);
void frame_begin(uint8_t type);
wire_writer *frame(void);
void frame_send(void);
void out_flush(void);
__attribute__((noreturn)) void fail(int error, const char *what, const char *path);
void refuse(const char *path, const char *reason);
uint8_t *data_room(uint8_t type);
void data_send(size_t len);
static inline bool has(const message *m, int tag) { return m->seen >> tag & 1; }

/* files-path.c */
int open_parent(const char *path, char *name, bool make);
bool parent_and_name(const char *path, char *parent, char *name);
int make_directories(int base, const char *path, mode_t mode, uid_t uid, gid_t gid, bool *made);
int kind_of(mode_t mode);
void temporary_name(char *out);
bool is_temporary_name(const char *name);
bool glob_match(const char *pattern, const char *path);

/* files-attributes.c */
void put_attributes(const char *name);
int set_attributes(int fd, const message *m);

/* files-digest.c */
enum { DIGEST_BYTES = 16 };
typedef struct {
    uint64_t state[4];
    uint64_t bytes;
    uint8_t held[8];
} digest;
void digest_begin(digest *d, const uint8_t key[DIGEST_BYTES]);
void digest_add(digest *d, const void *data, size_t len);
void digest_end(digest *d, uint8_t out[DIGEST_BYTES]);
void digest_attributes(digest *d, const char *path);

/* files-remove.c: 0 or an errno. */
int remove_tree(int dir, const char *name);

void files_upload(message *m);
void files_download(message *m);
void files_watch(message *m);
void files_connect(message *m);

#endif
