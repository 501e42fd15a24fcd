# What a sandbox with namespaces of its own may ask of the kernel.
#
# Format: see src/rules.rs. Every call in syscalls.table is named here, so that each has been thought about once; what
# the kernel learns later is ENOSYS until somebody adds it. When in doubt between EPERM and ENOSYS: EPERM tells a person
# "not here", ENOSYS tells a C library "try the older way".

[allow] reading and writing what is already open: permission was checked when it was opened
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile splice tee vmsplice
copy_file_range close close_range dup dup2 dup3 fcntl flock fsync fdatasync sync syncfs sync_file_range
truncate ftruncate fallocate fadvise64 readahead pipe pipe2

[allow] files by path: the mount namespace and file permissions decide what is there
open openat openat2 creat access faccessat faccessat2 stat lstat fstat newfstatat statx statfs fstatfs
getdents getdents64 getcwd chdir fchdir readlink readlinkat mkdir mkdirat rmdir rename renameat renameat2
link linkat symlink symlinkat unlink unlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
umask utime utimes utimensat futimesat inotify_init inotify_init1 inotify_add_watch inotify_rm_watch cachestat

[allow] extended attributes: the security and trusted ones need capabilities that a sandbox lacks on the host
setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat
listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat

[allow] mknod makes FIFOs and sockets; device nodes need a capability in the host's user namespace
mknod mknodat

[allow] chroot, for package managers: the root is pivoted, so that climbing out of a chroot ends inside the sandbox
chroot

[allow] memory of the process itself
mmap munmap mremap mprotect madvise msync mincore brk mlock mlock2 mlockall munlock munlockall mseal
remap_file_pages membarrier memfd_create pkey_alloc pkey_free pkey_mprotect map_shadow_stack process_mrelease

[allow] starting, ending and awaiting processes and threads (clone: see the arguments below)
fork vfork execve execveat exit exit_group wait4 waitid set_tid_address set_robust_list get_robust_list rseq
futex futex_waitv futex_wake futex_wait futex_requeue gettid getpid getppid pidfd_open

[allow] sessions, groups and identities: the ids of a user namespace, worth nothing outside
getpgid setpgid getpgrp getsid setsid getuid geteuid getgid getegid getresuid getresgid getgroups
setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset

[allow] signals: the PID namespace bounds whom they reach
kill tkill tgkill pidfd_send_signal rt_sigaction rt_sigprocmask rt_sigpending rt_sigqueueinfo rt_tgsigqueueinfo
rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack signalfd signalfd4 restart_syscall pause

[allow] scheduling and limits: raising them needs capabilities, and cgroups hold the outer bound
sched_yield sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam sched_setparam
sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval
getpriority setpriority ioprio_get ioprio_set getrlimit setrlimit prlimit64 getrusage getcpu

[allow] reading clocks and waiting; adjtimex without a capability only reads
time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep times adjtimex alarm getitimer setitimer
timer_create timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime

[allow] waiting for events
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2

[allow] using sockets; which can be made is decided below
connect accept accept4 bind listen shutdown getsockname getpeername getsockopt setsockopt
sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg

[allow] System V and POSIX IPC: the IPC namespace is the sandbox's own
shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr

[allow] what every start-up code asks
uname sysinfo getrandom prctl arch_prctl

[allow] further confinement: a filter or a ruleset can only take rights away
seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self

[EPERM] namespaces: a user namespace gives every capability over new ones, the first step of most escapes of late
# (CVE-2021-22555, CVE-2022-0185, CVE-2022-0492, CVE-2023-0386); setns would enter somebody else's.
unshare setns

[EPERM] mounts: masks and read-only binds of the sandbox would come off (CVE-2022-0185 is in fsconfig)
mount umount2 pivot_root fsopen fsconfig fsmount fspick open_tree open_tree_attr move_mount mount_setattr

[EPERM] file handles open inodes without a path, so around the mount namespace ("shocker")
open_by_handle_at name_to_handle_at

[EPERM] BPF and performance events: large parsers in the kernel (CVE-2021-3490, CVE-2022-1729), and eyes on the host
bpf perf_event_open

[EPERM] io_uring runs operations, sockets and opens among them, that no filter sees (also CVE-2022-29582, CVE-2023-2598)
io_uring_setup io_uring_enter io_uring_register

[EPERM] userfaultfd stops the kernel in the middle of a copy, which turns races into reliable exploits
userfaultfd

[EPERM] keyrings are not divided by namespaces (CVE-2016-0728)
keyctl add_key request_key

[EPERM] other processes' memory and descriptors, PID 1's first of all; see tracing.profile (CVE-2019-13272)
ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd

[EPERM] the host's kernel and its power
init_module finit_module delete_module kexec_load kexec_file_load reboot

[EPERM] the host's swap, accounting, quotas, log and terminals
swapon swapoff acct quotactl quotactl_fd syslog vhangup

[EPERM] the host's clock is not divided by namespaces
clock_settime clock_adjtime settimeofday

[EPERM] names that the sandbox was given
sethostname setdomainname

[EPERM] I/O ports, and segment tables for 16-bit code (CVE-2017-17053)
iopl ioperm modify_ldt

[EPERM] placement on NUMA nodes: spoils neighbours' memory, and move_pages told addresses (CVE-2017-14140)
mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages

[EPERM] fanotify watches whole mounts and file systems
fanotify_init fanotify_mark

[EPERM] memory hidden even from the host's kernel, which then cannot be inspected, moved or hibernated
memfd_secret

[ENOSYS] clone3 keeps its flags behind a pointer, where no filter sees them; C libraries fall back to clone
clone3

[ENOSYS] asynchronous I/O of the old kind: one number bounds its contexts for the whole host (fs.aio-max-nr), so one
# sandbox could take it from all others; databases fall back to threads
io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents

[ENOSYS] mount tables and security modules of the host by new interfaces; nobody depends on them yet
statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules

[ENOSYS] too new to be needed: file attributes by path, ioctls until Linux 6.17
file_getattr file_setattr

[ENOSYS] relics: gone from the kernel, never there, or for 32-bit programs
uselib ustat sysfs _sysctl create_module get_kernel_syms query_module nfsservctl getpmsg putpmsg afs_syscall tuxcall
security vserver set_thread_area get_thread_area lookup_dcookie epoll_ctl_old epoll_wait_old

[arguments] decided by the low 32 bits of an argument, of which the kernel looks at no more either

# Any CLONE_NEW* flag: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (NEWTIME, 0x80, lies within the exit
# signal and cannot be asked for here.)
clone: EPERM when arg0&0x7e020000 not in 0
clone: allow otherwise

# The execution domains that programs in use ask for; others weaken address randomisation or make data executable.
# 0xffffffff only asks.
personality: allow when arg0 in LINUX=0 LINUX32=8 UNAME26=0x20000 LINUX32+UNAME26=0x20008 QUERY=0xffffffff
personality: EPERM otherwise

# Typing into a terminal that is shared with the host: TIOCSTI (CVE-2017-5226; by high bits CVE-2019-10063), pasting
# with TIOCLINUX (CVE-2023-28100), taking the console's output; line disciplines (CVE-2017-2636, CVE-2023-6546); hanging
# up; and the ioctl that is userfaultfd by another door.
ioctl: EPERM when arg1 in TIOCSTI=0x5412 TIOCLINUX=0x541c TIOCCONS=0x541d TIOCSETD=0x5423 TIOCVHANGUP=0x5437
ioctl: EPERM when arg1 in USERFAULTFD_IOC_NEW=0xaa00
ioctl: allow otherwise

# TCP, UDP and ping sockets; unix sockets; the routing netlink, which getifaddrs needs. Not raw packets (CVE-2020-14386,
# CVE-2017-17712), AF_VSOCK (the hypervisor; CVE-2021-26708), AF_ALG (CVE-2019-8912), nor any module that a socket call
# would load: SCTP (CVE-2021-23133), DCCP (CVE-2017-6074), MPTCP and so on. The errors are those of a kernel built
# without them: with NETLINK_AUDIT refused like this, PAM goes on; with EPERM it would not.
socket: EAFNOSUPPORT when arg0 not in AF_UNIX=1 AF_INET=2 AF_INET6=10 AF_NETLINK=16
socket: allow when arg0 in AF_UNIX=1
socket: allow when arg0 in AF_NETLINK=16 and arg2 in ROUTE=0
socket: EPROTONOSUPPORT when arg0 in AF_NETLINK=16
# From here on AF_INET and AF_INET6.
socket: EPERM when arg1&0xf in RAW=3 PACKET=10
socket: allow when arg1&0xf in STREAM=1 and arg2 in 0 TCP=6
socket: allow when arg1&0xf in DGRAM=2 and arg2 in 0 UDP=17 ICMP=1 ICMPV6=58
socket: EPROTONOSUPPORT otherwise
socketpair: allow when arg0 in AF_UNIX=1
socketpair: EAFNOSUPPORT otherwise
