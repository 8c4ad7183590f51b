/* Preloaded into the guest kernel, which is an ordinary program of the host.
 *
 * 1. ptrace: kernels up to 6.12 keep a program's floating-point state in a buffer of fixed size.
 *    On a CPU with AMX the host's state is larger, and setting it from the short buffer fails with
 *    EFAULT ("ptrace set fp regs failed"). Here the buffer is padded to the size that the host
 *    reports. The two AMX tile components are marked as unused: the guest never saves them.
 * 2. ptrace again: a guest kernel reads and writes a program's floating-point state at each of its
 *    system calls and page faults, some 3 KB that the host copies twice. What it would write is
 *    mostly what the program has, and then the call is left out.
 * 3. getrandom: with ELOQUENT_GUEST_SEED set, a fixed stream, so that the guest's random numbers
 *    (netem, ports, hash seeds) repeat from run to run.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <errno.h>

#define XSTATE_NOTE 0x202L            /* NT_X86_XSTATE in <elf.h> */
#define XSTATE_BV 512                 /* offset of the component bitmap, Intel SDM 13.4.2 */
#define AMX_COMPONENTS (3ULL << 17)   /* XTILECFG and XTILEDATA */

#define LARGEST 8192                  /* bytes of a state that is remembered */

/* The floating-point state that a stopped program is known to have. */
struct known {
    long pid;
    size_t size; /* 0: nothing is known */
    uint8_t state[LARGEST];
};
static struct known table[256];

static struct known *slot(long pid)
{
    return &table[pid % (sizeof table / sizeof *table)];
}

static void remember(long pid, const struct iovec *state)
{
    struct known *known = slot(pid);
    known->pid = pid;
    known->size = state->iov_len <= LARGEST ? state->iov_len : 0;
    memcpy(known->state, state->iov_base, known->size);
}

static void forget(long pid)
{
    if (slot(pid)->pid == pid)
        slot(pid)->size = 0;
}

static long get_state(long pid, struct iovec *wanted)
{
    const struct known *known = slot(pid);

    if (known->pid == pid && known->size != 0 && known->size <= wanted->iov_len) {
        memcpy(wanted->iov_base, known->state, known->size);
        wanted->iov_len = known->size;
        return 0;
    }
    long result = syscall(SYS_ptrace, PTRACE_GETREGSET, pid, XSTATE_NOTE, wanted);
    if (result == 0)
        remember(pid, wanted);
    return result;
}

static long set_state(long pid, struct iovec *given)
{
    static uint8_t whole[1 << 16] __attribute__((aligned(64)));
    static size_t size;
    struct iovec vector = {whole, sizeof whole};
    const struct known *known = slot(pid);

    if (known->pid == pid && known->size != 0 && known->size <= given->iov_len &&
        memcmp(known->state, given->iov_base, known->size) == 0)
        return 0;
    if (size == 0) {
        if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, XSTATE_NOTE, &vector) < 0)
            return -1;
        size = vector.iov_len;
    }
    long result;
    if (size <= given->iov_len) {
        result = syscall(SYS_ptrace, PTRACE_SETREGSET, pid, XSTATE_NOTE, given);
    } else {
        memset(whole, 0, size);
        memcpy(whole, given->iov_base, given->iov_len);
        uint64_t components;
        memcpy(&components, whole + XSTATE_BV, sizeof components);
        components &= ~AMX_COMPONENTS;
        memcpy(whole + XSTATE_BV, &components, sizeof components);
        vector.iov_len = size;
        result = syscall(SYS_ptrace, PTRACE_SETREGSET, pid, XSTATE_NOTE, &vector);
    }
    if (result == 0)
        remember(pid, given);
    else
        forget(pid);
    return result;
}

/* Does a request let the program run on, or come first for a new one (SETOPTIONS), whose pid another
 * program had? Then its state is unknown. */
static int resumes(long request)
{
    switch (request) {
    case PTRACE_PEEKTEXT: case PTRACE_PEEKDATA: case PTRACE_PEEKUSER:
    case PTRACE_POKETEXT: case PTRACE_POKEDATA: case PTRACE_POKEUSER:
    case PTRACE_GETREGS: case PTRACE_SETREGS: case PTRACE_GETREGSET:
    case PTRACE_GETSIGINFO: case PTRACE_GETEVENTMSG:
        return 0;
    default:
        return 1; /* also all that is not known here */
    }
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    long pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    if (request == PTRACE_GETREGSET && (long)address == XSTATE_NOTE)
        return get_state(pid, data);
    if (request == PTRACE_SETREGSET && (long)address == XSTATE_NOTE)
        return set_state(pid, data);
    if (resumes(request))
        forget(pid);
    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        long value = 0; /* the system call stores what libc's function returns */
        if (syscall(SYS_ptrace, request, pid, address, &value) < 0)
            return -1;
        errno = 0;
        return value;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}

/* splitmix64 (Steele, Lea and Flood, 2014) */
static uint64_t next_word(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
    static uint64_t state;
    static int known, seeded;

    if (!known) {
        const char *seed = getenv("ELOQUENT_GUEST_SEED");
        seeded = seed != NULL && *seed != '\0';
        state = seeded ? strtoull(seed, NULL, 10) : 0;
        known = 1;
    }
    if (!seeded)
        return syscall(SYS_getrandom, buffer, length, flags);
    uint8_t *out = buffer;
    for (size_t done = 0; done < length; done += sizeof(uint64_t)) {
        uint64_t word = next_word(&state);
        size_t left = length - done;
        memcpy(out + done, &word, left < sizeof word ? left : sizeof word);
    }
    return (ssize_t)length;
}
