//! Names of rows that others refer to.

pub const BARE: &str = "bare spawn";
pub const BWRAP: &str = "bwrap --unshare-all";
pub const LIBRARY: &str = "sloplet library, whole life";
pub const BINARY: &str = "sloplet run -- true";
pub const DOCKER: &str = "docker run --rm";

pub const EXEC: &str = "sloplet exec";
pub const EXEC_BARE: &str = "bare spawn on the host";
pub const EXEC_DOCKER: &str = "docker exec";

pub const FIRST_CREATED: &str = "create, the first tenth";
pub const LAST_CREATED: &str = "create, the last tenth";
pub const DENSITY_EACH: &str = "each: processes + kernel memory";

pub const BEST_RATE: &str = "best";

pub const PIPE_SPEED: &str = "plain pipe between two processes";
pub const STREAM_SPEED: &str = "stdout of a command in a sandbox";
pub const STREAM_GROWTH: &str = "growth of this process at its peak";

pub const AGENT_PRIVATE: &str = "private memory of PID 1 after 3 s";
