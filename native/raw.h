/*
 * System calls without libc: no errno, no cancellation, no locks. For code that shares its memory with another process (CLONE_VM without CLONE_SETTLS).
 * Results are the kernel's: negative errno on failure.
 */
#ifndef MW_RAW_H
#define MW_RAW_H

#include <sys/syscall.h>

#if defined(__x86_64__)

static inline long raw6(long n, long a, long b, long c, long d, long e, long f) {
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return ret;
}

/* A process that runs fn(arg) on the stack that ends at `top` (16-byte aligned) and exits with its result. `tid`: where CLONE_PARENT_SETTID writes its number. */
static inline long raw_clone(unsigned long flags, void *top, int *tid, int (*fn)(void *), void *arg) {
    void **sp = top;
    *--sp = arg;
    *--sp = (void *)fn;
    long ret;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile(
        "syscall\n"
        "test %%rax, %%rax\n"
        "jnz 1f\n"
        "xor %%ebp, %%ebp\n"
        "pop %%rax\n"
        "pop %%rdi\n"
        "call *%%rax\n"
        "mov %%eax, %%edi\n"
        "mov %[exit], %%eax\n"
        "syscall\n"
        "hlt\n"
        "1:"
        : "=a"(ret)
        : "a"((long)SYS_clone), "D"(flags), "S"(sp), "d"(tid), "r"(r10), "r"(r8), [exit] "i"(SYS_exit_group)
        : "rcx", "r11", "memory");
    return ret;
}

#elif defined(__aarch64__)

static inline long raw6(long n, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}

static inline long raw_clone(unsigned long flags, void *top, int *tid, int (*fn)(void *), void *arg) {
    void **sp = top;
    *--sp = arg;
    *--sp = (void *)fn;
    register long x8 __asm__("x8") = SYS_clone;
    register long x0 __asm__("x0") = (long)flags;
    register long x1 __asm__("x1") = (long)sp;
    register long x2 __asm__("x2") = (long)tid;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    __asm__ volatile(
        "svc 0\n"
        "cbnz x0, 1f\n"
        "mov x29, xzr\n"
        "ldp x1, x0, [sp], #16\n"
        "blr x1\n"
        "mov x8, %[exit]\n"
        "svc 0\n"
        "brk 0\n"
        "1:"
        : "+r"(x0)
        : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), [exit] "i"(SYS_exit_group)
        : "memory");
    return x0;
}

#else
#error "no raw system calls for this architecture yet"
#endif

#define RAW1(n, a) raw6(n, (long)(a), 0, 0, 0, 0, 0)
#define RAW2(n, a, b) raw6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define RAW3(n, a, b, c) raw6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define RAW4(n, a, b, c, d) raw6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define RAW5(n, a, b, c, d, e) raw6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)

#endif
