/* Names and words of the errors that the programs in a machine meet. A table instead of strerror: the same words whatever the libc. */
#ifndef MW_ERRORS_H
#define MW_ERRORS_H

#include <errno.h>
#include <stddef.h>

static const struct {
    int error;
    const char *name, *text;
} ERRNO_TABLE[] = {
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
    {ELOOP, "ELOOP", "a symbolic link is in the way, or too many of them"},
    {EEXIST, "EEXIST", "something is there already"},
    {EXDEV, "EXDEV", "it lies on another file system"},
    {EFBIG, "EFBIG", "larger than allowed"},
    {EROFS, "EROFS", "the file system is read-only"},
    {EMLINK, "EMLINK", "too many hard links"},
    {EPIPE, "EPIPE", "the stream ended too early"},
    {ENOTEMPTY, "ENOTEMPTY", "the directory is not empty"},
    {ETIMEDOUT, "ETIMEDOUT", "it took too long"},
    {EDQUOT, "EDQUOT", "no quota left"},
    {EOPNOTSUPP, "EOPNOTSUPP", "not possible on this file system"},
    {EBADMSG, "EBADMSG", "a malformed request"},
};

static inline const char *errno_name(int error) {
    for (size_t i = 0; i < sizeof ERRNO_TABLE / sizeof *ERRNO_TABLE; i++) {
        if (ERRNO_TABLE[i].error == error) return ERRNO_TABLE[i].name;
    }
    return "EOTHER";
}

static inline const char *errno_text(int error) {
    for (size_t i = 0; i < sizeof ERRNO_TABLE / sizeof *ERRNO_TABLE; i++) {
        if (ERRNO_TABLE[i].error == error) return ERRNO_TABLE[i].text;
    }
    return "it failed";
}

#endif
