//! Names of rows that others refer to.

pub const BARE: &str = "bare spawn";
pub const BWRAP: &str = "bwrap --unshare-all";
pub const LIBRARY: &str = "sloplet library, whole life";
pub const BINARY: &str = "sloplet run -- true";
pub const BINARY_GVISOR: &str = "sloplet run --isolation gvisor -- true";
pub const RUNSC: &str = "runsc run (ptrace)";
pub const DOCKER: &str = "docker run --rm";
pub const ON_DOCKER: &str = "sloplet run --driver docker -- true";

pub const MACHINE: &str = "sloplet library, vm: created → its agent serves";
pub const QEMU: &str = "bare QEMU: started → its first program";

pub const EXEC: &str = "sloplet exec";
pub const EXEC_UNRECORDED: &str = "the same, not written down";
pub const EXEC_BARE: &str = "bare spawn on the host";
pub const EXEC_GVISOR: &str = "sloplet exec, gvisor";
pub const EXEC_RUNSC: &str = "runsc exec (ptrace)";
pub const EXEC_DOCKER: &str = "docker exec";
pub const EXEC_ON_DOCKER: &str = "sloplet exec, driver docker";

pub const FIRST_CREATED: &str = "create, the first tenth";
pub const LAST_CREATED: &str = "create, the last tenth";
pub const DENSITY_EACH: &str = "each: processes + kernel memory";

pub const BEST_RATE: &str = "best";

pub const PIPE_SPEED: &str = "plain pipe between two processes";
pub const STREAM_SPEED: &str = "stdout of a command in a sandbox";
pub const STREAM_UNRECORDED: &str = "the same output, not written down";
pub const STREAM_GROWTH: &str = "growth of this process at its peak";

pub const MASK_SPEED: &str = "masked";

pub const AGENT_PRIVATE: &str = "private memory of PID 1 after 3 s";

pub const SERVE_CREATE: &str = "sandbox created → first output";
pub const SERVE_EXEC: &str = "exec of 'true'";
pub const SERVE_DOCKER: &str = "Docker's API: created → first output";
pub const SERVE_IDLE: &str = "memory of the idle server (PSS)";
pub const SERVE_CROWD: &str = "200 clients running 'echo' in 50 sandboxes";
pub const SERVE_FAILURES: &str = "of which failed";
pub const SERVE_UPLOAD: &str = "upload of 1 GiB";
pub const SERVE_DOWNLOAD: &str = "download of 1 GiB";
pub const SERVE_GROWTH: &str = "memory it took (PSS)";
pub const FORK_PAUSED: &str = "fork, paused";

pub const CLAIM: &str = "a machine claimed from a pool";
pub const CLAIM_EXEC: &str = "claimed → its first command started";
pub const CLAIM_OUTPUT: &str = "claimed → first output";
pub const CLAIM_CROWD: &str = "100 claims at once from a pool of 100";
pub const CLAIM_CROWD_HITS: &str = "of which found a machine";
pub const HITS_FIXED: &str = "hit rate under bursts, fixed size";
pub const HITS_ADAPTIVE: &str = "hit rate under bursts, sized by demand";

pub const DIRECT: &str = "direct, over loopback";
pub const NAT: &str = "veth + NAT";
pub const NAT_DOWN: &str = "veth + NAT, down";
pub const NAT_UP: &str = "veth + NAT, up";
pub const SLIRP_DOWN: &str = "slirp4netns, down";
pub const SLIRP_UP: &str = "slirp4netns, up";
pub const EGRESS: &str = "sloplet";
pub const EGRESS_DOWN: &str = "sloplet, down";
pub const EGRESS_UP: &str = "sloplet, up";
pub const EGRESS_CROWD: &str = "sloplet, connections at once that answer";
pub const WITHOUT_RULES: &str = "without a way out";
pub const WITH_RULES: &str = "with an allowlist";
