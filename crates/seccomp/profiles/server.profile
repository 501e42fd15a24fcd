# Over container.profile, for a server that has given its privileges up.
#
# It hears from strangers on sockets that were made before, and dials with TCP and UDP. It makes no unix sockets: by path, root's
# would reach the service manager and every other privileged service of the host. The monitor makes those that it needs.

[arguments] TCP, UDP and the routing netlink
socket: EAFNOSUPPORT when arg0 not in AF_INET=2 AF_INET6=10 AF_NETLINK=16
socket: allow when arg0 in AF_NETLINK=16 and arg2 in ROUTE=0
socket: EPROTONOSUPPORT when arg0 in AF_NETLINK=16
socket: EPERM when arg1&0xf in RAW=3 PACKET=10
socket: allow when arg1&0xf in STREAM=1 and arg2 in 0 TCP=6
socket: allow when arg1&0xf in DGRAM=2 and arg2 in 0 UDP=17
socket: EPROTONOSUPPORT otherwise
