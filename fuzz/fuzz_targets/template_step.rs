//! Steps of templates from clients.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["COPY", "ENV", "RUN", "WORKDIR", "USER", "${", "}", "$LONG"], longest: 512 };

fn run(bytes: &[u8]) {
    sloplet_engine::fuzzing::template_step(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["COPY\na\n/b\nuser\n0644", "ENV\nA\n1\nB\n$A", "RUN\necho ${A}\nroot", "WORKDIR\n/x", "USER\nuser", "\\$A ${LONG} $A"])
}
