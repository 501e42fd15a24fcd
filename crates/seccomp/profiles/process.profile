# Over container.profile, for a process in the host's own namespaces: what those would divide is refused as a whole.

[EAFNOSUPPORT] there is no network namespace: the host's local services and abstract unix sockets would be in reach
# Unnamed pairs (socketpair) stay: whoever has one end was given it.
socket

[ENOSYS] there is no IPC namespace: segments, queues and semaphores would be the host's
shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr

[arguments] there is no PID namespace: limits of oneself only (0), not of the user's other processes
prlimit64: allow when arg0 in SELF=0
prlimit64: EPERM otherwise
