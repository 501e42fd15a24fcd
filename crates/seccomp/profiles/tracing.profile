# Over container.profile, for sandboxes in which a debugger or strace shall work.
#
# The PID namespace still bounds who can be traced, but PID 1 is among them: it must be not dumpable or of another user.
# Since Linux 4.8 a tracer cannot lead its tracee around this filter.

[allow] debuggers
ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
