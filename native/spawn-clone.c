/*
 * clone3 for a child that shares our memory and runs on a stack of its own. The C library has no wrapper for it, and only clone3 can make a process inside a
 * control group: moving one there afterwards takes a lock over all processes of the host, which costs milliseconds on a busy one.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>

#if defined(__x86_64__)
static long call(struct mw_clone_args *arguments, int (*function)(void *), void *context)
{
	register int (*f)(void *) __asm__("r12") = function;
	register void *c __asm__("r13") = context;
	long result;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r13, %%rdi\n\t"
			 "call *%%r12\n\t"
			 "mov %%eax, %%edi\n\t"
			 "mov $60, %%eax\n\t"
			 "syscall\n\t"
			 "hlt\n"
			 "1:"
			 : "=a"(result)
			 : "0"((long)SYS_clone3), "D"(arguments), "S"(sizeof *arguments), "r"(f), "r"(c)
			 : "rcx", "r11", "memory", "cc");
	return result;
}
#elif defined(__aarch64__)
static long call(struct mw_clone_args *arguments, int (*function)(void *), void *context)
{
	register long number __asm__("x8") = SYS_clone3;
	register long first __asm__("x0") = (long)arguments;
	register long second __asm__("x1") = sizeof *arguments;
	register int (*f)(void *) __asm__("x20") = function;
	register void *c __asm__("x21") = context;
	__asm__ volatile("svc #0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, xzr\n\t"
			 "mov x0, x21\n\t"
			 "blr x20\n\t"
			 "mov x8, #93\n\t"
			 "svc #0\n"
			 "1:"
			 : "+r"(first)
			 : "r"(number), "r"(second), "r"(f), "r"(c)
			 : "x30", "memory", "cc");
	return first;
}
#else
static long call(struct mw_clone_args *arguments, int (*function)(void *), void *context)
{
	(void)arguments, (void)function, (void)context;
	return -ENOSYS;
}
#endif

pid_t clone_into(struct mw_clone_args *arguments, int (*function)(void *), void *context)
{
	long result = call(arguments, function, context);
	if (result >= 0) return (pid_t)result;
	errno = (int)-result;
	return -1;
}
