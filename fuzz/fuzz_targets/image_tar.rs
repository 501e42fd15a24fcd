//! Members of archives: sizes, long names, PAX records, sparse maps.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["path=", "linkpath=", "size=", "SCHILY.xattr.user.x=", "GNU.sparse.", "ustar", "././@LongLink", ".wh."], longest: 8192 };

fn run(bytes: &[u8]) {
    sloplet_image::fuzzing::tar_members(&support::summed(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::archives()
}
