//! Contents of files inside, as patches for the host: what a patch says leads from one to the other.

use crate::Target;

pub const TARGET: Target = Target { run, seeds, words: &[], longest: 1024 };

fn run(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == 0xff).unwrap_or(bytes.len() / 2);
    sloplet_engine::fuzzing::patch(&bytes[..at], bytes[at..].strip_prefix(b"\xff").unwrap_or(&bytes[at..]));
}

fn seeds() -> Vec<Vec<u8>> {
    vec![b"a\nb\nc\n\xffa\nB\nc\n".to_vec(), b"a\nb\xffa\nb\n".to_vec(), b"\xffnew\n".to_vec(), b"\0\x01\xff\0\x02".to_vec()]
}
