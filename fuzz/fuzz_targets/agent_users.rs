//! Users and groups of an image: looked up without bounds being left.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &[":x:", "4294967295", "/home/"], longest: 2048 };

fn run(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == 0);
    let asked = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let passwd = parts.next().unwrap_or_default();
    sloplet_agent::fuzzing::user_database(&asked, passwd, parts.next().unwrap_or_default());
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["user\0root:x:0:0::/root:/bin/sh\nuser:x:1000:1000:,,,:/home/user:/bin/bash\n\0root:x:0:\nwheel:x:10:root,user\n", "1000:7\0user:x:1000:1000::/:\0a:x:7:user"])
}
