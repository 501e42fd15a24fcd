# Over process.profile: unix sockets by name.
#
# A filter cannot see which name is connected to. Abstract names of the host are closed by Landlock's scope from ABI 6;
# a path is open to whoever may write to the socket file, so a listening service of the host must not be visible.

[arguments] unix sockets and no others
socket: allow when arg0 in AF_UNIX=1
socket: EAFNOSUPPORT otherwise
