/* Names and words of the errors that starting a command can meet. A table instead of strerror: the same words whatever the libc. */
#include "init.h"

#include <errno.h>

static const struct {
    int error;
    const char *name, *text;
} TABLE[] = {
    {EPERM, "EPERM", "operation not permitted"},
    {ENOENT, "ENOENT", "no such file or directory"},
    {ESRCH, "ESRCH", "no such process"},
    {EIO, "EIO", "input or output error"},
    {E2BIG, "E2BIG", "arguments and environment are too long"},
    {ENOEXEC, "ENOEXEC", "not an executable format of this machine"},
    {EAGAIN, "EAGAIN", "no process available (limit reached)"},
    {ENOMEM, "ENOMEM", "out of memory"},
    {EACCES, "EACCES", "permission denied"},
    {EBUSY, "EBUSY", "still in use"},
    {ENOTDIR, "ENOTDIR", "a component of the path is not a directory"},
    {EISDIR, "EISDIR", "is a directory"},
    {EINVAL, "EINVAL", "invalid argument"},
    {ENFILE, "ENFILE", "too many open files on the host"},
    {EMFILE, "EMFILE", "too many open files in init"},
    {ENOTTY, "ENOTTY", "the exec has no terminal"},
    {ETXTBSY, "ETXTBSY", "the file is open for writing"},
    {ENOSPC, "ENOSPC", "no space left"},
    {ENAMETOOLONG, "ENAMETOOLONG", "the path is too long"},
    {ELOOP, "ELOOP", "too many symbolic links"},
};

const char *errno_name(int error) {
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        if (TABLE[i].error == error) return TABLE[i].name;
    }
    return "EOTHER";
}

const char *errno_text(int error) {
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        if (TABLE[i].error == error) return TABLE[i].text;
    }
    return "it failed";
}
