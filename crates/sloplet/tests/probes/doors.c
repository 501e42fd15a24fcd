/* System calls through the other doors of an x86-64 kernel: int 0x80 with the 32-bit numbers, and the x32 numbers.
 *     doors list    names of the attempts
 *     doors NAME    makes the attempt; prints the raw result (-errno)
 * Pointers must fit 32 bits, so everything pointed to is static and the program is not position-independent. */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long int80(long number, long a, long b, long c, long d, long e) {
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)result;
}

static long x32(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(0x40000000 | number), "D"(a), "S"(b), "d"(c)
                     : "memory", "rcx", "r11");
    return result;
}

static char root[] = "/", usr[] = "/usr", nothing[] = "/sloplet/nothing", user[] = "user";
static unsigned socket_packet[3] = {17, 3, 0}, socket_raw[3] = {2, 3, 1}, socket_plain[3] = {2, 1, 0};
static char buffer[256];

#define P(object) ((long)(unsigned long)(object))
#define ATTEMPTS(A)                                                                                                    \
    A("int80-getpid", int80(20, 0, 0, 0, 0, 0))                                                                        \
    A("int80-socketcall-packet", int80(102, 1, P(socket_packet), 0, 0, 0))                                             \
    A("int80-socketcall-raw", int80(102, 1, P(socket_raw), 0, 0, 0))                                                   \
    A("int80-socketcall-tcp", int80(102, 1, P(socket_plain), 0, 0, 0))                                                 \
    A("int80-socket-packet", int80(359, 17, 3, 0, 0, 0))                                                               \
    A("int80-mount", int80(21, P(root), P(nothing), 0, 4096, 0))                                                       \
    A("int80-unshare-user", int80(310, 0x10000000, 0, 0, 0, 0))                                                        \
    A("int80-unshare-mounts", int80(310, 0x20000, 0, 0, 0, 0))                                                         \
    A("int80-ptrace-traceme", int80(26, 0, 0, 0, 0, 0))                                                                \
    A("int80-keyctl", int80(288, 0, -3, 1, 0, 0))                                                                      \
    A("int80-bpf", int80(357, 0, P(buffer), 128, 0, 0))                                                                \
    A("int80-io_uring_setup", int80(425, 0, P(buffer), 0, 0, 0))                                                       \
    A("int80-open_tree", int80(428, -100, P(usr), 1, 0, 0))                                                            \
    A("int80-reboot", int80(88, 0, 0, 0, 0, 0))                                                                        \
    A("int80-personality", int80(136, 0x400000, 0, 0, 0, 0))                                                           \
    A("int80-open_by_handle_at", int80(342, -1, P(buffer), 0, 0, 0))                                                   \
    A("int80-init_module", int80(128, 0, 0, P(user), 0, 0))                                                            \
    A("x32-getpid", x32(39, 0, 0, 0))                                                                                  \
    A("x32-socket-packet", x32(41, 17, 3, 0))                                                                          \
    A("x32-unshare-user", x32(272, 0x10000000, 0, 0))                                                                  \
    A("x32-mount", x32(165, P(root), P(nothing), 0))                                                                   \
    A("x32-bpf", x32(321, 0, P(buffer), 128))                                                                          \
    A("x32-ptrace-traceme", x32(521, 0, 0, 0))                                                                         \
    A("x32-low-rt_sigaction", x32(512, 0, 0, 0))

int main(int count, char **words) {
    if (count != 2) return 2;
#define LIST(name, attempt) puts(name);
    if (!strcmp(words[1], "list")) {
        ATTEMPTS(LIST)
        return 0;
    }
#define TRY(name, attempt)                                                                                             \
    if (!strcmp(words[1], name)) {                                                                                     \
        printf("%ld\n", (long)(attempt));                                                                              \
        return 0;                                                                                                      \
    }
    ATTEMPTS(TRY)
    return 2;
}
